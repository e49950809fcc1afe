//! Files of a tree that is received: their data, their end, and further names for them.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs as rfs;
use rustix::io::Errno;

use super::super::{MAX_LINKED_FILES, MAX_LINKED_PATH_BYTES, shown};
use super::place::{NewFile, duplicate, open_directory, write_at};
use super::{Level, ReceiveError, Root, TreeReceiver, invalid};

/// The file whose data comes now.
#[derive(Debug)]
pub(super) enum OpenFile {
    Writing(NewFile),
    Skipped,
}

impl TreeReceiver {
    /// The directory and name of a file that has been made.
    pub(super) fn linked(&self, link: u64) -> Result<(OwnedFd, Vec<u8>), Errno> {
        let Root::Made(base) = &self.root else {
            return Err(Errno::NOENT);
        };
        let (name, above) = self
            .links
            .get(&link)
            .and_then(|path| path.split_last())
            .ok_or(Errno::NOENT)?;
        let mut fd = duplicate(base.as_fd())?;
        for part in above {
            fd = open_directory(fd.as_fd(), part, false)?;
        }
        Ok((fd, name.clone()))
    }

    pub(super) fn data(&mut self, offset: u64, data: &[u8]) -> Result<(), ReceiveError> {
        let end = offset.checked_add(data.len() as u64);
        if end.is_none_or(|end| end > i64::MAX as u64) {
            return invalid("data beyond the largest file");
        }
        let Some(OpenFile::Writing(file)) = &self.file else {
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
        let Some(OpenFile::Writing(mut file)) = self.file.take() else {
            return Ok(());
        };
        match self.keep_file(&mut file, size_bytes) {
            Ok(()) => {
                self.report.entries += 1;
                self.remember_link(&file);
                Ok(())
            }
            Err(errno) => self.failed(&file.name.clone(), errno),
        }
    }

    fn keep_file(&self, file: &mut NewFile, size_bytes: u64) -> Result<(), Errno> {
        rfs::ftruncate(&file.fd, size_bytes)?;
        self.ownership.own(file.fd.as_fd(), file.meta)?;
        rfs::renameat(&file.parent, &*file.temporary, &file.parent, &*file.name)?;
        file.kept = true;
        Ok(())
    }

    fn remember_link(&mut self, file: &NewFile) {
        let Some(link) = file.link else { return };
        let mut path: Vec<Vec<u8>> = Vec::new();
        for level in &self.stack {
            if let Level::Made { name, .. } = level
                && !name.is_empty()
            {
                path.push(name.clone());
            }
        }
        path.push(file.name.clone());
        self.link_bytes += path.iter().map(Vec::len).sum::<usize>();
        if self.links.len() < MAX_LINKED_FILES && self.link_bytes <= MAX_LINKED_PATH_BYTES {
            self.links.insert(link, path);
        }
    }

    pub(super) fn file_broken(&mut self, message: String) {
        if let Some(OpenFile::Writing(file)) = self.file.take() {
            self.problem(format!("{}: {message}", shown(&file.name)));
        }
    }
}
