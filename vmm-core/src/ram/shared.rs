//! Memory of one instant that several machines go on from: sealed memfds, mapped privately by each.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use thiserror::Error;

use super::{
    CHUNK_BYTES, ChunkIndex, FileRange, GuestRam, MAX_EXTENTS, RamBacking, RamError, RamLayout,
};
use crate::Gpa;

/// Above this many extents, half of what a memory may have, all of them go into one new layer: the rest is for discards.
const MAX_SHARED_EXTENTS: usize = MAX_EXTENTS / 2;
/// Most runs of memory that a merged layer is mapped in: with the zeros between them they are half of what the layers
/// may be before they are merged again.
const MAX_MERGED_RUNS: usize = MAX_SHARED_EXTENTS / 4;
/// A base and one layer over it: each is a descriptor in every machine, and on its way to it. What lies over the base is made one
/// with each new layer.
const MAX_LAYERS: usize = 2;
/// The layer over the base may be so much of it; beyond that both become a new base. So no chain of branches holds more than that
/// in addition to what is used.
const MAX_OVER_BASE: u64 = 5;
/// Less than this over the base is never worth a new one, in bytes.
const LITTLE_OVER_BASE: u64 = 4 << 20;

/// What the host counts the room of a file in.
const BLOCK_BYTES: u64 = 512;

/// Why a shared memory cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SharedRamError {
    /// A layer could not be made, read or sealed.
    #[error("a layer of shared memory cannot be {action}")]
    Layer {
        /// What was tried: `made`, `written`, `read`, `sealed`.
        action: &'static str,
        /// The host's answer.
        #[source]
        source: io::Error,
    },
    /// The parts do not fit the layout, or a layer is not sealed or too short.
    #[error("part {index} of a shared memory is wrong: {problem}")]
    Part {
        /// Which of the parts.
        index: usize,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The memory could not be mapped.
    #[error(transparent)]
    Ram(#[from] RamError),
}

/// A part of a shared memory, as it is handed to another process together with the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedPart {
    /// First address.
    pub gpa: Gpa,
    /// Length in bytes.
    pub bytes: u64,
    /// Which of the files holds it.
    pub file: usize,
    /// Where in the file.
    pub offset: u64,
}

/// A place in a layer.
#[derive(Debug, Clone)]
struct Place {
    file: Arc<File>,
    offset: u64,
}

/// The memory of one instant, in sealed layers. Whoever holds it keeps the layers; cheap to hand on, by
/// [`files`](Self::files) and [`parts`](Self::parts).
#[derive(Debug, Clone)]
pub struct SharedRam {
    layout: RamLayout,
    /// Where each chunk lies; the others are zero.
    chunks: Vec<Option<Place>>,
}

impl SharedRam {
    /// Memory that is all zero.
    pub fn zero(layout: RamLayout) -> Self {
        let chunks = vec![None; layout.chunks()];
        Self { layout, chunks }
    }

    /// Puts together what another process handed over.
    ///
    /// # Errors
    /// A part does not fit the layout, lies outside of its file, or the file is not sealed.
    pub fn from_parts(
        layout: RamLayout,
        files: Vec<File>,
        parts: &[SharedPart],
    ) -> Result<Self, SharedRamError> {
        let files: Vec<Arc<File>> = files.into_iter().map(Arc::new).collect();
        let mut lengths = Vec::new();
        for (index, file) in files.iter().enumerate() {
            let sealed = sealed::is_sealed(file);
            let bytes = file.metadata().map(|metadata| metadata.len());
            let problem = "its file is not a sealed memfd";
            match bytes {
                Ok(bytes) if sealed => lengths.push(bytes),
                _ => return Err(SharedRamError::Part { index, problem }),
            }
        }
        let mut shared = Self::zero(layout);
        for (index, part) in parts.iter().enumerate() {
            let wrong = |problem| SharedRamError::Part { index, problem };
            if !(part.gpa.0 | part.bytes | part.offset).is_multiple_of(CHUNK_BYTES) {
                return Err(wrong("it is not made of whole chunks"));
            }
            let end = part.offset.checked_add(part.bytes);
            let length = lengths.get(part.file).copied().unwrap_or(0);
            if end.is_none_or(|end| end > length) {
                return Err(wrong("it lies outside of its file"));
            }
            for done in (0..part.bytes).step_by(CHUNK_BYTES as usize) {
                let gpa = part.gpa.0.checked_add(done).map(Gpa);
                let chunk = gpa.and_then(|gpa| shared.layout.chunk_at(gpa));
                let chunk = chunk.ok_or_else(|| wrong("it lies outside of memory"))?;
                let file = files[part.file].clone();
                let offset = part.offset + done;
                shared.chunks[chunk.0] = Some(Place { file, offset });
            }
        }
        Ok(shared)
    }

