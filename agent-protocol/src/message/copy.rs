//! Copies of trees.

use minicbor::{Decode, Encode};

use crate::codec::{Bytes, bounded_list};
use crate::tree::MAX_PROBLEMS;

/// A copy into the guest.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct CopyIn {
    /// Path in the guest: inside it when it is a directory, else as it.
    #[n(0)]
    pub target: Bytes,
    /// Name that the tree gets inside a directory. Empty: its contents go into the target itself.
    #[n(1)]
    pub name: Bytes,
    /// Owner of what is made; `None` keeps the numbers of the source.
    #[n(2)]
    pub owner: Option<Owner>,
}

/// Numeric owner of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Owner {
    /// User.
    #[n(0)]
    pub uid: u32,
    /// Group.
    #[n(1)]
    pub gid: u32,
}

/// What a copy did.
#[derive(Debug, Clone, PartialEq, Eq, Default, Encode, Decode)]
#[cbor(map)]
pub struct CopyReport {
    /// Files, directories, links and others made.
    #[n(0)]
    pub entries: u64,
    /// Bytes of file data written, holes not counted.
    #[n(1)]
    pub data_bytes: u64,
    /// What could not be copied, or not wholly; the copy went on without it. At most
    /// [`MAX_PROBLEMS`] are kept.
    #[cbor(n(2), default, decode_with = "bounded_list::<_, _, MAX_PROBLEMS>")]
    pub problems: Vec<String>,
    /// How many problems there were.
    #[cbor(n(3), default)]
    pub problem_count: u64,
}
