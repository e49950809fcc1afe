//! A machine goes back to a point of its own: what it needs for that, and the one change that decides it.

use std::fs;
use std::io;
use std::path::PathBuf;

use snapshot_format::Point;
use snapshot_format::verify::ROOT_DISK;

use super::place::{FoundPoint, PlaceError};
use crate::file_error::FileError;
use crate::home::make_private_dir;
use crate::machine::{
    BaseMap, Change, MachineDir, MachineFile, MachineOrigin, RecordedState, create_overlay,
    link_or_copy, replace_file, sync_directory,
};
use crate::point::{PointError, link_record, record_file_name};

/// Directory in a machine's own in which the target of an undo is held until the machine pins it.
const HELD: &str = "target";

/// A point, and earlier ones, held in a machine's directory: whatever becomes of stores and checkpoints meanwhile, the machine
/// can go there. What a killed command left is taken away by the next undo.
#[derive(Debug)]
pub(crate) struct HeldPoint {
    dir: MachineDir,
    path: PathBuf,
}

/// Takes a [`HeldPoint`] away at the end of the command that made it.
#[derive(Debug)]
pub(crate) struct HeldGuard(HeldPoint);

impl HeldPoint {
    /// What an undo of this machine holds.
    pub(crate) fn of_undo(dir: &MachineDir) -> Self {
        Self {
            dir: dir.clone(),
            path: dir.path().join(HELD),
        }
    }

    /// Holds what was found. The machine's operation lock is held by the caller.
    pub(crate) fn take(dir: &MachineDir, found: &FoundPoint) -> Result<HeldGuard, PlaceError> {
        let held = HeldGuard(Self::of_undo(dir));
        held.0.remove()?;
        let (packs, records) = (held.0.packs(), held.0.records());
        for path in [&held.0.path, &packs, &records] {
            make_private_dir(path)?;
        }
        for (point, file) in found.pin_into(&packs)? {
            link_record(file, &records.join(record_file_name(&point.id())))?;
        }
        Ok(held)
    }

    fn packs(&self) -> PathBuf {
        self.path.join("packs")
    }

    fn records(&self) -> PathBuf {
        self.path.join("records")
    }

    /// The machine pins what is held; durable.
    pub(crate) fn pin(&self) -> Result<(), PlaceError> {
        for (from, to) in [
            (self.packs(), self.dir.packs()),
            (self.records(), self.dir.records()),
        ] {
            let list = || FileError::at("list", &from);
            for entry in fs::read_dir(&from).map_err(list())? {
                let entry = entry.map_err(list())?;
                let target = to.join(entry.file_name());
                if !target.exists() {
                    link_or_copy(&entry.path(), &target)?;
                }
            }
            sync_directory(&to)?;
        }
        Ok(())
    }

    fn remove(&self) -> Result<(), FileError> {
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(FileError::at("remove", &self.path)(error))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for HeldGuard {
    fn drop(&mut self) {
        if let Err(error) = self.0.remove() {
            tracing::warn!(error = %crate::error_chain::chain(&error), "links of an undo are kept");
        }
    }
}

/// The files in `disk/` that a machine needs to go to a point; removed again unless the machine comes to name them.
#[derive(Debug)]
pub(crate) struct PreparedDisk {
    disk: PathBuf,
    base: String,
    layer: String,
    named: bool,
}

/// Makes the map of the point's disk and an empty layer over it, durably. The machine does not name them yet, but no other
/// file takes their names: what a kill leaves of them is removed by the next start.
pub(crate) fn prepare_disk(dir: &MachineDir, point: &Point) -> Result<PreparedDisk, PlaceError> {
    let disk = point
        .record()
        .disk(ROOT_DISK)
        .ok_or_else(|| PointError::Unsound {
            id: point.id().short(),
            findings: vec!["it has no root disk".to_owned()],
        })?;
    let machine = dir.change(|machine| machine.disk.next += 2).visible()?;
    let last = machine.disk.next - 1;
    let prepared = PreparedDisk {
        disk: dir.disk(),
        base: format!("base-{}.map", last - 1),
        layer: format!("layer-{last}"),
        named: false,
    };
    replace_file(&prepared.base_path(), &BaseMap::of_point(disk).encode())?;
    create_overlay(&prepared.layer_path(), disk.size_bytes)?;
    sync_directory(&prepared.disk)?;
    Ok(prepared)
}

impl PreparedDisk {
    /// The map of the disk's base.
    pub(crate) fn base_path(&self) -> PathBuf {
        self.disk.join(&self.base)
    }

    /// The empty layer, by name.
    pub(crate) fn layer_name(&self) -> String {
        self.layer.clone()
    }

    /// The empty layer.
    pub(crate) fn layer_path(&self) -> PathBuf {
        self.disk.join(&self.layer)
    }

    /// The change that makes the machine name the files was tried: they stay unless it was surely not made.
    pub(crate) fn settle(mut self, change: &Change) {
        self.named = !matches!(change, Change::NotDone(_));
    }

    fn name_in(&self, machine: &mut MachineFile) {
        machine.disk.base = self.base.clone();
        machine.disk.layers = vec![self.layer.clone()];
    }

    /// Makes `machine` one that is paused at `point`: the change of `machine.json` that decides a pause.
    pub(crate) fn put_pause_into(&self, machine: &mut MachineFile, point: &Point, since_unix: u64) {
        self.name_in(machine);
        machine.restore = Some(point.id().to_string());
        machine.state = RecordedState::Paused { since_unix };
    }

    /// Makes `machine` one that goes on at `point` when it starts: the change of `machine.json` that decides an
    /// undo.
    pub(crate) fn put_into(&self, machine: &mut MachineFile, point: &Point) {
        let record = point.record();
        if is_foreign(machine, point) {
            machine.has_identity = false;
        }
        self.name_in(machine);
        machine.spec.cpus = u8::try_from(record.spec.vcpus).ok();
        machine.spec.cpu = Some(record.host.cpu_profile.to_string());
        machine.head = Some(point.id().to_string());
        machine.restore = Some(point.id().to_string());
        machine.state = RecordedState::Stopped;
        machine.undos += 1;
    }
}

impl Drop for PreparedDisk {
    fn drop(&mut self) {
        if self.named {
            return;
        }
        for path in [self.base_path(), self.layer_path()] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(path = %crate::error_chain::place(&path), %error, "a file that nobody needs stays until the next start");
                }
                _ => {}
            }
        }
    }
}

/// Whether the guest in the point may have the identity of another machine.
fn is_foreign(machine: &MachineFile, point: &Point) -> bool {
    let record = point.record();
    let is_origin = matches!(
        &machine.origin,
        MachineOrigin::Point { id, .. } if *id == point.id().to_string()
    );
    let taken = (record.taken.seconds, record.taken.nanos);
    // While it was made, or set up, its guest was still another's.
    let is_early = taken
        <= machine
            .identity_since
            .unwrap_or((machine.created_unix, u32::MAX));
    is_origin || !machine.is_or_was(&record.machine) || is_early
}
