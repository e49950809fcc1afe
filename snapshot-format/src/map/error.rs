//! Why a map cannot be read.

use std::error::Error;

use thiserror::Error;

use super::node::NodeError;
use crate::chunk::ChunkRef;

/// Why a map cannot be read; `E` is the error of what nodes are read from.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MapError<E: Error + 'static> {
    /// A node's bytes cannot be read.
    #[error("cannot read the node {node:.12} of a chunk map")]
    Source {
        /// The node.
        node: ChunkRef,
        /// Why not.
        source: Box<E>,
    },
    /// A node's bytes are not those of a node.
    #[error("the node {node:.12} of a chunk map is malformed")]
    Node {
        /// The node.
        node: ChunkRef,
        /// What is wrong.
        source: NodeError,
    },
}
