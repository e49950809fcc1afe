//! Which chunks differ between two maps.

use std::error::Error;
use std::iter::Peekable;
use std::ops::Range;

use snapshot_format::map::{Data, MapError};
use snapshot_format::{CHUNK_BYTES, ChunkRef, MapReader, MapRoot, NodeSource};

/// Runs of changed chunks that are told apart. Where there are more, anything may have changed.
const MAX_RUNS: usize = 1 << 20;

/// Chunks that differ.
#[derive(Debug, Default)]
pub(crate) struct ChangedChunks {
    /// In bytes, in rising order, none touching the next.
    runs: Vec<Range<u64>>,
    /// Too many to tell.
    anywhere: bool,
    /// How many.
    chunks: u64,
}

impl ChangedChunks {
    /// Bytes of the chunks that differ.
    pub(crate) fn bytes(&self) -> u64 {
        self.chunks * CHUNK_BYTES
    }

    /// Whether something in this range may differ.
    pub(crate) fn touch(&self, bytes: &Range<u64>) -> bool {
        let after = self.runs.partition_point(|run| run.end <= bytes.start);
        let first = self.runs.get(after);
        self.anywhere || first.is_some_and(|run| run.start < bytes.end)
    }

    fn add(&mut self, index: u64) {
        self.chunks += 1;
        let bytes = index * CHUNK_BYTES..(index + 1) * CHUNK_BYTES;
        let last = self.runs.last_mut();
        if let Some(last) = last.filter(|last| last.end == bytes.start) {
            last.end = bytes.end;
        } else if self.runs.len() < MAX_RUNS {
            self.runs.push(bytes);
        } else {
            self.anywhere = true;
        }
    }
}

/// The chunks whose ids differ between two maps. Takes as long as they have chunks that are not zero.
pub(crate) fn changed_chunks<S: NodeSource, T: NodeSource<Error = S::Error>>(
    (one, map): (&MapReader<S>, &MapRoot),
    (other, other_map): (&MapReader<T>, &MapRoot),
) -> Result<ChangedChunks, MapError<S::Error>>
where
    S::Error: Error,
{
    let mut changed = ChangedChunks::default();
    if map == other_map {
        return Ok(changed);
    }
    let mut one = one.data(map).peekable();
    let mut other = other.data(other_map).peekable();
    loop {
        let (a, b) = (place(&mut one), place(&mut other));
        let at = match (a, b) {
            (None, None) => return Ok(changed),
            (a, b) => a.unwrap_or(u64::MAX).min(b.unwrap_or(u64::MAX)),
        };
        if take(&mut one, at)? != take(&mut other, at)? {
            changed.add(at);
        }
    }
}

/// Where the next chunk, or an error, comes.
fn place<S: NodeSource>(data: &mut Peekable<Data<'_, S>>) -> Option<u64> {
    match data.peek()? {
        Ok((index, _)) => Some(*index),
        Err(_) => Some(0),
    }
}

/// The chunk at `at`, where the next one lies there.
fn take<S: NodeSource>(
    data: &mut Peekable<Data<'_, S>>,
    at: u64,
) -> Result<ChunkRef, MapError<S::Error>> {
    let is_there = |next: &Result<(u64, ChunkRef), _>| match next {
        Ok((index, _)) => *index == at,
        Err(_) => true,
    };
    match data.next_if(is_there).transpose()? {
        Some((_, chunk)) => Ok(chunk),
        None => Ok(ChunkRef::ZERO),
    }
}
