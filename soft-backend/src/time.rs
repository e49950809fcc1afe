//! The time stamp counter.

use std::time::Instant;

/// Where the TSC takes its time from.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// The host's monotonic clock, from this moment.
    Host(Instant),
    /// The count of instructions that the machine retired: deterministic mode.
    Instructions,
}

/// A TSC of a given rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tsc {
    khz: u64,
    offset: u64,
    source: Source,
}

impl Tsc {
    /// A TSC that starts at zero now and follows the host's monotonic clock.
    pub(crate) fn host(khz: u64) -> Self {
        Tsc {
            khz,
            offset: 0,
            source: Source::Host(Instant::now()),
        }
    }

    /// A TSC that counts retired instructions.
    pub(crate) fn deterministic(khz: u64) -> Self {
        Tsc {
            khz,
            offset: 0,
            source: Source::Instructions,
        }
    }

    /// Counts at another rate, from its beginning.
    pub(crate) fn set_khz(&mut self, khz: u64) {
        self.khz = khz;
    }

    /// Ticks per millisecond.
    pub(crate) fn khz(&self) -> u64 {
        self.khz
    }

    /// Whether it counts instructions.
    pub(crate) fn is_deterministic(&self) -> bool {
        matches!(self.source, Source::Instructions)
    }

    fn raw(&self, retired: u64) -> u64 {
        match self.source {
            Source::Host(t0) => {
                let ns = t0.elapsed().as_nanos();
                (ns * u128::from(self.khz) / 1_000_000) as u64
            }
            Source::Instructions => retired,
        }
    }

    /// The counter's value; `retired` is the vCPU's count of retired instructions, in deterministic
    /// mode the machine's.
    pub(crate) fn read(&self, retired: u64) -> u64 {
        self.raw(retired).wrapping_add(self.offset)
    }

    /// Sets the counter.
    pub(crate) fn write(&mut self, value: u64, retired: u64) {
        self.offset = value.wrapping_sub(self.raw(retired));
    }
}
