//! An open pack: its index in memory, its bodies read where they lie.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::layout::{ENTRY_BYTES, Entry, FOOTER_BYTES, Footer, HEADER_BYTES};
use crate::codec::{Codec, decode_verified, verify, with_scratch};
use crate::error::{ChunkError, PackError};
use crate::{ChunkId, PackId};
use durable_files::{BackendFile, FileBackend};

/// A sorted index as it lies in the file. Entries are decoded only when they are looked at.
#[derive(Debug)]
pub(crate) struct PackIndex {
    bytes: Box<[u8]>,
    entry_bytes: usize,
    bodies_end: u64,
}

impl PackIndex {
    /// Takes index bytes whose digest must be the footer's.
    pub(crate) fn new(bytes: Box<[u8]>, footer: &Footer) -> Result<Self, PackError> {
        if *blake3::hash(&bytes).as_bytes() != footer.id.0 {
            return Err(PackError::IndexDigest);
        }
        let entry_bytes = footer.entry_bytes as usize;
        Ok(Self {
            bytes,
            entry_bytes,
            bodies_end: footer.index_offset,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() / self.entry_bytes
    }

    /// Bytes held in memory.
    pub(crate) fn size_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of all bodies.
    pub(crate) fn body_bytes(&self) -> u64 {
        self.bodies_end.saturating_sub(HEADER_BYTES as u64)
    }

    fn entry_at(&self, position: usize) -> &[u8] {
        let at = position * self.entry_bytes;
        &self.bytes[at..at + ENTRY_BYTES]
    }

    /// The entry at `position`, which is below [`Self::len`].
    pub(crate) fn get(&self, position: usize) -> Entry {
        Entry::decode(self.entry_at(position))
    }

    /// Where `id` stands. A hostile, unsorted index only makes lookups miss.
    pub(crate) fn position(&self, id: &ChunkId) -> Option<usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.entry_at(middle)[..32].cmp(&id.0[..]) {
                std::cmp::Ordering::Equal => return Some(middle),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }

    pub(crate) fn find(&self, id: &ChunkId) -> Option<Entry> {
        self.position(id).map(|position| self.get(position))
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        self.bytes.chunks_exact(self.entry_bytes).map(Entry::decode)
    }

    /// Looks at every entry: limits, place and strictly rising ids.
    pub(crate) fn validate(&self) -> Result<(), PackError> {
        let mut last: Option<ChunkId> = None;
        for entry in self.entries() {
            entry.validate(self.bodies_end)?;
            if last.is_some_and(|last| last >= entry.id) {
                return Err(PackError::BadEntry { chunk: entry.id });
            }
            last = Some(entry.id);
        }
        Ok(())
    }

    pub(crate) fn validate_entry(&self, entry: &Entry) -> Result<(), PackError> {
        entry.validate(self.bodies_end)
    }
}

/// Why one chunk could not be read from one pack.
#[derive(Debug)]
pub(crate) enum EntryError {
    Pack(PackError),
    Chunk(ChunkError),
    BufferTooSmall { needed_bytes: usize },
}

/// A pack that was opened and whose index was verified.
#[derive(Debug)]
pub(crate) struct Pack {
    pub(crate) id: PackId,
    pub(crate) index: PackIndex,
    len_bytes: u64,
    /// Closed while many packs are in use; each read then opens it anew.
    file: Mutex<Option<Arc<dyn BackendFile>>>,
    reopen: Option<(Arc<dyn FileBackend>, PathBuf)>,
}

impl Pack {
    /// Reads and checks header, footer and index. `expected` is the id in the file's name.
    pub(crate) fn open(file: Arc<dyn BackendFile>, expected: &PackId) -> Result<Self, PackError> {
        let len_bytes = file.len_bytes().map_err(PackError::Io)?;
        let (footer, index) = read_index(&*file, len_bytes)?;
        if footer.id != *expected {
            return Err(PackError::WrongPack {
                expected: *expected,
                found: footer.id,
            });
        }
        let file = Mutex::new(Some(file));
        Ok(Self {
            id: footer.id,
            index,
            len_bytes,
            file,
            reopen: None,
        })
    }

    /// The same for a path; [`Self::close_file`] works then.
    pub(crate) fn open_at(
        backend: &Arc<dyn FileBackend>,
        path: &Path,
        expected: &PackId,
    ) -> Result<Self, PackError> {
        let file = backend.open(path).map_err(PackError::Io)?;
        let pack = Self::open(file, expected)?;
        Ok(Self {
            reopen: Some((Arc::clone(backend), path.to_path_buf())),
            ..pack
        })
    }

    /// Gives the descriptor back and keeps the index.
    pub(crate) fn close_file(&self) {
        if self.reopen.is_some() {
            *self.file.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    fn file(&self) -> io::Result<Arc<dyn BackendFile>> {
        let open = self
            .file
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        match (open, &self.reopen) {
            (Some(file), _) => Ok(file),
            (None, Some((backend, path))) => backend.open(path),
            (None, None) => Err(io::ErrorKind::NotFound.into()),
        }
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The entry's bytes as stored, not verified.
    pub(crate) fn read_stored(&self, entry: &Entry, out: &mut Vec<u8>) -> Result<(), PackError> {
        self.index.validate_entry(entry)?;
        out.resize(entry.stored_len as usize, 0);
        self.read_body(entry, out)
    }

    /// Fills `out`, which is as long as the entry's stored form.
    fn read_body(&self, entry: &Entry, out: &mut [u8]) -> Result<(), PackError> {
        self.index.validate_entry(entry)?;
        let file = self.file().map_err(PackError::Io)?;
        file.read_exact_at(out, entry.offset).map_err(PackError::Io)
    }

    /// As [`Self::read`], for whom the stored form is nothing: bytes that are stored as they are come straight from the file.
    pub(crate) fn read_decoded(&self, entry: &Entry, out: &mut [u8]) -> Result<usize, EntryError> {
        let len = entry.raw_len as usize;
        let is_raw = matches!(entry.codec(), Ok(Codec::Raw)) && entry.stored_len == entry.raw_len;
        let Some(bytes) = out.get_mut(..len).filter(|_| is_raw) else {
            return with_scratch(|scratch| self.read(entry, scratch, out));
        };
        self.read_body(entry, bytes).map_err(EntryError::Pack)?;
        verify(&entry.id, bytes).map_err(EntryError::Chunk)?;
        Ok(len)
    }

    /// Decodes the entry into the front of `out`, verifies it and returns its length. Its stored form is left in `scratch`.
    pub(crate) fn read(
        &self,
        entry: &Entry,
        scratch: &mut Vec<u8>,
        out: &mut [u8],
    ) -> Result<usize, EntryError> {
        let len = entry.raw_len as usize;
        let out = out
            .get_mut(..len)
            .ok_or(EntryError::BufferTooSmall { needed_bytes: len })?;
        let codec = entry.codec().map_err(EntryError::Chunk)?;
        self.read_stored(entry, scratch).map_err(EntryError::Pack)?;
        decode_verified(&entry.id, codec, scratch, out).map_err(EntryError::Chunk)?;
        Ok(len)
    }
}

fn read_index(file: &dyn BackendFile, len_bytes: u64) -> Result<(Footer, PackIndex), PackError> {
    let footer_at = len_bytes
        .checked_sub(FOOTER_BYTES as u64)
        .filter(|at| *at >= HEADER_BYTES as u64)
        .ok_or(PackError::TooShort { len_bytes })?;
    let mut header = [0; HEADER_BYTES];
    let mut footer = [0; FOOTER_BYTES];
    file.read_exact_at(&mut header, 0).map_err(PackError::Io)?;
    file.read_exact_at(&mut footer, footer_at)
        .map_err(PackError::Io)?;
    let footer = Footer::decode(&header, &footer, len_bytes)?;
    let mut bytes = vec![0; footer.index_len()].into_boxed_slice();
    file.read_exact_at(&mut bytes, footer.index_offset)
        .map_err(PackError::Io)?;
    let index = PackIndex::new(bytes, &footer)?;
    Ok((footer, index))
}
