//! Why a disk's files cannot be read.

use std::io;

use thiserror::Error;

/// Why something on a disk cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileSystemError {
    /// The disk itself.
    #[error("the disk cannot be read")]
    Disk(#[from] io::Error),
    /// There is no ext4 on it.
    #[error("there is no ext4 file system on the disk")]
    NotExt4,
    /// It uses what this reader does not know.
    #[error("this version cannot read {what}")]
    Unsupported {
        /// What it uses.
        what: String,
    },
    /// It breaks its own rules.
    #[error("the file system is damaged: {what} cannot be")]
    Damaged {
        /// What is wrong.
        what: &'static str,
    },
    /// It claims to hold far more than its disk could: going on might take forever.
    #[error("the file system is damaged: it claims to hold more than its disk can")]
    TooMuch,
    /// A directory with more in it than is held in memory.
    #[error("a directory has more entries than this version lists")]
    DirectoryTooLarge,
    /// There is nothing of this name.
    #[error("there is no such file or directory")]
    NotFound,
    /// What stands before a slash is no directory.
    #[error("a part of the path is not a directory")]
    NotADirectory,
    /// Links that lead to links, and on.
    #[error("too many symbolic links on the way")]
    TooManyLinks,
}

impl FileSystemError {
    pub(super) fn damaged(what: &'static str) -> Self {
        Self::Damaged { what }
    }

    pub(super) fn unsupported(what: impl Into<String>) -> Self {
        Self::Unsupported { what: what.into() }
    }

    /// Whether it ends everything, and not only what is read just now.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::TooMuch)
    }
}
