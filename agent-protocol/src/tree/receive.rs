//! The making side: trusts nothing in the stream.
//!
//! Every directory is held open and every entry is made relative to it without following links,
//! so no name and no link, sent or already there, leads out of the target. A file is written
//! under a temporary name and renamed over what was there.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{self as rfs, AtFlags, Mode};
use rustix::io::Errno;
use thiserror::Error;

use super::{
    MAX_DEPTH, MAX_LINK_TARGET_BYTES, MAX_NAME_BYTES, MAX_PROBLEMS, Metadata, SpecialKind,
    TreeItem, shown,
};
use crate::frame::{FrameError, read_message};
use crate::message::CopyReport;

mod file;
mod place;

use file::OpenFile;
pub use place::Ownership;
use place::{NewFile, create_temporary, duplicate, open_directory, replace, target_parent};

/// Longest problem text kept from the other side, in bytes.
const MAX_PROBLEM_BYTES: usize = 1024;

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
}

/// Reads a whole tree from `from` and makes it at `target`: inside `target` when that is a
/// directory, else as `target`.
///
/// `progress` is told the bytes written since it was last called.
///
/// # Errors
/// [`ReceiveError`]; what was made before stays, except a file that was not complete.
pub fn receive_tree(
    from: &mut impl Read,
    target: &Path,
    ownership: Ownership,
    progress: &mut dyn FnMut(u64),
) -> Result<CopyReport, ReceiveError> {
    let mut receiver = TreeReceiver::new(target, ownership);
    loop {
        let item: TreeItem = read_message(from)?;
        let before = receiver.report.data_bytes;
        let done = receiver.apply(item)?;
        progress(receiver.report.data_bytes - before);
        if done {
            return Ok(receiver.finish());
        }
    }
}

/// Makes a tree from its items, one by one.
#[derive(Debug)]
pub struct TreeReceiver {
    target: PathBuf,
    ownership: Ownership,
    stack: Vec<Level>,
    file: Option<OpenFile>,
    /// Names from the root entry down, of files that further names may follow for.
    links: HashMap<u64, Vec<Vec<u8>>>,
    link_bytes: usize,
    root: Root,
    report: CopyReport,
}

/// How far the stream's one root entry is.
#[derive(Debug)]
enum Root {
    Expected,
    /// Its parent directory and its name there, which hard links start from.
    Made(OwnedFd),
}

#[derive(Debug)]
enum Level {
    Made {
        fd: OwnedFd,
        name: Vec<u8>,
        meta: Option<Metadata>,
    },
    /// It could not be made: everything in it is passed over.
    Skipped,
}

