//! kvm-clock (kernel documentation `virt/kvm/x86/msr.rst`, `arch/x86/include/asm/pvclock-abi.h`), for
//! backends whose hypervisor brings none.
//!
//! The guest computes time as `system_time + (tsc - tsc_timestamp) * scale`. All vCPUs have one TSC of
//! a fixed rate, so the structure is written once and after each change of the clock. This is the
//! model; the backend writes the structures into guest memory, with an odd version while they change.

/// Set in MSR_KVM_SYSTEM_TIME_NEW by a guest that wants the clock.
const ENABLED: u64 = 1;
/// All vCPUs' clocks agree.
const STABLE: u8 = 1;
/// The guest was stopped.
const GUEST_STOPPED: u8 = 1 << 1;
/// Size in bytes of the per-vCPU structure; the first four are its version.
pub const TIME_INFO_BYTES: usize = 32;
/// Size in bytes of the wall clock structure; the first four are its version.
pub const WALL_CLOCK_BYTES: usize = 12;

/// The clock of one vCPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct PvClock {
    /// MSR_KVM_SYSTEM_TIME_NEW.
    pub system_time: u64,
    /// MSR_KVM_WALL_CLOCK_NEW.
    pub wall_clock: u64,
    /// TSC and guest nanoseconds of one instant.
    base_tsc: u64,
    base_ns: u64,
    stopped: bool,
}

impl PvClock {
    /// Nanoseconds that the guest has seen pass when its TSC, of this rate, is `tsc`.
    pub fn nanoseconds_at(&self, tsc: u64, khz: u64) -> u64 {
        let ticks = tsc.wrapping_sub(self.base_tsc);
        let ns = u128::from(ticks) * 1_000_000 / u128::from(khz.max(1));
        self.base_ns.wrapping_add(ns as u64)
    }

    /// Makes the clock go on from `ns`, which it was when the TSC was `tsc`.
    pub fn set(&mut self, tsc: u64, ns: u64) {
        self.base_tsc = tsc;
        self.base_ns = ns;
    }

    /// The next time info tells the guest that it was stopped.
    pub fn was_stopped(&mut self) {
        self.stopped = true;
    }

    /// Address and content of the per-vCPU structure, the version left zero; `None` while the guest
    /// does not want it.
    pub fn time_info(&mut self, khz: u64) -> Option<(u64, [u8; TIME_INFO_BYTES])> {
        if self.system_time & ENABLED == 0 {
            return None;
        }
        let (mul, shift) = scale(khz);
        let stopped = std::mem::take(&mut self.stopped);
        let mut info = [0; TIME_INFO_BYTES];
        info[8..16].copy_from_slice(&self.base_tsc.to_le_bytes());
        info[16..24].copy_from_slice(&self.base_ns.to_le_bytes());
        info[24..28].copy_from_slice(&mul.to_le_bytes());
        info[28] = shift as u8;
        info[29] = STABLE | if stopped { GUEST_STOPPED } else { 0 };
        Some((self.system_time & !ENABLED, info))
    }

    /// Address and content of the wall clock structure, the version left zero: the wall time at which
    /// the guest's clock was zero. `wall_ns` are nanoseconds since 1970, `guest_ns` the guest's at that
    /// moment.
    pub fn wall_clock_info(&self, wall_ns: u64, guest_ns: u64) -> (u64, [u8; WALL_CLOCK_BYTES]) {
        const SECOND: u64 = 1_000_000_000;
        let at_zero = wall_ns.saturating_sub(guest_ns);
        let mut info = [0; WALL_CLOCK_BYTES];
        info[4..8].copy_from_slice(&((at_zero / SECOND) as u32).to_le_bytes());
        info[8..].copy_from_slice(&((at_zero % SECOND) as u32).to_le_bytes());
        (self.wall_clock & !3, info)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// As a guest computes it.
    fn nanoseconds(info: &[u8; TIME_INFO_BYTES], tsc: u64) -> u64 {
        let long = |at: usize| u64::from_le_bytes(info[at..at + 8].try_into().unwrap());
        let mul = u32::from_le_bytes(info[24..28].try_into().unwrap());
        let (ticks, shift) = (tsc - long(8), info[28] as i8);
        let shifted = if shift < 0 {
            ticks >> -shift
        } else {
            ticks << shift
        };
        long(16) + ((u128::from(shifted) * u128::from(mul)) >> 32) as u64
    }

    #[test]
    fn a_guest_reads_the_time_that_the_host_computes() {
        for khz in [1000u64, 999_999, 1_000_000, 2_596_123, 5_000_000] {
            let mut clock = PvClock::default();
            clock.set(12_345, 7_000);
            assert_eq!(clock.time_info(khz), None);
            clock.system_time = 0x1000 | ENABLED;
            let (gpa, info) = clock.time_info(khz).unwrap();
            assert_eq!((gpa, info[29]), (0x1000, STABLE));
            let later = 12_345 + khz * 1000;
            let (seen, meant) = (nanoseconds(&info, later), clock.nanoseconds_at(later, khz));
            assert_eq!(meant, 1_000_007_000);
            assert!(seen.abs_diff(meant) < 2_000, "{khz} kHz: {seen}");
        }
    }

    #[test]
    fn a_stop_is_told_once() {
        let mut clock = PvClock {
            system_time: ENABLED,
            ..PvClock::default()
        };
        clock.was_stopped();
        assert_eq!(clock.time_info(1).unwrap().1[29], STABLE | GUEST_STOPPED);
        assert_eq!(clock.time_info(1).unwrap().1[29], STABLE);
    }

    #[test]
    fn the_wall_clock_is_that_of_the_guests_zero() {
        let clock = PvClock {
            wall_clock: 0x2000,
            ..PvClock::default()
        };
        let (gpa, info) = clock.wall_clock_info(5_000_000_007, 2_000_000_000);
        assert_eq!(gpa, 0x2000);
        assert_eq!(info, [0, 0, 0, 0, 3, 0, 0, 0, 7, 0, 0, 0]);
    }
}
