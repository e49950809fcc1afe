//! The family of machines and points: what came from what.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use cas_store::is_store;
use durable_files::OsBackend;
use snapshot_format::{CheckpointId, LineageEntry, WallTime};

use super::checkpoint::{log_entry, store_lines};
use super::undo_target::pinned_ids;
use crate::api::error::EngineError;
use crate::api::{Engine, LogEntry, MachineInfo};
use crate::error_chain::chain;
use crate::machine::MachineDir;
use crate::name::MachineName;
use crate::point::{MAX_GENERATIONS, by_lineage, read_point, record_file_name};

/// All machines and points that are known, and from what each came.
#[derive(Debug)]
#[non_exhaustive]
pub struct Family {
    /// The points, no one before its parent. The parent of one may be known to nobody any more.
    pub points: Vec<LogEntry>,
    /// The machines, by name; each lies at its [`MachineInfo::head`], if it has one.
    pub machines: Vec<MachineInfo>,
    /// Machines that cannot be read, and why.
    pub unreadable: Vec<(MachineName, EngineError)>,
}

/// What is known about one point.
struct Known {
    line: LineageEntry,
    gone: bool,
    damaged: Option<String>,
}

type Points = HashMap<CheckpointId, Known>;

impl Engine {
    /// What came from what: all machines, and the points that they keep or that lie in the default store and those that machines were
    /// saved into last. With `store`, the points of that one, and the machines that keep any of them. Changes nothing.
    ///
    /// # Errors
    ///
    /// `store` is none, or it or the default one cannot be read. A point, machine or other store that is damaged hides none of the others.
    pub fn family(&self, store: Option<&Path>) -> Result<Family, EngineError> {
        let mut points = Points::new();
        let default = self.home().store();
        match store {
            Some(store) => add_store(store, &mut points)?,
            // A home without a point has no store yet, or the beginning of one.
            None if is_store(&OsBackend, &default)? => add_store(&default, &mut points)?,
            None => {}
        }
        let mut family = Family {
            points: Vec::new(),
            machines: Vec::new(),
            unreadable: Vec::new(),
        };
        let mut kept = Vec::new();
        for name in self.machine_names()? {
            match self.member(&name) {
                Ok((machine, own)) => {
                    if store.is_none() || own.iter().any(|id| points.contains_key(id)) {
                        kept.push((name, own));
                        family.machines.push(machine);
                    }
                }
                // Deleted since it was listed.
                Err(EngineError::NoMachine { .. }) => {}
                Err(error) => family.unreadable.push((name, error)),
            }
        }
        if store.is_none() {
            self.add_other_stores(kept.iter().map(|(name, _)| name), &mut points);
        }
        for (name, own) in &kept {
            add_own(&self.dir(name), own, &mut points);
        }
        family.points = in_order(points);
        Ok(family)
    }

    /// A machine, and the points that it keeps.
    fn member(&self, name: &MachineName) -> Result<(MachineInfo, Vec<CheckpointId>), EngineError> {
        let machine = self.look_at(name, false)?;
        Ok((machine, pinned_ids(&self.dir(name), &self.read(name)?)?))
    }

    /// Adds the points of the stores that machines were saved into last. A user may have removed one.
    fn add_other_stores<'a>(
        &self,
        machines: impl Iterator<Item = &'a MachineName>,
        points: &mut Points,
    ) {
        let mut seen = HashSet::from([self.home().store()]);
        for name in machines {
            let file = self.read(name).ok();
            let Some(store) = file.and_then(|file| file.store) else {
                continue;
            };
            if !store.is_dir() || !seen.insert(store.clone()) {
                continue;
            }
            if let Err(error) = add_store(&store, points) {
                tracing::warn!(store = %store.display(), error = %chain(&error), "a store cannot be read");
            }
        }
    }
}

