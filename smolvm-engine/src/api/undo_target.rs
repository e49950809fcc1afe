//! Where an undo goes: a point that the machine pins, or one of the stores that it is saved into.

use std::fs;
use std::path::PathBuf;

use cas_store::PackSet;
use snapshot_format::verify::ROOT_DISK;
use snapshot_format::{CheckpointId, IdPrefix, Point};

use super::stored::find_in_store;
use crate::api::error::EngineError;
use crate::api::{DEFAULT_HISTORY, Engine};
use crate::channel::control::{Control, ControlReply};
use crate::machine::{MachineDir, MachineFile};
use crate::name::MachineName;
use crate::point::{
    History, MAX_GENERATIONS, PointError, RECORD_SUFFIX, read_point, record_file_name,
};
use crate::restore::FoundPoint;

/// A point that a machine can go back to.
pub(super) struct UndoTarget {
    /// The point, and the earlier ones that the machine does not pin yet.
    pub(super) found: FoundPoint,
}

impl UndoTarget {
    /// The point.
    pub(super) fn point(&self) -> &Point {
        self.found.history.own()
    }
}

impl Engine {
    /// The point that is meant: the head, or what `asked` names.
    pub(super) fn undo_target(
        &self,
        name: &MachineName,
        file: &MachineFile,
        asked: Option<&str>,
    ) -> Result<UndoTarget, EngineError> {
        let dir = self.dir(name);
        let head = head_of(name, file)?;
        let found = self.named(name, file, head, asked)?;
        let target = UndoTarget { found };
        if asked.is_none() {
            return Ok(target);
        }
        check_fits(file, &dir, head, target.point())?;
        Ok(target)
    }

    /// A point of a machine: its head, or what `asked` names.
    pub(super) fn point_of_machine(
        &self,
        name: &MachineName,
        asked: Option<&str>,
    ) -> Result<FoundPoint, EngineError> {
        let file = self.read(name)?;
        let head = head_of(name, &file)?;
        self.named(name, &file, head, asked)
    }

    /// The head, or what `asked` names.
    fn named(
        &self,
        name: &MachineName,
        file: &MachineFile,
        head: CheckpointId,
        asked: Option<&str>,
    ) -> Result<FoundPoint, EngineError> {
        let dir = self.dir(name);
        match asked {
            None => Ok(pinned(&dir, head)?),
            // `~N`, or a message.
            Some(asked) if IdPrefix::parse(asked).is_err() => match relative(&dir, head, asked) {
                Err(PointError::Resolve(source)) => Err(EngineError::NoGeneration {
                    name: name.clone(),
                    source,
                    store: self.last_store(file),
                }),
                result => Ok(result?),
            },
            Some(asked) => match self.by_id(name, &dir, file, asked) {
                // It may be on its way into the store.
                Err(EngineError::NoSuchPoint { .. }) if self.settle(name) => {
                    self.by_id(name, &dir, file, asked)
                }
                result => result,
            },
        }
    }

    /// The only point with this id, or whose id begins so.
    fn by_id(
        &self,
        name: &MachineName,
        dir: &MachineDir,
        file: &MachineFile,
        asked: &str,
    ) -> Result<FoundPoint, EngineError> {
        let not_there = |candidates: Vec<String>| EngineError::NoSuchPoint {
            name: name.clone(),
            asked: asked.to_owned(),
            candidates,
            store: self.last_store(file),
        };
        let prefix = IdPrefix::parse(asked).map_err(PointError::Id)?;
        let mut own = pinned_ids(dir, file)?;
        own.retain(|id| prefix.matches(id));
        match own.as_slice() {
            [id] => return Ok(pinned(dir, *id)?),
            [] => {}
            several => return Err(not_there(several.iter().map(CheckpointId::short).collect())),
        }
        for store in self.stores_of(file) {
            match find_in_store(&store, asked) {
                Ok(mut found) => {
                    found.history = found.history.limit(DEFAULT_HISTORY);
                    return Ok(found);
                }
                Err(EngineError::Point(PointError::NotInStore { candidates, .. }))
                    if candidates.len() > 1 =>
                {
                    return Err(not_there(candidates));
                }
                Err(EngineError::Point(PointError::NotInStore { .. })) => {}
                Err(error) => {
                    tracing::warn!(store = %store.display(), error = %crate::chain(&error), "a store cannot be read");
                }
            }
        }
        Err(not_there(Vec::new()))
    }

