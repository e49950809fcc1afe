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
const PREFIXES: [(&[u8], u8); 6] = [
    (b"system.posix_acl_access", 2),
    (b"system.posix_acl_default", 3),
    (b"user.", 1),
    (b"trusted.", 4),
    (b"security.", 6),
    (b"system.", 7),
];

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

/// Whether ext4 can hold these attributes: known prefixes, valid lists of
/// access rights, and not more than a block.
pub(crate) fn fits(xattrs: &Xattrs) -> bool {
    attributes(xattrs).is_some_and(|list| BLOCK_HEADER_BYTES + space(&list) <= BLOCK_BYTES)
}

/// Decides where attributes that [`fits`] accepts go.
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

/// Translates names and values, in the order ext4 wants them. `None` if one
/// has no place in ext4.
fn attributes(xattrs: &Xattrs) -> Option<Vec<Attribute>> {
    let mut list = Vec::new();
    for (full_name, value) in xattrs {
        let (prefix, index) = PREFIXES
            .iter()
            .find(|(prefix, _)| full_name.starts_with(prefix))
            .copied()?;
        let name = full_name[prefix.len()..].to_vec();
        let is_acl = matches!(index, 2 | 3);
        if name.len() > 255 || name.is_empty() != is_acl {
            return None;
        }
        let value = if is_acl {
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
        assert!(fits(&one("user.a", 4000)));
        assert!(!fits(&one("user.a", 4096)));
        assert!(!fits(&one("user.", 1)));
        assert!(!fits(&one("other.a", 1)));
        assert!(!fits(&one("system.posix_acl_access", 5)));
        assert!(fits(&Xattrs::new()));
    }
}
