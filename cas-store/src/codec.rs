//! How one chunk's bytes are stored: raw, lz4 or zstd, chosen per chunk.

use crate::error::{ChunkError, StoreError};
use crate::{ChunkId, MAX_CHUNK_BYTES};

/// How a chunk's bytes are stored in a pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Codec {
    /// The bytes themselves.
    Raw = 0,
    /// One LZ4 block without a length prefix.
    Lz4 = 1,
    /// One zstd frame.
    Zstd = 2,
}

impl Codec {
    /// The codec with this number in a pack's index.
    ///
    /// # Errors
    /// [`ChunkError::UnknownCodec`] for any other number.
    pub fn from_number(number: u8) -> Result<Self, ChunkError> {
        match number {
            0 => Ok(Self::Raw),
            1 => Ok(Self::Lz4),
            2 => Ok(Self::Zstd),
            other => Err(ChunkError::UnknownCodec(other)),
        }
    }
}

/// Which codec a capture tries. Chunks that do not shrink by at least one sixteenth are stored raw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Compression {
    /// Store the bytes as they are.
    None,
    /// Fast both ways: the default.
    #[default]
    Lz4,
    /// Smaller and slower; the level is zstd's (1 to 19).
    Zstd {
        /// Level of effort.
        level: i32,
    },
}

/// A chunk hashed and compressed, ready to be appended. Made without any lock, on any thread.
#[derive(Debug, Clone)]
pub struct PreparedChunk {
    pub(crate) id: ChunkId,
    pub(crate) raw_len: usize,
    pub(crate) codec: Codec,
    pub(crate) stored: Vec<u8>,
}

impl PreparedChunk {
    /// Hashes and compresses `data` (1 to 65,536 bytes). A zero chunk keeps no bytes.
    ///
    /// # Errors
    /// [`StoreError::InvalidChunkLength`], or the compressor's failure.
    pub fn new(data: &[u8], compression: Compression) -> Result<Self, StoreError> {
        check_length(data)?;
        Self::with_id(ChunkId::of(data), data, compression)
    }

    pub(crate) fn with_id(
        id: ChunkId,
        data: &[u8],
        compression: Compression,
    ) -> Result<Self, StoreError> {
        if id.is_zero() {
            return Ok(Self {
                id,
                raw_len: data.len(),
                codec: Codec::Raw,
                stored: Vec::new(),
            });
        }
        encode(data, compression, |codec, stored| Self {
            id,
            raw_len: data.len(),
            codec,
            stored: stored.to_vec(),
        })
    }

    /// The chunk's id.
    #[must_use]
    pub fn id(&self) -> ChunkId {
        self.id
    }

    /// The codec that was chosen.
    #[must_use]
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Bytes that the chunk takes in a pack.
    #[must_use]
    pub fn stored_bytes(&self) -> usize {
        self.stored.len()
    }
}

pub(crate) fn check_length(data: &[u8]) -> Result<(), StoreError> {
    if data.is_empty() || data.len() > MAX_CHUNK_BYTES {
        return Err(StoreError::InvalidChunkLength {
            len_bytes: data.len(),
        });
    }
    Ok(())
}

/// Hands the bytes to store and their codec to `work`; raw where compression gains too little to pay for decoding. They lie in the
/// thread's own buffer, or are `data`: blocks of this size would be mapped and unmapped for each chunk.
pub(crate) fn encode<T>(
    data: &[u8],
    compression: Compression,
    work: impl FnOnce(Codec, &[u8]) -> T,
) -> Result<T, StoreError> {
    let useful = data.len() - data.len().div_ceil(16);
    with_scratch(|packed| {
        let (codec, length) = match compression {
            Compression::None => return Ok(work(Codec::Raw, data)),
            Compression::Lz4 => (Codec::Lz4, compress_lz4(data, packed)?),
            Compression::Zstd { level } => (Codec::Zstd, compress_zstd(data, level, packed)?),
        };
        match packed.get(..length) {
            Some(packed) if length <= useful => Ok(work(codec, packed)),
            _ => Ok(work(Codec::Raw, data)),
        }
    })
}

fn compress_lz4(data: &[u8], out: &mut Vec<u8>) -> Result<usize, StoreError> {
    let most = lz4_flex::block::get_maximum_output_size(data.len());
    if out.len() < most {
        out.resize(most, 0);
    }
    lz4_flex::block::compress_into(data, out)
        .map_err(|error| StoreError::Compress(std::io::Error::other(error)))
}

#[cfg(feature = "zstd")]
fn compress_zstd(data: &[u8], level: i32, out: &mut Vec<u8>) -> Result<usize, StoreError> {
    let most = zstd::zstd_safe::compress_bound(data.len());
    if out.len() < most {
        out.resize(most, 0);
    }
    zstd::bulk::compress_to_buffer(data, &mut out[..], level).map_err(StoreError::Compress)
}

