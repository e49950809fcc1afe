//! One node of a map, as bytes.

use thiserror::Error;

use crate::chunk::ChunkRef;

/// Names in a node.
pub const NODE_CHILDREN: usize = 16;
/// The highest level: a node of it covers 16 TiB.
pub const MAX_LEVEL: u8 = 6;

/// First bytes of every node.
const MAGIC: [u8; 4] = *b"SMAP";
/// Bytes before the names: magic, level, reserved, which names follow.
const HEADER_BYTES: usize = 8;
/// Bytes of a name.
const NAME_BYTES: usize = 32;

/// Why bytes are not a node of a map.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeError {
    /// They do not begin as one.
    #[error("it is no node of a chunk map")]
    NotANode,
    /// It is of another level than its place in the map.
    #[error("it is a node of level {found} instead of {expected}")]
    Level {
        /// Its level.
        found: u8,
        /// That of its place.
        expected: u8,
    },
    /// It has another length than the names that it says it holds.
    #[error("it has {found} bytes instead of {expected}")]
    Length {
        /// Its length in bytes.
        found: usize,
        /// What it should be.
        expected: usize,
    },
    /// It names nothing, names zeros, or has bytes that must be zero and are not: each node has one encoding.
    #[error("it is not in its canonical form")]
    NotCanonical,
    /// The topmost node names nothing beside its first child.
    #[error("it is the topmost node and names nothing beside its first child")]
    NeedlessLevel,
}

/// Chunks that a node of `level` covers.
pub(super) fn covered_chunks(level: u8) -> u64 {
    (NODE_CHILDREN as u64).pow(u32::from(level) + 1)
}

/// The names of 16 chunks of data (level 0), or of 16 nodes of the level below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapNode {
    level: u8,
    children: [ChunkRef; NODE_CHILDREN],
}

impl MapNode {
    /// Longest node in bytes.
    pub const MAX_BYTES: usize = HEADER_BYTES + NODE_CHILDREN * NAME_BYTES;

    /// A node that names nothing.
    pub(super) fn empty(level: u8) -> Self {
        Self {
            level,
            children: [ChunkRef::ZERO; NODE_CHILDREN],
        }
    }

    /// Its level: 0 names chunks of data.
    #[must_use]
    pub fn level(&self) -> u8 {
        self.level
    }

    /// What it names, in order; [`ChunkRef::ZERO`] where all is zero.
    #[must_use]
    pub fn children(&self) -> &[ChunkRef; NODE_CHILDREN] {
        &self.children
    }

    pub(super) fn set(&mut self, position: usize, child: ChunkRef) {
        self.children[position] = child;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.children.iter().all(ChunkRef::is_zero)
    }

    /// The first child, if it is the only one.
    pub(crate) fn only_first(&self) -> Option<ChunkRef> {
        let [first, others @ ..] = &self.children;
        let only = !first.is_zero() && others.iter().all(ChunkRef::is_zero);
        only.then_some(*first)
    }

    /// The node's bytes, at most 520.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut present = 0u16;
        let mut names = Vec::new();
        for (position, child) in self.children.iter().enumerate() {
            if !child.is_zero() {
                present |= 1 << position;
                names.extend_from_slice(&child.0);
            }
        }
        let mut bytes = Vec::with_capacity(HEADER_BYTES + names.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&[self.level, 0]);
        bytes.extend_from_slice(&present.to_le_bytes());
        bytes.extend_from_slice(&names);
        bytes
    }

    /// Reads what [`encode`](Self::encode) wrote for a place of `level`, and only that.
    ///
    /// # Errors
    /// The bytes are no node, of another level, or not as `encode` writes them.
    pub fn decode(bytes: &[u8], level: u8) -> Result<Self, NodeError> {
        let (header, names) = bytes
            .split_first_chunk::<HEADER_BYTES>()
            .ok_or(NodeError::NotANode)?;
        let [magic @ .., found, reserved, low, high] = *header;
        if magic != MAGIC {
            return Err(NodeError::NotANode);
        }
        if found != level {
            let expected = level;
            return Err(NodeError::Level { found, expected });
        }
        let present = u16::from_le_bytes([low, high]);
        let expected = HEADER_BYTES + present.count_ones() as usize * NAME_BYTES;
        if bytes.len() != expected {
            let found = bytes.len();
            return Err(NodeError::Length { found, expected });
        }
        if reserved != 0 || present == 0 || level > MAX_LEVEL {
            return Err(NodeError::NotCanonical);
        }
        let mut node = Self::empty(level);
        let positions = (0..NODE_CHILDREN).filter(|position| present & (1 << position) != 0);
        for (position, name) in positions.zip(names.as_chunks::<NAME_BYTES>().0) {
            if *name == [0; NAME_BYTES] {
                return Err(NodeError::NotCanonical);
            }
            node.set(position, ChunkRef(*name));
        }
        Ok(node)
    }
}