    /// The layers that hold something, in the order that [`SharedPart::file`] counts.
    pub fn files(&self) -> Vec<Arc<File>> {
        let mut files: Vec<Arc<File>> = Vec::new();
        let mut known = HashMap::new();
        for place in self.chunks.iter().flatten() {
            known.entry(Arc::as_ptr(&place.file)).or_insert_with(|| {
                files.push(place.file.clone());
            });
        }
        files
    }

    /// Everything that is not zero, ascending, as few parts as there can be.
    pub fn parts(&self) -> Vec<SharedPart> {
        let files = self.files();
        let numbers: HashMap<_, _> = files.iter().map(Arc::as_ptr).zip(0..).collect();
        let mut parts: Vec<SharedPart> = Vec::new();
        for (index, place) in self.chunks.iter().enumerate() {
            let (Some(place), Some(gpa)) = (place, self.layout.chunk_gpa(ChunkIndex(index))) else {
                continue;
            };
            let file = numbers.get(&Arc::as_ptr(&place.file)).copied().unwrap_or(0);
            let next = SharedPart {
                gpa,
                bytes: CHUNK_BYTES,
                file,
                offset: place.offset,
            };
            match parts.last_mut() {
                Some(last)
                    if last.gpa.0 + last.bytes == gpa.0
                        && last.file == file
                        && last.offset + last.bytes == place.offset =>
                {
                    last.bytes += CHUNK_BYTES;
                }
                _ => parts.push(next),
            }
        }
        parts
    }

    /// Where the memory lies in a guest's address space.
    pub fn layout(&self) -> &RamLayout {
        &self.layout
    }

    /// Bytes that the layers hold, also those that later layers replaced.
    pub fn held_bytes(&self) -> u64 {
        let files = self.files();
        let held = files.iter().filter_map(|file| file.metadata().ok());
        held.map(|metadata| metadata.blocks() * BLOCK_BYTES).sum()
    }

    /// Bytes of memory that lie in layers; all others are zero.
    pub fn used_bytes(&self) -> u64 {
        self.chunks.iter().flatten().count() as u64 * CHUNK_BYTES
    }

    /// A new guest memory that begins as this one. What the guest writes is its own.
    pub fn map(&self) -> Result<GuestRam, RamError> {
        let ram = GuestRam::new(self.layout.clone(), &RamBacking::Anonymous)?;
        let files = self.files();
        for part in self.parts() {
            let file = files[part.file].clone();
            let offset = part.offset;
            ram.map_file(part.gpa, part.bytes, FileRange { file, offset })?;
        }
        Ok(ram)
    }

    /// This memory with a layer over it.
    pub(crate) fn with_layer(&self, layer: SealedLayer) -> Result<Self, SharedRamError> {
        let mut above = self.clone();
        for (chunk, offset) in layer.places {
            let file = layer.file.clone();
            above.chunks[chunk.0] = offset.map(|offset| Place { file, offset });
        }
        let above = above.folded()?;
        if above.wants_merging() {
            above.merged()
        } else {
            Ok(above)
        }
    }

    /// Whether there are too many pieces, or much that is replaced.
    fn wants_merging(&self) -> bool {
        let held = |file: &Arc<File>| {
            file.metadata()
                .map_or(0, |file| file.blocks() * BLOCK_BYTES)
        };
        let base = self.base().as_ref().map_or(0, held);
        let over = self.held_bytes().saturating_sub(base);
        self.extents() > MAX_SHARED_EXTENTS
            || over > (base / MAX_OVER_BASE).max(LITTLE_OVER_BASE)
            || base > 2 * self.used_bytes() + LITTLE_OVER_BASE
    }

