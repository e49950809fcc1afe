//! What differs between the files of two disks.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::ops::ControlFlow;

use guest_image::file_system::{DiskReader, FileReader, FileSystem, FileSystemError, Inode, Kind};

use super::maps::ChangedChunks;
use super::shown;
use super::walk::{Listed, Walk};
use crate::error_chain::chain;

/// Directories inside each other.
const MAX_DEPTH: usize = 2048;
/// Files with several names whose comparison is remembered.
const MAX_REMEMBERED: usize = 1 << 20;
/// Bytes of two files that are compared at once.
const COMPARED_BYTES: usize = 64 << 10;

/// What kind of file differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A pipe, socket or device.
    Special,
}

/// What differs in a file that both points have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Changed {
    /// Its data, target or device.
    pub content: bool,
    /// Its permissions.
    pub mode: bool,
    /// Its owner or group.
    pub owner: bool,
}

/// A file that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Difference {
    /// Only the second point has it.
    Added {
        /// Its path; bytes that are no UTF-8 as escapes.
        path: String,
        /// What it is.
        kind: FileKind,
    },
    /// Both have it.
    Changed {
        /// Its path.
        path: String,
        /// What it is.
        kind: FileKind,
        /// What differs.
        changed: Changed,
    },
    /// Only the first point has it.
    Removed {
        /// Its path.
        path: String,
        /// What it was.
        kind: FileKind,
    },
    /// It cannot be compared.
    Unknown {
        /// Its path.
        path: String,
        /// Why not.
        reason: String,
    },
}

/// The files of the two points.
pub(crate) struct Files<'a, D> {
    pub(crate) from: &'a FileSystem<D>,
    pub(crate) to: &'a FileSystem<D>,
    /// Where the disks differ.
    pub(crate) chunks: &'a ChangedChunks,
}

/// Tells `visit` what differs, each directory before what is in it, names in order; that may end it.
pub(crate) fn compare_files<D: DiskReader>(
    files: &Files<'_, D>,
    visit: &mut dyn FnMut(Difference) -> ControlFlow<()>,
    advance: &dyn Fn(u64),
) -> Result<ControlFlow<()>, FileSystemError> {
    let mut comparison = Comparison {
        files,
        visit,
        advance,
        walks: (Walk::default(), Walk::default()),
        path: Vec::new(),
        stack: Vec::new(),
        remembered: HashMap::new(),
        buffers: (vec![0; COMPARED_BYTES], vec![0; COMPARED_BYTES]),
    };
    match comparison.all() {
        Ok(()) => Ok(ControlFlow::Continue(())),
        Err(Ended::Told) => Ok(ControlFlow::Break(())),
        Err(Ended::Failed(error)) => Err(error),
    }
}

/// Why a comparison ends early.
enum Ended {
    /// Nobody wants to know more.
    Told,
    Failed(FileSystemError),
}

impl From<FileSystemError> for Ended {
    fn from(error: FileSystemError) -> Self {
        Self::Failed(error)
    }
}

/// A directory of one or both disks.
struct Level {
    from: Listed,
    to: Listed,
    /// Length of the path of what it lies in.
    path_bytes: usize,
}

struct Comparison<'a, D> {
    files: &'a Files<'a, D>,
    visit: &'a mut dyn FnMut(Difference) -> ControlFlow<()>,
    advance: &'a dyn Fn(u64),
    walks: (Walk, Walk),
    /// The path of the directory on top of the stack.
    path: Vec<u8>,
    stack: Vec<Level>,
    /// Whether the data of files with several names differs, by their numbers on both disks.
    remembered: HashMap<(u32, u32), bool>,
    buffers: (Vec<u8>, Vec<u8>),
}

