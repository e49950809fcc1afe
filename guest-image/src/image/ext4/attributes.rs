//! Extended attributes, in the inode if all fit there, else in one block.

use super::bytes::{put16, put32};
use super::checksum::Checksum;
use super::geometry::{BLOCK_BYTES, INODE_BYTES};
use super::inode::ATTRIBUTES_AT;
use crate::image::tree::Xattrs;

const MAGIC: u32 = 0xea02_0000;
const BLOCK_HEADER_BYTES: usize = 32;
const INODE_HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 16;
/// The zero word that ends the entries.
const END_BYTES: usize = 4;
const INODE_SPACE_BYTES: usize = INODE_BYTES - ATTRIBUTES_AT;

/// Name prefixes kept as a number. Order matters: whole names first.
const PREFIXES: [(&[u8], u8); 5] = [
    (b"system.posix_acl_access", 2),
    (b"system.posix_acl_default", 3),
    (b"user.", 1),
    (b"trusted.", 4),
    (b"security.", 6),
];
/// Longest name behind the prefix.
const MAX_NAME_BYTES: usize = 255;

/// An attribute as ext4 stores it.
struct Attribute {
    index: u8,
    name: Vec<u8>,
    value: Vec<u8>,
}

/// Where a file's attributes go.
pub(super) enum Placement {
    None,
    InInode(Vec<u8>),
    InBlock,
}

/// Why a file's attributes cannot be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttributeError {
    /// Together they are larger than a block.
    #[error("its extended attributes are larger than the 4 KiB that ext4 has for them")]
    TooLarge,
    /// A list of access rights does not decode.
    #[error("its list of access rights is damaged")]
    BadAccessList,
}

/// Takes away the attributes that Linux file systems do not keep, such as those
/// of macOS or of the host's own file system, and returns their names.
pub(crate) fn take_foreign(xattrs: &mut Xattrs) -> Vec<Vec<u8>> {
    let foreign = xattrs.extract_if(.., |name, _| stored_name(name).is_none());
    foreign.map(|(name, _)| name).collect()
}

/// Whether ext4 can hold these attributes, none of which is foreign.
pub(crate) fn check(xattrs: &Xattrs) -> Result<(), AttributeError> {
    let list = attributes(xattrs).ok_or(AttributeError::BadAccessList)?;
    if BLOCK_HEADER_BYTES + space(&list) > BLOCK_BYTES {
        return Err(AttributeError::TooLarge);
    }
    Ok(())
}

/// The number of a name's prefix, and what follows it. `None` for names that
/// ext4 has no place for.
fn stored_name(full_name: &[u8]) -> Option<(u8, &[u8])> {
    let (prefix, index) = PREFIXES
        .iter()
        .find(|(prefix, _)| full_name.starts_with(prefix))?;
    let name = &full_name[prefix.len()..];
    let is_acl = matches!(index, 2 | 3);
    (name.len() <= MAX_NAME_BYTES && name.is_empty() == is_acl).then_some((*index, name))
}

/// Memory that the writer holds for attributes that do not fit into the inode.
pub(crate) fn block_bytes(xattrs: &Xattrs) -> usize {
    if matches!(place(xattrs), Placement::InBlock) {
        BLOCK_BYTES
    } else {
        0
    }
}

/// Decides where attributes that pass [`check`] go.
pub(super) fn place(xattrs: &Xattrs) -> Placement {
    let list = attributes(xattrs).unwrap_or_default();
    if list.is_empty() {
        return Placement::None;
    }
    if INODE_HEADER_BYTES + space(&list) > INODE_SPACE_BYTES {
        return Placement::InBlock;
    }
    let mut out = vec![0; INODE_SPACE_BYTES];
    put32(&mut out, 0, MAGIC);
    // Offsets of values count from behind the header here.
    put_entries(&mut out[INODE_HEADER_BYTES..], 0, &list);
    Placement::InInode(out)
}

/// Encodes the attribute block that will lie at `block`.
pub(super) fn encode_block(xattrs: &Xattrs, block: u32, seed: Checksum) -> Vec<u8> {
    let list = attributes(xattrs).unwrap_or_default();
    let mut out = vec![0; BLOCK_BYTES];
    put32(&mut out, 0, MAGIC);
    put32(&mut out, 4, 1); // references
    put32(&mut out, 8, 1); // blocks
    let hash = put_entries(&mut out, BLOCK_HEADER_BYTES, &list);
    put32(&mut out, 12, hash);
    let sum = seed
        .update(&u64::from(block).to_le_bytes())
        .update(&out)
        .value();
    put32(&mut out, 16, sum);
    out
}

