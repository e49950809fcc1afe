//! References to chunks, and maps of them in which runs of zero chunks cost nothing.

use std::fmt;

use thiserror::Error;

use crate::id::to_hex;
use crate::limits::MAX_MAP_CHUNKS;

/// Bytes that one chunk covers; the last chunk of a map may cover fewer.
pub const CHUNK_BYTES: u64 = 64 << 10;

/// Bytes of a run's header in an encoded map: zero chunks and data chunks, `u32` each.
const RUN_HEADER_BYTES: usize = 8;
/// Bytes of a reference.
const REF_BYTES: usize = 32;

/// The name of a chunk: BLAKE3 of its bytes, or 32 zero bytes for a chunk that holds only zeros.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkRef(pub [u8; 32]);

impl ChunkRef {
    /// A chunk of zeros, whatever its length. Its bytes are stored nowhere.
    pub const ZERO: Self = Self([0; 32]);

    /// Whether this is a chunk of zeros.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Self::ZERO
    }
}

impl fmt::Display for ChunkRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&to_hex(&self.0))
    }
}

impl fmt::Debug for ChunkRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChunkRef({self})")
    }
}

/// How many chunks `size_bytes` take: one for each 64 KiB begun.
#[must_use]
pub fn chunks_in(size_bytes: u64) -> u64 {
    size_bytes.div_ceil(CHUNK_BYTES)
}

/// Why bytes are not an encoded map.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MapError {
    /// The bytes end inside a run.
    #[error("chunk map is cut short at byte {offset}")]
    Truncated {
        /// Where the incomplete run begins.
        offset: usize,
    },
    /// A run that the writer would have joined with its neighbour, or a zero reference among data.
    #[error("chunk map is not in its canonical form at byte {offset}")]
    NotCanonical {
        /// Where the run begins.
        offset: usize,
    },
    /// More chunks than the largest disk has.
    #[error("chunk map has more than {MAX_MAP_CHUNKS} chunks")]
    TooManyChunks,
}

/// The chunks of a region, a disk or a blob in order: entry *n* covers bytes from *n* × 64 KiB.
///
/// Memory is taken by data chunks only (32 bytes each); runs of zero chunks are counted. A map is built from an
/// iterator of [`ChunkRef`], or with [`push`](Self::push) and [`push_zeros`](Self::push_zeros).
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ChunkMap {
    /// Runs of data chunks, in order, never touching one another.
    runs: Vec<DataRun>,
    /// The references of all runs, one after the other.
    refs: Vec<ChunkRef>,
    /// Chunks altogether.
    len: u64,
}

/// Data chunks without a zero chunk among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DataRun {
    /// Index in the map of the first chunk.
    first: u64,
    /// Index in `refs` of the first chunk.
    refs_at: usize,
    /// Chunks in the run, at least one.
    count: usize,
}

impl DataRun {
    fn end(&self) -> u64 {
        self.first + self.count as u64
    }
}

impl ChunkMap {
    /// A map without chunks.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A map of as many zero chunks as `size_bytes` take.
    #[must_use]
    pub fn zeros(size_bytes: u64) -> Self {
        let mut map = Self::new();
        map.push_zeros(chunks_in(size_bytes));
        map
    }

    /// Adds a chunk at the end.
    pub fn push(&mut self, chunk: ChunkRef) {
        if chunk.is_zero() {
            return self.push_zeros(1);
        }
        match self.runs.last_mut() {
            Some(run) if run.end() == self.len => run.count += 1,
            _ => self.runs.push(DataRun {
                first: self.len,
                refs_at: self.refs.len(),
                count: 1,
            }),
        }
        self.refs.push(chunk);
        self.len += 1;
    }

    /// Adds `count` zero chunks at the end.
    pub fn push_zeros(&mut self, count: u64) {
        self.len = self.len.saturating_add(count);
    }

    /// Chunks altogether, zero chunks included.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the map has no chunks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Chunks that are not zero.
    #[must_use]
    pub fn data_len(&self) -> u64 {
        self.refs.len() as u64
    }

    /// The chunk at `index`.
    #[must_use]
    pub fn get(&self, index: u64) -> Option<ChunkRef> {
        if index >= self.len {
            return None;
        }
        let after = self.runs.partition_point(|run| run.first <= index);
        let Some(run) = after.checked_sub(1).map(|at| self.runs[at]) else {
            return Some(ChunkRef::ZERO);
        };
        if index >= run.end() {
            return Some(ChunkRef::ZERO);
        }
        // Less than `run.count`, which is a `usize`.
        Some(self.refs[run.refs_at + (index - run.first) as usize])
    }

