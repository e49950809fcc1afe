//! Putting a file of the machine's identity in its place, also where the disk takes none.
//!
//! A point may be one of a machine whose root file system is full, read-only, frozen, or has the file
//! immutable. The copy must differ from its source all the same. So a file that cannot be replaced is
//! written in place, and one that cannot be written is covered: another is mounted over it. That one
//! is in memory and holds until the next boot, where the same is tried again.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::OFlags;
use rustix::mount::{UnmountFlags, mount_bind, unmount};

use super::disk::DiskThread;

/// Where files lie that cover others.
const COVERS: &str = "/run/smolvm/identity";

/// Where a file's new contents are.
#[derive(Debug)]
pub(super) enum Placed {
    /// On the disk.
    OnDisk,
    /// Over what is on the disk, or nowhere since there was no such file: for this reason.
    UntilBoot(io::Error),
}

/// Writes files of one system.
pub(super) struct Placer<'a> {
    pub(super) disk: &'a DiskThread,
    /// When the disk must have taken everything.
    pub(super) deadline: Instant,
    /// Whether files may be covered: this is the running machine.
    pub(super) live: bool,
}

impl Placer<'_> {
    /// Makes `path` a file with these contents.
    ///
    /// # Errors
    /// When the file is still what it was.
    pub(super) fn place(&self, path: &Path, contents: &[u8], mode: u32) -> io::Result<Placed> {
        self.uncover(path);
        let (target, bytes) = (path.to_owned(), contents.to_vec());
        let written = self.disk.run(self.deadline, move || {
            replace(&target, &bytes, mode).or_else(|error| match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    overwrite(&target, &bytes).map_err(|_| error)
                }
                _ => Err(error),
            })
        });
        match written {
            Ok(()) => Ok(Placed::OnDisk),
            Err(error) if !self.live => Err(error),
            Err(error) => self.cover(path, contents, mode, error),
        }
    }

    /// Makes `path` no file, or an empty one.
    ///
    /// # Errors
    /// When the file is still what it was.
    pub(super) fn remove(&self, path: &Path) -> io::Result<Placed> {
        self.uncover(path);
        let target = path.to_owned();
        let removed = self
            .disk
            .run(self.deadline, move || fs::remove_file(&target));
        match removed {
            Ok(()) => Ok(Placed::OnDisk),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Placed::OnDisk),
            Err(error) if !self.live => Err(error),
            Err(error) => self.cover(path, b"", 0o600, error),
        }
    }

    fn cover(&self, path: &Path, contents: &[u8], mode: u32, why: io::Error) -> io::Result<Placed> {
        // A link is covered where it leads.
        let Ok(meta) = fs::metadata(path) else {
            // What is not there cannot be shared with the machine that this is a copy of.
            return Ok(Placed::UntilBoot(why));
        };
        let covering = || {
            let file = cover_file(path)?;
            fs::create_dir_all(COVERS)?;
            replace(&file, contents, mode)?;
            std::os::unix::fs::chown(&file, Some(meta.uid()), Some(meta.gid()))?;
            Ok::<_, io::Error>(mount_bind(&file, path)?)
        };
        covering().map_err(|error: io::Error| {
            io::Error::new(why.kind(), format!("{why}; nor can it be covered: {error}"))
        })?;
        Ok(Placed::UntilBoot(why))
    }

    /// Takes away what an earlier call mounted over `path`, so that the disk is written again.
    fn uncover(&self, path: &Path) {
        if !self.live {
            return;
        }
        let same = |a: fs::Metadata, b: fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
        let Ok(file) = cover_file(path) else { return };
        let (Ok(shown), Ok(cover)) = (fs::metadata(path), fs::metadata(file)) else {
            return; // there is none
        };
        if same(shown, cover) {
            // One that stays is written in place of the disk's file; the outcome says so.
            let _ = unmount(path, UnmountFlags::DETACH);
        }
    }
}

/// The file in memory that covers `path`.
fn cover_file(path: &Path) -> io::Result<PathBuf> {
    let name = path.strip_prefix("/").unwrap_or(path).as_os_str();
    let name = name.to_str().ok_or(io::ErrorKind::InvalidInput)?;
    Ok(Path::new(COVERS).join(name.replace('/', "-")))
}

/// Replaces `path` by a file with these contents in one step, which the caller makes durable. A link
/// there is replaced, not followed; a file that is somebody's mount point is written in place.
pub(super) fn replace(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".smolvm-new");
    let temporary = PathBuf::from(temporary);
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut open = OpenOptions::new();
    open.write(true).create_new(true).mode(0o600);
    let written = open.open(&temporary).and_then(|mut file| {
        file.write_all(contents)?;
        file.set_permissions(Permissions::from_mode(mode))
    });
    let replaced = written.and_then(|()| match fs::rename(&temporary, path) {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => fs::write(path, contents),
        other => other,
    });
    if replaced.is_err() {
        // The first failure is the one to tell.
        let _ = fs::remove_file(&temporary);
    }
    replaced
}

/// Writes over what is in the file: a full file system still has the file's own blocks.
fn overwrite(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut open = OpenOptions::new();
    #[allow(clippy::cast_possible_wrap)] // a flag
    let no_follow = OFlags::NOFOLLOW.bits() as i32;
    let file: File = open.write(true).custom_flags(no_follow).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() || meta.nlink() != 1 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    file.write_all_at(contents, 0)?;
    file.set_len(contents.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_over_without_another_one() {
        let place = tempfile::tempdir().expect("temporary directory");
        let at = |name: &str| place.path().join(name);
        fs::write(at("id"), "a much longer text than the new one\n").expect("write");
        overwrite(&at("id"), b"new\n").expect("overwritten");
        assert_eq!(fs::read(at("id")).expect("read"), b"new\n");
        fs::hard_link(at("id"), at("other")).expect("link");
        assert!(overwrite(&at("id"), b"x").is_err(), "somebody else's file");
        std::os::unix::fs::symlink(at("id"), at("link")).expect("symlink");
        assert!(overwrite(&at("link"), b"x").is_err());
        assert!(overwrite(&at("absent"), b"x").is_err());
    }

    #[test]
    fn a_failed_replacement_leaves_nothing() {
        let place = tempfile::tempdir().expect("temporary directory");
        let directory = place.path().join("directory");
        fs::create_dir(&directory).expect("directory");
        assert!(replace(&directory, b"x", 0o600).is_err());
        assert_eq!(fs::read_dir(place.path()).expect("list").count(), 1);
    }
}
