//! The chunk maps of points: their nodes are chunks in packs.

use std::error::Error;
use std::path::Path;

use cas_store::{ChunkId, PackSet, ReadError, RecordChunks, StoreError};
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
    for point in points {
        visit(&reader, point, &mut seen, &mut ids)?;
    }
    Ok(each_once(ids))
}

/// Lists the chunks of records, whose maps lie in packs.
pub(crate) struct ChunksOf<'a>(pub(crate) &'a PackSet);

impl RecordChunks for ChunksOf<'_> {
    fn chunks(
        &self,
        record: &[u8],
        visit: &mut dyn FnMut(ChunkId),
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let point = Point::decode(record)?;
        needed_chunks([&point], self.0)?.into_iter().for_each(visit);
        Ok(())
    }
}

/// A point with the file of its record.
pub(crate) type PointFile<'p> = (&'p Point, &'p Path);

/// Gives the packs that these points need names in `target`. A point that lacks chunks is left out, and so is one with a damaged
/// chunk in a pack that has to be copied: it harms nobody else. Returns the others.
///
/// # Errors
/// Trouble of the host.
pub(crate) fn pin_whole_points<'p>(
    points: impl IntoIterator<Item = PointFile<'p>>,
    packs: &PackSet,
    target: &Path,
) -> Result<Vec<PointFile<'p>>, StoreError> {
    let whole = whole_points(points, packs)?;
    match packs.pin_into(target, &whole.chunks) {
        Err(error) if error.is_damage() => {}
        done => return done.map(|_| whole.points),
    }
    let mut pinned = Vec::new();
    for (point, file) in whole.points {
        let placed = match needed_chunks([point], packs) {
            Ok(chunks) => packs.pin_into(target, &chunks).map(drop),
            Err(MapError::Source { source, .. }) => Err((*source).into()),
            // Its nodes were read just now.
            Err(_) => continue,
        };
        match placed {
            Ok(()) => pinned.push((point, file)),
            Err(error) if error.is_damage() => left_out(point),
            Err(error) => return Err(error),
        }
    }
    Ok(pinned)
}

/// Points whose chunks are all there, and the ids of these.
struct WholePoints<'p> {
    points: Vec<PointFile<'p>>,
    chunks: Vec<ChunkId>,
}

fn whole_points<'p>(
    points: impl IntoIterator<Item = PointFile<'p>>,
    packs: &PackSet,
) -> Result<WholePoints<'p>, ReadError> {
    let reader = MapReader::new(NodesIn(packs));
    let mut seen = SeenNodes::default();
    let mut whole = WholePoints {
        points: Vec::new(),
        chunks: Vec::new(),
    };
    for (point, file) in points {
        let mut ids = Vec::new();
        let visited = visit(&reader, point, &mut seen, &mut ids);
        let missing = packs.missing(&ids)?;
        if visited.is_ok() && missing.is_empty() {
            whole.points.push((point, file));
            whole.chunks.extend(ids);
            continue;
        }
        left_out(point);
        // What it shares with others is not known to be there.
        seen = SeenNodes::default();
    }
    whole.chunks = each_once(whole.chunks);
    Ok(whole)
}

fn left_out(point: &Point) {
    tracing::warn!(id = %point.id(), "a point is left out: some of its chunks are lost");
}

fn visit(
    reader: &MapReader<NodesIn<'_>>,
    point: &Point,
    seen: &mut SeenNodes,
    ids: &mut Vec<ChunkId>,
) -> Result<(), MapReadError> {
    for part in point.record().parts() {
        let visit = &mut |name: ChunkRef| ids.push(ChunkId(name.0));
        reader.visit_distinct(&part.map, seen, visit)?;
    }
    Ok(())
}

fn each_once(mut ids: Vec<ChunkId>) -> Vec<ChunkId> {
    ids.sort_unstable();
    ids.dedup();
    ids
}
