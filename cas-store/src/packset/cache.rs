//! Which packs of a set stay open: bounded by descriptors and by bytes of index.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::PackSlot;
use crate::error::ReadError;
use crate::pack::reader::Pack;
use durable_files::FileBackend;

/// Most descriptors that one set keeps open; twice what one point may need.
pub(crate) const MAX_OPEN_FILES: usize = 256;
/// Most bytes of index that one set keeps in memory beside the pack just used.
pub(crate) const MAX_INDEX_CACHE_BYTES: usize = 256 << 20;

/// The open packs of one set.
#[derive(Debug, Default)]
pub(super) struct OpenPacks {
    clock: AtomicU64,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    /// Packs whose index is in memory.
    indexed: Vec<Arc<PackSlot>>,
    /// Those of them whose file is open.
    files: Vec<Arc<PackSlot>>,
}

impl OpenPacks {
    pub(super) fn get(
        &self,
        backend: &Arc<dyn FileBackend>,
        slot: &Arc<PackSlot>,
    ) -> Result<Arc<Pack>, ReadError> {
        slot.touch(self.clock.fetch_add(1, Ordering::Relaxed));
        if let Some(pack) = slot.opened() {
            return Ok(pack);
        }
        let (pack, newly) = slot.open(backend)?;
        if newly {
            self.admit(slot);
        }
        Ok(pack)
    }

    /// Counts a newly opened pack and closes the least recently used ones beyond the limits.
    fn admit(&self, slot: &Arc<PackSlot>) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.files.push(Arc::clone(slot));
        while open.files.len() > MAX_OPEN_FILES {
            if let Some(pack) = take_oldest(&mut open.files).and_then(|slot| slot.opened()) {
                pack.close_file();
            }
        }
        open.indexed.push(Arc::clone(slot));
        let size = |slot: &Arc<PackSlot>| slot.opened().map_or(0, |pack| pack.index.size_bytes());
        let mut total: usize = open.indexed.iter().map(size).sum();
        while total > MAX_INDEX_CACHE_BYTES {
            let Some(oldest) = take_oldest(&mut open.indexed) else {
                return;
            };
            open.files.retain(|slot| !Arc::ptr_eq(slot, &oldest));
            total -= size(&oldest).min(total);
            oldest.close();
        }
    }
}

/// The least recently used of all but the last, which was opened just now.
fn take_oldest(slots: &mut Vec<Arc<PackSlot>>) -> Option<Arc<PackSlot>> {
    let older = slots.len().checked_sub(1)?;
    let at = (0..older).min_by_key(|at| slots[*at].used.load(Ordering::Relaxed))?;
    Some(slots.remove(at))
}