impl<D: DiskReader> Comparison<'_, D> {
    fn all(&mut self) -> Result<(), Ended> {
        let (from, to) = (self.files.from.root()?, self.files.to.root()?);
        self.both(b"", &from, &to)?;
        while let Some(level) = self.stack.last_mut() {
            let (from, to) = next_of(&mut level.from, &mut level.to);
            let Some((name, _)) = from.as_ref().or(to.as_ref()) else {
                if let Some(level) = self.stack.pop() {
                    self.walks.0.leave(&level.from);
                    self.walks.1.leave(&level.to);
                    self.path.truncate(level.path_bytes);
                }
                continue;
            };
            let name = name.clone();
            let compared = self.entry(
                &name,
                from.map(|(_, inode)| inode),
                to.map(|(_, inode)| inode),
            );
            match compared {
                Err(Ended::Failed(error)) if !error.is_fatal() => self.unknown(&name, &error)?,
                other => other?,
            }
        }
        Ok(())
    }

    fn entry(&mut self, name: &[u8], from: Option<u32>, to: Option<u32>) -> Result<(), Ended> {
        let from = from
            .map(|number| self.files.from.inode(number))
            .transpose()?;
        let to = to.map(|number| self.files.to.inode(number)).transpose()?;
        match (from, to) {
            (Some(from), Some(to)) if is_alike(&from, &to) => self.both(name, &from, &to),
            (from, to) => {
                if let Some(from) = &from {
                    let (path, kind) = (self.path_of(name, from.kind), kind_of(from));
                    self.tell(Difference::Removed { path, kind })?;
                }
                if let Some(to) = &to {
                    let (path, kind) = (self.path_of(name, to.kind), kind_of(to));
                    self.tell(Difference::Added { path, kind })?;
                }
                let directory = |inode: &Option<Inode>| {
                    inode.clone().filter(|inode| inode.kind == Kind::Directory)
                };
                self.enter(name, directory(&from), directory(&to))
            }
        }
    }

    /// Compares what both have.
    fn both(&mut self, name: &[u8], from: &Inode, to: &Inode) -> Result<(), Ended> {
        let changed = Changed {
            content: from.kind != Kind::Directory && self.content_differs(from, to)?,
            mode: from.mode != to.mode && from.kind != Kind::Symlink,
            owner: (from.uid, from.gid) != (to.uid, to.gid),
        };
        if changed != Changed::default() {
            let (path, kind) = (self.path_of(name, to.kind), kind_of(to));
            self.tell(Difference::Changed {
                path,
                kind,
                changed,
            })?;
        }
        match from.kind {
            Kind::Directory => self.enter(name, Some(from.clone()), Some(to.clone())),
            _ => Ok(()),
        }
    }

    /// Goes on with what is in a directory.
    fn enter(&mut self, name: &[u8], from: Option<Inode>, to: Option<Inode>) -> Result<(), Ended> {
        if from.is_none() && to.is_none() {
            return Ok(());
        }
        if self.stack.len() == MAX_DEPTH {
            let what = format!("more than {MAX_DEPTH} directories inside each other");
            return Err(FileSystemError::Unsupported { what }.into());
        }
        let list = |walk: &mut Walk, files: &FileSystem<D>, directory: Option<Inode>| {
            let listed = directory.map(|directory| walk.enter(files, &directory));
            listed.unwrap_or_else(|| Ok(Listed::nothing()))
        };
        let from = list(&mut self.walks.0, self.files.from, from)?;
        let to = match list(&mut self.walks.1, self.files.to, to) {
            Ok(to) => to,
            Err(error) => {
                self.walks.0.leave(&from);
                return Err(error.into());
            }
        };
        let path_bytes = self.path.len();
        if !name.is_empty() {
            self.path.push(b'/');
            self.path.extend_from_slice(name);
        }
        self.stack.push(Level {
            from,
            to,
            path_bytes,
        });
        Ok(())
    }

    fn content_differs(&mut self, from: &Inode, to: &Inode) -> Result<bool, FileSystemError> {
        match from.kind {
            Kind::File => {}
            Kind::Symlink => return Ok(self.files.from.target(from)? != self.files.to.target(to)?),
            _ => return Ok(from.kind != to.kind),
        }
        if from.size_bytes != to.size_bytes {
            return Ok(true);
        }
        let key = (from.number, to.number);
        if let Some(known) = self.remembered.get(&key) {
            return Ok(*known);
        }
        let differs = !self.lies_unchanged(from, to)? && self.data_differs(from, to)?;
        if to.links > 1 && self.remembered.len() < MAX_REMEMBERED {
            self.remembered.insert(key, differs);
        }
        Ok(differs)
    }

    /// Whether the data of both lies at the same places, and the disks are the same there.
    fn lies_unchanged(&self, from: &Inode, to: &Inode) -> Result<bool, FileSystemError> {
        let (mut one, mut other) = (self.files.from.extents(from)?, self.files.to.extents(to)?);
        loop {
            match (one.next().transpose()?, other.next().transpose()?) {
                (None, None) => return Ok(true),
                (Some(one), Some(other)) if one == other => {
                    let places = (
                        self.files.from.place_of(&one),
                        self.files.to.place_of(&other),
                    );
                    let (Some(place), Some(_)) = places else {
                        return Ok(false);
                    };
                    if self.files.chunks.touch(&place) {
                        return Ok(false);
                    }
                }
                _ => return Ok(false),
            }
        }
    }

    /// Reads both, where one of them has data.
    fn data_differs(&mut self, from: &Inode, to: &Inode) -> Result<bool, FileSystemError> {
        let mut one = self.files.from.reader(from)?;
        let mut other = self.files.to.reader(to)?;
        let mut at = 0;
        while let Some(start) = next_data(&mut one, &mut other, at)? {
            let left = from.size_bytes.saturating_sub(start);
            // At most the length of a buffer.
            let length = left.min(COMPARED_BYTES as u64) as usize;
            let (a, b) = (&mut self.buffers.0[..length], &mut self.buffers.1[..length]);
            one.read(start, a)?;
            other.read(start, b)?;
            if a != b {
                return Ok(true);
            }
            at = start + length as u64;
            (self.advance)(length as u64);
        }
        Ok(false)
    }

    fn unknown(&mut self, name: &[u8], error: &FileSystemError) -> Result<(), Ended> {
        let path = self.path_of(name, Kind::File);
        let reason = chain(error);
        self.tell(Difference::Unknown { path, reason })
    }

    fn tell(&mut self, difference: Difference) -> Result<(), Ended> {
        match (self.visit)(difference) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Ended::Told),
        }
    }

    /// The path of something in the directory on top of the stack; a directory's ends in a slash.
    fn path_of(&self, name: &[u8], kind: Kind) -> String {
        let slash = if kind == Kind::Directory && !name.is_empty() {
            "/"
        } else {
            ""
        };
        format!("{}/{}{slash}", shown(&self.path), shown(name))
    }
}