    /// The store that the machine was last saved into, and the default one; only those that are there.
    fn stores_of(&self, file: &MachineFile) -> Vec<PathBuf> {
        let mut stores = vec![self.last_store(file), self.home().store()];
        stores.dedup();
        stores.retain(|store| store.is_dir());
        stores
    }

    /// Waits until a running machine is not being saved; false where there is nobody to wait for.
    fn settle(&self, name: &MachineName) -> bool {
        let settled = self.control_with_progress(name, &Control::Settle, &mut |_, _, _| ());
        matches!(settled, Ok(ControlReply::Done))
    }

    /// The store that the machine was last saved into, else the default one.
    pub(super) fn last_store(&self, file: &MachineFile) -> PathBuf {
        file.store.clone().unwrap_or_else(|| self.home().store())
    }
}

/// The id of the point that the machine was last saved to or restored from.
fn head_of(name: &MachineName, file: &MachineFile) -> Result<CheckpointId, EngineError> {
    let head = file.head.as_deref();
    let head = head.ok_or_else(|| EngineError::NoPoint { name: name.clone() })?;
    Ok(head.parse().map_err(PointError::Id)?)
}

/// A point that the machine pins.
fn pinned(dir: &MachineDir, id: CheckpointId) -> Result<FoundPoint, PointError> {
    let file = dir.records().join(record_file_name(&id));
    let point = read_point(&file, Some(id))?;
    let history = History::alone(point, &file);
    Ok(FoundPoint::new(history, PackSet::open([dir.packs()])))
}

/// `~N`, counted from the head, or the message of the head or one of its parents.
fn relative(dir: &MachineDir, head: CheckpointId, asked: &str) -> Result<FoundPoint, PointError> {
    let file = dir.records().join(record_file_name(&head));
    let head = read_point(&file, Some(head))?;
    let history = History::follow(head, &file, &dir.records(), MAX_GENERATIONS).at(asked)?;
    let packs = PackSet::open([dir.packs()]);
    Ok(FoundPoint::new(history.limit(0), packs))
}

/// The points whose records the machine has.
pub(super) fn pinned_ids(
    dir: &MachineDir,
    file: &MachineFile,
) -> Result<Vec<CheckpointId>, EngineError> {
    let records = dir.records();
    let list = || crate::file_error::FileError::at("list", &records);
    let mut ids = Vec::new();
    for entry in fs::read_dir(&records).map_err(list())? {
        let name = entry.map_err(list())?.file_name();
        let id = name
            .to_str()
            .and_then(|name| name.strip_suffix(RECORD_SUFFIX));
        ids.extend(id.and_then(|id| id.parse::<CheckpointId>().ok()));
    }
    // A booted point is nobody's.
    let booted = file.booted.as_ref().map(|booted| &booted.point);
    ids.retain(|id| booted != Some(&id.to_string()));
    Ok(ids)
}

/// Refuses a point that is not one of such a machine: it keeps its memory, its disk's size and its kernel.
fn check_fits(
    file: &MachineFile,
    dir: &MachineDir,
    head: CheckpointId,
    target: &Point,
) -> Result<(), EngineError> {
    let other = target.record();
    let disk_bytes = other.disk(ROOT_DISK).map(|disk| disk.size_bytes);
    // A head whose record is lost keeps nobody from going elsewhere.
    let own = read_point(&dir.records().join(record_file_name(&head)), Some(head)).ok();
    let boot = own.as_ref().map(|own| &own.record().boot);
    let differs = [
        ("memory", other.spec.memory_bytes != file.spec.memory_bytes),
        ("disk", disk_bytes != Some(file.spec.disk_bytes)),
        (
            "kernel",
            boot.is_some_and(|boot| {
                (&boot.kernel, &boot.initramfs) != (&other.boot.kernel, &other.boot.initramfs)
            }),
        ),
    ];
    match differs.into_iter().find(|(_, differs)| *differs) {
        None => Ok(()),
        Some((what, _)) => Err(EngineError::OtherMachine {
            name: file.name.clone(),
            id: target.id().to_string(),
            what,
        }),
    }
}