    /// The layer that the most chunks lie in.
    fn base(&self) -> Option<Arc<File>> {
        let mut counts = HashMap::new();
        for place in self.chunks.iter().flatten() {
            *counts.entry(Arc::as_ptr(&place.file)).or_insert(0_usize) += 1;
        }
        let files = self.files();
        // Of equal ones the first.
        let largest = files.into_iter().rev();
        largest.max_by_key(|file| counts.get(&Arc::as_ptr(file)).copied())
    }

    /// The same memory with all that does not lie in its base in one layer.
    fn folded(&self) -> Result<Self, SharedRamError> {
        let Some(base) = self.base().filter(|_| self.files().len() > MAX_LAYERS) else {
            return Ok(self.clone());
        };
        let mut layer = Layer::new()?;
        let mut bytes = vec![0; CHUNK_BYTES as usize];
        for (index, place) in self.chunks.iter().enumerate() {
            if let Some(place) = place
                && !Arc::ptr_eq(&place.file, &base)
            {
                let read = place.file.read_exact_at(&mut bytes, place.offset);
                read.map_err(failed("read"))?;
                layer.put(ChunkIndex(index), &bytes)?;
            }
        }
        let layer = layer.seal()?;
        let mut folded = self.clone();
        for (chunk, offset) in layer.places {
            let file = layer.file.clone();
            folded.chunks[chunk.0] = offset.map(|offset| Place { file, offset });
        }
        Ok(folded)
    }

    /// How many extents a memory has at most that begins as this one: the parts, and the zeros around them.
    fn extents(&self) -> usize {
        let parts = self.parts();
        let apart = |pair: &[SharedPart]| pair[0].gpa.0 + pair[0].bytes != pair[1].gpa.0;
        let between = parts.windows(2).filter(|pair| apart(pair)).count();
        parts.len() + between + 2 * self.layout.regions().len()
    }

    /// The same memory in one new layer, of few runs.
    fn merged(&self) -> Result<Self, SharedRamError> {
        self.merged_into(MAX_MERGED_RUNS)
    }

    /// The same memory in one new layer, of at most `most` runs, or one in each region. The file mirrors memory: what is zero is
    /// a hole in it, which takes no room, and where there would be too many runs the smallest holes between them are mapped, too.
    fn merged_into(&self, most: usize) -> Result<Self, SharedRamError> {
        let file = sealed::new().map_err(failed("made"))?;
        let mut used = vec![false; self.chunks.len()];
        let mut bytes = vec![0; CHUNK_BYTES as usize];
        for (index, place) in self.chunks.iter().enumerate() {
            let Some(place) = place else { continue };
            place
                .file
                .read_exact_at(&mut bytes, place.offset)
                .map_err(failed("read"))?;
            if bytes.iter().any(|byte| *byte != 0) {
                file.write_all_at(&bytes, mirrored(index))
                    .map_err(failed("written"))?;
                used[index] = true;
            }
        }
        join_runs(&self.layout, &mut used, most);
        sealed::seal(&file).map_err(failed("sealed"))?;
        let file = Arc::new(file);
        let place = |(index, used)| {
            let (file, offset) = (file.clone(), mirrored(index));
            bool::then(used, || Place { file, offset })
        };
        Ok(Self {
            layout: self.layout.clone(),
            chunks: used.into_iter().enumerate().map(place).collect(),
        })
    }
}

/// Where a chunk lies in a layer that mirrors memory.
fn mirrored(index: usize) -> u64 {
    index as u64 * CHUNK_BYTES
}

