use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::spec::MachineSpec;
use crate::name::MachineName;
use crate::retention::Retention;

/// The layout of `machine.json` that this version writes.
pub(crate) const MACHINE_FILE_VERSION: u32 = 1;
/// Most former names that a machine remembers.
const MAX_FORMER_NAMES: usize = 32;

/// Earlier points that a checkpoint directory holds and a machine keeps when nothing is said.
pub const DEFAULT_HISTORY: usize = 32;

/// Contents of `machine.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MachineFile {
    /// Version of the layout.
    pub(crate) v: u32,
    /// The machine's name; the directory's name too.
    pub(crate) name: MachineName,
    /// Seconds since 1970 when it was created.
    pub(crate) created_unix: u64,
    /// What it is.
    pub(crate) spec: MachineSpec,
    /// What it was made from.
    pub(crate) origin: MachineOrigin,
    /// The state as of the last change; who holds the run lock knows better.
    pub(crate) state: RecordedState,
    /// Its disk.
    pub(crate) disk: DiskFile,
    /// The kernel's command line.
    pub(crate) command_line: String,
    /// The point it was last saved to or restored from, as a full id.
    #[serde(default)]
    pub(crate) head: Option<String>,
    /// The point that the next start restores.
    #[serde(default)]
    pub(crate) restore: Option<String>,
    /// The store it was last saved into.
    #[serde(default)]
    pub(crate) store: Option<PathBuf>,
    /// Whether it keeps the identity of the point it was made from.
    #[serde(default)]
    pub(crate) keep_identity: bool,
    /// Whether it was given an identity of its own.
    #[serde(default)]
    pub(crate) has_identity: bool,
    /// When it first had one, in seconds since 1970 and nanoseconds: what was saved before has that of another machine, or none.
    #[serde(default)]
    pub(crate) identity_since: Option<(u64, u32)>,
    /// Whether changed pages are tracked; recorded at each start.
    #[serde(default = "yes")]
    pub(crate) branchable: bool,
    /// Earlier points that it keeps beside its head: as many as its last save was to hold.
    #[serde(default = "default_history")]
    pub(crate) history: usize,
    /// How often it was started; the host's ports of its connections follow from it.
    #[serde(default)]
    pub(crate) starts: u64,
    /// How often it went back to a point.
    #[serde(default)]
    pub(crate) undos: u64,
    /// Names that it had before, the last one last: points that were saved then are its own.
    #[serde(default)]
    pub(crate) former_names: Vec<MachineName>,
    /// It was made for one process, and is nothing without it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) passing: bool,
    /// The machine that it is a branch of.
    #[serde(default)]
    pub(crate) branched_from: Option<MachineName>,
    /// Where it is among the machines that were branched with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) branch: Option<BranchPlace>,
    /// Of one that was made from an image: what its disk, kernel and initramfs were then, as a digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<String>,
    /// Its first start went on at a booted point, and was the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) booted: Option<BootedStart>,
    /// When it is saved without being asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) autosave: Option<AutosaveSchedule>,
}

/// A branch among those that were made with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BranchPlace {
    /// Its number, from 0.
    pub(crate) index: u32,
    /// What the guest's processes that wait for a branch were told.
    pub(crate) word: BranchWord,
    /// It came up once. One that does not run and never did is what a killed command left, and no machine.
    pub(crate) up: bool,
}

/// Whether the processes that wait for a branch were told to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum BranchWord {
    /// When the guest is set up they are.
    Due,
    /// When somebody asks for it they are.
    Held,
    /// They were.
    Told,
}

/// What a start at a booted point brought into a machine's directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BootedStart {
    /// The point's full id.
    pub(crate) point: String,
    /// The name of its entry in the cache.
    pub(crate) entry: String,
    /// Names of the packs that came with it.
    pub(crate) packs: Vec<String>,
    /// The disk before.
    pub(crate) before: DiskFile,
}

