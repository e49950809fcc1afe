//! Looking chunks up in maps.

use std::collections::HashMap;
use std::error::Error;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::MapRoot;
use super::error::MapError;
use super::node::{MapNode, NODE_CHILDREN, NodeError, covered_chunks};
use crate::chunk::ChunkRef;

/// Nodes that a reader keeps: 2 MiB of them.
const CACHED_NODES: usize = 4096;

/// Where the bytes of nodes are read from: a store, the packs of a checkpoint directory, memory.
///
/// Functions of a name are sources.
pub trait NodeSource {
    /// Why a node cannot be read.
    type Error: Error + 'static;

    /// The bytes of a node. They are trusted to be those that the name is the digest of.
    ///
    /// # Errors
    /// They are not there, or damaged.
    fn node(&self, id: &ChunkRef) -> Result<Vec<u8>, Self::Error>;
}

impl<F, E> NodeSource for F
where
    F: Fn(&ChunkRef) -> Result<Vec<u8>, E>,
    E: Error + 'static,
{
    type Error = E;

    fn node(&self, id: &ChunkRef) -> Result<Vec<u8>, E> {
        self(id)
    }
}

/// Reads maps. Any number of maps may be read with one reader; nodes that were read lately are kept, within 2 MiB.
#[derive(Debug)]
pub struct MapReader<S> {
    source: S,
    cache: Mutex<HashMap<ChunkRef, Arc<MapNode>>>,
}

/// The nodes that [`MapReader::visit_distinct`] has been at, each with the chunks of data below it.
#[derive(Debug, Clone, Default)]
pub struct SeenNodes(HashMap<ChunkRef, u64>);

impl<S: NodeSource> MapReader<S> {
    /// A reader of maps whose nodes are in `source`.
    pub fn new(source: S) -> Self {
        Self {
            source,
            cache: Mutex::default(),
        }
    }

    /// What the nodes are read from.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// The chunk at `index`, the one that covers bytes from `index` × 64 KiB.
    ///
    /// # Errors
    /// A node cannot be read.
    pub fn get(&self, map: &MapRoot, index: u64) -> Result<ChunkRef, MapError<S::Error>> {
        if map.is_zeros() || index >= map.covered_chunks() {
            return Ok(ChunkRef::ZERO);
        }
        let (mut name, mut level) = (map.node(), map.level());
        loop {
            let node = self.node(&name, level)?;
            name = node.children()[position_in(level, index)];
            if level == 0 || name.is_zero() {
                return Ok(name);
            }
            level -= 1;
        }
    }