impl TreeReceiver {
    /// A receiver for one tree, see [`receive_tree`].
    #[must_use]
    pub fn new(target: &Path, ownership: Ownership) -> Self {
        Self {
            target: target.to_owned(),
            ownership,
            stack: Vec::new(),
            file: None,
            links: HashMap::new(),
            link_bytes: 0,
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
            TreeItem::Problem { message } => self.problem(message),
            TreeItem::Abort { mut message } => {
                message.truncate(message.floor_char_boundary(MAX_PROBLEM_BYTES));
                return Err(ReceiveError::Aborted { message });
            }
            TreeItem::Data { offset, data } => self.data(offset, &data)?,
            TreeItem::FileEnd { size_bytes } => self.file_end(size_bytes)?,
            TreeItem::FileBroken { message } => self.file_broken(message),
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

    fn problem(&mut self, mut message: String) {
        self.report.problem_count += 1;
        if self.report.problems.len() < MAX_PROBLEMS {
            let cut = message.floor_char_boundary(MAX_PROBLEM_BYTES);
            message.truncate(cut);
            self.report.problems.push(message);
        }
    }

    fn write_error(&self, name: &[u8], errno: Errno) -> ReceiveError {
        let mut path = self.target.clone();
        if !self.stack.is_empty() {
            for level in &self.stack {
                if let Level::Made { name, .. } = level {
                    path.push(OsStr::from_bytes(name));
                }
            }
            path.push(OsStr::from_bytes(name));
        }
        ReceiveError::Write {
            path,
            source: errno.into(),
        }
    }

    /// A failed entry: ends the copy if nothing else can succeed, else is noted as a problem.
    fn failed(&mut self, name: &[u8], errno: Errno) -> Result<(), ReceiveError> {
        let fatal = matches!(
            errno,
            Errno::NOSPC | Errno::DQUOT | Errno::IO | Errno::ROFS | Errno::MFILE | Errno::NFILE
        );
        if fatal || self.stack.is_empty() {
            return Err(self.write_error(name, errno));
        }
        self.problem(format!("{}: {}", shown(name), io::Error::from(errno)));
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
        let top = self.stack.is_empty();
        if top {
            return self.root_entry(name, entry, meta);
        }
        check_name(&name)?;
        let parent = match self.stack.last() {
            Some(Level::Made { fd, .. }) => duplicate(fd.as_fd()),
            _ => {
                self.skip(&entry);
                return Ok(());
            }
        };
        let result = parent.and_then(|parent| self.make(parent, name.clone(), &entry, meta));
        match result {
            Ok(()) => Ok(()),
            Err(errno) => {
                self.failed(&name, errno)?;
                self.skip(&entry);
                self.check_depth()
            }
        }
    }

    fn check_depth(&self) -> Result<(), ReceiveError> {
        if self.stack.len() > MAX_DEPTH {
            return invalid("too many directories inside each other");
        }
        Ok(())
    }

    /// Passes over what belongs to an entry that is not made.
    fn skip(&mut self, entry: &Entry) {
        match entry {
            Entry::Directory => self.stack.push(Level::Skipped),
            Entry::File(_) => self.file = Some(OpenFile::Skipped),
            _ => {}
        }
    }

    /// Finds where the tree goes and makes its first entry there.
    fn root_entry(
        &mut self,
        name: Vec<u8>,
        entry: Entry,
        meta: Metadata,
    ) -> Result<(), ReceiveError> {
        if matches!(self.root, Root::Made(_)) {
            return invalid("a second tree");
        }
        let write_error = |errno: Errno| ReceiveError::Write {
            path: self.target.clone(),
            source: errno.into(),
        };
        let into = open_directory(rfs::CWD, self.target.as_os_str().as_bytes(), true);
        let (parent, name) = match into {
            Ok(fd) if name.is_empty() => {
                // The contents go into a directory that is there: its own attributes stay.
                if !matches!(entry, Entry::Directory) {
                    return invalid("an empty name");
                }
                let base = duplicate(fd.as_fd()).map_err(write_error)?;
                self.root = Root::Made(base);
                self.stack.push(Level::Made {
                    fd,
                    name: Vec::new(),
                    meta: None,
                });
                return Ok(());
            }
            Ok(fd) => (fd, name),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                let is_directory = matches!(entry, Entry::Directory);
                target_parent(&self.target, is_directory).map_err(write_error)?
            }
            Err(errno) => return Err(write_error(errno)),
        };
        check_name(&name)?;
        self.root = Root::Made(duplicate(parent.as_fd()).map_err(write_error)?);
        let result = self.make(parent, name, &entry, meta);
        result.map_err(|errno| ReceiveError::Write {
            path: self.target.clone(),
            source: errno.into(),
        })
    }

    fn make(
        &mut self,
        parent: OwnedFd,
        name: Vec<u8>,
        entry: &Entry,
        meta: Metadata,
    ) -> Result<(), Errno> {
        match entry {
            Entry::Directory => {
                if self.stack.len() >= MAX_DEPTH {
                    return Err(Errno::NAMETOOLONG);
                }
                match rfs::mkdirat(&parent, &*name, Mode::RWXU) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(errno),
                }
                let fd = open_directory(parent.as_fd(), &name, false)?;
                self.stack.push(Level::Made {
                    fd,
                    name,
                    meta: Some(meta),
                });
            }
            Entry::File(link) => {
                let (temporary, fd) = create_temporary(parent.as_fd())?;
                let link = *link;
                let new = NewFile {
                    parent,
                    temporary,
                    name,
                    meta,
                    link,
                    fd,
                    kept: false,
                };
                self.file = Some(OpenFile::Writing(new));
                return Ok(()); // counted when complete
            }
            Entry::Symlink(target) => {
                replace(parent.as_fd(), &name, || {
                    rfs::symlinkat(&**target, &parent, &*name)
                })?;
                self.ownership.own_at(parent.as_fd(), &name, meta)?;
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
                self.ownership
                    .make_special(parent.as_fd(), &name, *kind, (*major, *minor))?;
                self.ownership.own_at(parent.as_fd(), &name, meta)?;
                let mode = self.ownership.mode(meta);
                rfs::chmodat(&parent, &*name, mode, AtFlags::empty())?;
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
            }) => {
                // The directory and its contents are there: worth a note, not the end.
                if let Err(errno) = self.ownership.own(fd.as_fd(), meta) {
                    self.problem(format!("{}: {}", shown(&name), io::Error::from(errno)));
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

fn check_name(name: &[u8]) -> Result<(), ReceiveError> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return invalid("the length of a name");
    }
    if name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0) {
        return invalid("a name that is a path");
    }
    Ok(())
}
