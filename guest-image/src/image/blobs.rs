//! The files of an OCI layout or a `docker save` archive.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use durable_files::FileError;

use super::error::ImageError;
use super::tar::{TarError, TarKind, TarReader};
use super::tree::MAX_PATH_BYTES;
use crate::budget::Budget;

/// Most members of an archive whose names are kept. Image archives have a few
/// for each layer; a root file system has more and needs none of them.
const MAX_MEMBERS: usize = 16_384;
/// Memory that a member costs besides its name and target.
const MEMBER_BYTES: usize = 160;
/// Links followed from one member to another.
const MAX_HOPS: usize = 8;

/// Named files in a directory or in an uncompressed archive.
pub(crate) enum Blobs {
    Directory(PathBuf),
    Archive {
        file: File,
        path: PathBuf,
        members: BTreeMap<String, Member>,
    },
}

/// Where a member of an archive lies.
pub(crate) enum Member {
    Data {
        offset: u64,
        size_bytes: u64,
    },
    /// Another name; old `docker save` archives link equal layers.
    Link(String),
}

impl Blobs {
    /// Lists the members of an uncompressed archive, which is called `path`
    /// in messages.
    pub(crate) fn index(file: File, path: &Path, budget: &Arc<Budget>) -> Result<Self, ImageError> {
        let damaged = |source| match &source {
            // The very first header: it is no archive at all.
            TarError::Header { offset: 0, .. } => ImageError::UnknownSource {
                path: path.into(),
                source: Some(source),
            },
            _ => ImageError::Archive {
                archive: path.display().to_string(),
                source,
            },
        };
        let mut members = BTreeMap::new();
        let mut tar = TarReader::new(BufReader::with_capacity(1 << 18, &file), true);
        while let Some(entry) = tar.next_entry().map_err(damaged)? {
            let Some(name) = std::str::from_utf8(&entry.path).ok().and_then(normal) else {
                continue;
            };
            let base = name
                .rsplit_once('/')
                .map_or("", |(base, _)| base)
                .to_string();
            let target = |link: &[u8], base: &str| {
                // Longer ones lead nowhere.
                if link.len() > MAX_PATH_BYTES {
                    return None;
                }
                normal(&format!("{base}/{}", std::str::from_utf8(link).ok()?))
            };
            let member = match &entry.kind {
                TarKind::File if !entry.is_sparse() => Some(Member::Data {
                    offset: entry.data_offset,
                    size_bytes: entry.size_bytes,
                }),
                TarKind::HardLink(link) => target(link, "").map(Member::Link),
                TarKind::Symlink(link) => target(link, &base).map(Member::Link),
                _ => None,
            };
            if let Some(member) = member
                && members.len() < MAX_MEMBERS
            {
                let target = match &member {
                    Member::Link(target) => target.len(),
                    Member::Data { .. } => 0,
                };
                let cost = MEMBER_BYTES + name.len() + target;
                budget.hold(cost).map_err(|source| ImageError::Entry {
                    archive: path.display().to_string(),
                    entry: name.escape_debug().to_string(),
                    source: super::tree::TreeError::from(source).into(),
                })?;
                members.insert(name, member);
            }
        }
        drop(tar);
        Ok(Self::Archive {
            file,
            path: path.into(),
            members,
        })
    }

    /// The one directory of an archive with everything in it, if that is an OCI
    /// layout.
    pub(crate) fn nested_layout(&self) -> Option<&str> {
        let Self::Archive { members, .. } = self else {
            return None;
        };
        let (top, _) = members.first_key_value()?.0.split_once('/')?;
        let is_inside = |name: &String| {
            name.strip_prefix(top)
                .is_some_and(|rest| rest.starts_with('/'))
        };
        let has = |name: &str| members.contains_key(&format!("{top}/{name}"));
        (has("oci-layout") && has("index.json") && members.keys().all(is_inside)).then_some(top)
    }

    /// Whether there is a file of that name.
    pub(crate) fn contains(&self, name: &str) -> bool {
        match self {
            Self::Directory(dir) => dir.join(name).is_file(),
            Self::Archive { .. } => self.find(name).is_some(),
        }
    }

    /// What messages call the whole.
    pub(crate) fn label(&self) -> String {
        match self {
            Self::Directory(path) | Self::Archive { path, .. } => path.display().to_string(),
        }
    }

    /// A reader of one file and its size. `name` must be a plain relative
    /// path; links are not followed to the outside.
    pub(crate) fn open(&self, name: &str) -> Result<(Box<dyn Read + Send + '_>, u64), ImageError> {
        let missing = || ImageError::Layout {
            archive: self.label(),
            what: format!("{} is missing", name.escape_debug()),
        };
        let name = normal(name).ok_or_else(missing)?;
        match self {
            Self::Directory(dir) => {
                let path = dir.join(&name);
                let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
                let flags = i32::try_from(flags.bits()).unwrap_or(0);
                let opened = File::options().read(true).custom_flags(flags).open(&path);
                let file = match opened {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(missing()),
                    other => other.map_err(FileError::at("open", &path))?,
                };
                let metadata = file.metadata().map_err(FileError::at("read", &path))?;
                if !metadata.is_file() {
                    return Err(missing());
                }
                Ok((Box::new(file), metadata.len()))
            }
            Self::Archive { file, .. } => {
                let (offset, size_bytes) = self.find(&name).ok_or_else(missing)?;
                Ok((
                    Box::new(Section {
                        file,
                        offset,
                        left: size_bytes,
                    }),
                    size_bytes,
                ))
            }
        }
    }

    /// The data of a member, through links.
    fn find(&self, name: &str) -> Option<(u64, u64)> {
        let Self::Archive { members, .. } = self else {
            return None;
        };
        let mut name = name;
        for _ in 0..MAX_HOPS {
            match members.get(name)? {
                Member::Data { offset, size_bytes } => return Some((*offset, *size_bytes)),
                Member::Link(target) => name = target,
            }
        }
        None
    }
}

/// A part of a file.
struct Section<'a> {
    file: &'a File,
    offset: u64,
    left: u64,
}

impl Read for Section<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .min(buf.len());
        let n = self.file.read_at(&mut buf[..most], self.offset)?;
        self.offset += n as u64;
        self.left -= n as u64;
        Ok(n)
    }
}

/// A relative path without `.`, with `..` worked out; `None` if it climbs
/// out or is empty.
fn normal(path: &str) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            _ => parts.push(part),
        }
    }
    (!parts.is_empty()).then(|| parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::normal;

    #[test]
    fn names_stay_inside() {
        assert_eq!(normal("./a//b/../c").as_deref(), Some("a/c"));
        for bad in ["", ".", "..", "a/../..", "../x", "/../x"] {
            assert_eq!(normal(bad), None, "{bad}");
        }
    }
}
