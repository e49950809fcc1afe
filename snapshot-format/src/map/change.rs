//! Maps that differ from others.

use std::collections::{BTreeMap, HashMap};
use std::error::Error;

use thiserror::Error;

use super::MapRoot;
use super::error::MapError;
use super::node::{MAX_LEVEL, MapNode, NODE_CHILDREN, covered_chunks};
use super::read::{MapReader, NodeSource, position_in};
use crate::chunk::ChunkRef;

/// Why there is no changed map; `R` is the error of what nodes are read from, `W` of where new ones go.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ChangeError<R: Error + 'static, W: Error + 'static> {
    /// A node of the former map cannot be read.
    #[error(transparent)]
    Read(#[from] MapError<R>),
    /// A node of the new map cannot be written.
    #[error("cannot write a node of a chunk map")]
    Write(#[source] W),
    /// No map covers so much.
    #[error("chunk {index} is beyond what a chunk map covers")]
    Index {
        /// The chunk's place.
        index: u64,
    },
}

impl<S: NodeSource> MapReader<S> {
    /// The map that differs from `map` in these chunks only. `write` gets each new node, before the nodes that name it, and
    /// gives its name: the BLAKE3 digest. Nodes that cover no change are neither read nor written.
    ///
    /// # Errors
    /// A node can be neither read nor written, or a change lies beyond 16 TiB.
    pub fn change<W: Error + 'static>(
        &self,
        map: &MapRoot,
        changes: &BTreeMap<u64, ChunkRef>,
        write: &mut dyn FnMut(&[u8]) -> Result<ChunkRef, W>,
    ) -> Result<MapRoot, ChangeError<S::Error, W>> {
        let data = changes.iter().rev().find(|(_, chunk)| !chunk.is_zero());
        let level = match data {
            None => map.level(),
            Some((index, _)) => map.level().max(level_for(*index)?),
        };
        let mut change = Change {
            reader: self,
            changes,
            write,
            chains: HashMap::new(),
        };
        let mut node = change.apply(*map, level, 0)?;
        let mut level = level;
        // The top is as low as can be.
        while let Some(below) = level.checked_sub(1)
            && !node.is_zero()
            && let Some(only) = change.only_first(&node, level)?
        {
            (node, level) = (only, below);
        }
        Ok(MapRoot::new(level, node).unwrap_or_default())
    }
}

/// The lowest level of which one node covers the chunk at `index`.
fn level_for<R: Error, W: Error>(index: u64) -> Result<u8, ChangeError<R, W>> {
    (0..=MAX_LEVEL)
        .find(|level| index < covered_chunks(*level))
        .ok_or(ChangeError::Index { index })
}

struct Change<'a, S, W> {
    reader: &'a MapReader<S>,
    changes: &'a BTreeMap<u64, ChunkRef>,
    write: &'a mut dyn FnMut(&[u8]) -> Result<ChunkRef, W>,
    /// New nodes with nothing but a first child, and that child: what a top may have to give way to.
    chains: HashMap<ChunkRef, Option<ChunkRef>>,
}

impl<S: NodeSource, W: Error + 'static> Change<'_, S, W> {
    /// The node of `level` whose first chunk is `first`, changed. `former` is what was there, of this level or, under a new
    /// top, a lower one.
    fn apply(
        &mut self,
        former: MapRoot,
        level: u8,
        first: u64,
    ) -> Result<ChunkRef, ChangeError<S::Error, W>> {
        let covered = covered_chunks(level);
        let same_level = former.level() == level || former.is_zeros();
        if same_level && self.changes.range(first..first + covered).next().is_none() {
            return Ok(former.node());
        }
        let before = match former {
            former if former.is_zeros() || !same_level => MapNode::empty(level),
            former => *self.reader.node(&former.node(), level)?,
        };
        let mut after = before;
        match level.checked_sub(1) {
            None => {
                for (index, chunk) in self.changes.range(first..first + covered) {
                    after.set(position_in(0, *index), *chunk);
                }
            }
            Some(below) => {
                let per_child = covered / NODE_CHILDREN as u64;
                for position in 0..NODE_CHILDREN {
                    let child = before.children()[position];
                    let former = match (same_level, position) {
                        (false, 0) => former,
                        _ => MapRoot::new(below, child).unwrap_or_default(),
                    };
                    let at = first + position as u64 * per_child;
                    after.set(position, self.apply(former, below, at)?);
                }
            }
        }
        match after {
            after if after.is_empty() => Ok(ChunkRef::ZERO),
            after if same_level && after == before => Ok(former.node()),
            after => {
                let name = (self.write)(&after.encode()).map_err(ChangeError::Write)?;
                self.chains.insert(name, after.only_first());
                Ok(name)
            }
        }
    }

    fn only_first(
        &self,
        node: &ChunkRef,
        level: u8,
    ) -> Result<Option<ChunkRef>, ChangeError<S::Error, W>> {
        match self.chains.get(node) {
            Some(only) => Ok(*only),
            None => Ok(self.reader.node(node, level)?.only_first()),
        }
    }
}
