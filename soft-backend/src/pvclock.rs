//! kvm-clock (kernel documentation `virt/kvm/x86/msr.rst`, `arch/x86/include/asm/pvclock-abi.h`).
//!
//! The guest computes time as `system_time + (tsc - tsc_timestamp) * scale`. All vCPUs have one TSC of
//! a fixed rate, so the structure is written once and after each change of the clock.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::cpu::Cpu;
use crate::mem::PAGE;

const ENABLED: u64 = 1;
/// All vCPUs' clocks agree.
const STABLE: u8 = 1;
/// The guest was stopped.
const GUEST_STOPPED: u8 = 1 << 1;
/// Size in bytes of the per-vCPU structure.
const TIME_INFO_BYTES: u64 = 32;
/// Deterministic mode: the wall time at which the guest's clock was zero, the first second of 2025
/// (UTC), in nanoseconds since 1970.
const DETERMINISTIC_EPOCH_NS: u64 = 1_735_689_600 * 1_000_000_000;
/// Size in bytes of the wall clock structure.
const WALL_CLOCK_BYTES: u64 = 12;

/// The clock of one vCPU.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PvClock {
    pub(crate) system_time: u64,
    pub(crate) wall_clock: u64,
    /// TSC and guest nanoseconds of one instant.
    base_tsc: u64,
    base_ns: u64,
    stopped: bool,
}

/// Multiplier and shift that make nanoseconds of TSC ticks: `(ticks << shift) * mul >> 32`.
fn scale(khz: u64) -> (u32, i8) {
    let mut shift = 0i8;
    // mul = 10^6 / khz * 2^(32 - shift), between 2^31 and 2^32.
    let mul = |shift: i8| {
        let n = 1_000_000u128 << 64;
        (n / u128::from(khz.max(1))) >> (32 + i32::from(shift))
    };
    while mul(shift) >= 1 << 32 {
        shift += 1;
    }
    while mul(shift) < 1 << 31 {
        shift -= 1;
    }
    (mul(shift) as u32, shift)
}

impl Cpu {
    /// Nanoseconds that the guest has seen pass.
    pub(crate) fn guest_ns(&self) -> u64 {
        self.guest_ns_at(self.tsc())
    }

    /// The same when the TSC was this.
    pub(crate) fn guest_ns_at(&self, tsc: u64) -> u64 {
        let ticks = tsc.wrapping_sub(self.clock.base_tsc);
        let ns = u128::from(ticks) * 1_000_000 / u128::from(self.time.khz().max(1));
        self.clock.base_ns.wrapping_add(ns as u64)
    }

    /// Makes the clock go on from `ns`, which it was when the TSC was this.
    pub(crate) fn set_guest_ns_at(&mut self, tsc: u64, ns: u64) {
        self.clock.base_tsc = tsc;
        self.clock.base_ns = ns;
        self.publish_clock();
    }

    /// The guest is told of a stop.
    pub(crate) fn clock_was_stopped(&mut self) {
        self.clock.stopped = true;
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
        let at_zero = now.saturating_sub(self.guest_ns());
        let (sec, ns) = (
            (at_zero / 1_000_000_000) as u32,
            (at_zero % 1_000_000_000) as u32,
        );
        self.write_versioned(v & !3, WALL_CLOCK_BYTES, |p| {
            p.add(4).store(sec);
            p.add(8).store(ns);
        });
    }

    fn publish_clock(&mut self) {
        let c = self.clock;
        if c.system_time & ENABLED == 0 {
            return;
        }
        let (mul, shift) = scale(self.time.khz());
        let flags = STABLE | if c.stopped { GUEST_STOPPED } else { 0 };
        self.clock.stopped = false;
        self.write_versioned(c.system_time & !ENABLED, TIME_INFO_BYTES, |p| {
            p.add(8).store(c.base_tsc);
            p.add(16).store(c.base_ns);
            p.add(24).store(mul);
            p.add(28).store(shift as u8);
            p.add(29).store(flags);
        });
    }

    /// Writes a structure that begins with a version: odd while it changes. A structure outside RAM
    /// or across a page is not written.
    fn write_versioned(&self, gpa: u64, len: u64, f: impl Fn(crate::mem::raw::HostPtr)) {
        let offset = gpa & (PAGE - 1);
        let Some(page) = self.ram.page(gpa) else {
            return;
        };
        if offset + len > PAGE {
            return;
        }
        let p = page.add(offset as usize);
        let version = p.load::<u32>() & !1;
        p.store(version.wrapping_add(1));
        f(p);
        p.store(version.wrapping_add(2));
        self.ram.mark_dirty(gpa);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_become_nanoseconds() {
        for khz in [1000u64, 999_999, 1_000_000, 2_596_123, 5_000_000] {
            let (mul, shift) = scale(khz);
            assert!(mul >= 1 << 31);
            let ticks = khz * 1000;
            let shifted = if shift < 0 {
                ticks >> -shift
            } else {
                ticks << shift
            };
            let ns = ((u128::from(shifted) * u128::from(mul)) >> 32) as u64;
            assert!(ns.abs_diff(1_000_000_000) < 2_000, "{khz} kHz: {ns}");
        }
    }
}
