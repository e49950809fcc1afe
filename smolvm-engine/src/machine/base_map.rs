//! The map of a disk's base: which chunks lie below the layers. `disk/base-N.map`.
//!
//! # Layout (version 1, little-endian)
//!
//! | bytes | field |
//! |---|---|
//! | 8 | magic `smolbase` |
//! | 4 | version, 1 |
//! | | numbered fields: size of the base in bytes (1, integer), level of its map's topmost node (2, integer), that node's name (3, 32 bytes, absent for zeros), nodes that are in no pack (4, list) |
//! | 32 | BLAKE3 of everything before |
//!
//! A base that is the disk of a point names its map, whose nodes lie in the machine's packs: the file has a hundred bytes
//! whatever the disk's size. A base that came from an image brings the nodes along.

use std::io;
use std::path::Path;

use cas_store::ChunkId;
use snapshot_format::fields::{FieldError, FieldReader, FieldWriter};
use snapshot_format::limits::MAX_DISK_BYTES;
use snapshot_format::{CHUNK_BYTES, ChunkRef, DiskMap, MapNodes, MapRoot, chunks_in};
use thiserror::Error;

use crate::file_error::FileError;

const MAGIC: &[u8; 8] = b"smolbase";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 12;
const SUM_BYTES: usize = 32;

/// A map of the base under a disk's layers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct BaseMap {
    size_bytes: u64,
    map: MapRoot,
    /// Nodes that are in no pack.
    nodes: MapNodes,
}

/// Why bytes are not the map of a base.
#[derive(Debug, Error)]
pub(crate) enum BaseMapError {
    #[error(transparent)]
    Io(#[from] FileError),
    #[error("the map of the disk's base is none")]
    NotAMap,
    #[error("the map of the disk's base has version {version}, this program knows {VERSION}")]
    Version { version: u32 },
    #[error("the checksum of the map of the disk's base does not match")]
    Checksum,
    #[error("the map of the disk's base is malformed")]
    Fields(#[from] FieldError),
    #[error("the disk's base has an impossible size or map")]
    Size,
}

impl BaseMap {
    /// The disk of an image: chunks in disk order.
    pub(crate) fn of_image(chunks: &[ChunkId]) -> Result<Self, BaseMapError> {
        let size_bytes = chunks.len() as u64 * CHUNK_BYTES;
        if size_bytes > MAX_DISK_BYTES {
            return Err(BaseMapError::Size);
        }
        let mut nodes = MapNodes::new();
        let chunks = (0..).zip(chunks.iter().map(|id| ChunkRef(id.0)));
        let map = nodes.build(chunks).map_err(|_| BaseMapError::Size)?;
        Ok(Self {
            size_bytes,
            map,
            nodes,
        })
    }

    /// The disk of a point; its map's nodes are in the machine's packs.
    pub(crate) fn of_point(disk: &DiskMap) -> Self {
        Self {
            size_bytes: disk.size_bytes,
            map: disk.map,
            nodes: MapNodes::new(),
        }
    }

    /// Size of the base in bytes. The disk may be larger.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Its map.
    pub(crate) fn map(&self) -> &MapRoot {
        &self.map
    }

    /// The nodes of the map that are in no pack.
    pub(crate) fn nodes(&self) -> &MapNodes {
        &self.nodes
    }

    /// Reads a map's file.
    pub(crate) fn read(path: &Path) -> Result<Self, BaseMapError> {
        let bytes = std::fs::read(path).map_err(FileError::at("read", path))?;
        Self::decode(&bytes)
    }

    /// The file's bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut fields = FieldWriter::new();
        fields.u64(1, self.size_bytes);
        if !self.map.is_zeros() {
            fields
                .u32(2, self.map.level().into())
                .bytes(3, &self.map.node().0);
        }
        let mut nodes: Vec<_> = self.nodes.iter().collect();
        nodes.sort_unstable_by_key(|(name, _)| **name);
        for (_, bytes) in nodes {
            fields.bytes(4, bytes);
        }
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&fields.finish());
        let sum = blake3::hash(&out);
        out.extend_from_slice(sum.as_bytes());
        out
    }

    /// Reads what [`encode`](Self::encode) made. Takes memory in proportion to `bytes`.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, BaseMapError> {
        let rest = bytes.strip_prefix(MAGIC).ok_or(BaseMapError::NotAMap)?;
        let (version, rest) = rest.split_first_chunk().ok_or(BaseMapError::NotAMap)?;
        let version = u32::from_le_bytes(*version);
        if version != VERSION {
            return Err(BaseMapError::Version { version });
        }
        let (fields, sum) = rest
            .split_last_chunk::<SUM_BYTES>()
            .ok_or(BaseMapError::NotAMap)?;
        if blake3::hash(&bytes[..HEADER_BYTES + fields.len()]) != *sum {
            return Err(BaseMapError::Checksum);
        }
        let fields = FieldReader::parse(fields)?;
        let size_bytes = fields.u64(1)?;
        let node = match fields.get(3) {
            Some(_) => ChunkRef(fields.array(3)?),
            None => ChunkRef::ZERO,
        };
        let map = MapRoot::new(fields.u8(2)?, node).ok_or(BaseMapError::Size)?;
        if size_bytes > MAX_DISK_BYTES || !map.fits(chunks_in(size_bytes)) {
            return Err(BaseMapError::Size);
        }
        let mut nodes = MapNodes::new();
        for node in fields.all(4) {
            nodes.insert(node.to_vec());
        }
        Ok(Self {
            size_bytes,
            map,
            nodes,
        })
    }
}

impl From<BaseMapError> for io::Error {
    fn from(error: BaseMapError) -> Self {
        Self::other(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> BaseMap {
        let chunks = [ChunkId([1; 32]), ChunkId::ZERO, ChunkId([2; 32])];
        BaseMap::of_image(&chunks).unwrap()
    }

    #[test]
    fn round_trips_and_finds_every_flipped_bit() {
        let bytes = some().encode();
        assert_eq!(BaseMap::decode(&bytes).unwrap(), some());
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert!(BaseMap::decode(&bad).is_err(), "byte {at}");
            assert!(BaseMap::decode(&bytes[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn what_can_be_made_can_be_read_whatever_the_size() {
        for size_bytes in [0, 1 << 20, (1 << 40) + CHUNK_BYTES, MAX_DISK_BYTES] {
            let mut nodes = MapNodes::new();
            let chunk = ChunkRef([7; 32]);
            let last = size_bytes.div_ceil(CHUNK_BYTES).checked_sub(1);
            let map = nodes.build(last.map(|at| (at, chunk))).unwrap();
            let disk = DiskMap {
                size_bytes,
                map,
                ..DiskMap::default()
            };
            let base = BaseMap::of_point(&disk);
            let bytes = base.encode();
            assert!(bytes.len() < 120, "{} bytes", bytes.len());
            assert_eq!(BaseMap::decode(&bytes).unwrap(), base);
        }
    }

    #[test]
    fn an_image_of_zeros_costs_nothing() {
        let base = BaseMap::of_image(&vec![ChunkId::ZERO; 1 << 20]).unwrap();
        assert_eq!(base.size_bytes(), 64 << 30);
        assert!(base.encode().len() < 120);
    }
}
