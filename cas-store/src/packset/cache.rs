//! Which packs of a set stay open: bounded by descriptors and by bytes of index.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::PackSlot;
use crate::backend::StoreBackend;
use crate::error::ReadError;
use crate::pack::reader::Pack;

/// Most packs that one set keeps open; twice what one point may need.
pub(crate) const MAX_OPEN_PACKS: usize = 256;
/// Most bytes of index that one set keeps in memory beside the pack just used.
pub(crate) const MAX_INDEX_CACHE_BYTES: usize = 256 << 20;

/// The open packs of one set.
#[derive(Debug, Default)]
pub(super) struct OpenPacks {
    clock: AtomicU64,
    open: Mutex<Vec<Arc<PackSlot>>>,
}

impl OpenPacks {
    pub(super) fn get(
        &self,
        backend: &dyn StoreBackend,
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
        open.push(Arc::clone(slot));
        let size = |slot: &Arc<PackSlot>| slot.opened().map_or(0, |pack| pack.index.size_bytes());
        let mut total: usize = open.iter().map(size).sum();
        while open.len() > 1 && (open.len() > MAX_OPEN_PACKS || total > MAX_INDEX_CACHE_BYTES) {
            let oldest =
                (0..open.len() - 1).min_by_key(|at| open[*at].used.load(Ordering::Relaxed));
            let Some(oldest) = oldest else { return };
            let closed = open.remove(oldest);
            total -= size(&closed).min(total);
            closed.close();
        }
    }
}