    /// The chunks that are not zero with their places, in rising order of these. Takes constant memory.
    pub fn data<'a>(&'a self, map: &MapRoot) -> Data<'a, S> {
        self.data_in(map, 0..u64::MAX)
    }

    /// Those of [`data`](Self::data) whose places are in `range`. Nodes that cover nothing of it are not read.
    pub fn data_in<'a>(&'a self, map: &MapRoot, range: Range<u64>) -> Data<'a, S> {
        Data {
            reader: self,
            range,
            root: (!map.is_zeros()).then_some(*map),
            stack: Vec::new(),
        }
    }

    /// Calls `visit` with the name of every chunk that the map needs, its nodes included, but looks at no node that is in
    /// `seen`. Names of data may come repeatedly. With one `seen` for several maps this takes as long as they have
    /// different nodes. Returns how many chunks of data the map names, whether seen or not, repeats included.
    ///
    /// # Errors
    /// A node cannot be read: `seen` is of no use then.
    pub fn visit_distinct(
        &self,
        map: &MapRoot,
        seen: &mut SeenNodes,
        visit: &mut dyn FnMut(ChunkRef),
    ) -> Result<u64, MapError<S::Error>> {
        match map.is_zeros() {
            true => Ok(0),
            false => self.visit_below(&map.node(), map.level(), seen, visit),
        }
    }

    /// At most seven levels deep.
    fn visit_below(
        &self,
        name: &ChunkRef,
        level: u8,
        seen: &mut SeenNodes,
        visit: &mut dyn FnMut(ChunkRef),
    ) -> Result<u64, MapError<S::Error>> {
        if let Some(data) = seen.0.get(name) {
            return Ok(*data);
        }
        visit(*name);
        let node = self.node(name, level)?;
        let mut data = 0u64;
        for child in node.children().iter().filter(|child| !child.is_zero()) {
            data += match level.checked_sub(1) {
                Some(below) => self.visit_below(child, below, seen, visit)?,
                None => {
                    visit(*child);
                    1
                }
            };
        }
        seen.0.insert(*name, data);
        Ok(data)
    }

    /// Reads the topmost node and refuses one that is higher than it need be.
    ///
    /// # Errors
    /// The node cannot be read, or names nothing beside its first child.
    pub fn check_top(&self, map: &MapRoot) -> Result<(), MapError<S::Error>> {
        if map.level() == 0 {
            return Ok(());
        }
        match self.node(&map.node(), map.level())?.only_first() {
            None => Ok(()),
            Some(_) => Err(MapError::Node {
                node: map.node(),
                source: NodeError::NeedlessLevel,
            }),
        }
    }

    /// The node `id`, which is of `level`.
    pub(super) fn node(
        &self,
        id: &ChunkRef,
        level: u8,
    ) -> Result<Arc<MapNode>, MapError<S::Error>> {
        let malformed = |source| MapError::Node { node: *id, source };
        let cached = self.cached().get(id).cloned();
        if let Some(node) = cached {
            return match node.level() {
                found if found == level => Ok(node),
                found => Err(malformed(NodeError::Level {
                    found,
                    expected: level,
                })),
            };
        }
        let bytes = self.source.node(id).map_err(|error| MapError::Source {
            node: *id,
            source: Box::new(error),
        })?;
        let node = Arc::new(MapNode::decode(&bytes, level).map_err(malformed)?);
        let mut cache = self.cached();
        if cache.len() >= CACHED_NODES {
            cache.clear();
        }
        cache.insert(*id, node.clone());
        Ok(node)
    }

    fn cached(&self) -> std::sync::MutexGuard<'_, HashMap<ChunkRef, Arc<MapNode>>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which child of a node of `level` covers the chunk at `index`.
pub(super) fn position_in(level: u8, index: u64) -> usize {
    let per_child = covered_chunks(level) / NODE_CHILDREN as u64;
    // Below 16, so it fits.
    (index / per_child % NODE_CHILDREN as u64) as usize
}

/// The chunks of a map that are not zero, see [`MapReader::data`]. Ends after an error.
#[derive(Debug)]
pub struct Data<'a, S> {
    reader: &'a MapReader<S>,
    range: Range<u64>,
    /// What is not begun yet.
    root: Option<MapRoot>,
    /// Nodes that are not done, topmost first.
    stack: Vec<Place>,
}

#[derive(Debug)]
struct Place {
    node: Arc<MapNode>,
    /// Index of the first chunk that it covers.
    first: u64,
    /// The child to go on with.
    next: usize,
}

impl<S: NodeSource> Data<'_, S> {
    fn enter(&mut self, id: &ChunkRef, level: u8, first: u64) -> Result<(), MapError<S::Error>> {
        let node = self.reader.node(id, level)?;
        self.stack.push(Place {
            node,
            first,
            next: 0,
        });
        Ok(())
    }

    fn advance(&mut self) -> Result<Option<(u64, ChunkRef)>, MapError<S::Error>> {
        if let Some(root) = self.root.take() {
            self.enter(&root.node(), root.level(), 0)?;
        }
        while let Some(place) = self.stack.last_mut() {
            let Some(child) = place.node.children().get(place.next).copied() else {
                self.stack.pop();
                continue;
            };
            let level = place.node.level();
            let per_child = covered_chunks(level) / NODE_CHILDREN as u64;
            let index = place.first + place.next as u64 * per_child;
            place.next += 1;
            let outside = index >= self.range.end || index + per_child <= self.range.start;
            match level.checked_sub(1) {
                _ if child.is_zero() || outside => {}
                Some(below) => self.enter(&child, below, index)?,
                None => return Ok(Some((index, child))),
            }
        }
        Ok(None)
    }
}

impl<S: NodeSource> Iterator for Data<'_, S> {
    type Item = Result<(u64, ChunkRef), MapError<S::Error>>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.advance();
        if next.is_err() {
            self.stack.clear();
        }
        next.transpose()
    }
}
