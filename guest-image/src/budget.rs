//! What one import may cost, whatever its source says.
//!
//! Sources are untrusted, and small ones can name much: counts and sizes have
//! limits of their own, but their products do not. So everything that is held
//! or done for an entry is charged to one budget per import, with what it
//! really costs: overhead of nodes and maps, and what the file system writer
//! will hold for it.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory held for one import in bytes. An honest image of a million files
/// needs about half of it.
const MEMORY_BYTES: u64 = 1 << 30;
/// Parts of paths followed. An honest image needs about ten per file.
const STEPS: u64 = 1 << 28;
/// Bytes that come out of decompressors, all layers together.
const UNPACKED_BYTES: u64 = 256 << 30;

/// Limits of one import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Memory held, in bytes.
    pub memory_bytes: u64,
    /// Parts of paths followed, and entries of directories looked through.
    pub steps: u64,
    /// Bytes that come out of decompressors, all layers together.
    pub unpacked_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes: MEMORY_BYTES,
            steps: STEPS,
            unpacked_bytes: UNPACKED_BYTES,
        }
    }
}

impl Limits {
    /// With another limit of memory.
    #[must_use]
    pub fn with_memory_bytes(mut self, memory_bytes: u64) -> Self {
        self.memory_bytes = memory_bytes;
        self
    }

    /// With another limit of work.
    #[must_use]
    pub fn with_steps(mut self, steps: u64) -> Self {
        self.steps = steps;
        self
    }
}

/// What ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BudgetError {
    /// Memory.
    #[error("its names, links, attributes and pieces need more than {limit_mib} MiB of memory")]
    Memory {
        /// The limit in MiB.
        limit_mib: u64,
    },
    /// Work.
    #[error("its paths lead through too many directories and symbolic links")]
    Steps,
    /// Unpacked bytes.
    #[error("it unpacks to more than {limit_gib} GiB")]
    Unpacked {
        /// The limit in GiB.
        limit_gib: u64,
    },
}

/// The budget of one import.
#[derive(Debug)]
pub(crate) struct Budget {
    memory_bytes: Account,
    steps: Account,
    unpacked_bytes: Account,
}

/// One limit, and what is left of it.
#[derive(Debug)]
struct Account {
    limit: u64,
    left: AtomicU64,
}

impl Account {
    fn new(limit: u64) -> Self {
        let left = AtomicU64::new(limit);
        Self { limit, left }
    }

    /// Whether `amount` was left, and is taken now.
    fn take(&self, amount: u64) -> bool {
        let rest = |left: u64| left.checked_sub(amount);
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest)
            .is_ok()
    }
}

impl Budget {
    /// The budget of an import.
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            memory_bytes: Account::new(limits.memory_bytes),
            steps: Account::new(limits.steps),
            unpacked_bytes: Account::new(limits.unpacked_bytes),
        })
    }

    /// Before `bytes` more are held until the end of the import.
    pub(crate) fn hold(&self, bytes: usize) -> Result<(), BudgetError> {
        let limit_mib = self.memory_bytes.limit >> 20;
        self.memory_bytes
            .take(bytes as u64)
            .then_some(())
            .ok_or(BudgetError::Memory { limit_mib })
    }

    /// For `count` steps of work.
    pub(crate) fn work(&self, count: usize) -> Result<(), BudgetError> {
        self.steps
            .take(count as u64)
            .then_some(())
            .ok_or(BudgetError::Steps)
    }

    /// A reader of unpacked bytes that fails when there are too many.
    pub(crate) fn meter<R: Read>(self: &Arc<Self>, inner: R) -> Metered<R> {
        let budget = Arc::clone(self);
        Metered { inner, budget }
    }
}

/// Charges what is read.
pub(crate) struct Metered<R> {
    inner: R,
    budget: Arc<Budget>,
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        let account = &self.budget.unpacked_bytes;
        if !account.take(n as u64) {
            let limit_gib = account.limit >> 30;
            let error = BudgetError::Unpacked { limit_gib };
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, error));
        }
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_gone_and_a_refusal_takes_nothing() {
        let budget = Budget::new(Limits::default().with_memory_bytes(1 << 20));
        budget.hold(1 << 19).unwrap();
        let refused = Err(BudgetError::Memory { limit_mib: 1 });
        assert_eq!(budget.hold((1 << 19) + 1), refused);
        budget.hold(1 << 19).unwrap();
        assert_eq!(budget.hold(1), refused);
    }

    #[test]
    fn unpacked_bytes_are_counted_over_all_readers() {
        let budget = Budget::new(Limits {
            unpacked_bytes: 10,
            ..Limits::default()
        });
        let read = |bytes: &[u8]| budget.meter(bytes).read_to_end(&mut Vec::new());
        assert_eq!(read(b"123456").unwrap(), 6);
        assert_eq!(
            read(b"12345").unwrap_err().kind(),
            io::ErrorKind::FileTooLarge
        );
    }
}
