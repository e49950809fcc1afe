//! Memory that other machines go on from, and a machine that goes on from another's.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};

use snapshot_format::StateRecord;
use thiserror::Error;
use vmm_core::Gpa;
use vmm_core::freeze::{Freeze, FreezeError};
use vmm_core::machine::{PausedMachine, RunningMachine};
use vmm_core::ram::{GuestRam, PAGE_BYTES, RamLayout, SharedPart, SharedRam};
use vmm_core::tracker::{DirtySet, TrackerError};

use super::capture_socket::CaptureSocket;
use super::start::{StartError, read_all};
use crate::channel::ChannelError;
use crate::channel::branch::{Inheritance, InheritedPart};
use crate::channel::capture::{CaptureEvent, UnitState};
use crate::channel::memory_file::memory_file;

/// What is left for the pause when copying while the guest runs pays no more, in bytes.
const LITTLE: u64 = 2 << 20;
/// Most rounds of copying while the guest runs.
const MAX_ROUNDS: usize = 4;

/// Why memory was not handed over.
#[derive(Debug, Error)]
pub(super) enum ShareError {
    #[error(transparent)]
    Freeze(#[from] FreezeError),
    #[error(transparent)]
    Tracker(#[from] TrackerError),
    #[error("what a branch begins with cannot be written")]
    Write(#[from] io::Error),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Channel(#[from] ChannelError),
}

/// Memory on its way to other machines.
pub(super) struct Sharing {
    freeze: Freeze,
    written: Vec<(u64, u64)>,
    booted: bool,
}

impl Sharing {
    /// Copies memory, as far as it was written since the last time, while the guest runs.
    ///
    /// # Errors
    /// Also when the supervisor gives it up meanwhile.
    pub(super) fn begin(
        machine: &RunningMachine,
        socket: &CaptureSocket,
    ) -> Result<Self, ShareError> {
        let wanted = || !socket.is_given_up();
        let mut freeze = Freeze::begin(machine.tracker())?;
        for _ in 0..MAX_ROUNDS {
            if freeze.copy_written_while(&wanted)?.bytes <= LITTLE {
                break;
            }
        }
        Ok(Self {
            freeze,
            written: Vec::new(),
            booted: false,
        })
    }

    /// Copies what was written meanwhile, while the guest runs.
    pub(super) fn copy_more(&mut self, socket: &CaptureSocket) -> Result<(), ShareError> {
        self.freeze.copy_written_while(&|| !socket.is_given_up())?;
        Ok(())
    }

    /// Copies the rest, and notes what counts as written since the last point, in a pause. After a boot that is not known.
    pub(super) fn copy_last(
        &mut self,
        paused: &PausedMachine<'_>,
        booted: bool,
    ) -> Result<(), ShareError> {
        self.freeze.copy_written()?;
        self.booted = booted;
        if !booted {
            self.written = runs(&paused.tracker().written()?);
        }
        Ok(())
    }

    /// Gives it to the supervisor. The machine may run.
    pub(super) fn hand_over(
        self,
        states: Vec<UnitState>,
        once: bool,
        socket: &CaptureSocket,
    ) -> Result<(), ShareError> {
        let memory = match once {
            true => self.freeze.finish_apart()?,
            false => self.freeze.finish()?,
        };
        let inheritance = Inheritance {
            states,
            parts: memory.parts().iter().map(to_message).collect(),
            written: self.written,
            booted: self.booted,
        };
        let mut file = memory_file("smolvm-branch")?;
        file.write_all(&serde_json::to_vec(&inheritance)?)?;
        file.rewind()?;
        let layers = memory.files();
        let mut descriptors = vec![file.as_fd()];
        descriptors.extend(layers.iter().map(|layer| layer.as_fd()));
        let shared = CaptureEvent::Shared {
            booted: self.booted,
        };
        Ok(socket.send_with(shared, &descriptors)?)
    }
}

/// A set of pages as runs.
fn runs(set: &DirtySet) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for page in set.pages() {
        match runs.last_mut() {
            Some((first, count)) if *first + *count * PAGE_BYTES == page.0 => *count += 1,
            _ => runs.push((page.0, 1)),
        }
    }
    runs
}

fn to_message(part: &SharedPart) -> InheritedPart {
    InheritedPart {
        gpa: part.gpa.0,
        bytes: part.bytes,
        file: part.file,
        offset: part.offset,
    }
}

/// Where a machine goes on that is a branch of another.
pub(super) struct BranchPoint {
    /// The state of every unit.
    pub(super) states: Vec<StateRecord>,
    /// Memory.
    pub(super) memory: SharedRam,
    written: Vec<(u64, u64)>,
    /// What was written is not known relative to any point.
    pub(super) booted: bool,
}

impl BranchPoint {
    /// Reads what the source's VMM wrote.
    pub(super) fn open(layout: RamLayout, descriptors: Vec<OwnedFd>) -> Result<Self, StartError> {
        let mut files = descriptors.into_iter().map(File::from);
        let file = files.next().ok_or(StartError::NoInheritance)?;
        let read = read_all(&file, "state of the branch")?;
        let Inheritance {
            states,
            parts,
            written,
            booted,
        } = serde_json::from_slice(&read)?;
        let parts: Vec<SharedPart> = parts.iter().map(from_message).collect();
        let memory = SharedRam::from_parts(layout, files.collect(), &parts)?;
        let record = |state: UnitState| {
            StateRecord::new(&state.unit, &state.kind, state.version, state.bytes)
        };
        Ok(Self {
            states: states.into_iter().map(record).collect(),
            memory,
            written,
            booted,
        })
    }

    /// The pages that count as written since the last point.
    pub(super) fn written(&self, ram: &GuestRam) -> DirtySet {
        let mut set = DirtySet::empty(ram);
        let most = ram.layout().total_bytes() / PAGE_BYTES;
        for (first, count) in &self.written {
            for page in 0..(*count).min(most) {
                set.insert(Gpa(first.saturating_add(page * PAGE_BYTES)));
            }
        }
        set
    }
}

fn from_message(part: &InheritedPart) -> SharedPart {
    SharedPart {
        gpa: Gpa(part.gpa),
        bytes: part.bytes,
        file: part.file,
        offset: part.offset,
    }
}

#[cfg(test)]
mod tests {
    use vmm_core::ram::{MemoryRegion, RamBacking};

    use super::*;

    fn layout() -> RamLayout {
        let region = |start| MemoryRegion {
            start: Gpa(start),
            bytes: 2 << 20,
        };
        RamLayout::new(vec![region(0), region(1 << 32)]).unwrap()
    }

    fn written_by(inheritance: &Inheritance) -> OwnedFd {
        let mut file = memory_file("test").unwrap();
        file.write_all(&serde_json::to_vec(inheritance).unwrap())
            .unwrap();
        file.into()
    }

    fn inheritance() -> Inheritance {
        Inheritance {
            states: Vec::new(),
            parts: Vec::new(),
            written: Vec::new(),
            booted: false,
        }
    }

    #[test]
    fn what_was_written_survives_the_way() {
        let ram = GuestRam::new(layout(), &RamBacking::Anonymous).unwrap();
        let mut set = DirtySet::empty(&ram);
        for page in [0, 1, 2, 63, 64, 511] {
            set.insert(Gpa(page * PAGE_BYTES));
            set.insert(Gpa((1 << 32) + page * PAGE_BYTES));
        }
        let written = runs(&set);
        // 511 is the last page of the first region, and not beside the second one.
        assert_eq!(written.len(), 6);
        let file = written_by(&Inheritance {
            written,
            ..inheritance()
        });
        let branch = BranchPoint::open(layout(), vec![file]).unwrap();
        assert_eq!(branch.written(&ram), set);
    }

    #[test]
    fn what_does_not_fit_is_refused_or_ignored() {
        let none = BranchPoint::open(layout(), Vec::new());
        assert!(matches!(none, Err(StartError::NoInheritance)));
        let rubbish = memory_file("test").unwrap().into();
        let rubbish = BranchPoint::open(layout(), vec![rubbish]);
        assert!(matches!(rubbish, Err(StartError::Inheritance(_))));
        let part = InheritedPart {
            gpa: 0,
            bytes: 64 << 10,
            file: 0,
            offset: 0,
        };
        let file = written_by(&Inheritance {
            parts: vec![part],
            ..inheritance()
        });
        let no_layer = BranchPoint::open(layout(), vec![file]);
        assert!(matches!(no_layer, Err(StartError::Shared(_))));
        let file = written_by(&Inheritance {
            written: vec![(u64::MAX - 1, u64::MAX), (1 << 40, u64::MAX)],
            ..inheritance()
        });
        let ram = GuestRam::new(layout(), &RamBacking::Anonymous).unwrap();
        let branch = BranchPoint::open(layout(), vec![file]).unwrap();
        assert!(branch.written(&ram).is_empty());
    }
}
