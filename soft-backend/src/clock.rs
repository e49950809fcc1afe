//! The guest's clock: where it takes its time from, and its structures in guest memory.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::cpu::Cpu;
use crate::mem::PAGE;

/// Deterministic mode: the wall time at which the guest's clock was zero, the first second of 2025
/// (UTC), in nanoseconds since 1970.
const DETERMINISTIC_EPOCH_NS: u64 = 1_735_689_600 * 1_000_000_000;

impl Cpu {
    /// Nanoseconds that the guest has seen pass.
    pub(crate) fn guest_ns(&self) -> u64 {
        self.guest_ns_at(self.tsc())
    }

    /// The same when the TSC was this.
    pub(crate) fn guest_ns_at(&self, tsc: u64) -> u64 {
        self.clock.nanoseconds_at(tsc, self.time.khz())
    }

    /// Makes the clock go on from `ns`, which it was when the TSC was this.
    pub(crate) fn set_guest_ns_at(&mut self, tsc: u64, ns: u64) {
        self.clock.set(tsc, ns);
        self.publish_clock();
    }

    /// The guest is told of a stop.
    pub(crate) fn clock_was_stopped(&mut self) {
        self.clock.was_stopped();
        self.publish_clock();
    }

    /// MSR_KVM_SYSTEM_TIME_NEW.
    pub(crate) fn set_system_time(&mut self, v: u64) {
        self.clock.system_time = v;
        self.publish_clock();
    }

    /// MSR_KVM_WALL_CLOCK_NEW: the wall time at which the guest's clock was zero.
    pub(crate) fn set_wall_clock(&mut self, v: u64) {
        self.clock.wall_clock = v;
        let now = if self.time.is_deterministic() {
            DETERMINISTIC_EPOCH_NS.saturating_add(self.guest_ns())
        } else {
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |d| d.as_nanos() as u64)
        };
        let (gpa, info) = self.clock.wall_clock_info(now, self.guest_ns());
        self.write_versioned(gpa, &info);
    }

    fn publish_clock(&mut self) {
        if let Some((gpa, info)) = self.clock.time_info(self.time.khz()) {
            self.write_versioned(gpa, &info);
        }
    }

    /// Writes a structure that begins with a version: odd while it changes. A structure outside RAM
    /// or across a page is not written.
    fn write_versioned(&self, gpa: u64, structure: &[u8]) {
        let offset = gpa & (PAGE - 1);
        // Where that memory is lost, the machine has ended.
        let Ok(Some(page)) = self.ram.page(gpa) else {
            return;
        };
        if offset + structure.len() as u64 > PAGE {
            return;
        }
        let p = page.add(offset as usize);
        let version = p.load::<u32>() & !1;
        p.store(version.wrapping_add(1));
        for (index, byte) in structure.iter().enumerate().skip(4) {
            p.add(index).store(*byte);
        }
        p.store(version.wrapping_add(2));
        self.ram.mark_dirty(gpa);
    }
}
