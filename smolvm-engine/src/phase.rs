//! Named phases of saving and restoring, at which a test holds a process still.
//!
//! A test that kills processes "at random moments" proves little about the moments that matter. Here
//! they have names. Where [`HOLD_VARIABLE`] names a directory, a process that reaches a phase whose name
//! is a file there says so and waits until the file is gone; everywhere else, reaching a phase does
//! nothing but look at one variable, once per process. The variable is inherited by supervisors and
//! VMMs, so it has to be set for the command that starts the machine. A directory that is not this user's alone is
//! not used.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

/// Environment variable with the directory of phases to hold at. Only tests set it.
pub const HOLD_VARIABLE: &str = "SMOLVM_TEST_HOLD";

/// How often a held process looks whether it may go on.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Which command reaches a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// `checkpoint`.
    Checkpoint,
    /// `create --from`.
    CreateFrom,
    /// `start` of a machine that was made from a point, and the start within `undo`.
    Restore,
    /// `undo`.
    Undo,
    /// `branch`.
    Branch,
    /// A machine that was made from a point runs, while its memory comes.
    Fill,
    /// The first `start` of a machine that was made from an image.
    Booted,
    /// `pause`, beside the first ones of a checkpoint.
    Pause,
    /// `checkpoint-delete`.
    Delete,
    /// `checkpoint-prune`.
    Prune,
}

/// Which process reaches a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Actor {
    /// The supervisor.
    Supervisor,
    /// The VMM.
    Vmm,
    /// The command, or whoever embeds the engine.
    Command,
}

macro_rules! phases {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $operation:ident, $actor:ident;)*) => {
        /// A moment in saving or restoring a machine, in the order in which they are reached.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Phase {
            $($(#[$doc])* $name,)*
        }

        impl Phase {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Its name, which is that of the file that holds a process at it.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Which command reaches it.
            pub fn operation(self) -> Operation {
                match self { $(Self::$name => Operation::$operation,)* }
            }

            /// Which process reaches it.
            pub fn actor(self) -> Actor {
                match self { $(Self::$name => Actor::$actor,)* }
            }
        }
    };
}

phases! {
    /// The capture has its session in the store.
    CaptureBegun = "capture-begun", Checkpoint, Supervisor;
    /// `machine.json` names the new top of the disk; the VMM does not know of it.
    LayerAdded = "layer-added", Checkpoint, Supervisor;
    /// Memory was copied while the guest ran.
    PreCopied = "pre-copied", Checkpoint, Vmm;
    /// The guest stands still, nothing was read yet.
    Paused = "paused", Checkpoint, Vmm;
    /// The disk writes to its new top, the guest stands still.
    DiskSwitched = "disk-switched", Checkpoint, Vmm;
    /// The guest runs again, the kept copies were not sent.
    Resumed = "resumed", Checkpoint, Vmm;
    /// All of memory is in packs that are not sealed.
    MemoryStored = "memory-stored", Checkpoint, Supervisor;
    /// The disk is there too.
    DiskStored = "disk-stored", Checkpoint, Supervisor;
    /// The packs are sealed in the store.
    PacksSealed = "packs-sealed", Checkpoint, Supervisor;
    /// The machine pins the point.
    Pinned = "pinned", Checkpoint, Supervisor;
    /// The checkpoint directory is whole under its hidden name.
    Staged = "staged", Checkpoint, Supervisor;
    /// It has its name; the store does not know it.
    Published = "published", Checkpoint, Supervisor;
    /// The store knows it; the machine's head is the one before.
    Registered = "registered", Checkpoint, Supervisor;
    /// `machine.json` has the new head and base; the VMM uses the old ones.
    HeadMoved = "head-moved", Checkpoint, Supervisor;
    /// The VMM's disk lies on the new base, former layers are still there.
    Rebased = "rebased", Checkpoint, Vmm;
    /// Everything is done but the answer.
    LayersDropped = "layers-dropped", Checkpoint, Supervisor;
    /// `machine.json` says that the machine is paused; its guest stands still in a VMM that does not know.
    PauseDecided = "pause-decided", Pause, Supervisor;
    /// The VMM is gone; files of the disk before are still there.
    PauseEnded = "pause-ended", Pause, Supervisor;
    /// What the target of an undo needs is linked into a directory of the machine's.
    TargetHeld = "target-held", Undo, Command;
    /// The machine stands, and what it needs to go back in place is read; nothing is changed.
    UndoReady = "undo-ready", Undo, Vmm;
    /// `machine.json` says that the machine goes on at the target; the VMM does not know.
    UndoDecided = "undo-decided", Undo, Supervisor;
    /// Memory is the target's, no unit is loaded.
    UndoMemoryBack = "undo-memory-back", Undo, Vmm;
    /// The machine runs at the target; the supervisor does not know.
    UndoneInPlace = "undone-in-place", Undo, Vmm;
    /// The guest is set up at the target.
    UndoSetUp = "undo-set-up", Undo, Supervisor;
    /// Nothing runs, the machine pins the target; `machine.json` is as it was.
    TargetPinned = "target-pinned", Undo, Command;
    /// `machine.json` says that the machine goes on at the target; former layers are still there.
    PutBack = "put-back", Undo, Command;
    /// The source runs again; what its children begin with is with its supervisor.
    BranchFrozen = "branch-frozen", Branch, Supervisor;
    /// The files of the children are in their staging directories.
    BranchLinked = "branch-linked", Branch, Supervisor;
    /// A child has its name, and nothing runs it.
    ChildCreated = "child-created", Branch, Command;
    /// The guest has booted and runs on; the instant before is kept for a booted point.
    BootedFrozen = "booted-frozen", Booted, Supervisor;
    /// The disk's part of a booted point is stored.
    BootedDiskStored = "booted-disk-stored", Booted, Supervisor;
    /// A booted point is whole in a staging directory.
    BootedStored = "booted-stored", Booted, Supervisor;
    /// A booted point is in the machine's directory, which does not name it.
    BootedPlaced = "booted-placed", Booted, Supervisor;
    /// The record of a point of a store is gone; the command did not say so.
    PointDeleted = "point-deleted", Delete, Command;
    /// The default store knows of the checkpoint directory that is to go; it is at its place.
    DeletionNoted = "deletion-noted", Delete, Command;
    /// It has lost its name; its files are there.
    DirectoryHidden = "directory-hidden", Delete, Command;
    /// Points are given up; their data is there.
    PointsGivenUp = "points-given-up", Prune, Command;
    /// Packs that nobody needed are gone.
    PacksSwept = "packs-swept", Prune, Command;
    /// New packs hold what is needed of mostly dead ones, which are still used.
    PacksRewritten = "packs-rewritten", Prune, Command;
    /// Checkpoint directories have links to the new ones; the old ones are in the store.
    DirectoriesRelinked = "directories-relinked", Prune, Command;
    /// The old ones are gone; the command did not say so.
    PacksReplaced = "packs-replaced", Prune, Command;
    /// The new machine is whole in a staging directory.
    MachineStaged = "machine-staged", CreateFrom, Command;
    /// It has its name; the command did not say so.
    MachineCreated = "machine-created", CreateFrom, Command;
    /// The supervisor holds the run lock.
    RunLocked = "run-locked", Restore, Supervisor;
    /// `machine.json` names the empty layer that the restored disk writes to.
    LayerReplaced = "layer-replaced", Restore, Supervisor;
    /// Memory is filled, no unit is loaded.
    MemoryFilled = "memory-filled", Restore, Vmm;
    /// The guest runs; the supervisor does not know.
    GuestRuns = "guest-runs", Restore, Vmm;
    /// `machine.json` says that the machine runs.
    RunRecorded = "run-recorded", Restore, Supervisor;
    /// Threads begin to bring the memory that the guest did not ask for yet.
    FillBegun = "fill-begun", Fill, Vmm;
    /// The agent answers; clock and random pool are those of the point.
    AgentAnswers = "agent-answers", Restore, Supervisor;
    /// The guest has its own identity; `machine.json` does not say so.
    IdentityGiven = "identity-given", Restore, Supervisor;
    /// The restore is over but for its report.
    RestoreDone = "restore-done", Restore, Supervisor;
}

