//! Names and times of a file system, made from what is in it.

use std::time::{SystemTime, UNIX_EPOCH};

use super::slots::Slots;
use crate::image::tree::{Kind, Meta, Timestamp, Tree};

/// What tells this file system from others: a function of the tree.
pub(super) struct Identity {
    pub(super) uuid: [u8; 16],
    pub(super) hash_seed: [u8; 16],
    pub(super) time: Timestamp,
}

pub(super) fn identity(tree: &Tree, slots: &Slots) -> Identity {
    let mut hasher = blake3::Hasher::new_derive_key("smolvm ext4 identity v1");
    for (index, slot) in slots.slots.iter().enumerate() {
        let Meta {
            mode,
            uid,
            gid,
            mtime,
            xattrs,
        } = &tree.node(slot.node).meta;
        let mut text = format!(
            "{index} {} {mode} {uid} {gid} {mtime:?} {xattrs:?}",
            slot.links
        );
        if let Kind::File(content) = &tree.node(slot.node).kind {
            text += &format!(" {}", content.size_bytes);
        }
        hasher.update(text.as_bytes());
        for name in tree
            .children(slot.node)
            .into_iter()
            .flatten()
            .map(|(name, _)| name)
        {
            hasher
                .update(&(name.len() as u64).to_le_bytes())
                .update(name);
        }
    }
    let mut bytes = [[0; 16]; 2];
    hasher.finalize_xof().fill(bytes.as_flattened_mut());
    let [mut uuid, hash_seed] = bytes;
    // RFC 9562: version 8 (custom), variant 10.
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    // A file from the future must not make the file system one.
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs() as i64);
    let seconds = tree.newest().seconds.clamp(1, now.max(1));
    Identity {
        uuid,
        hash_seed,
        time: Timestamp {
            seconds,
            nanoseconds: 0,
        },
    }
}