/// Writes entries from `at` on and values from the end backwards. Returns the
/// hash over all of them.
fn put_entries(out: &mut [u8], mut at: usize, list: &[Attribute]) -> u32 {
    let mut value_at = out.len();
    let mut total = 0u32;
    for attribute in list {
        value_at -= attribute.value.len().next_multiple_of(4);
        let entry = &mut out[at..];
        entry[0] = attribute.name.len() as u8;
        entry[1] = attribute.index;
        let offset = if attribute.value.is_empty() {
            0
        } else {
            value_at
        };
        put16(entry, 2, offset as u16);
        put32(entry, 8, attribute.value.len() as u32);
        let hash = attribute.hash();
        put32(entry, 12, hash);
        entry[ENTRY_BYTES..ENTRY_BYTES + attribute.name.len()].copy_from_slice(&attribute.name);
        out[value_at..value_at + attribute.value.len()].copy_from_slice(&attribute.value);
        at += entry_bytes(&attribute.name);
        total = total.rotate_left(16) ^ hash;
    }
    total
}

impl Attribute {
    /// The hash that ext4 keeps beside each entry.
    fn hash(&self) -> u32 {
        let over_name = self
            .name
            .iter()
            .fold(0u32, |hash, byte| hash.rotate_left(5) ^ u32::from(*byte));
        self.value.chunks(4).fold(over_name, |hash, chunk| {
            let mut word = [0; 4];
            word[..chunk.len()].copy_from_slice(chunk);
            hash.rotate_left(16) ^ u32::from_le_bytes(word)
        })
    }
}

/// Translates names and values, in the order ext4 wants them. `None` if a list
/// of access rights does not decode.
fn attributes(xattrs: &Xattrs) -> Option<Vec<Attribute>> {
    let mut list = Vec::new();
    for (full_name, value) in xattrs {
        let Some((index, name)) = stored_name(full_name) else {
            continue;
        };
        let name = name.to_vec();
        let value = if matches!(index, 2 | 3) {
            encode_acl(value)?
        } else {
            value.clone()
        };
        list.push(Attribute { index, name, value });
    }
    list.sort_by(|a, b| (a.index, a.name.len(), &a.name).cmp(&(b.index, b.name.len(), &b.name)));
    Some(list)
}

/// Access rights from the form of the system call (version 2) to the shorter
/// one on disk (version 1), in which only named users and groups have an id.
fn encode_acl(value: &[u8]) -> Option<Vec<u8>> {
    const NAMED_USER: u16 = 0x02;
    const NAMED_GROUP: u16 = 0x08;
    let (version, entries) = value.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != 2 || !entries.len().is_multiple_of(8) {
        return None;
    }
    let mut out = 1u32.to_le_bytes().to_vec();
    for entry in entries.chunks_exact(8) {
        out.extend_from_slice(&entry[..4]);
        if matches!(
            u16::from_le_bytes([entry[0], entry[1]]),
            NAMED_USER | NAMED_GROUP
        ) {
            out.extend_from_slice(&entry[4..]);
        }
    }
    Some(out)
}

fn entry_bytes(name: &[u8]) -> usize {
    (ENTRY_BYTES + name.len()).next_multiple_of(4)
}

fn space(list: &[Attribute]) -> usize {
    let each = |a: &Attribute| entry_bytes(&a.name) + a.value.len().next_multiple_of(4);
    list.iter().map(each).sum::<usize>() + END_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_ext4_cannot_hold() {
        let one = |name: &str, len: usize| Xattrs::from([(name.into(), vec![7; len])]);
        check(&one("user.a", 4000)).unwrap();
        check(&Xattrs::new()).unwrap();
        let too_large = Err(AttributeError::TooLarge);
        assert_eq!(check(&one("user.a", 4096)), too_large);
        let bad_list = Err(AttributeError::BadAccessList);
        assert_eq!(check(&one("system.posix_acl_access", 5)), bad_list);
    }

    #[test]
    fn only_what_linux_keeps_is_kept() {
        let long = format!("user.{}", "n".repeat(256));
        let foreign = [
            "com.apple.provenance",
            "btrfs.compression",
            "system.data",
            "system.posix_acl_access_not",
            "user.",
            &long,
        ];
        let known = ["user.a", "trusted.a", "security.capability"];
        let mut xattrs: Xattrs = foreign
            .iter()
            .chain(&known)
            .map(|name| (name.as_bytes().to_vec(), Vec::new()))
            .collect();
        assert_eq!(take_foreign(&mut xattrs).len(), foreign.len());
        assert_eq!(xattrs.len(), known.len());
    }
}
