//! The chunk maps of points: their nodes are chunks in packs.

use cas_store::{ChunkId, PackSet, ReadError};
use snapshot_format::map::{MapError, MapNode, SeenNodes};
use snapshot_format::{ChunkRef, MapReader, NodeSource, Point};

/// Why a map of a point cannot be read.
pub(crate) type MapReadError = MapError<ReadError>;

/// Nodes that lie in packs.
#[derive(Clone, Copy)]
pub(crate) struct NodesIn<'a>(pub(crate) &'a PackSet);

impl NodeSource for NodesIn<'_> {
    type Error = ReadError;

    fn node(&self, id: &ChunkRef) -> Result<Vec<u8>, ReadError> {
        node_of(|bytes| self.0.get(&ChunkId(id.0), bytes))
    }
}

/// A node's bytes as `get` puts them into a buffer. A chunk that is too large for one is no node.
pub(crate) fn node_of(
    get: impl FnOnce(&mut [u8]) -> Result<usize, ReadError>,
) -> Result<Vec<u8>, ReadError> {
    let mut bytes = vec![0; MapNode::MAX_BYTES];
    let length = get(&mut bytes)?;
    bytes.truncate(length);
    Ok(bytes)
}

/// The ids of all chunks that these points need, nodes of maps included, each once. Takes as long as they have different
/// nodes: what a point shares with another costs nothing.
pub(crate) fn needed_chunks<'p>(
    points: impl IntoIterator<Item = &'p Point>,
    packs: &PackSet,
) -> Result<Vec<ChunkId>, MapReadError> {
    let reader = MapReader::new(NodesIn(packs));
    let mut seen = SeenNodes::default();
    let mut ids = Vec::new();
    for part in points.into_iter().flat_map(|point| point.record().parts()) {
        let visit = &mut |name: ChunkRef| ids.push(ChunkId(name.0));
        reader.visit_distinct(&part.map, &mut seen, visit)?;
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}
