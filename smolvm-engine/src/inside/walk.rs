//! What a walk over a tree may hold.

use std::collections::HashSet;

use guest_image::file_system::{DiskReader, Entry, FileSystem, FileSystemError, Inode};

/// Directories that one walk goes through.
const MAX_DIRECTORIES: usize = 1 << 22;
/// Bytes of entries that wait while what is below their neighbours is walked over.
const MAX_HELD_BYTES: usize = 128 << 20;

/// The directories that a walk has been to, and what it holds of those that it is in.
#[derive(Default)]
pub(super) struct Walk {
    seen: HashSet<u32>,
    held_bytes: usize,
}

/// The entries of a directory that are still to be looked at, in order.
pub(super) struct Listed {
    entries: std::iter::Peekable<std::vec::IntoIter<Entry>>,
    held_bytes: usize,
}

impl Listed {
    /// No entries.
    pub(super) fn nothing() -> Self {
        Self {
            entries: Vec::new().into_iter().peekable(),
            held_bytes: 0,
        }
    }

    pub(super) fn peek(&mut self) -> Option<&Entry> {
        self.entries.peek()
    }

    pub(super) fn next(&mut self) -> Option<Entry> {
        self.entries.next()
    }
}

impl Walk {
    /// Lists a directory. [`leave`](Self::leave) it afterwards.
    pub(super) fn enter<D: DiskReader>(
        &mut self,
        files: &FileSystem<D>,
        directory: &Inode,
    ) -> Result<Listed, FileSystemError> {
        // A directory with two names would be a circle, or the same again and again.
        if self.seen.len() == MAX_DIRECTORIES {
            return Err(FileSystemError::TooMuch);
        }
        if !self.seen.insert(directory.number) {
            let what = "a directory with two names";
            return Err(FileSystemError::Damaged { what });
        }
        let entries = files.entries(directory)?;
        let held_bytes = entries.iter().map(Entry::cost_bytes).sum();
        if self.held_bytes + held_bytes > MAX_HELD_BYTES {
            return Err(FileSystemError::DirectoryTooLarge);
        }
        self.held_bytes += held_bytes;
        Ok(Listed {
            entries: entries.into_iter().peekable(),
            held_bytes,
        })
    }

    pub(super) fn leave(&mut self, listed: &Listed) {
        self.held_bytes -= listed.held_bytes;
    }
}