#[cfg(not(feature = "zstd"))]
fn compress_zstd(_data: &[u8], _level: i32, _out: &mut Vec<u8>) -> Result<usize, StoreError> {
    Err(StoreError::CodecNotBuilt(Codec::Zstd))
}

/// Decodes `stored` into exactly `out`, whose length is the chunk's, and checks the digest.
pub(crate) fn decode_verified(
    id: &ChunkId,
    codec: Codec,
    stored: &[u8],
    out: &mut [u8],
) -> Result<(), ChunkError> {
    let failed = ChunkError::Decode {
        codec,
        raw_bytes: out.len(),
    };
    let len = match codec {
        Codec::Raw if stored.len() == out.len() => {
            out.copy_from_slice(stored);
            out.len()
        }
        Codec::Raw => return Err(failed),
        Codec::Lz4 => match lz4_flex::block::decompress_into(stored, out) {
            Ok(len) => len,
            Err(_) => return Err(failed),
        },
        Codec::Zstd => decompress_zstd(stored, out)?,
    };
    if len != out.len() {
        return Err(failed);
    }
    verify(id, out)
}

/// Whether a chunk's bytes are what its id says.
pub(crate) fn verify(id: &ChunkId, bytes: &[u8]) -> Result<(), ChunkError> {
    let found = ChunkId::of(bytes);
    if found == *id {
        Ok(())
    } else {
        Err(ChunkError::Digest { found })
    }
}

#[cfg(feature = "zstd")]
fn decompress_zstd(stored: &[u8], out: &mut [u8]) -> Result<usize, ChunkError> {
    let raw_bytes = out.len();
    zstd::bulk::decompress_to_buffer(stored, out).map_err(|_| ChunkError::Decode {
        codec: Codec::Zstd,
        raw_bytes,
    })
}

#[cfg(not(feature = "zstd"))]
fn decompress_zstd(_stored: &[u8], _out: &mut [u8]) -> Result<usize, ChunkError> {
    Err(ChunkError::CodecNotBuilt(Codec::Zstd))
}

/// A buffer for stored bytes that each thread keeps.
pub(crate) fn with_scratch<T>(work: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    thread_local! {
        static SCRATCH: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) };
    }
    SCRATCH.with(|scratch| work(&mut scratch.borrow_mut()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(len: usize) -> Vec<u8> {
        let mut reader = blake3::Hasher::new().finalize_xof();
        let mut data = vec![0; len];
        reader.fill(&mut data);
        data
    }

    #[test]
    fn every_codec_gives_the_bytes_back() {
        let text = b"the same words again and again, ".repeat(2048);
        for compression in [
            Compression::None,
            Compression::Lz4,
            #[cfg(feature = "zstd")]
            Compression::Zstd { level: 1 },
        ] {
            let chunk = PreparedChunk::new(&text, compression).unwrap();
            assert_eq!(
                chunk.codec() == Codec::Raw,
                compression == Compression::None
            );
            let mut out = vec![0; text.len()];
            decode_verified(&chunk.id, chunk.codec, &chunk.stored, &mut out).unwrap();
            assert_eq!(out, text);
        }
    }

    #[test]
    fn what_does_not_shrink_is_stored_raw() {
        let data = noise(MAX_CHUNK_BYTES);
        let chunk = PreparedChunk::new(&data, Compression::Lz4).unwrap();
        assert_eq!(
            (chunk.codec(), chunk.stored_bytes()),
            (Codec::Raw, data.len())
        );
        let one = PreparedChunk::new(&[7], Compression::Lz4).unwrap();
        assert_eq!((one.codec(), one.stored_bytes()), (Codec::Raw, 1));
    }

    #[test]
    fn every_damaged_byte_is_noticed() {
        let text = b"abcdefgh".repeat(100);
        for compression in [Compression::None, Compression::Lz4] {
            let chunk = PreparedChunk::new(&text, compression).unwrap();
            for at in 0..chunk.stored.len() {
                let mut stored = chunk.stored.clone();
                stored[at] ^= 0x41;
                let mut out = vec![0; text.len()];
                decode_verified(&chunk.id, chunk.codec, &stored, &mut out).unwrap_err();
            }
        }
    }

    #[test]
    fn lengths_outside_a_chunk_are_refused() {
        for len_bytes in [0, MAX_CHUNK_BYTES + 1] {
            let error = PreparedChunk::new(&vec![1; len_bytes], Compression::Lz4).unwrap_err();
            assert!(matches!(error, StoreError::InvalidChunkLength { .. }));
        }
    }
}
