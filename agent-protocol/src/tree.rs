//! File trees as a stream of items, read from one file system and made again in another.
//!
//! The stream is one entry (a file, a link, or a directory with everything below) and then
//! [`TreeItem::End`], or [`TreeItem::Abort`] at any place. A directory's items stand between [`TreeItem::Directory`] and
//! [`TreeItem::EndDirectory`]; a file's data between [`TreeItem::File`] and
//! [`TreeItem::FileEnd`] or [`TreeItem::FileBroken`]. Holes are what no [`TreeItem::Data`] covers.
//! Names are bytes, never paths: no `/`, no NUL, not `.` or `..`. The first entry has no name: what it
//! is called follows from the source that was asked for ([`RootName`]), which the receiving side knows
//! itself. So the sending side has no say in where the tree goes.
//!
//! Not carried: extended attributes, ACLs, sockets.

mod receive;
mod root_name;
mod send;

pub use receive::{Destination, Ownership, ReceiveError, TreeReceiver, receive_tree};
pub use root_name::{BadRootName, RootName};
pub use send::{SendError, send_tree};

use minicbor::{Decode, Encode};

use crate::codec::{Bytes, Data, Wire};

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
/// Bytes that the receiving side keeps for one copy, the cost of each item included.
pub const MAX_KEPT_BYTES: usize = 64 << 20;
/// Directories that the receiving side opens to find files again that get a further name.
pub const MAX_LINK_STEPS: usize = 1 << 28;

/// What every kind of entry has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Encode, Decode)]
#[cbor(map)]
pub struct Metadata {
    /// Permission bits with set-user-id, set-group-id and sticky, at most 0o7777.
    #[n(0)]
    pub mode: u32,
    /// Numeric owner.
    #[n(1)]
    pub uid: u32,
    /// Numeric group.
    #[n(2)]
    pub gid: u32,
    /// Modification time, seconds since 1970.
    #[n(3)]
    pub mtime_seconds: i64,
    /// Nanoseconds of the modification time, below 10^9.
    #[n(4)]
    pub mtime_nanos: u32,
}

/// One step of a tree stream.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub enum TreeItem {
    /// A directory; its entries follow.
    #[n(1)]
    Directory {
        /// Name in the directory above, empty for the first entry.
        #[n(0)]
        name: Bytes,
        /// Applied after its entries are made.
        #[n(1)]
        meta: Metadata,
    },
    /// The directory entered last is complete.
    #[n(2)]
    EndDirectory,
    /// A regular file; its data follows.
    #[n(3)]
    File {
        /// Name in the directory above.
        #[n(0)]
        name: Bytes,
        /// Applied after its data is written.
        #[n(1)]
        meta: Metadata,
        /// Number by which a later [`TreeItem::HardLink`] means this file; `None` when it has
        /// one name.
        #[n(2)]
        link: Option<u64>,
    },
    /// Bytes of the current file. Always raw.
    #[n(4)]
    Data {
        /// Where they belong.
        #[n(0)]
        offset: u64,
        /// The bytes.
        #[n(1)]
        data: Bytes,
    },
    /// The current file is complete.
    #[n(5)]
    FileEnd {
        /// Its length, holes included.
        #[n(0)]
        size_bytes: u64,
    },
    /// The current file cannot be read on; what came of it is not kept.
    #[n(6)]
    FileBroken {
        /// Why.
        #[n(0)]
        message: String,
    },
    /// A symbolic link.
    #[n(7)]
    Symlink {
        /// Name in the directory above.
        #[n(0)]
        name: Bytes,
        /// Its mode is not used.
        #[n(1)]
        meta: Metadata,
        /// What it points to; any bytes, never followed.
        #[n(2)]
        target: Bytes,
    },
    /// Another name of a file sent earlier.
    #[n(8)]
    HardLink {
        /// Name in the directory above.
        #[n(0)]
        name: Bytes,
        /// Number in its [`TreeItem::File`].
        #[n(1)]
        link: u64,
    },
    /// A named pipe or device.
    #[n(9)]
    Special {
        /// Name in the directory above.
        #[n(0)]
        name: Bytes,
        /// Its metadata.
        #[n(1)]
        meta: Metadata,
        /// Which kind.
        #[n(2)]
        kind: SpecialKind,
        /// Major device number, 0 for a pipe.
        #[n(3)]
        major: u32,
        /// Minor device number, 0 for a pipe.
        #[n(4)]
        minor: u32,
    },
    /// Something was left out.
    #[n(10)]
    Problem {
        /// What and why.
        #[n(0)]
        message: String,
    },
    /// The stream is complete.
    #[n(11)]
    End,
    /// The sending side gives up; nothing follows.
    #[n(12)]
    Abort {
        /// Why.
        #[n(0)]
        message: String,
    },
}

impl Wire for TreeItem {
    fn as_data(&self) -> Option<(Data, &[u8])> {
        match self {
            Self::Data { offset, data } => Some((Data::File { offset: *offset }, data)),
            _ => None,
        }
    }

    fn from_data(data: Data, bytes: &[u8]) -> Option<Self> {
        match data {
            Data::File { offset } => Some(Self::Data {
                offset,
                data: bytes.into(),
            }),
            _ => None,
        }
    }
}

/// Kinds of [`TreeItem::Special`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum SpecialKind {
    /// Named pipe.
    #[n(1)]
    Fifo,
    /// Character device.
    #[n(2)]
    CharacterDevice,
    /// Block device.
    #[n(3)]
    BlockDevice,
}

/// A name as text for messages, with control and non-ASCII bytes escaped.
fn shown(name: &[u8]) -> String {
    name.escape_ascii().to_string()
}
