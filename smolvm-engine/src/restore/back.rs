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
    BaseMap, MachineDir, MachineFile, MachineOrigin, RecordedState, create_overlay, link_or_copy,
    replace_file, sync_directory,
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

/// Names in `disk/` of the files that a machine needs to go to a point.
#[derive(Debug)]
pub(crate) struct PreparedDisk {
    base: String,
    layer: String,
    next: u64,
}

/// Makes the map of the point's disk and an empty layer over it, durably. `machine` does not name them yet:
/// unless it comes to do so, the next start removes them.
pub(crate) fn prepare_disk(
    dir: &MachineDir,
    machine: &MachineFile,
    point: &Point,
) -> Result<PreparedDisk, PlaceError> {
    let disk = point
        .record()
        .disk(ROOT_DISK)
        .ok_or_else(|| PointError::Unsound {
            id: point.id().short(),
            findings: vec!["it has no root disk".to_owned()],
        })?;
    let mut next = machine.disk.next;
    let (base, layer) = loop {
        let names = (format!("base-{next}.map"), format!("layer-{}", next + 1));
        next += 2;
        // An undo that was cut off may have left some.
        let taken = |name: &String| dir.disk().join(name).exists();
        if !(taken(&names.0) || taken(&names.1)) {
            break names;
        }
    };
    replace_file(&dir.disk().join(&base), &BaseMap::of_point(disk).encode())?;
    create_overlay(&dir.disk().join(&layer), disk.size_bytes)?;
    sync_directory(&dir.disk())?;
    Ok(PreparedDisk { base, layer, next })
}

impl PreparedDisk {
    /// Both files, by name.
    pub(crate) fn names(&self) -> [String; 2] {
        [self.base.clone(), self.layer.clone()]
    }

    /// The map of the disk's base.
    pub(crate) fn base_path(&self, dir: &MachineDir) -> PathBuf {
        dir.disk().join(&self.base)
    }

    /// The empty layer, by name.
    pub(crate) fn layer_name(&self) -> String {
        self.layer.clone()
    }

    /// The empty layer.
    pub(crate) fn layer_path(&self, dir: &MachineDir) -> PathBuf {
        dir.disk().join(&self.layer)
    }

    /// Makes `machine` one that is paused at `point`: the change of `machine.json` that decides a pause.
    pub(crate) fn put_pause_into(self, machine: &mut MachineFile, point: &Point, since_unix: u64) {
        machine.disk.base = self.base;
        machine.disk.layers = vec![self.layer];
        machine.disk.next = self.next;
        machine.restore = Some(point.id().to_string());
        machine.state = RecordedState::Paused { since_unix };
    }

    /// Makes `machine` one that goes on at `point` when it starts: the change of `machine.json` that decides an
    /// undo.
    pub(crate) fn put_into(self, machine: &mut MachineFile, point: &Point) {
        let record = point.record();
        if is_foreign(machine, point) {
            machine.has_identity = false;
        }
        machine.disk.base = self.base;
        machine.disk.layers = vec![self.layer];
        machine.disk.next = self.next;
        machine.spec.cpus = u8::try_from(record.spec.vcpus).ok();
        machine.spec.cpu = Some(record.host.cpu_profile.to_string());
        machine.head = Some(point.id().to_string());
        machine.restore = Some(point.id().to_string());
        machine.state = RecordedState::Stopped;
        machine.undos += 1;
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