/// When a machine that runs is saved without being asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AutosaveSchedule {
    /// Seconds between two looks whether anything changed.
    pub every_seconds: u64,
    /// Which of the machine's autosaves stay; all where it is empty.
    #[serde(default, skip_serializing_if = "Retention::is_empty")]
    pub keep: Retention,
}

impl AutosaveSchedule {
    /// As often as this.
    pub fn every(seconds: u64) -> Self {
        Self {
            every_seconds: seconds,
            keep: Retention::default(),
        }
    }

    /// Only those that this keeps stay.
    #[must_use]
    pub fn keeping(mut self, keep: Retention) -> Self {
        self.keep = keep;
        self
    }
}

impl MachineFile {
    /// Gives it another name, which is its own when its directory has it: until then the file is read with the directory's.
    pub(crate) fn rename(&mut self, from: &MachineName, to: &MachineName) {
        self.name = to.clone();
        self.former_names.retain(|name| name != from);
        self.former_names.push(from.clone());
        let excess = self.former_names.len().saturating_sub(MAX_FORMER_NAMES);
        self.former_names.drain(..excess);
    }

    /// Whether it has, or had, the name.
    pub(crate) fn is_or_was(&self, name: &str) -> bool {
        let former = self.former_names.iter();
        former.chain([&self.name]).any(|own| own.as_str() == name)
    }

    /// Directories with copies of the machine's packs, as far as is known: those of the stores that it was saved into.
    pub(crate) fn packs_elsewhere(&self, default_store: &Path) -> Vec<PathBuf> {
        let last = self.store.as_deref().filter(|last| *last != default_store);
        let stores = [Some(default_store), last].into_iter().flatten();
        let packs = stores.map(|store| store.join("packs"));
        packs.filter(|packs| packs.is_dir()).collect()
    }
}

#[cfg(test)]
impl MachineFile {
    /// A stopped machine without a disk.
    pub(crate) fn for_tests() -> Self {
        serde_json::from_value(serde_json::json!({
            "v": 1, "name": "m", "created_unix": 0, "command_line": "",
            "spec": MachineSpec::default(),
            "origin": { "kind": "image", "image": "i", "kernel": "k" },
            "state": { "state": "stopped" },
            "disk": { "base": "base-0.map", "layers": [], "next": 1 },
        }))
        .unwrap()
    }
}

fn default_history() -> usize {
    DEFAULT_HISTORY
}

fn yes() -> bool {
    true
}

/// What a machine was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "kind")]
#[non_exhaustive]
pub enum MachineOrigin {
    /// An image and a kernel, by name.
    Image {
        /// The image.
        image: String,
        /// The kernel.
        kernel: String,
    },
    /// A saved point.
    Point {
        /// Its full id.
        id: String,
        /// The machine that it was saved from.
        machine: String,
    },
}

/// A machine's state as recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "state")]
pub(crate) enum RecordedState {
    /// Never started.
    Created,
    /// Running, if somebody holds the run lock; else its processes were killed.
    Running {
        /// The backend that runs it.
        backend: String,
    },
    /// Ended in order.
    Stopped,
    /// Saved and ended: the next start goes on at [`MachineFile::restore`], and nothing is left of the pause then.
    Paused {
        /// Seconds since 1970.
        since_unix: u64,
    },
    /// Ended by itself.
    Failed {
        /// Why.
        reason: String,
    },
    /// Chunks that it needs are lost.
    Damaged {
        /// Which, in which pack, of which point.
        reason: String,
    },
}

/// A machine's disk: what lies under it, and its layers from bottom to top.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DiskFile {
    /// Name in `disk/` of the map of chunks under the layers.
    pub(crate) base: String,
    /// Names in `disk/` of the overlay files; the last one takes the writes.
    pub(crate) layers: Vec<String>,
    /// Number that the next file gets.
    pub(crate) next: u64,
}
