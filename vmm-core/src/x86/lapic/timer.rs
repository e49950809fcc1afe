//! The local APIC's timer. It counts at 1 GHz before division, like KVM's, in terms of the guest's
//! TSC: everything here is in ticks of that.

/// One-shot or periodic count-down.
#[derive(Clone, Copy, Debug)]
pub struct Timer {
    periodic: bool,
    divide: u32,
    initial: u32,
    /// When it reaches zero.
    deadline: Option<u64>,
    /// TSC rate.
    khz: u64,
}

/// Rate of the undivided timer in kHz.
const BUS_KHZ: u64 = 1_000_000;

impl Default for Timer {
    fn default() -> Self {
        Timer {
            periodic: false,
            divide: 0,
            initial: 0,
            deadline: None,
            khz: BUS_KHZ,
        }
    }
}

impl Timer {
    /// Sets the rate of the TSC that times are given in.
    pub fn set_tsc_khz(&mut self, khz: u64) {
        self.khz = khz.max(1);
    }

    /// The divisor that the divide register stands for.
    fn divisor(&self) -> u64 {
        let code = self.divide & 3 | self.divide >> 1 & 4;
        1 << ((code + 1) & 7)
    }

    fn ticks(&self, count: u32) -> u64 {
        let t = u128::from(count) * u128::from(self.divisor()) * u128::from(self.khz);
        (t / u128::from(BUS_KHZ)) as u64
    }

    /// The initial count register.
    pub fn initial(&self) -> u32 {
        self.initial
    }

    /// The divide configuration register.
    pub fn divide(&self) -> u32 {
        self.divide
    }

    /// The TSC at which it reaches zero, if it counts.
    #[inline]
    pub fn deadline(&self) -> Option<u64> {
        self.deadline
    }

    /// The count that is left.
    pub fn current(&self, now: u64) -> u32 {
        let Some(d) = self.deadline else { return 0 };
        let left = u128::from(d.saturating_sub(now)) * u128::from(BUS_KHZ);
        let unit = u128::from(self.divisor()) * u128::from(self.khz);
        u32::try_from(left.div_ceil(unit))
            .unwrap_or(u32::MAX)
            .min(self.initial)
    }

    /// Writes the initial count: 0 stops it.
    pub fn start(&mut self, count: u32, now: u64) {
        self.initial = count;
        self.arm(count, now);
    }

    fn arm(&mut self, count: u32, now: u64) {
        self.deadline = (count != 0).then(|| now.wrapping_add(self.ticks(count).max(1)));
    }

    /// Writes the divide configuration; the count that is left stays.
    pub fn set_divide(&mut self, v: u32, now: u64) {
        let left = self.current(now);
        self.divide = v & 0b1011;
        self.arm(left, now);
    }

    /// Makes it one-shot or periodic.
    pub fn set_mode(&mut self, periodic: bool, now: u64) {
        if periodic && !self.periodic && self.deadline.is_none() {
            self.arm(self.initial, now);
        }
        self.periodic = periodic;
    }

    /// Whether it ran out by now; a periodic one starts again.
    #[inline]
    pub fn expire(&mut self, now: u64) -> bool {
        let Some(d) = self.deadline else { return false };
        // A difference as a signed number: the TSC may wrap or have been set back.
        if (now.wrapping_sub(d) as i64) < 0 {
            return false;
        }
        self.deadline = None;
        if self.periodic {
            let period = self.ticks(self.initial).max(1);
            let missed = now.wrapping_sub(d) / period;
            self.deadline = Some(d.wrapping_add((missed + 1).wrapping_mul(period)));
        }
        true
    }

    /// The TSC was moved by this much.
    pub fn shift(&mut self, by: u64) {
        self.deadline = self.deadline.map(|d| d.wrapping_add(by));
    }

    /// Takes the registers as they were saved; `left` is the current count.
    pub fn load(&mut self, periodic: bool, divide: u32, initial: u32, left: u32, now: u64) {
        self.periodic = periodic;
        self.divide = divide & 0b1011;
        self.initial = initial;
        self.arm(left.min(initial), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisors() {
        let of = |divide| {
            Timer {
                divide,
                ..Timer::default()
            }
            .divisor()
        };
        assert_eq!([0b0000, 0b0001, 0b0010, 0b0011].map(of), [2, 4, 8, 16]);
        assert_eq!([0b1000, 0b1001, 0b1010, 0b1011].map(of), [32, 64, 128, 1]);
    }

    #[test]
    fn counts_down_once_or_again_and_again() {
        let mut t = Timer::default();
        t.set_tsc_khz(2_000_000);
        t.set_divide(0b1011, 0);
        t.start(100, 1000);
        assert_eq!(t.deadline(), Some(1200));
        assert_eq!(t.current(1100), 50);
        assert!(!t.expire(1199));
        assert!(t.expire(1200) && !t.expire(5000));
        t.set_mode(true, 5000);
        assert_eq!(t.deadline(), Some(5200));
        assert!(t.expire(5650));
        assert_eq!(t.deadline(), Some(5800));
    }
}
