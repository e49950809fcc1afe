//! The making side: trusts nothing in the stream.
//!
//! Every directory is held open and every entry is made relative to it without following links,
//! so no name and no link, sent or already there, leads out of the target. Where the target is a
//! directory, the tree goes into it under the name that the caller gives, never under one from the
//! stream. A file is written without a name and put in the place of the file or link that was there, whose
//! owner and mode it gets if that was a file. Pipes, devices and sockets are not replaced; a single file
//! that is copied to a pipe or a character device is written to it. Owner, mode and time are given only to
//! what this copy has made, by descriptor.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{self as rfs, AtFlags};
use rustix::io::Errno;
use thiserror::Error;

use super::root_name::is_name;
use super::{
    MAX_DEPTH, MAX_LINK_TARGET_BYTES, MAX_PROBLEMS, Metadata, RootName, SpecialKind, TreeItem,
    shown,
};
use crate::frame::{FrameError, read_message};
use crate::message::CopyReport;
use crate::words::harmless;

mod budget;
mod close;
mod file;
mod new_file;
mod own;
mod pass_on;
mod place;

use budget::Budget;
use file::{Linked, OpenFile};
use new_file::NewFile;
pub use own::Ownership;
use place::{MakeError, duplicate, means_directory, open_directory, replace, target_parent};

/// Why a tree could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The target, or a file system call that dooms the whole copy.
    #[error("cannot write {}", path.display())]
    Write {
        /// What was to be made.
        path: PathBuf,
        /// The file system's answer.
        #[source]
        source: io::Error,
    },
    /// A file was to go into a directory that is not there.
    #[error("there is no directory {}", path.display())]
    NoDirectory {
        /// The target, which ends in a slash.
        path: PathBuf,
    },
    /// Something that is no file is there, and others use it by its name.
    #[error("{} is {what}, which a copy does not replace", path.display())]
    InTheWay {
        /// What was to be made.
        path: PathBuf,
        /// What is there.
        what: &'static str,
    },
    /// The stream breaks its rules.
    #[error("the tree stream is not valid: {what}")]
    Invalid {
        /// Which rule.
        what: &'static str,
    },
    /// The sending side gave up.
    #[error("{message}")]
    Aborted {
        /// Its reason.
        message: String,
    },
    /// The stream failed or ended early.
    #[error("the connection failed while files were received")]
    Stream(#[from] FrameError),
    /// The caller's progress function asked to stop.
    #[error("the copy was stopped")]
    Stopped,
}

/// Where a tree is made, and whose it is.
#[derive(Debug, Clone)]
pub struct Destination<'a> {
    /// Made inside this when it is a directory, else as this.
    pub target: &'a Path,
    /// What the tree is called inside `target`.
    pub root: RootName,
    /// Whose the made entries are.
    pub ownership: Ownership,
}

