//! The rate of the host's TSC, which new guests take so that they can move to a hypervisor there.
#![allow(unsafe_code)] // reads the time stamp counter

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long the rate is measured; the error is then about 10 ppm.
#[cfg(target_arch = "x86_64")]
const MEASUREMENT: Duration = Duration::from_millis(10);

/// The host's TSC rate in kHz, measured once per process; `None` where there is none.
pub(crate) fn khz() -> Option<u32> {
    static RATE: OnceLock<Option<u32>> = OnceLock::new();
    *RATE.get_or_init(measure)
}

#[cfg(target_arch = "x86_64")]
fn measure() -> Option<u32> {
    // SAFETY: every x86-64 processor has a TSC, and reading it has no effect; where the OS forbids
    // it to user code nothing else of this kind works either.
    let now = || (Instant::now(), unsafe { core::arch::x86_64::_rdtsc() });
    let (t0, c0) = now();
    std::thread::sleep(MEASUREMENT);
    let (t1, c1) = now();
    let ns = t1.duration_since(t0).as_nanos().max(1);
    let khz = u128::from(c1.wrapping_sub(c0)) * 1_000_000 / ns;
    u32::try_from(khz).ok().filter(|k| *k >= 100_000)
}

#[cfg(not(target_arch = "x86_64"))]
fn measure() -> Option<u32> {
    let _: Option<(Duration, Instant)> = None;
    None
}