    /// Every chunk in order, zero chunks included.
    pub fn iter(&self) -> impl Iterator<Item = ChunkRef> + '_ {
        let mut data = self.iter_data().peekable();
        (0..self.len).map(move |index| {
            data.next_if(|(at, _)| *at == index)
                .map_or(ChunkRef::ZERO, |(_, chunk)| chunk)
        })
    }

    /// The chunks that are not zero, with their index in the map.
    pub fn iter_data(&self) -> impl Iterator<Item = (u64, ChunkRef)> + '_ {
        self.runs.iter().flat_map(|run| {
            let refs = &self.refs[run.refs_at..run.refs_at + run.count];
            (run.first..).zip(refs.iter().copied())
        })
    }

    /// The references that are not zero, repeats included.
    #[must_use]
    pub fn data(&self) -> &[ChunkRef] {
        &self.refs
    }

    /// Bytes that [`encode_into`](Self::encode_into) adds.
    pub(crate) fn encoded_len(&self) -> u64 {
        let trailing = u64::from(self.runs.last().map_or(0, DataRun::end) < self.len);
        (self.runs.len() as u64 + trailing) * RUN_HEADER_BYTES as u64
            + self.data_len() * REF_BYTES as u64
    }

    /// Adds the map's bytes to `out`: runs of `zeros: u32, data: u32, data × 32 bytes`. At most [`MAX_MAP_CHUNKS`]
    /// chunks, which fit a `u32`.
    pub(crate) fn encode_into(&self, out: &mut Vec<u8>) {
        let mut at = 0;
        for run in &self.runs {
            push_header(out, run.first - at, run.count as u64);
            for chunk in &self.refs[run.refs_at..run.refs_at + run.count] {
                out.extend_from_slice(&chunk.0);
            }
            at = run.end();
        }
        if at < self.len {
            push_header(out, self.len - at, 0);
        }
    }

    /// Reads what [`encode_into`](Self::encode_into) wrote, and only that: each map has one encoding. Takes memory in
    /// proportion to `bytes`.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, MapError> {
        let mut map = Self::new();
        map.refs.reserve_exact(bytes.len() / REF_BYTES);
        let mut rest = bytes;
        while !rest.is_empty() {
            let offset = bytes.len() - rest.len();
            rest = map.decode_run(rest, offset)?;
        }
        Ok(map)
    }

    /// Takes one run from the front of `bytes`, which begin at `offset`; returns what follows.
    fn decode_run<'a>(&mut self, bytes: &'a [u8], offset: usize) -> Result<&'a [u8], MapError> {
        let truncated = MapError::Truncated { offset };
        let (header, rest) = bytes
            .split_first_chunk::<RUN_HEADER_BYTES>()
            .ok_or(truncated)?;
        let [z0, z1, z2, z3, d0, d1, d2, d3] = *header;
        let zeros = u32::from_le_bytes([z0, z1, z2, z3]);
        let data = u32::from_le_bytes([d0, d1, d2, d3]) as usize;
        let refs_bytes = data.checked_mul(REF_BYTES).ok_or(truncated)?;
        let (refs, rest) = rest.split_at_checked(refs_bytes).ok_or(truncated)?;
        let first_run = offset == 0;
        let last_run = rest.is_empty();
        if (zeros == 0 && !first_run) || (data == 0 && !last_run) || (zeros == 0 && data == 0) {
            return Err(MapError::NotCanonical { offset });
        }
        if self.len + u64::from(zeros) + data as u64 > MAX_MAP_CHUNKS {
            return Err(MapError::TooManyChunks);
        }
        self.push_zeros(u64::from(zeros));
        let (refs, _) = refs.as_chunks::<REF_BYTES>();
        for chunk in refs {
            if *chunk == [0; REF_BYTES] {
                return Err(MapError::NotCanonical { offset });
            }
            self.push(ChunkRef(*chunk));
        }
        Ok(rest)
    }
}

/// Lengths are within [`MAX_MAP_CHUNKS`]: `limits` refuses longer maps before they are encoded.
fn push_header(out: &mut Vec<u8>, zeros: u64, data: u64) {
    for count in [zeros, data] {
        let count = u32::try_from(count).expect("maps beyond the limit are not encoded");
        out.extend_from_slice(&count.to_le_bytes());
    }
}

impl FromIterator<ChunkRef> for ChunkMap {
    fn from_iter<I: IntoIterator<Item = ChunkRef>>(chunks: I) -> Self {
        let mut map = Self::new();
        map.extend(chunks);
        map
    }
}

impl Extend<ChunkRef> for ChunkMap {
    fn extend<I: IntoIterator<Item = ChunkRef>>(&mut self, chunks: I) {
        for chunk in chunks {
            self.push(chunk);
        }
    }
}

impl fmt::Debug for ChunkMap {
    /// Counts only: a map may have millions of entries.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChunkMap")
            .field("len", &self.len)
            .field("data_len", &self.data_len())
            .field("data_runs", &self.runs.len())
            .finish()
    }
}
