//! Numbers of tests, and reading them from what Rust's test harness prints.

/// Numbers of tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Passed tests.
    pub passed: u64,
    /// Failed tests, and jobs that did not end as they should.
    pub failed: u64,
    /// Tests that were ignored, or said that they cannot run here.
    pub skipped: u64,
}

impl Totals {
    /// One passed test, or one failed.
    pub fn one(passed: bool) -> Self {
        Self {
            passed: u64::from(passed),
            failed: u64::from(!passed),
            skipped: 0,
        }
    }

    /// One test that cannot run here.
    pub fn one_skipped() -> Self {
        Self {
            skipped: 1,
            ..Self::default()
        }
    }

    /// Adds other numbers to these.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl std::fmt::Display for Totals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            passed,
            failed,
            skipped,
        } = self;
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

/// A line by which a test says that it cannot run here; it goes to standard error itself, past
/// the harness's capture, and the test then passes.
pub const SKIP_PREFIX: &str = "skipped: ";

/// Exit code of a script that cannot run here; it has said why, as [`SKIP_PREFIX`] tells.
pub const SKIP_CODE: i32 = 77;

/// Counts what Rust's test harness prints, line by line.
#[derive(Debug, Default)]
pub struct HarnessCounter {
    totals: Totals,
    said_skipped: u64,
}

impl HarnessCounter {
    /// Takes one line of output.
    pub fn line(&mut self, line: &str) {
        if line.starts_with(SKIP_PREFIX) {
            self.said_skipped += 1;
        }
        let Some(result) = line.trim().strip_prefix("test result: ") else {
            return;
        };
        let number = |name: &str| -> u64 {
            result
                .split([';', '.'])
                .find_map(|part| part.trim().strip_suffix(name)?.trim().parse().ok())
                .unwrap_or(0)
        };
        self.totals.add(Totals {
            passed: number("passed"),
            failed: number("failed"),
            skipped: number("ignored"),
        });
    }

    /// The result of a script, which is one test; parts that it said to leave out count besides.
    pub fn script(&self, exit_code: Option<i32>) -> Totals {
        let skipped = self.said_skipped;
        Totals {
            skipped,
            ..match exit_code {
                Some(SKIP_CODE) if skipped > 0 => Totals::default(),
                code => Totals::one(code == Some(0)),
            }
        }
    }

    /// The numbers so far.
    pub fn totals(&self) -> Totals {
        let skipped = self.said_skipped.min(self.totals.passed);
        Totals {
            passed: self.totals.passed - skipped,
            failed: self.totals.failed,
            skipped: self.totals.skipped + skipped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_skip_as_a_whole_or_in_part_and_never_without_a_reason() {
        let mut counter = HarnessCounter::default();
        let said = |counter: &HarnessCounter, code| counter.script(code).to_string();
        assert_eq!(said(&counter, Some(77)), "0 passed, 1 failed, 0 skipped");
        assert_eq!(said(&counter, Some(0)), "1 passed, 0 failed, 0 skipped");
        counter.line("skipped: crossing: no KVM");
        assert_eq!(said(&counter, Some(77)), "0 passed, 0 failed, 1 skipped");
        assert_eq!(said(&counter, Some(0)), "1 passed, 0 failed, 1 skipped");
        assert_eq!(said(&counter, Some(1)), "0 passed, 1 failed, 1 skipped");
        assert_eq!(said(&counter, None), "0 passed, 1 failed, 1 skipped");
    }

    #[test]
    fn sums_several_harnesses_and_moves_the_skipped() {
        let mut counter = HarnessCounter::default();
        for line in [
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 5 filtered out; finished in 0.1s",
            "skipped: x: no KVM",
            "a test that says skipped: is not one",
            "test result: FAILED. 10 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out",
        ] {
            counter.line(line);
        }
        assert_eq!(
            counter.totals().to_string(),
            "12 passed, 2 failed, 2 skipped"
        );
    }
}
