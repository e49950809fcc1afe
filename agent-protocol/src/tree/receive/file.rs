//! Files of a tree that is received: their data, their end, and further names for them.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;

use super::super::{MAX_LINKED_FILES, shown};
use super::new_file::NewFile;
use super::pass_on::Passage;
use super::place::{MakeError, duplicate, open_directory, write_at};
use super::{Level, ReceiveError, Root, TreeReceiver, invalid};

/// Files kept for a further name; each costs a descriptor or two.
const MAX_NAMELESS: usize = 64;

/// The file whose data comes now, and the number by which further names may follow for it.
#[derive(Debug)]
pub(super) enum OpenFile {
    Writing(NewFile, Option<u64>),
    /// The whole copy is this file.
    Passing(Passage),
    Skipped,
}

/// Where a file was made.
#[derive(Debug)]
pub(super) struct Linked {
    /// The names of its directories from the root entry down, with a slash behind each.
    directory: Arc<[u8]>,
    name: Box<[u8]>,
}

impl TreeReceiver {
    /// The directory and name of a file that has been made.
    pub(super) fn linked(&mut self, link: u64) -> Result<(OwnedFd, Vec<u8>), Errno> {
        let Root::Made(base) = &self.root else {
            return Err(Errno::NOENT);
        };
        let file = self.links.get(&link).ok_or(Errno::NOENT)?;
        let above = file.directory.split(|&byte| byte == b'/');
        let mut fd = duplicate(base.as_fd())?;
        for part in above.filter(|part| !part.is_empty()) {
            if !self.budget.work(1) {
                return Err(Errno::NOMEM);
            }
            fd = open_directory(fd.as_fd(), part, false)?;
        }
        Ok((fd, file.name.to_vec()))
    }

    pub(super) fn data(&mut self, offset: u64, data: &[u8]) -> Result<(), ReceiveError> {
        let end = offset.checked_add(data.len() as u64);
        if end.is_none_or(|end| end > i64::MAX as u64) {
            return invalid("data beyond the largest file");
        }
        match &mut self.file {
            Some(OpenFile::Writing(file, _)) => match write_at(&file.fd, offset, data) {
                Ok(()) => self.report.data_bytes += data.len() as u64,
                Err(errno) => {
                    let name = file.name.clone();
                    self.file = Some(OpenFile::Skipped);
                    self.failed(&name, errno.into())?;
                }
            },
            Some(OpenFile::Passing(passage)) => match passage.write(offset, data) {
                Ok(true) => self.report.data_bytes += data.len() as u64,
                Ok(false) => return invalid("data that goes back, where it is passed on"),
                Err(errno) => return Err(self.write_error(b"", errno)),
            },
            _ => {}
        }
        Ok(())
    }

    pub(super) fn file_end(&mut self, size_bytes: u64) -> Result<(), ReceiveError> {
        if size_bytes > i64::MAX as u64 {
            return invalid("a file beyond the largest file");
        }
        let (mut file, link) = match self.file.take() {
            Some(OpenFile::Writing(file, link)) => (file, link),
            Some(OpenFile::Passing(mut passage)) => {
                self.report.entries += 1;
                let rest = passage.write(size_bytes, b"");
                return rest.map(drop).map_err(|errno| self.write_error(b"", errno));
            }
            _ => return Ok(()),
        };
        match self.ownership.keep_file(&mut file, size_bytes) {
            Ok(()) => {
                self.report.entries += 1;
                if let Some(link) = link {
                    self.remember_link(link, &file.name);
                }
                Ok(())
            }
            Err(error) => {
                self.failed(&file.name.clone(), error)?;
                if let Some(link) = link
                    && self.nameless.len() < MAX_NAMELESS
                {
                    self.nameless.insert(link, (file, size_bytes));
                }
                Ok(())
            }
        }
    }

    /// Gives a file whose first name was refused a further one.
    pub(super) fn name_late(
        &mut self,
        link: u64,
        parent: OwnedFd,
        name: Vec<u8>,
    ) -> Result<(), MakeError> {
        let Some((mut file, size_bytes)) = self.nameless.remove(&link) else {
            return Err(Errno::NOENT.into());
        };
        file.move_to(parent, name);
        let named = self.ownership.keep_file(&mut file, size_bytes);
        match named {
            Ok(()) => self.remember_link(link, &file.name),
            Err(_) => drop(self.nameless.insert(link, (file, size_bytes))),
        }
        named
    }

    /// A file that does not fit is not remembered: its further names become problems.
    fn remember_link(&mut self, link: u64, name: &[u8]) {
        if self.links.len() >= MAX_LINKED_FILES || !self.budget.keep(name.len()) {
            return;
        }
        let Some(directory) = self.directory_path() else {
            return;
        };
        let name = name.into();
        self.links.insert(link, Linked { directory, name });
    }

    /// The path of the directory entered last, shared by all files in it.
    fn directory_path(&mut self) -> Option<Arc<[u8]>> {
        if let Some(Level::Made {
            path: Some(path), ..
        }) = self.stack.last()
        {
            return Some(Arc::clone(path));
        }
        let mut path = Vec::new();
        for level in &self.stack {
            if let Level::Made { name, .. } = level {
                path.extend_from_slice(name);
                path.push(b'/');
            }
        }
        if !self.budget.keep(path.len()) {
            return None;
        }
        let whole: Arc<[u8]> = path.into();
        if let Some(Level::Made { path, .. }) = self.stack.last_mut() {
            *path = Some(Arc::clone(&whole));
        }
        Some(whole)
    }

    pub(super) fn file_broken(&mut self, message: &str) {
        match self.file.take() {
            Some(OpenFile::Writing(file, _)) => {
                self.problem(&format!("{}: {message}", shown(&file.name)));
            }
            Some(OpenFile::Passing(_)) => {
                let target = self.target.as_os_str().as_encoded_bytes().to_vec();
                self.problem(&format!("{}: {message}", shown(&target)));
            }
            _ => {}
        }
    }
}