/// Adds the points of a store. One that lies in another store as well is gone only if it is in both.
fn add_store(store: &Path, points: &mut Points) -> Result<(), EngineError> {
    for (line, gone) in store_lines(store.to_owned())? {
        let known = points.entry(line.id).or_insert(Known {
            line,
            gone,
            damaged: None,
        });
        known.gone &= gone;
    }
    Ok(())
}

/// Adds the points that a machine keeps. Those that are known already are not read again.
fn add_own(dir: &MachineDir, own: &[CheckpointId], points: &mut Points) {
    for id in own.iter().take(MAX_GENERATIONS) {
        if let Some(known) = points.get_mut(id).filter(|known| known.damaged.is_none()) {
            known.gone = false;
            continue;
        }
        let (line, damaged) = match read_point(&dir.records().join(record_file_name(id)), Some(*id))
        {
            Ok(point) => (LineageEntry::from(&point), None),
            Err(error) => (nameless(*id), Some(chain(&error))),
        };
        points.insert(
            *id,
            Known {
                line,
                gone: false,
                damaged,
            },
        );
    }
}

/// A point of which only the id is known.
fn nameless(id: CheckpointId) -> LineageEntry {
    LineageEntry {
        id,
        parent: None,
        taken: WallTime::default(),
        machine: String::new(),
        message: String::new(),
        data_bytes: 0,
        autosave: false,
    }
}

fn in_order(points: Points) -> Vec<LogEntry> {
    let mut damaged = HashMap::new();
    let mut lines = Vec::with_capacity(points.len());
    for (id, known) in points {
        lines.push((known.line, known.gone));
        damaged.extend(known.damaged.map(|reason| (id, reason)));
    }
    let entries = by_lineage(lines).into_iter().map(|(line, gone)| {
        let mut entry = log_entry(&line, None, gone);
        entry.damaged = damaged.remove(&line.id);
        entry
    });
    entries.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::EngineOptions;
    use crate::api::process::ProcessModel;
    use crate::home::Home;
    use crate::machine::MachineFile;

    fn machine(engine: &Engine, name: &str, head: Option<CheckpointId>) -> MachineDir {
        let name: MachineName = name.parse().unwrap();
        let dir = engine.dir(&name);
        std::fs::create_dir_all(dir.records()).unwrap();
        let mut file = MachineFile::for_tests();
        file.name = name;
        file.head = head.map(|id| id.to_string());
        dir.write_first(&file).unwrap();
        dir
    }

    #[test]
    fn what_is_damaged_hides_nobody_and_nothing_is_changed() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::at(directory.path().join("home"));
        let engine = Engine::open(EngineOptions::new(home, ProcessModel::Threads)).unwrap();
        let empty = engine.family(None).unwrap();
        assert!(empty.points.is_empty() && empty.machines.is_empty());
        assert!(!engine.home().store().exists());
        // What a command leaves that is killed while it makes the store.
        std::fs::create_dir_all(engine.home().store().join("staging")).unwrap();
        assert!(engine.family(None).unwrap().points.is_empty());
        std::fs::remove_dir_all(engine.home().store()).unwrap();

        let head = CheckpointId::of_bytes(b"head");
        let dir = machine(&engine, "a", Some(head));
        std::fs::write(dir.records().join(record_file_name(&head)), "damaged").unwrap();
        let broken = machine(&engine, "b", None);
        std::fs::write(broken.path().join("machine.json"), "{").unwrap();
        machine(&engine, "c", None);
        let family = engine.family(None).unwrap();
        let names: Vec<_> = family
            .machines
            .iter()
            .map(|one| one.name.as_str())
            .collect();
        assert_eq!(names, ["a", "c"]);
        assert_eq!(family.unreadable.len(), 1);
        let [point] = family.points.as_slice() else {
            panic!("{:?}", family.points);
        };
        assert_eq!(point.id, head.to_string());
        assert!(point.damaged.is_some());
        assert!(!engine.home().store().exists());
        assert!(engine.family(Some(&directory.path().join("none"))).is_err());
    }
}
