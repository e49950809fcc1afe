//! The rate of the host's TSC, which new guests take so that they can move to a hypervisor there.
#![allow(unsafe_code)] // reads the time stamp counter

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long the rate is measured. Each process that opens the backend waits for it. A pair of readings is right within tens of
/// nanoseconds, so the rate within some 20 parts per million; restores tolerate 250.
#[cfg(target_arch = "x86_64")]
const MEASUREMENT: Duration = Duration::from_millis(5);
/// How often both clocks are read at either end; the closest pair counts.
#[cfg(target_arch = "x86_64")]
const READINGS: usize = 32;

/// The host's TSC rate in kHz, measured once per process; `None` where there is none.
pub(crate) fn khz() -> Option<u32> {
    static RATE: OnceLock<Option<u32>> = OnceLock::new();
    *RATE.get_or_init(measure)
}

#[cfg(target_arch = "x86_64")]
fn measure() -> Option<u32> {
    let (t0, c0) = both_clocks();
    std::thread::sleep(MEASUREMENT);
    let (t1, c1) = both_clocks();
    let ns = t1.duration_since(t0).as_nanos().max(1);
    let khz = u128::from(c1.wrapping_sub(c0)) * 1_000_000 / ns;
    u32::try_from(khz).ok().filter(|k| *k >= 100_000)
}

/// One instant by the monotonic clock and by the TSC. A thread that loses its processor between the
/// two would be off by a whole time slice, so the pair read fastest is taken.
#[cfg(target_arch = "x86_64")]
fn both_clocks() -> (Instant, u64) {
    // SAFETY: every x86-64 processor has a TSC, and reading it has no effect; where the OS forbids
    // it to user code nothing else of this kind works either.
    let tsc = || unsafe { core::arch::x86_64::_rdtsc() };
    let reading = || {
        let before = tsc();
        let instant = Instant::now();
        let took = tsc().wrapping_sub(before);
        (took, instant, before.wrapping_add(took / 2))
    };
    let first = reading();
    let (_, instant, ticks) =
        (1..READINGS).map(|_| reading()).fold(
            first,
            |best, next| if next.0 < best.0 { next } else { best },
        );
    (instant, ticks)
}

#[cfg(not(target_arch = "x86_64"))]
fn measure() -> Option<u32> {
    let _: Option<(Duration, Instant)> = None;
    None
}
