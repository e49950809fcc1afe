//! Chunks read and verified before they are needed.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};

use cas_store::{MAX_CHUNK_BYTES, for_all};
use memmap2::MmapMut;
use vmm_core::Gpa;

/// Chunks of memory by address. They lie in one piece of memory, in large pages where the host has them: with one allocation for each
/// chunk, bringing their pages in takes longer than reading and verifying them.
pub(super) struct ReadAhead {
    bytes: MmapMut,
    /// Which piece of the memory a chunk lies in, and its length.
    places: BTreeMap<Gpa, (usize, usize)>,
}

impl ReadAhead {
    /// Has `read` fill the buffer of each chunk that is wanted, on all processors; it returns the chunk's length.
    ///
    /// # Errors
    /// There is no memory for them, or what `read` fails with.
    pub(super) fn new<C: Copy + Sync, E: From<io::Error> + Send>(
        wanted: &[(Gpa, C)],
        read: impl Fn(Gpa, &C, &mut [u8]) -> Result<usize, E> + Sync,
    ) -> Result<Self, E> {
        // A mapping of no length is an error.
        let mut bytes = MmapMut::map_anon(wanted.len().max(1) * MAX_CHUNK_BYTES)?;
        #[cfg(target_os = "linux")]
        if let Err(error) = bytes.advise(memmap2::Advice::HugePage) {
            tracing::debug!(%error, "no large pages");
        }
        let pieces = bytes.chunks_exact_mut(MAX_CHUNK_BYTES).map(Mutex::new);
        let jobs: Vec<_> = wanted.iter().zip(pieces).collect();
        let lengths = for_all(&jobs, |((gpa, chunk), piece), _| {
            let mut piece = piece.lock().unwrap_or_else(PoisonError::into_inner);
            read(*gpa, chunk, &mut piece)
        });
        let lengths = lengths.map_err(|failures| failures.cause(|_| false))?;
        let places = wanted.iter().zip(lengths).enumerate();
        let places = places.map(|(piece, ((gpa, _), length))| (*gpa, (piece, length)));
        Ok(Self {
            places: places.collect(),
            bytes,
        })
    }

    /// The chunk at an address, if it was read.
    pub(super) fn get(&self, gpa: Gpa) -> Option<&[u8]> {
        let (piece, length) = *self.places.get(&gpa)?;
        self.bytes[piece * MAX_CHUNK_BYTES..].get(..length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_chunk_is_found_by_its_address_with_its_length() {
        let wanted: Vec<(Gpa, usize)> = (0..100)
            .map(|n| (Gpa(n << 16), MAX_CHUNK_BYTES - n as usize))
            .collect();
        let ahead = ReadAhead::new(&wanted, |gpa, length, buffer| {
            buffer[..*length].fill((gpa.0 >> 16) as u8);
            Ok::<_, io::Error>(*length)
        });
        let ahead = ahead.unwrap();
        for (n, (gpa, length)) in (0u8..).zip(&wanted) {
            assert_eq!(ahead.get(*gpa), Some(&vec![n; *length][..]));
        }
        assert_eq!(ahead.get(Gpa(100 << 16)), None);
    }

    #[test]
    fn nothing_is_no_error_and_a_failure_is_one() {
        let read = |_: Gpa, _: &(), _: &mut [u8]| Err(io::Error::other("no"));
        assert!(ReadAhead::new(&[], read).unwrap().get(Gpa(0)).is_none());
        assert!(ReadAhead::new(&[(Gpa(0), ())], read).is_err());
    }
}
