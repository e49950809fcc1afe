//! The numbers of commands, which outlive an agent that is killed.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

/// Gives each number once.
pub(crate) struct Numbers {
    last: Mutex<u64>,
    kept: Option<File>,
}

impl Numbers {
    /// Goes on after the last number that was given by whoever had this file before.
    pub(crate) fn after(kept: Option<File>) -> io::Result<Self> {
        let mut last = [0; 8];
        let has_last = match &kept {
            Some(file) => file.metadata()?.len() >= last.len() as u64,
            None => false,
        };
        if let Some(file) = kept.as_ref().filter(|_| has_last) {
            file.read_exact_at(&mut last, 0)?;
        }
        let last = Mutex::new(u64::from_le_bytes(last));
        Ok(Self { last, kept })
    }

    /// The next number, and whether it is kept for a later agent.
    pub(crate) fn next(&self) -> (u64, io::Result<()>) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = last.saturating_add(1);
        let kept = match &self.kept {
            Some(file) => file.write_all_at(&last.to_le_bytes(), 0),
            None => Ok(()),
        };
        (*last, kept)
    }
}
