//! Numbering the nodes of a tree with inodes.

use std::collections::VecDeque;

use super::Ext4Error;
use super::superblock::FIRST_INODE;
use super::writer::LOST_AND_FOUND;
use crate::image::tree::{NodeId, Tree};

const ROOT_INODE: u32 = 2;
/// `EXT4_LINK_MAX`; directories with more say 1.
pub(super) const MAX_LINKS: u32 = 65000;

/// A tree numbered with inodes.
pub(super) struct Slots {
    pub(super) slots: Vec<Slot>,
    /// Slot of each node, `NONE` for nodes no longer in the tree.
    pub(super) by_node: Vec<u32>,
}

pub(super) const NONE: u32 = u32::MAX;

/// One inode to be written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    pub(super) node: NodeId,
    pub(super) links: u32,
    /// Of a directory: the slot of its parent.
    pub(super) parent: u32,
}

/// The number of the inode in a slot: the root has its own, the others follow
/// the reserved ones.
pub(super) fn inode_number(slot: u32) -> u32 {
    if slot == 0 {
        ROOT_INODE
    } else {
        FIRST_INODE + slot - 1
    }
}

/// Numbers all nodes that have a name, directories before their contents,
/// `lost+found` first.
pub(super) fn number(tree: &Tree) -> Result<Slots, Ext4Error> {
    let root = Slot {
        node: NodeId::ROOT,
        links: 2,
        parent: 0,
    };
    let mut slots = Slots {
        slots: vec![root],
        by_node: vec![NONE; tree.node_count()],
    };
    slots.by_node[0] = 0;
    if let Some(id) = tree.lookup(LOST_AND_FOUND) {
        slots.add(tree, id, 0);
    }
    let mut directories = VecDeque::from([0u32]);
    while let Some(parent) = directories.pop_front() {
        let children = tree.children(slots.slots[parent as usize].node);
        for id in children.into_iter().flatten().map(|(_, id)| *id) {
            let is_dir = tree.children(id).is_some();
            match slots.by_node[id.index()] {
                NONE => slots.add(tree, id, parent),
                slot if !is_dir => slots.slots[slot as usize].links += 1,
                _ => {}
            }
            let slot = slots.by_node[id.index()];
            if is_dir {
                slots.slots[parent as usize].links += 1;
                directories.push_back(slot);
            } else if slots.slots[slot as usize].links > MAX_LINKS {
                return Err(Ext4Error::TooManyLinks);
            }
        }
    }
    Ok(slots)
}

impl Slots {
    fn add(&mut self, tree: &Tree, node: NodeId, parent: u32) {
        let links = if tree.children(node).is_some() { 2 } else { 1 };
        self.by_node[node.index()] = self.slots.len() as u32;
        self.slots.push(Slot {
            node,
            links,
            parent,
        });
    }
}
