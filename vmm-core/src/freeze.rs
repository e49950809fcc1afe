//! The memory of a running machine as layers that other machines go on from.
//!
//! A freeze costs what was written since the last one. The first copies run while the guest does; what it writes meanwhile is
//! copied in a pause, and the machine goes on with its own memory:
//!
//! ```text
//! let mut freeze = Freeze::begin(tracker)?;
//! freeze.copy_written()?;          // the guest runs; as often as it pays
//! let paused = machine.pause()?;
//! freeze.copy_written()?;          // the rest
//! let states = paused.save()?;
//! paused.resume()?;
//! let shared = freeze.finish()?;   // seals
//! ```

use vm_memory::{Bytes, GuestAddress, GuestMemoryError};

use thiserror::Error;

use crate::ram::{CHUNK_BYTES, GuestRam, Layer, PAGE_BYTES, SharedRam, SharedRamError};
use crate::tracker::{DirtySet, DirtyTracker, TrackerError};

/// Why memory could not be frozen. The machine is as it was.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FreezeError {
    /// The written pages are not known.
    #[error(transparent)]
    Tracker(#[from] TrackerError),
    /// A layer could not be written.
    #[error(transparent)]
    Layer(#[from] SharedRamError),
    /// Memory could not be read: a chunk of it is lost.
    #[error("memory cannot be read")]
    Memory(#[from] GuestMemoryError),
    /// Nobody wants it any more.
    #[error("the copy of memory was given up")]
    GivenUp,
}

/// A freeze under way. Given up by dropping it: the next one then copies what this one has copied, too.
pub struct Freeze {
    tracker: DirtyTracker,
    ram: GuestRam,
    layer: Option<Layer>,
    /// What was taken from the tracker so far.
    taken: DirtySet,
    /// A chunk at a time.
    buffer: Vec<u8>,
}

/// What a round of copying was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    /// Pages that were written since the round before.
    pub pages: u64,
    /// Bytes that were copied for them.
    pub bytes: u64,
}

impl Freeze {
    /// Begins a freeze; one at a time for each machine.
    ///
    /// # Errors
    /// A memfd cannot be made, or the host does not tell which pages are in use (at the first freeze).
    pub fn begin(tracker: &DirtyTracker) -> Result<Self, FreezeError> {
        let ram = tracker.ram().clone();
        tracker.need_base()?;
        Ok(Self {
            layer: Some(Layer::new()?),
            taken: DirtySet::empty(&ram),
            tracker: tracker.clone(),
            buffer: vec![0; CHUNK_BYTES as usize],
            ram,
        })
    }

    /// Copies what was written since the last freeze, or the last call. While the guest runs, some of it is written again.
    pub fn copy_written(&mut self) -> Result<Copied, FreezeError> {
        self.copy_written_while(&|| true)
    }

    /// As [`copy_written`](Self::copy_written), as long as `wanted` says so; it is asked often.
    ///
    /// # Errors
    /// [`FreezeError::GivenUp`] besides: what was copied so far is of no use then.
    pub fn copy_written_while(&mut self, wanted: &dyn Fn() -> bool) -> Result<Copied, FreezeError> {
        let set = self.tracker.take_since_base()?;
        self.taken.merge(&set);
        let mut copied = Copied {
            pages: set.len(),
            bytes: 0,
        };
        let Some(layer) = &mut self.layer else {
            return Ok(copied);
        };
        let layout = self.ram.layout();
        for unit in set.units(CHUNK_BYTES) {
            let Some(chunk) = layout.chunk_at(unit) else {
                continue;
            };
            if !wanted() {
                return Err(FreezeError::GivenUp);
            }
            if !layer.has(chunk) {
                self.ram
                    .read_slice(&mut self.buffer, GuestAddress(unit.0))?;
                layer.put(chunk, &self.buffer)?;
                copied.bytes += CHUNK_BYTES;
                continue;
            }
            for offset in (0..CHUNK_BYTES).step_by(PAGE_BYTES as usize) {
                let gpa = crate::Gpa(unit.0 + offset);
                if set.contains(gpa) {
                    let page = &mut self.buffer[..PAGE_BYTES as usize];
                    self.ram.read_slice(page, GuestAddress(gpa.0))?;
                    layer.patch(chunk, offset, page)?;
                    copied.bytes += PAGE_BYTES;
                }
            }
        }
        Ok(copied)
    }

    /// The memory of the moment of the last [`copy_written`](Self::copy_written), which was made while the machine stood. The
    /// machine may run meanwhile: where there are too many layers, this copies all of them into a new one.
    pub fn finish(mut self) -> Result<SharedRam, FreezeError> {
        let Some(layer) = self.layer.take() else {
            return Ok(self.tracker.base());
        };
        let shared = self.tracker.base().with_layer(layer.seal()?)?;
        self.tracker.replace_base(shared.clone());
        self.taken = DirtySet::empty(&self.ram);
        Ok(shared)
    }

    /// As [`finish`](Self::finish), for memory that is looked at once: the machine keeps nothing of it, and the next freeze copies
    /// what this one has copied, too.
    pub fn finish_apart(mut self) -> Result<SharedRam, FreezeError> {
        match self.layer.take() {
            Some(layer) => Ok(self.tracker.base().with_layer(layer.seal()?)?),
            None => Ok(self.tracker.base()),
        }
    }
}

impl Drop for Freeze {
    fn drop(&mut self) {
        self.tracker.give_back_since_base(&self.taken);
    }
}

#[cfg(test)]
mod tests;