type Named = (Box<[u8]>, u32);

/// The next name of two directories, with its number in each that has it.
fn next_of(from: &mut Listed, to: &mut Listed) -> (Option<Named>, Option<Named>) {
    let order = match (from.peek(), to.peek()) {
        (Some(from), Some(to)) => from.name.cmp(&to.name),
        (Some(_), None) => Ordering::Less,
        (None, _) => Ordering::Greater,
    };
    let next = |listed: &mut Listed| listed.next().map(|entry| (entry.name, entry.inode));
    match order {
        Ordering::Less => (next(from), None),
        Ordering::Equal => (next(from), next(to)),
        Ordering::Greater => (None, next(to)),
    }
}

/// Where the next data of either lies.
fn next_data<D: DiskReader>(
    one: &mut FileReader<'_, D>,
    other: &mut FileReader<'_, D>,
    at: u64,
) -> Result<Option<u64>, FileSystemError> {
    let starts = [one.data_from(at)?, other.data_from(at)?];
    Ok(starts.into_iter().flatten().map(|(start, _)| start).min())
}

/// Whether one can be a changed form of the other.
fn is_alike(one: &Inode, other: &Inode) -> bool {
    std::mem::discriminant(&one.kind) == std::mem::discriminant(&other.kind)
}

fn kind_of(inode: &Inode) -> FileKind {
    match inode.kind {
        Kind::File => FileKind::File,
        Kind::Directory => FileKind::Directory,
        Kind::Symlink => FileKind::Symlink,
        _ => FileKind::Special,
    }
}
