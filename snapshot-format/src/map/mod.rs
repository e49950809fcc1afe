//! Chunk maps: which chunk covers which 64 KiB of a memory region, a disk or a blob.
//!
//! A map is a tree of [`MapNode`]s that are stored as chunks themselves, so a record names a map by one [`MapRoot`].
//! A node at level 0 names 16 chunks of data, one at level *n* names 16 nodes of level *n* − 1. Where all is zero there is no
//! node. Equal content has equal nodes, whichever way it came about: two maps share every node below which they agree, and
//! a change writes only the nodes above what it changes.
//!
//! * [`MapReader`] looks chunks up, lists them and makes changed maps; it reads nodes from a [`NodeSource`].
//! * [`MapNodes`] keeps nodes in memory, for maps that are made from scratch.
//!
//! # Hostile maps
//!
//! Nodes may be shared within a map, so a few of them can name a hundred million chunks. Whatever visits chunks by index
//! ([`MapReader::data`]) takes constant memory and is to be bounded by what the caller does with each; whatever needs each
//! chunk once ([`MapReader::visit_distinct`]) looks at each node once.

mod change;
mod error;
mod memory;
mod node;
mod read;

pub use change::ChangeError;
pub use error::MapError;
pub use memory::{MapNodes, NoSuchNode};
pub use node::{MAX_LEVEL, MapNode, NODE_CHILDREN, NodeError};
pub use read::{Data, MapReader, NodeSource, SeenNodes};

use crate::chunk::ChunkRef;

/// Names a map: its topmost node.
///
/// The top is as low as can be: the node of a level above 0 names something beside its first child. What lies beyond the
/// chunks that it covers is zero, so a part grows without a change of its map.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct MapRoot {
    level: u8,
    node: ChunkRef,
}

impl MapRoot {
    /// The map of nothing but zeros.
    pub const ZEROS: Self = Self {
        level: 0,
        node: ChunkRef::ZERO,
    };

    /// The map below `node`, which is of `level`. `None` for a level beyond [`MAX_LEVEL`].
    #[must_use]
    pub fn new(level: u8, node: ChunkRef) -> Option<Self> {
        match (level, node.is_zero()) {
            (_, true) => Some(Self::ZEROS),
            (0..=MAX_LEVEL, false) => Some(Self { level, node }),
            _ => None,
        }
    }

    /// The topmost node; [`ChunkRef::ZERO`] if all is zero.
    #[must_use]
    pub fn node(&self) -> ChunkRef {
        self.node
    }

    /// The level of the topmost node, at most [`MAX_LEVEL`].
    #[must_use]
    pub fn level(&self) -> u8 {
        self.level
    }

    /// Whether all is zero.
    #[must_use]
    pub fn is_zeros(&self) -> bool {
        self.node.is_zero()
    }

    /// Chunks that the topmost node covers.
    #[must_use]
    pub fn covered_chunks(&self) -> u64 {
        node::covered_chunks(self.level)
    }

    /// Whether a part of `chunks` chunks can have this map: its topmost node would be lower if nothing lay beyond its
    /// first child.
    #[must_use]
    pub fn fits(&self, chunks: u64) -> bool {
        match self.level {
            0 => self.is_zeros() || chunks > 0,
            level => node::covered_chunks(level - 1) < chunks,
        }
    }
}
