//! Maps in memory.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;

use thiserror::Error;

use super::change::ChangeError;
use super::read::{MapReader, NodeSource};
use super::{MapError, MapRoot};
use crate::chunk::ChunkRef;

/// A node that is not in memory.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
#[error("there is no node {0:.12}")]
pub struct NoSuchNode(pub ChunkRef);

/// Nodes of maps in memory: what a map is made in, and a [`NodeSource`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MapNodes {
    nodes: HashMap<ChunkRef, Vec<u8>>,
}

impl MapNodes {
    /// No nodes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a node with these bytes; returns its name.
    pub fn insert(&mut self, bytes: Vec<u8>) -> ChunkRef {
        let name = ChunkRef::of_bytes(&bytes);
        self.nodes.insert(name, bytes);
        name
    }

    /// A node's bytes.
    #[must_use]
    pub fn get(&self, id: &ChunkRef) -> Option<&[u8]> {
        self.nodes.get(id).map(Vec::as_slice)
    }

    /// Every node with its bytes, in no order. To be stored as chunks of a point that names the maps.
    pub fn iter(&self) -> impl Iterator<Item = (&ChunkRef, &[u8])> {
        self.nodes
            .iter()
            .map(|(name, bytes)| (name, bytes.as_slice()))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Makes the map of these chunks at these places; zero elsewhere.
    ///
    /// # Errors
    /// A place beyond 16 TiB.
    pub fn build(
        &mut self,
        chunks: impl IntoIterator<Item = (u64, ChunkRef)>,
    ) -> Result<MapRoot, ChangeError<NoSuchNode, Infallible>> {
        self.change(&MapRoot::ZEROS, &chunks.into_iter().collect())
    }

    /// Makes the map that differs from `map` in these chunks. See [`MapReader::change`].
    ///
    /// # Errors
    /// A node of `map` is not here, or a place is beyond 16 TiB.
    pub fn change(
        &mut self,
        map: &MapRoot,
        changes: &BTreeMap<u64, ChunkRef>,
    ) -> Result<MapRoot, ChangeError<NoSuchNode, Infallible>> {
        let mut new = Vec::new();
        let changed = MapReader::new(&*self).change(map, changes, &mut |bytes| {
            new.push(bytes.to_vec());
            Ok(ChunkRef::of_bytes(bytes))
        });
        for bytes in new {
            self.insert(bytes);
        }
        changed
    }

    /// The chunks of a map that are not zero, with their places.
    ///
    /// # Errors
    /// A node of it is not here.
    pub fn chunks(&self, map: &MapRoot) -> Result<Vec<(u64, ChunkRef)>, MapError<NoSuchNode>> {
        MapReader::new(self).data(map).collect()
    }
}

impl NodeSource for MapNodes {
    type Error = NoSuchNode;

    fn node(&self, id: &ChunkRef) -> Result<Vec<u8>, NoSuchNode> {
        self.get(id).map(<[u8]>::to_vec).ok_or(NoSuchNode(*id))
    }
}

impl NodeSource for &MapNodes {
    type Error = NoSuchNode;

    fn node(&self, id: &ChunkRef) -> Result<Vec<u8>, NoSuchNode> {
        (**self).node(id)
    }
}
