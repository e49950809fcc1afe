//! The map of an image: which chunk lies where on the disk.
//!
//! # Layout (version 1, little-endian)
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `smolimap` |
//! | 8 | 4 | version, 1 |
//! | 12 | 4 | chunk size in bytes, 65536 |
//! | 16 | 8 | number of chunks |
//! | 24 | 32 each | chunk ids; 32 zero bytes: the chunk is all zeros |
//! | end | 32 | BLAKE3 of everything before |

use cas_store::ChunkId;

/// Bytes of disk in one chunk.
pub const CHUNK_BYTES: usize = cas_store::MAX_CHUNK_BYTES;
/// Most chunks of a map: 1 TiB.
pub const MAX_CHUNKS: u64 = 1 << 24;

const MAGIC: &[u8; 8] = b"smolimap";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 24;
const ID_BYTES: usize = 32;
const SUM_BYTES: usize = 32;

/// The chunks of a disk in order; [`ChunkId::ZERO`] is a chunk of zeros.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageMap {
    chunks: Vec<ChunkId>,
}

/// Why bytes are not a map.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// Another magic.
    #[error("its chunk map is not one")]
    NotAMap,
    /// A later version.
    #[error("its chunk map has version {version}, this program knows 1")]
    Version {
        /// The version found.
        version: u32,
    },
    /// Another chunk size, too many chunks, or a length that does not fit.
    #[error("its chunk map has an impossible size")]
    Size,
    /// The checksum differs.
    #[error("the checksum of its chunk map does not match")]
    Checksum,
}

impl ImageMap {
    /// Largest encoded map in bytes.
    pub const MAX_ENCODED_BYTES: u64 =
        HEADER_BYTES as u64 + MAX_CHUNKS * ID_BYTES as u64 + SUM_BYTES as u64;

    /// A map of these chunks, in disk order.
    pub fn new(chunks: Vec<ChunkId>) -> Self {
        Self { chunks }
    }

    /// The chunk ids in disk order.
    pub fn chunks(&self) -> &[ChunkId] {
        &self.chunks
    }

    /// Size of the disk in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.chunks.len() as u64 * CHUNK_BYTES as u64
    }

    /// The bytes of the map.
    ///
    /// # Errors
    ///
    /// [`MapError::Size`] for more than [`MAX_CHUNKS`]: nobody could read it again.
    pub fn encode(&self) -> Result<Vec<u8>, MapError> {
        check_count(self.chunks.len() as u64)?;
        let len = HEADER_BYTES + self.chunks.len() * ID_BYTES + SUM_BYTES;
        let mut out = Vec::with_capacity(len);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&(CHUNK_BYTES as u32).to_le_bytes());
        out.extend_from_slice(&(self.chunks.len() as u64).to_le_bytes());
        for chunk in &self.chunks {
            out.extend_from_slice(&chunk.0);
        }
        let sum = blake3::hash(&out);
        out.extend_from_slice(sum.as_bytes());
        Ok(out)
    }

    /// Decodes what [`ImageMap::encode`] made.
    ///
    /// # Errors
    ///
    /// [`MapError`] names the first thing that is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Self, MapError> {
        let word = |at: usize| -> Option<u32> {
            Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
        };
        if !bytes.starts_with(MAGIC) {
            return Err(MapError::NotAMap);
        }
        let version = word(8).ok_or(MapError::Size)?;
        if version != VERSION {
            return Err(MapError::Version { version });
        }
        if word(12) != Some(CHUNK_BYTES as u32) {
            return Err(MapError::Size);
        }
        let (low, high) = (
            word(16).ok_or(MapError::Size)?,
            word(20).ok_or(MapError::Size)?,
        );
        let count = u64::from(high) << 32 | u64::from(low);
        let body = bytes
            .len()
            .checked_sub(HEADER_BYTES + SUM_BYTES)
            .ok_or(MapError::Size)?;
        check_count(count)?;
        if count * ID_BYTES as u64 != body as u64 {
            return Err(MapError::Size);
        }
        let (content, sum) = bytes.split_at(HEADER_BYTES + body);
        if blake3::hash(content).as_bytes() != sum {
            return Err(MapError::Checksum);
        }
        let ids = content[HEADER_BYTES..].as_chunks::<ID_BYTES>().0;
        Ok(Self {
            chunks: ids.iter().map(|id| ChunkId(*id)).collect(),
        })
    }
}

/// Both sides refuse the same.
fn check_count(chunks: u64) -> Result<(), MapError> {
    match chunks <= MAX_CHUNKS {
        true => Ok(()),
        false => Err(MapError::Size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_and_finds_every_flipped_bit() {
        let map = ImageMap::new(vec![ChunkId([1; 32]), ChunkId::ZERO, ChunkId([2; 32])]);
        let bytes = map.encode().unwrap();
        assert_eq!(ImageMap::decode(&bytes).unwrap(), map);
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert!(ImageMap::decode(&bad).is_err(), "byte {at}");
            assert!(ImageMap::decode(&bytes[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn refuses_an_absurd_count_without_allocating() {
        let mut bytes = ImageMap::default().encode().unwrap();
        bytes[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(ImageMap::decode(&bytes), Err(MapError::Size));
    }
    #[test]
    fn what_cannot_be_read_again_is_not_written() {
        let most = usize::try_from(MAX_CHUNKS).unwrap();
        let mut map = ImageMap::new(vec![ChunkId::ZERO; most + 1]);
        assert_eq!(map.encode(), Err(MapError::Size));
        map.chunks.truncate(most);
        assert_eq!(check_count(map.chunks.len() as u64), Ok(()));
    }
}
