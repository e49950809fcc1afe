//! The rate of this machine's time stamp counter.
//!
//! QEMU's emulated processor shows the host's counter unscaled, and the emulated host cannot
//! calibrate it well, so it is told.
#![allow(unsafe_code)] // reading the counter is an intrinsic

use std::time::{Duration, Instant};

/// Longer measures better: 100 ms gives a few parts per million.
const MEASURED: Duration = Duration::from_millis(100);

/// Measures the rate in kHz against the monotonic clock.
#[cfg(target_arch = "x86_64")]
pub fn measure_khz() -> u64 {
    use std::arch::x86_64::_rdtsc;
    let start = Instant::now();
    // SAFETY: every x86-64 processor that runs Linux programs has the instruction.
    let first = unsafe { _rdtsc() };
    std::thread::sleep(MEASURED);
    let elapsed = start.elapsed();
    // SAFETY: as above.
    let second = unsafe { _rdtsc() };
    let nanoseconds = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
    second.wrapping_sub(first).saturating_mul(1_000_000) / nanoseconds.max(1)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    #[test]
    fn two_measurements_agree() {
        let (first, second) = (super::measure_khz(), super::measure_khz());
        assert!(first > 100_000, "{first} kHz");
        assert!(first.abs_diff(second) < first / 50, "{first} and {second}");
    }
}
