//! Which guest pages hold decoded code, and the writes of devices to them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::mem::RamMap;

/// Granule of the code map inside a page: one bit of a `u64` each.
const LINE_SHIFT: u64 = 6;

/// The code map of a machine: which pages hold decoded code is kept in the RAM's page flags, where
/// device writes see it; which 64-byte lines of them, here. Clones share it.
#[derive(Clone)]
pub(crate) struct CodePages {
    ram: RamMap,
    lines: Arc<Mutex<HashMap<u64, u64>>>,
}

impl CodePages {
    pub(crate) fn new(ram: RamMap) -> Self {
        CodePages {
            ram,
            lines: Arc::default(),
        }
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
        // The map is a plain value that no panic can leave half-changed.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether any decoded code lies in the page of `gpa`.
    pub(crate) fn holds_code(&self, gpa: u64) -> bool {
        self.ram
            .flags(gpa)
            .is_some_and(|(map, page)| map.is_code(page))
    }

    /// Whether decoded code lies in the 64-byte line of `gpa`.
    pub(crate) fn touches_code(&self, gpa: u64) -> bool {
        let line = gpa >> LINE_SHIFT & 63;
        self.lines()
            .get(&(gpa >> 12))
            .is_some_and(|m| m >> line & 1 != 0)
    }

    /// Notes code in `len` bytes from `gpa` (inside one page); true if the page is newly noted.
    pub(crate) fn note(&self, gpa: u64, len: u64) -> bool {
        let (first, last) = (
            gpa >> LINE_SHIFT & 63,
            (gpa + len.max(1) - 1) >> LINE_SHIFT & 63,
        );
        let mask = (u64::MAX << first) & (u64::MAX >> (63 - last));
        *self.lines().entry(gpa >> 12).or_default() |= mask;
        let Some((map, page)) = self.ram.flags(gpa) else {
            return false;
        };
        let new = !map.is_code(page);
        if new {
            map.set_code(page);
        }
        new
    }

    /// Forgets a page: its blocks are gone.
    pub(crate) fn forget(&self, pfn: u64) {
        self.lines().remove(&pfn);
        if let Some((map, page)) = self.ram.flags(pfn << 12) {
            map.clear_code(page);
        }
    }

    /// Takes the page frames with code that devices wrote to since the last call.
    pub(crate) fn take_written(&self) -> Vec<u64> {
        let mut out = Vec::new();
        for r in self.ram.regions() {
            let Some(map) = self.ram.ram.page_map(r.index) else {
                continue;
            };
            let mut words = vec![0; map.words()];
            map.take_stale_code(&mut words);
            for (i, mut w) in words.into_iter().enumerate() {
                while w != 0 {
                    out.push((r.start >> 12) + i as u64 * 64 + u64::from(w.trailing_zeros()));
                    w &= w - 1;
                }
            }
        }
        out
    }
}