impl Phase {
    /// Called by the process that reaches this phase.
    pub(crate) fn reached(self) {
        tracing::debug!(phase = self.name(), "reached");
        static DIRECTORY: OnceLock<Option<PathBuf>> = OnceLock::new();
        let variable = || std::env::var_os(HOLD_VARIABLE).filter(|value| !value.is_empty());
        let own = || {
            variable()
                .map(PathBuf::from)
                .filter(|path| is_ours_alone(path))
        };
        if let Some(directory) = DIRECTORY.get_or_init(own) {
            self.hold(directory);
        }
    }

    /// The file that holds whoever reaches this phase.
    pub fn hold_file(self, directory: &Path) -> PathBuf {
        directory.join(self.name())
    }

    /// The file that says that somebody is held.
    pub fn held_file(self, directory: &Path) -> PathBuf {
        let mut name = OsString::from(self.name());
        name.push(".held");
        directory.join(name)
    }

    fn hold(self, directory: &Path) {
        let hold = self.hold_file(directory);
        if !hold.exists() {
            return;
        }
        let held = self.held_file(directory);
        if let Err(error) = write_new(&held, &std::process::id().to_string()) {
            tracing::error!(path = %held.display(), %error, "a phase cannot be reported");
        }
        while hold.exists() {
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}

/// Whether a directory is no link, this user's, and nobody else may write there.
fn is_ours_alone(directory: &Path) -> bool {
    directory.symlink_metadata().is_ok_and(|meta| {
        meta.is_dir()
            && meta.uid() == rustix::process::geteuid().as_raw()
            && meta.mode() & 0o022 == 0
    })
}

/// Writes a file, in place of one of that name; no link is followed.
fn write_new(path: &Path, text: &str) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::File::create_new(path)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_phase_that_is_asked_for_holds() {
        let directory = tempfile::tempdir().unwrap();
        Phase::Pinned.hold(directory.path());
        assert!(!Phase::Pinned.held_file(directory.path()).exists());
        fs::write(Phase::Staged.hold_file(directory.path()), "").unwrap();
        Phase::Pinned.hold(directory.path());
        let path = directory.path().to_owned();
        let held = std::thread::spawn(move || Phase::Staged.hold(&path));
        while !Phase::Staged.held_file(directory.path()).exists() {
            assert!(!held.is_finished(), "it was not held");
            std::thread::sleep(LOOK_AGAIN);
        }
        fs::remove_file(Phase::Staged.hold_file(directory.path())).unwrap();
        held.join().unwrap();
    }

    #[test]
    fn only_a_directory_of_our_own_is_looked_at() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let directory = tempfile::tempdir().unwrap();
        assert!(is_ours_alone(directory.path()));
        let link = directory.path().join("link");
        symlink(directory.path(), &link).unwrap();
        assert!(!is_ours_alone(&link));
        assert!(!is_ours_alone(&directory.path().join("missing")));
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(!is_ours_alone(directory.path()));
    }

    #[test]
    fn names_are_different() {
        let mut names: Vec<_> = Phase::ALL.iter().map(|phase| phase.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Phase::ALL.len());
    }
}
