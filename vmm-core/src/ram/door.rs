//! Access to guest memory: through here, and only to chunks that are present.

use std::ops::Range;

use vm_memory::bitmap::BS;
use vm_memory::guest_memory::{GuestMemorySliceIterator, Permissions};
use vm_memory::{
    GuestAddress, GuestMemory, GuestMemoryBackend, GuestMemoryError, GuestMemoryMmap,
    GuestMemoryRegion,
};

use super::presence::Asked;
use super::{
    CHUNK_BYTES, ChunkIndex, FillProgress, FillSource, GuestRam, LostListener, MemoryLost, PageMap,
    RamError,
};
use crate::Gpa;
use std::sync::Arc;

impl GuestRam {
    /// Makes `chunks` absent: each is read from `source` when it is first used, or earlier by
    /// [`fill_in_background`](Self::fill_in_background). What is filled in does not count as written.
    ///
    /// Chunks that are still absent from an earlier fill come from `source`, too. The machine stands: no vCPU and no device uses
    /// memory meanwhile, and a backend that remembers which pages it has seen forgets them before it runs on.
    pub fn begin_fill(
        &self,
        chunks: impl IntoIterator<Item = ChunkIndex>,
        source: Arc<dyn FillSource>,
    ) {
        let chunks: Vec<ChunkIndex> = chunks.into_iter().collect();
        self.note_replaced(chunks.iter().copied());
        self.inner.presence.begin(chunks, source);
    }

    /// Whether all memory is there.
    #[inline]
    pub fn is_complete(&self) -> bool {
        self.inner.presence.is_complete()
    }

    /// How far filling is.
    pub fn fill_progress(&self) -> FillProgress {
        self.inner.presence.progress()
    }

    /// The chunks that were used before they were there, in the order of their first use: what to fill in first
    /// when the same is restored again.
    pub fn first_uses(&self) -> Vec<ChunkIndex> {
        let mut seen = std::collections::HashSet::new();
        let mut uses = self.inner.presence.first_uses();
        uses.retain(|chunk| seen.insert(*chunk));
        uses
    }

    /// The first chunk that could not be had since filling began.
    pub fn lost(&self) -> Option<MemoryLost> {
        self.inner.presence.lost()
    }

    /// Has `listener` told of the first chunk that is lost.
    pub fn on_lost(&self, listener: LostListener) {
        self.inner.presence.set_listener(listener);
    }

    /// Waits until the chunk that holds `gpa` is there, reading it if nobody else does. An address that is not in RAM is no error.
    ///
    /// # Errors
    /// The chunk is lost; whoever needs it must not go on.
    #[inline]
    pub fn make_present(&self, gpa: Gpa) -> Result<(), MemoryLost> {
        if self.is_complete() {
            return Ok(());
        }
        self.layout()
            .chunk_at(gpa)
            .map_or(Ok(()), |chunk| self.bring(chunk, Asked::ByUse))
    }

    pub(super) fn make_present_at(&self, region: usize, offset: u64) -> Result<(), RamError> {
        let start = self.layout().regions()[region].start.0;
        Ok(self.make_present(Gpa(start + offset))?)
    }

    pub(super) fn bring(&self, chunk: ChunkIndex, asked: Asked) -> Result<(), MemoryLost> {
        let Some(gpa) = self.layout().chunk_gpa(chunk) else {
            return Ok(());
        };
        let place = |bytes: &[u8]| self.place(gpa, bytes);
        self.inner.presence.ensure(chunk, gpa, asked, place)
    }

    /// Copies a chunk into memory; it does not count as written.
    fn place(&self, gpa: Gpa, bytes: &[u8]) {
        let Some((region, offset)) = self.layout().find(gpa) else {
            return;
        };
        self.inner.reservations[region].copy_in(offset, bytes);
    }

    /// Overwrites a part of a region with zeros.
    pub(super) fn overwrite(&self, region: usize, range: Range<u64>) -> std::io::Result<()> {
        const ZEROS: [u8; 4096] = [0; 4096];
        let Some(region) = self.inner.memory.iter().nth(region) else {
            return Ok(());
        };
        let mut at = range.start;
        while at < range.end {
            let piece = (range.end - at).min(ZEROS.len() as u64);
            let zeros = &ZEROS[..piece as usize];
            let slice = region.get_slice(vm_memory::MemoryRegionAddress(at), zeros.len());
            slice.map_err(std::io::Error::other)?.copy_from(zeros);
            at += piece;
        }
        Ok(())
    }
}

impl GuestMemory for GuestRam {
    type PhysicalMemory = GuestMemoryMmap<PageMap>;
    type Bitmap = PageMap;

    fn check_range(&self, addr: GuestAddress, count: usize, access: Permissions) -> bool {
        GuestMemory::check_range(&self.inner.memory, addr, count, access)
    }

    fn get_slices<'a>(
        &'a self,
        addr: GuestAddress,
        count: usize,
        access: Permissions,
    ) -> Result<impl GuestMemorySliceIterator<'a, BS<'a, Self::Bitmap>>, GuestMemoryError> {
        if !self.is_complete() {
            let end = addr.0.saturating_add(count as u64);
            let mut at = addr.0;
            // A range that is not in RAM ends at its first such address, whatever its length.
            while at < end && self.layout().find(Gpa(at)).is_some() {
                self.make_present(Gpa(at))
                    .map_err(|lost| GuestMemoryError::IOError(std::io::Error::other(lost)))?;
                at = (at & !(CHUNK_BYTES - 1)).saturating_add(CHUNK_BYTES);
            }
        }
        GuestMemory::get_slices(&self.inner.memory, addr, count, access)
    }

    /// There is no way around the presence of chunks.
    fn physical_memory(&self) -> Option<&Self::PhysicalMemory> {
        None
    }
}
