//! Files that fail.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::file::OverlayFile;

/// What can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Punching a hole.
    Punch,
    /// Syncing.
    Sync,
}

/// One planned failure.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// What fails.
    pub operation: Operation,
    /// How many of these operations succeed before.
    pub after: u64,
    /// How many fail then; `u64::MAX` for all.
    pub times: u64,
    /// The error.
    pub kind: io::ErrorKind,
    /// Bytes that a failing write still writes, as a full file system does.
    pub partial_bytes: usize,
}

/// The failures that are still to come, shared by files.
#[derive(Debug, Clone, Default)]
pub struct FaultPlan(Arc<Mutex<Vec<Fault>>>);

impl FaultPlan {
    /// Plans one more failure, counted from now.
    pub fn add(&self, fault: Fault) {
        self.faults().push(fault);
    }

    /// Forgets what is planned.
    pub fn clear(&self) {
        self.faults().clear();
    }

    /// The fault that strikes this operation.
    fn strike(&self, operation: Operation) -> Option<Fault> {
        let mut faults = self.faults();
        let mut struck = None;
        for fault in faults
            .iter_mut()
            .filter(|fault| fault.operation == operation)
        {
            if fault.after > 0 {
                fault.after -= 1;
            } else if fault.times > 0 {
                fault.times -= 1;
                struck = struck.or(Some(*fault));
            }
        }
        struck
    }

    fn check(&self, operation: Operation) -> io::Result<()> {
        self.strike(operation)
            .map_or(Ok(()), |fault| Err(fault.kind.into()))
    }

    fn faults(&self) -> MutexGuard<'_, Vec<Fault>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file that fails by plan.
#[derive(Debug)]
pub struct FaultFile<F> {
    inner: F,
    plan: FaultPlan,
}

impl<F: OverlayFile> FaultFile<F> {
    /// Wraps a file.
    pub fn new(inner: F, plan: FaultPlan) -> Self {
        Self { inner, plan }
    }
}

impl<F: OverlayFile> OverlayFile for FaultFile<F> {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.plan.check(Operation::Read)?;
        self.inner.read_at(offset_bytes, buf)
    }

    fn write_at(&self, offset_bytes: u64, data: &[u8]) -> io::Result<()> {
        let Some(fault) = self.plan.strike(Operation::Write) else {
            return self.inner.write_at(offset_bytes, data);
        };
        let partial = &data[..fault.partial_bytes.min(data.len())];
        self.inner.write_at(offset_bytes, partial)?;
        Err(fault.kind.into())
    }

    fn punch_hole(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
        self.plan.check(Operation::Punch)?;
        self.inner.punch_hole(offset_bytes, len_bytes)
    }

    fn next_stored(&self, offset_bytes: u64) -> io::Result<Option<Range<u64>>> {
        self.inner.next_stored(offset_bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.plan.check(Operation::Sync)?;
        self.inner.sync_data()
    }

    fn size_bytes(&self) -> io::Result<u64> {
        self.inner.size_bytes()
    }

    fn set_size_bytes(&self, size_bytes: u64) -> io::Result<()> {
        self.inner.set_size_bytes(size_bytes)
    }

    fn stored_bytes(&self) -> io::Result<u64> {
        self.inner.stored_bytes()
    }
}