/// Reads a whole tree from `from` and makes it at `to`.
///
/// `progress` is told the bytes written since it was last called, once per item, and may stop the
/// copy.
///
/// # Errors
/// [`ReceiveError`]; what was made before stays, except a file that was not complete.
pub fn receive_tree(
    from: &mut impl Read,
    to: Destination<'_>,
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<CopyReport, ReceiveError> {
    let mut receiver = TreeReceiver::new(to);
    loop {
        let item: TreeItem = read_message(from)?;
        let before = receiver.report.data_bytes;
        let done = receiver.apply(item)?;
        let next = progress(receiver.report.data_bytes - before);
        if done {
            return Ok(receiver.finish());
        }
        if next.is_break() {
            return Err(ReceiveError::Stopped);
        }
    }
}

/// Makes a tree from its items, one by one.
#[derive(Debug)]
pub struct TreeReceiver {
    target: PathBuf,
    root_name: RootName,
    ownership: Ownership,
    stack: Vec<Level>,
    file: Option<OpenFile>,
    /// Files that further names may follow for.
    links: HashMap<u64, Linked>,
    /// Whole files, with their sizes, whose names so far could not be given to them.
    nameless: HashMap<u64, (NewFile, u64)>,
    budget: Budget,
    root: Root,
    report: CopyReport,
}

/// How far the stream's one root entry is.
#[derive(Debug)]
enum Root {
    Expected,
    /// Its parent directory and its name there, which hard links start from.
    Made(OwnedFd),
    /// It is a file that is only passed on.
    Passed,
}

#[derive(Debug)]
enum Level {
    Made {
        fd: OwnedFd,
        name: Vec<u8>,
        /// Given at its end; `None` for a directory that was there before.
        meta: Option<Metadata>,
        /// Its names from the root entry down, once a file in it has to be remembered.
        path: Option<Arc<[u8]>>,
    },
    /// It could not be made: everything in it is passed over.
    Skipped,
}

impl Level {
    fn made(fd: OwnedFd, name: Vec<u8>, meta: Option<Metadata>) -> Self {
        Self::Made {
            fd,
            name,
            meta,
            path: None,
        }
    }
}

impl TreeReceiver {
    /// A receiver for one tree, see [`receive_tree`].
    #[must_use]
    pub fn new(to: Destination<'_>) -> Self {
        Self {
            target: to.target.to_owned(),
            root_name: to.root,
            ownership: to.ownership,
            stack: Vec::new(),
            file: None,
            links: HashMap::new(),
            nameless: HashMap::new(),
            budget: Budget::new(),
            root: Root::Expected,
            report: CopyReport::default(),
        }
    }

    /// What was done so far.
    #[must_use]
    pub fn finish(self) -> CopyReport {
        self.report
    }

    /// Applies the next item; `true` after [`TreeItem::End`].
    ///
    /// # Errors
    /// [`ReceiveError`]; the receiver must not be used afterwards.
    pub fn apply(&mut self, item: TreeItem) -> Result<bool, ReceiveError> {
        match (&item, self.file.is_some()) {
            (TreeItem::Data { .. }, true)
            | (TreeItem::FileEnd { .. } | TreeItem::FileBroken { .. }, true)
            | (TreeItem::Problem { .. } | TreeItem::Abort { .. }, _) => {}
            (TreeItem::Data { .. } | TreeItem::FileEnd { .. }, false)
            | (TreeItem::FileBroken { .. }, false) => return invalid("data without a file"),
            (_, true) => return invalid("an entry inside a file"),
            (_, false) => {}
        }
        match item {
            TreeItem::Problem { message } => self.problem(&message),
            TreeItem::Abort { message } => {
                let message = harmless(&message);
                return Err(ReceiveError::Aborted { message });
            }
            TreeItem::Data { offset, data } => self.data(offset, &data)?,
            TreeItem::FileEnd { size_bytes } => self.file_end(size_bytes)?,
            TreeItem::FileBroken { message } => self.file_broken(&message),
            TreeItem::EndDirectory => self.end_directory()?,
            TreeItem::End if !self.stack.is_empty() => return invalid("end inside a directory"),
            TreeItem::End => return Ok(true),
            TreeItem::Directory { name, meta } => self.entry(name.0, Entry::Directory, meta)?,
            TreeItem::File { name, meta, link } => self.entry(name.0, Entry::File(link), meta)?,
            TreeItem::Symlink { name, meta, target } => {
                self.entry(name.0, Entry::Symlink(target.0), meta)?;
            }
            TreeItem::HardLink { name, link } => {
                self.entry(name.0, Entry::HardLink(link), Metadata::default())?;
            }
            TreeItem::Special {
                name,
                meta,
                kind,
                major,
                minor,
            } => {
                self.entry(name.0, Entry::Special(kind, major, minor), meta)?;
            }
        }
        Ok(false)
    }

    fn problem(&mut self, message: &str) {
        self.report.problem_count += 1;
        if self.report.problems.len() < MAX_PROBLEMS {
            self.report.problems.push(harmless(message));
        }
    }

    fn write_error(&self, name: &[u8], errno: Errno) -> ReceiveError {
        self.make_error(name, errno.into())
    }

    fn make_error(&self, name: &[u8], error: MakeError) -> ReceiveError {
        let path = self.path_of(name);
        match error {
            MakeError::System(errno) => ReceiveError::Write {
                path,
                source: errno.into(),
            },
            MakeError::InTheWay(what) => ReceiveError::InTheWay { path, what },
        }
    }

    /// The target, or where an entry below it is made.
    fn path_of(&self, name: &[u8]) -> PathBuf {
        let mut path = self.target.clone();
        if !self.stack.is_empty() {
            for level in &self.stack {
                if let Level::Made { name, .. } = level {
                    path.push(OsStr::from_bytes(name));
                }
            }
            path.push(OsStr::from_bytes(name));
        }
        path
    }

    /// A failed entry: ends the copy if nothing else can succeed, else is noted as a problem.
    fn failed(&mut self, name: &[u8], error: MakeError) -> Result<(), ReceiveError> {
        let fatal = matches!(
            error,
            MakeError::System(
                Errno::NOSPC | Errno::DQUOT | Errno::IO | Errno::ROFS | Errno::MFILE | Errno::NFILE
            )
        );
        if fatal || self.stack.is_empty() {
            return Err(self.make_error(name, error));
        }
        let why = match error {
            MakeError::System(errno) => io::Error::from(errno).to_string(),
            MakeError::InTheWay(what) => format!("{what} is there, which a copy does not replace"),
        };
        self.problem(&format!("{}: {why}", shown(name)));
        Ok(())
    }

    fn entry(&mut self, name: Vec<u8>, entry: Entry, meta: Metadata) -> Result<(), ReceiveError> {
        if meta.mode > 0o7777 || meta.mtime_nanos >= 1_000_000_000 {
            return invalid("a mode or time out of range");
        }
        if let Entry::Symlink(target) = &entry
            && (target.is_empty() || target.len() > MAX_LINK_TARGET_BYTES || target.contains(&0))
        {
            return invalid("the target of a symbolic link");
        }
        if self.stack.is_empty() {
            return self.root_entry(&name, &entry, meta);
        }
        if !is_name(&name) {
            return invalid("a name that is none");
        }
        let parent = match self.stack.last() {
            Some(Level::Made { fd, .. }) => duplicate(fd.as_fd()),
            _ => return self.skip(&entry),
        };
        let result = match parent {
            Ok(parent) => self.make(parent, name.clone(), &entry, meta),
            Err(errno) => Err(errno.into()),
        };
        match result {
            Ok(()) => Ok(()),
            Err(error) => {
                self.failed(&name, error)?;
                self.skip(&entry)
            }
        }
    }

    /// Passes over what belongs to an entry that is not made.
    fn skip(&mut self, entry: &Entry) -> Result<(), ReceiveError> {
        match entry {
            Entry::Directory => self.stack.push(Level::Skipped),
            Entry::File(_) => self.file = Some(OpenFile::Skipped),
            _ => {}
        }
        if self.stack.len() > MAX_DEPTH {
            return invalid("too many directories inside each other");
        }
        Ok(())
    }

    /// Finds where the tree goes and makes its first entry there.
    fn root_entry(
        &mut self,
        name: &[u8],
        entry: &Entry,
        meta: Metadata,
    ) -> Result<(), ReceiveError> {
        if !matches!(self.root, Root::Expected) {
            return invalid("a second tree");
        }
        if !name.is_empty() {
            return invalid("a name for the whole tree");
        }
        let is_directory = matches!(entry, Entry::Directory);
        if self.root_name.name().is_none() && !is_directory {
            return invalid("an entry where the contents of a directory were asked for");
        }
        let write_error = |errno: Errno| ReceiveError::Write {
            path: self.target.clone(),
            source: errno.into(),
        };
        let target = self.target.as_os_str().as_bytes();
        let (parent, name) = match open_directory(rfs::CWD, target, true) {
            Ok(fd) if self.root_name.name().is_none() => {
                // The contents go into a directory that is there: its own attributes stay.
                let base = duplicate(fd.as_fd()).map_err(write_error)?;
                self.root = Root::Made(base);
                self.stack.push(Level::made(fd, Vec::new(), None));
                return Ok(());
            }
            Ok(fd) => (fd, self.root_name.as_bytes().to_vec()),
            Err(Errno::NOENT) if means_directory(&self.target) && !is_directory => {
                let path = self.target.clone();
                return Err(ReceiveError::NoDirectory { path });
            }
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                let is_file = matches!(entry, Entry::File(_));
                let passage = pass_on::open(&self.target, is_file);
                if let Some(passage) = passage.map_err(|error| self.make_error(b"", error))? {
                    self.root = Root::Passed;
                    self.file = Some(OpenFile::Passing(passage));
                    return Ok(());
                }
                target_parent(&self.target, is_directory).map_err(write_error)?
            }
            Err(errno) => return Err(write_error(errno)),
        };
        if !is_name(&name) {
            return Err(write_error(Errno::INVAL));
        }
        self.root = Root::Made(duplicate(parent.as_fd()).map_err(write_error)?);
        // Where the target is a directory, what is in the way is in it.
        let made = self.make(parent, name.clone(), entry, meta);
        made.map_err(|error| match error {
            MakeError::InTheWay(what) if self.target.is_dir() => ReceiveError::InTheWay {
                path: self.target.join(OsStr::from_bytes(&name)),
                what,
            },
            error => self.make_error(b"", error),
        })
    }

    fn make(
        &mut self,
        parent: OwnedFd,
        name: Vec<u8>,
        entry: &Entry,
        meta: Metadata,
    ) -> Result<(), MakeError> {
        match entry {
            Entry::Directory => {
                if self.stack.len() >= MAX_DEPTH {
                    return Err(Errno::NAMETOOLONG.into());
                }
                let mode = self.ownership.directory_mode(meta);
                let meta = match rfs::mkdirat(&parent, &*name, mode) {
                    Ok(()) => Some(meta),
                    // It keeps its own owner, mode and time.
                    Err(Errno::EXIST) => None,
                    Err(errno) => return Err(errno.into()),
                };
                let fd = open_directory(parent.as_fd(), &name, false)?;
                self.stack.push(Level::made(fd, name, meta));
            }
            Entry::File(link) => {
                let new = self
                    .ownership
                    .new_file(parent, name, meta, link.is_some())?;
                self.file = Some(OpenFile::Writing(new, *link));
                return Ok(()); // counted when complete
            }
            Entry::Symlink(target) => {
                replace(parent.as_fd(), &name, || {
                    rfs::symlinkat(&**target, &parent, &*name)
                })?;
                self.ownership.own_symlink(parent.as_fd(), &name, meta)?;
            }
            Entry::HardLink(link) if self.nameless.contains_key(link) => {
                self.name_late(*link, parent, name)?;
            }
            Entry::HardLink(link) => {
                let (source_parent, source_name) = self.linked(*link)?;
                replace(parent.as_fd(), &name, || {
                    rfs::linkat(
                        &source_parent,
                        &*source_name,
                        &parent,
                        &*name,
                        AtFlags::empty(),
                    )
                })?;
            }
            Entry::Special(kind, major, minor) => {
                let device = (*major, *minor);
                self.ownership
                    .make_special(parent.as_fd(), &name, *kind, device, meta)?;
            }
        }
        self.report.entries += 1;
        Ok(())
    }

    fn end_directory(&mut self) -> Result<(), ReceiveError> {
        match self.stack.pop() {
            None => invalid("end of a directory that was not begun"),
            Some(Level::Made {
                fd,
                name,
                meta: Some(meta),
                ..
            }) => {
                // The directory and its contents are there: worth a note, not the end.
                if let Err(errno) = self.ownership.own_directory(fd.as_fd(), meta) {
                    self.problem(&format!("{}: {}", shown(&name), io::Error::from(errno)));
                }
                Ok(())
            }
            Some(_) => Ok(()),
        }
    }
}

/// An entry without its name and metadata.
enum Entry {
    Directory,
    File(Option<u64>),
    Symlink(Vec<u8>),
    HardLink(u64),
    Special(SpecialKind, u32, u32),
}

fn invalid<T>(what: &'static str) -> Result<T, ReceiveError> {
    Err(ReceiveError::Invalid { what })
}
