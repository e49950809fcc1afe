//! File trees as a stream of items, read from one file system and made again in another.
//!
//! The stream is one entry (a file, a link, or a directory with everything below) and then
//! [`TreeItem::End`], or [`TreeItem::Abort`] at any place. A directory's items stand between [`TreeItem::Directory`] and
//! [`TreeItem::EndDirectory`]; a file's data between [`TreeItem::File`] and
//! [`TreeItem::FileEnd`] or [`TreeItem::FileBroken`]. Holes are what no [`TreeItem::Data`] covers.
//! Names are bytes, never paths: no `/`, no NUL, not `.` or `..`. Only the first entry may have an
//! empty name: it is then a directory whose contents go into the target itself.
//!
//! Not carried: extended attributes, ACLs, sockets.

mod receive;
mod send;

pub use receive::{Ownership, ReceiveError, TreeReceiver, receive_tree};
pub use send::{SendError, send_tree};

use crate::codec::{Bytes, wire_enum, wire_struct};

/// Most directories inside each other in one copy; each costs both sides a descriptor.
pub const MAX_DEPTH: usize = 256;
/// Longest name of an entry in bytes.
pub const MAX_NAME_BYTES: usize = 255;
/// Longest target of a symbolic link in bytes.
pub const MAX_LINK_TARGET_BYTES: usize = 4096;
/// Problems kept in a [`CopyReport`](crate::message::CopyReport).
pub const MAX_PROBLEMS: usize = 100;
/// Files with several names that one copy remembers; further ones are copied once per name.
pub const MAX_LINKED_FILES: usize = 1 << 20;
/// Bytes of paths of such files that the receiving side remembers.
pub const MAX_LINKED_PATH_BYTES: usize = 64 << 20;

/// What every kind of entry has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Metadata {
    /// Permission bits with set-user-id, set-group-id and sticky, at most 0o7777.
    pub mode: u32,
    /// Numeric owner.
    pub uid: u32,
    /// Numeric group.
    pub gid: u32,
    /// Modification time, seconds since 1970.
    pub mtime_seconds: i64,
    /// Nanoseconds of the modification time, below 10^9.
    pub mtime_nanos: u32,
}

wire_struct!(Metadata {
    mode,
    uid,
    gid,
    mtime_seconds,
    mtime_nanos
});

/// One step of a tree stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreeItem {
    /// A directory; its entries follow.
    Directory {
        /// Name in the directory above.
        name: Bytes,
        /// Applied after its entries are made.
        meta: Metadata,
    },
    /// The directory entered last is complete.
    EndDirectory,
    /// A regular file; its data follows.
    File {
        /// Name in the directory above.
        name: Bytes,
        /// Applied after its data is written.
        meta: Metadata,
        /// Number by which a later [`TreeItem::HardLink`] means this file; `None` when it has
        /// one name.
        link: Option<u64>,
    },
    /// Bytes of the current file.
    Data {
        /// Where they belong.
        offset: u64,
        /// The bytes.
        data: Bytes,
    },
    /// The current file is complete.
    FileEnd {
        /// Its length, holes included.
        size_bytes: u64,
    },
    /// The current file cannot be read on; what came of it is not kept.
    FileBroken {
        /// Why.
        message: String,
    },
    /// A symbolic link.
    Symlink {
        /// Name in the directory above.
        name: Bytes,
        /// Its mode is not used.
        meta: Metadata,
        /// What it points to; any bytes, never followed.
        target: Bytes,
    },
    /// Another name of a file sent earlier.
    HardLink {
        /// Name in the directory above.
        name: Bytes,
        /// Number in its [`TreeItem::File`].
        link: u64,
    },
    /// A named pipe or device.
    Special {
        /// Name in the directory above.
        name: Bytes,
        /// Its metadata.
        meta: Metadata,
        /// Which kind.
        kind: SpecialKind,
        /// Major device number, 0 for a pipe.
        major: u32,
        /// Minor device number, 0 for a pipe.
        minor: u32,
    },
    /// Something was left out.
    Problem {
        /// What and why.
        message: String,
    },
    /// The stream is complete.
    End,
    /// The sending side gives up; nothing follows.
    Abort {
        /// Why.
        message: String,
    },
}

wire_enum!(TreeItem {
    1 => Directory { name, meta },
    2 => EndDirectory,
    3 => File { name, meta, link },
    4 => Data { offset, data },
    5 => FileEnd { size_bytes },
    6 => FileBroken { message },
    7 => Symlink { name, meta, target },
    8 => HardLink { name, link },
    9 => Special { name, meta, kind, major, minor },
    10 => Problem { message },
    11 => End,
    12 => Abort { message },
});

/// Kinds of [`TreeItem::Special`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialKind {
    /// Named pipe.
    Fifo,
    /// Character device.
    CharacterDevice,
    /// Block device.
    BlockDevice,
}

wire_enum!(SpecialKind {
    1 => Fifo,
    2 => CharacterDevice,
    3 => BlockDevice,
});

/// A name as text for messages, with control and non-ASCII bytes escaped.
fn shown(name: &[u8]) -> String {
    name.escape_ascii().to_string()
}
