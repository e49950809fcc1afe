//! Files of a tree that is received: their data, their end, and further names for them.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;

use super::super::{MAX_LINKED_FILES, shown};
use super::place::{NewFile, duplicate, open_directory, write_at};
use super::{Level, ReceiveError, Root, TreeReceiver, invalid};

/// The file whose data comes now, and the number by which further names may follow for it.
#[derive(Debug)]
pub(super) enum OpenFile {
    Writing(NewFile, Option<u64>),
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
        let Some(OpenFile::Writing(file, _)) = &self.file else {
            return Ok(());
        };
        match write_at(&file.fd, offset, data) {
            Ok(()) => self.report.data_bytes += data.len() as u64,
            Err(errno) => {
                let name = file.name.clone();
                self.file = Some(OpenFile::Skipped);
                self.failed(&name, errno)?;
            }
        }
        Ok(())
    }

    pub(super) fn file_end(&mut self, size_bytes: u64) -> Result<(), ReceiveError> {
        if size_bytes > i64::MAX as u64 {
            return invalid("a file beyond the largest file");
        }
        let Some(OpenFile::Writing(mut file, link)) = self.file.take() else {
            return Ok(());
        };
        match self.ownership.keep_file(&mut file, size_bytes) {
            Ok(()) => {
                self.report.entries += 1;
                if let Some(link) = link {
                    self.remember_link(link, &file.name);
                }
                Ok(())
            }
            Err(errno) => self.failed(&file.name.clone(), errno),
        }
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
        if let Some(OpenFile::Writing(file, _)) = self.file.take() {
            self.problem(&format!("{}: {message}", shown(&file.name)));
        }
    }
}
