//! Whether the chunks that a record's maps name are there.

use std::collections::HashMap;

use super::problem::{Finding, Problem};
use super::{MAX_NAMED_CHUNKS, finding};
use crate::chunk::{CHUNK_BYTES, ChunkRef, chunks_in};
use crate::map::{MapNode, NODE_CHILDREN, NodeError};
use crate::record::{Part, PartMap, PointRecord};

/// Where chunks are looked up: a store, or the packs of a checkpoint directory.
pub trait ChunkLookup {
    /// Whether the chunk's bytes are there. Never asked for [`ChunkRef::ZERO`].
    fn has(&self, chunk: &ChunkRef) -> bool;

    /// The bytes of a node of a map, verified against its name; nothing if they are not there or damaged.
    fn node(&self, node: &ChunkRef) -> Option<Vec<u8>>;
}

/// Everything that is wrong with the maps of a record: malformed nodes, chunks that are not there, chunks beyond the end of
/// a part.
///
/// Nodes that several maps share are looked at once: the time is in proportion to the different nodes.
#[must_use]
pub fn verify_chunks(record: &PointRecord, lookup: &dyn ChunkLookup) -> Vec<Finding> {
    let mut walk = Walk {
        lookup,
        known: HashMap::new(),
        problems: Vec::new(),
        part: Part::Kernel,
        missing: 0,
    };
    let mut data_chunks = 0u64;
    for part in record.parts() {
        let below = walk.part(&part);
        if matches!(part.part, Part::Memory { .. } | Part::Disk { .. }) {
            data_chunks = data_chunks.saturating_add(below.data);
        }
    }
    let most = data_chunks.saturating_mul(CHUNK_BYTES);
    // Below a node that is not there lies nobody knows how much.
    if walk.problems.is_empty() && record.data_bytes > most {
        let found = record.data_bytes;
        walk.problems.push(Problem::DataBytes { found, most });
    }
    walk.problems.into_iter().map(finding).collect()
}

/// What lies below a node.
#[derive(Debug, Clone, Copy, Default)]
struct Below {
    /// Chunks of data, repeats included.
    data: u64,
    /// The last of them, counted from the first that the node covers, plus one; 0 if there is none.
    end: u64,
}

struct Walk<'a> {
    lookup: &'a dyn ChunkLookup,
    /// By node and level: a node that is named at a wrong level is wrong there only.
    known: HashMap<(ChunkRef, u8), Below>,
    problems: Vec<Problem>,
    part: Part,
    /// Chunks of the part that are not there.
    missing: u64,
}

impl Walk<'_> {
    fn part(&mut self, part: &PartMap) -> Below {
        self.part = part.part;
        self.missing = 0;
        let map = &part.map;
        if map.is_zeros() {
            return Below::default();
        }
        let below = self.node(&map.node(), map.level(), 0, true);
        if self.missing > MAX_NAMED_CHUNKS {
            self.problems.push(Problem::MoreMissingChunks {
                part: part.part,
                count: self.missing - MAX_NAMED_CHUNKS,
            });
        }
        let chunks = chunks_in(part.size_bytes);
        if below.end > chunks {
            self.problems.push(Problem::BeyondEnd {
                part: part.part,
                index: below.end - 1,
                chunks,
            });
        }
        below
    }

    /// Looks at a node and what is below it. At most seven levels deep.
    fn node(&mut self, name: &ChunkRef, level: u8, first: u64, top: bool) -> Below {
        if let Some(known) = self.known.get(&(*name, level)) {
            return *known;
        }
        let Some(bytes) = self.lookup.node(name) else {
            self.missing(name, first);
            return Below::default();
        };
        let node = match MapNode::decode(&bytes, level) {
            Ok(node) if top && level > 0 && node.only_first().is_some() => {
                Err(NodeError::NeedlessLevel)
            }
            decoded => decoded,
        };
        let below = match node {
            Ok(node) => self.children(&node, first),
            Err(error) => {
                self.problems.push(Problem::MalformedNode {
                    part: self.part,
                    index: first,
                    node: *name,
                    error,
                });
                Below::default()
            }
        };
        self.known.insert((*name, level), below);
        below
    }

    fn children(&mut self, node: &MapNode, first: u64) -> Below {
        let per_child = (NODE_CHILDREN as u64).pow(node.level().into());
        let mut sum = Below::default();
        let children = (0..).zip(node.children());
        for (position, child) in children.filter(|(_, child)| !child.is_zero()) {
            let offset = position * per_child;
            let below = match node.level().checked_sub(1) {
                Some(level) => self.node(child, level, first + offset, false),
                None => {
                    if !self.lookup.has(child) {
                        self.missing(child, first + offset);
                    }
                    Below { data: 1, end: 1 }
                }
            };
            sum.data += below.data;
            if below.end > 0 {
                sum.end = offset + below.end;
            }
        }
        sum
    }

    fn missing(&mut self, chunk: &ChunkRef, index: u64) {
        self.missing += 1;
        if self.missing <= MAX_NAMED_CHUNKS {
            let (part, chunk) = (self.part, *chunk);
            self.problems
                .push(Problem::MissingChunk { part, index, chunk });
        }
    }
}