/// Counts chunks between used ones as used, those of the shortest gaps first, until there are at most `most` runs. No run reaches
/// from one region into another.
fn join_runs(layout: &RamLayout, used: &mut [bool], most: usize) {
    let gpa = |index| layout.chunk_gpa(ChunkIndex(index)).map(|gpa| gpa.0);
    let mut runs = 0_usize;
    let mut gaps = Vec::new();
    let mut last = None;
    let indices = (0..used.len()).filter(|index| used[*index]);
    for index in indices {
        let distance = last.map(|last| (index - last) as u64 * CHUNK_BYTES);
        let in_one = last.and_then(gpa).zip(distance);
        let in_one = in_one
            .is_some_and(|(gpa_of_last, distance)| gpa_of_last.checked_add(distance) == gpa(index));
        match last {
            Some(last) if in_one && last + 1 == index => {}
            Some(last) if in_one => {
                gaps.push(last + 1..index);
                runs += 1;
            }
            _ => runs += 1,
        }
        last = Some(index);
    }
    gaps.sort_by_key(ExactSizeIterator::len);
    for gap in gaps.into_iter().take(runs.saturating_sub(most)) {
        used[gap].fill(true);
    }
}

/// A layer that is being written.
#[derive(Debug)]
pub(crate) struct Layer {
    file: File,
    /// Where each chunk lies that was put; `None`: it is zero.
    places: HashMap<ChunkIndex, Option<u64>>,
    bytes: u64,
}

/// A layer that nobody can change any more.
pub(crate) struct SealedLayer {
    file: Arc<File>,
    places: HashMap<ChunkIndex, Option<u64>>,
}

impl Layer {
    pub(crate) fn new() -> Result<Self, SharedRamError> {
        Ok(Self {
            file: sealed::new().map_err(failed("made"))?,
            places: HashMap::new(),
            bytes: 0,
        })
    }

    /// Whether the chunk was put already.
    pub(crate) fn has(&self, chunk: ChunkIndex) -> bool {
        self.places.get(&chunk).is_some_and(Option::is_some)
    }

    /// Puts a whole chunk, anew if it was put before.
    pub(crate) fn put(&mut self, chunk: ChunkIndex, bytes: &[u8]) -> Result<(), SharedRamError> {
        debug_assert_eq!(bytes.len() as u64, CHUNK_BYTES);
        let place = self.places.entry(chunk).or_default();
        if place.is_none() && bytes.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let offset = *place.get_or_insert(self.bytes);
        self.bytes = self.bytes.max(offset + CHUNK_BYTES);
        self.file
            .write_all_at(bytes, offset)
            .map_err(failed("written"))
    }

    /// Overwrites `bytes` at `offset` of a chunk that was put.
    pub(crate) fn patch(
        &mut self,
        chunk: ChunkIndex,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), SharedRamError> {
        let Some(Some(place)) = self.places.get(&chunk) else {
            return Ok(());
        };
        let at = place + offset;
        self.file.write_all_at(bytes, at).map_err(failed("written"))
    }

    pub(crate) fn seal(self) -> Result<SealedLayer, SharedRamError> {
        sealed::seal(&self.file).map_err(failed("sealed"))?;
        Ok(SealedLayer {
            file: Arc::new(self.file),
            places: self.places,
        })
    }
}

fn failed(action: &'static str) -> impl Fn(io::Error) -> SharedRamError {
    move |source| SharedRamError::Layer { action, source }
}

/// Files in memory that can be sealed.
#[cfg(target_os = "linux")]
mod sealed {
    use std::fs::File;
    use std::io;

    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};

    /// Nobody can change or cut the file, also not whoever made it.
    const SEALS: SealFlags = SealFlags::SEAL
        .union(SealFlags::SHRINK)
        .union(SealFlags::GROW)
        .union(SealFlags::WRITE);

    pub(super) fn new() -> io::Result<File> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        Ok(memfd_create("guest-memory", flags)?.into())
    }

    pub(super) fn seal(file: &File) -> io::Result<()> {
        Ok(fcntl_add_seals(file, SEALS)?)
    }

    pub(super) fn is_sealed(file: &File) -> bool {
        fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SEALS))
    }
}

/// Other hosts have no such files: machines there do not branch in memory.
#[cfg(not(target_os = "linux"))]
mod sealed {
    use std::fs::File;
    use std::io;

    pub(super) fn new() -> io::Result<File> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn seal(_: &File) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn is_sealed(_: &File) -> bool {
        false
    }
}

#[cfg(test)]
mod tests;
