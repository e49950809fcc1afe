//! Looking into points: the files of their disks, and what differs between two of them. Nothing is started, mounted or changed.
//!
//! A point's disk is what its guest made of it: `guest_image::file_system` reads it and trusts nothing in it. Here are the walks
//! over its trees: their depth, the directories on the way and what is held of them have limits, and no directory is
//! entered twice.

mod compare;
mod disk;
mod maps;
mod processes;
mod send;
mod walk;

pub use compare::{Changed, Difference, FileKind};
pub(crate) use compare::{Files, compare_files};
pub(crate) use disk::{PointFiles, open_disk};
pub(crate) use maps::{ChangedChunks, changed_chunks};
pub use processes::ProcessDifference;
pub(crate) use processes::compare_processes;
pub(crate) use send::{SendFailure, send_files};

/// A name as text: what is not UTF-8 as escapes.
fn shown(name: &[u8]) -> String {
    let mut text = String::new();
    for chunk in name.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().escape_ascii().map(char::from));
    }
    text
}

#[cfg(test)]
mod tests;
