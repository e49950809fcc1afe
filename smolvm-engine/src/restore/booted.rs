//! Points of guests that have booted and that nobody has worked in: `$SMOLVM_HOME/cache/booted/KEY`.
//!
//! The first start of a machine from an image goes on there instead of booting. An entry holds the point's record, what boot wrote to the
//! disk, and memory; the image's own chunks a machine of that kind has anyway. It is no machine's head, parent or history. A machine links what it
//! uses: the cache may be removed at any time. What cannot be used is removed, and made again by the next boot.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use cas_store::PACK_SUFFIX;
use durable_files::{
    FileBackend, OsBackend, PublishError, Staging, remove_leftovers, remove_whole,
};
use snapshot_format::verify::ROOT_DISK;
use snapshot_format::{Level, Point, verify};

use super::PlaceError;
use crate::error_chain::chain;
use crate::file_error::FileError;
use crate::home::Home;
use crate::machine::{
    BaseMap, BootedStart, MachineDir, MachineFile, create_overlay, link_or_copy, sync_directory,
    without_hostname,
};
use crate::point::{CheckpointDir, PointError, link_record, read_point, record_file_name};

/// Entries that are kept; when there is another, the one goes that was not used for longest. Each takes about 40 MiB.
pub(crate) const MAX_BOOTED_POINTS: usize = 4;
/// Most packs that an entry may have: as many as are written for one.
const MAX_PACKS: usize = 8;
/// Changes when entries of former versions must not be used any more.
const KEY_VERSION: &str = "smolvm booted point 2";

/// All that a booted guest depends on: machines of one kind can go on at each other's booted point.
pub(crate) struct BootedKind<'a> {
    /// The machine.
    pub(crate) machine: &'a MachineFile,
    /// The backend by name.
    pub(crate) backend: &'a str,
    /// The CPU profile by name.
    pub(crate) cpu: &'a str,
    pub(crate) vcpus: u8,
}

impl BootedKind<'_> {
    /// The name of the kind's entry. `None`: the machine is not made from an image.
    pub(crate) fn key(&self) -> Option<String> {
        let Self {
            machine,
            backend,
            cpu,
            vcpus,
        } = self;
        let parts = [
            KEY_VERSION.to_owned(),
            env!("CARGO_PKG_VERSION").to_owned(),
            machine.kind.clone()?,
            without_hostname(&machine.command_line),
            machine.spec.memory_bytes.to_string(),
            machine.spec.disk_bytes.to_string(),
            vcpus.to_string(),
            (*cpu).to_owned(),
            (*backend).to_owned(),
        ];
        let mut digest = blake3::Hasher::new();
        for part in parts {
            digest.update(&(part.len() as u64).to_le_bytes());
            digest.update(part.as_bytes());
        }
        Some(digest.finalize().to_hex().to_string())
    }

    fn fits(&self, point: &Point) -> bool {
        let record = point.record();
        let spec = &record.spec;
        spec.vcpus == u32::from(self.vcpus)
            && spec.memory_bytes == self.machine.spec.memory_bytes
            && spec.disk_bytes == self.machine.spec.disk_bytes
            && record.host.cpu_profile.to_string() == self.cpu
            && record.parent.is_none()
    }
}

/// Where booted points are.
#[derive(Debug, Clone)]
pub(crate) struct BootedCache {
    folder: PathBuf,
}

/// A booted point that can be gone on at, as far as is known before it is tried.
pub(crate) struct BootedPoint {
    key: String,
    dir: CheckpointDir,
    point: Point,
}

impl BootedCache {
    /// The cache of this home.
    pub(crate) fn new(home: &Home) -> Self {
        Self {
            folder: home.cache().join("booted"),
        }
    }

    /// The entry of this key, if there is a sound one.
    pub(crate) fn find(&self, key: &str, kind: &BootedKind<'_>) -> Option<BootedPoint> {
        let path = self.folder.join(key);
        let dir = CheckpointDir::new(&path);
        let unusable = match read_point(&dir.record(), None) {
            Ok(point) if !kind.fits(&point) => "it is of another kind".to_owned(),
            Ok(point) => {
                let findings = verify(point.record());
                let error = findings
                    .into_iter()
                    .find(|finding| finding.level == Level::Error);
                match error {
                    Some(finding) => finding.problem.to_string(),
                    None => {
                        note_use(&path);
                        return Some(BootedPoint {
                            key: key.to_owned(),
                            dir,
                            point,
                        });
                    }
                }
            }
            Err(PointError::Io(error))
                if error.source.kind() == ErrorKind::NotFound && !path.exists() =>
            {
                return None;
            }
            Err(error) => chain(&error),
        };
        tracing::warn!(reason = %unusable, "a booted point is not used");
        self.remove(key);
        None
    }

    /// Begins a new entry.
    pub(crate) fn begin(&self) -> Result<Staging, FileError> {
        Staging::create(Arc::new(OsBackend), &self.folder)
    }

    /// Gives a new entry its key, unless somebody else was faster. Others make room for it.
    pub(crate) fn publish(&self, mut entry: Staging, key: &str) -> Result<(), FileError> {
        self.keep_newest(MAX_BOOTED_POINTS - 1);
        match entry.publish_as(key) {
            Ok(_) | Err(PublishError::Taken) => Ok(()),
            Err(PublishError::File(error) | PublishError::Unknown(error)) => Err(error),
        }
    }

    /// Removes the entry of this key. Machines that have linked it go on.
    pub(crate) fn remove(&self, key: &str) {
        if let Err(error) = remove_whole(Arc::new(OsBackend), &self.folder, key) {
            tracing::warn!(error = %chain(&error), "a booted point is not removed");
        }
    }

    /// Removes what a killed process has left, if nobody is at work here.
    pub(crate) fn tidy(&self) {
        // Without the folder there is nothing to remove.
        if let Ok(Some(_alone)) = OsBackend.lock_dir(&self.folder, false)
            && let Err(error) = remove_leftovers(&OsBackend, &self.folder)
        {
            tracing::debug!(error = %chain(&error), "leftovers of booted points are kept");
        }
    }

    fn keep_newest(&self, count: usize) {
        let mut entries: Vec<(SystemTime, String)> = fs::read_dir(&self.folder)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let used = entry.metadata().ok()?.modified().ok()?;
                (!name.starts_with('.')).then_some((used, name))
            })
            .collect();
        entries.sort_unstable();
        let surplus = entries.len().saturating_sub(count);
        for (_, key) in &entries[..surplus] {
            self.remove(key);
        }
    }
}

/// Notes that an entry is used: others go before it.
fn note_use(entry: &Path) {
    let noted = File::open(entry).and_then(|entry| entry.set_modified(SystemTime::now()));
    if let Err(error) = noted {
        tracing::debug!(%error, "the use of a booted point is not noted");
    }
}

impl BootedPoint {
    /// The name of its entry.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// The point, without its entry.
    pub(crate) fn into_point(self) -> Point {
        self.point
    }

    /// Puts the point into the machine's directory, and makes `machine` one that goes on at it: with its disk under an empty layer. Nothing
    /// of it is durable yet, and nothing in the directory names it.
    pub(crate) fn place(
        &self,
        dir: &MachineDir,
        machine: &mut MachineFile,
    ) -> Result<BootedStart, PlaceError> {
        let id = self.point.id();
        let disk = self
            .point
            .record()
            .disk(ROOT_DISK)
            .ok_or_else(|| PointError::Unsound {
                id: id.short(),
                findings: vec!["it has no root disk".to_owned()],
            })?;
        let next = machine.disk.next;
        let (base, layer) = (format!("base-{next}.map"), format!("layer-{}", next + 1));
        let before = machine.disk.clone();
        machine.disk.base.clone_from(&base);
        machine.disk.layers = vec![layer.clone()];
        machine.disk.next = next + 2;
        machine.restore = Some(id.to_string());
        let mut start = BootedStart {
            point: id.to_string(),
            entry: self.key.clone(),
            packs: Vec::new(),
            before,
        };
        let placed = self.fill(dir, &mut start.packs).and_then(|()| {
            let path = dir.disk().join(&base);
            write_private(&path, &BaseMap::of_point(disk).encode())?;
            create_overlay(&dir.disk().join(&layer), disk.size_bytes)?;
            Ok(())
        });
        if let Err(error) = placed {
            take_back(dir, machine, &start);
            return Err(error);
        }
        Ok(start)
    }

    fn fill(&self, dir: &MachineDir, packs: &mut Vec<String>) -> Result<(), PlaceError> {
        let from = self.dir.packs();
        for entry in fs::read_dir(&from).map_err(FileError::at("list", &from))? {
            let name = entry
                .map_err(FileError::at("list", &from))?
                .file_name()
                .to_string_lossy()
                .into_owned();
            let to = dir.packs().join(&name);
            // One of the image's, or none of ours.
            if !name.ends_with(PACK_SUFFIX) || packs.len() == MAX_PACKS || to.exists() {
                continue;
            }
            packs.push(name.clone());
            link_or_copy(&from.join(&name), &to)?;
        }
        let record = record_file_name(&self.point.id());
        Ok(link_record(
            &self.dir.record(),
            &dir.records().join(record),
        )?)
    }
}

/// Writes a file of the machine's, which is for its user alone whatever the umask.
fn write_private(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let mut options = File::options();
    options.create(true).truncate(true).write(true).mode(0o600);
    let written = options
        .open(path)
        .and_then(|mut file| file.write_all(bytes));
    written.map_err(FileError::at("write", path))
}

/// Makes durable what [`BootedPoint::place`] has put into the directory of the machine that it has made.
pub(crate) fn make_durable(dir: &MachineDir, machine: &MachineFile) -> Result<(), PlaceError> {
    for name in machine.disk.layers.iter().chain([&machine.disk.base]) {
        let path = dir.disk().join(name);
        let synced = File::open(&path).and_then(|file| file.sync_all());
        synced.map_err(FileError::at("sync", &path))?;
    }
    for path in [dir.packs(), dir.records(), dir.disk()] {
        sync_directory(&path)?;
    }
    Ok(())
}

/// Takes out of the directory of `machine` what [`BootedPoint::place`] has put there. What stays costs room.
pub(crate) fn take_back(dir: &MachineDir, machine: &MachineFile, start: &BootedStart) {
    let packs = start.packs.iter().map(|pack| dir.packs().join(pack));
    let record = dir
        .records()
        .join(format!("{}{}", start.point, crate::point::RECORD_SUFFIX));
    let layers = machine.disk.layers.iter().chain([&machine.disk.base]);
    let layers = layers.filter(|name| {
        let before = &start.before;
        **name != before.base && !before.layers.contains(name)
    });
    let disk = layers.map(|name| dir.disk().join(name));
    for path in packs.chain([record]).chain(disk) {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::warn!(path = %crate::error_chain::place(&path), %error, "what is left of a booted point is kept");
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache() -> (tempfile::TempDir, BootedCache) {
        let directory = tempfile::tempdir().unwrap();
        let cache = BootedCache::new(&Home::at(directory.path()));
        (directory, cache)
    }

    fn machine() -> MachineFile {
        let mut machine = MachineFile::for_tests();
        machine.kind = Some("image and kernel".to_owned());
        machine
    }

    fn key(machine: &MachineFile, cpu: &str, backend: &str) -> Option<String> {
        let kind = BootedKind {
            machine,
            backend,
            cpu,
            vcpus: 1,
        };
        kind.key()
    }

    fn entries(cache: &BootedCache) -> Vec<String> {
        let entries = fs::read_dir(&cache.folder).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn a_key_is_that_of_all_machines_of_a_kind_and_of_no_others() {
        let one = machine();
        let first = key(&one, "v2", "soft").unwrap();
        let mut same = machine();
        same.name = "other".parse().unwrap();
        same.command_line = "smolvm.hostname=other".to_owned();
        same.spec.environment.insert("A".to_owned(), "1".to_owned());
        same.spec.labels.insert("b".to_owned(), "2".to_owned());
        assert_eq!(key(&same, "v2", "soft").unwrap(), first);

        let differ = |change: fn(&mut MachineFile)| {
            let mut other = machine();
            change(&mut other);
            key(&other, "v2", "soft").unwrap()
        };
        let others = [
            differ(|machine| machine.kind = Some("another".to_owned())),
            differ(|machine| machine.command_line = "quiet".to_owned()),
            differ(|machine| machine.spec.memory_bytes *= 2),
            differ(|machine| machine.spec.disk_bytes *= 2),
            key(&one, "v1", "soft").unwrap(),
            key(&one, "v2", "kvm").unwrap(),
        ];
        for other in others {
            assert_ne!(other, first);
        }
        let mut restored = machine();
        restored.kind = None;
        assert_eq!(key(&restored, "v2", "soft"), None);
    }

    #[test]
    fn the_entry_that_was_not_used_for_longest_makes_room() {
        let (_directory, cache) = cache();
        for name in ["a", "b", "c", "d"] {
            cache.publish(cache.begin().unwrap(), name).unwrap();
            let long_ago = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1);
            let entry = File::open(cache.folder.join(name)).unwrap();
            entry.set_modified(long_ago).unwrap();
        }
        note_use(&cache.folder.join("a"));
        cache.publish(cache.begin().unwrap(), "e").unwrap();
        assert_eq!(entries(&cache), ["a", "c", "d", "e"]);
        // Who comes second changes nothing.
        cache.publish(cache.begin().unwrap(), "e").unwrap();
        assert!(entries(&cache).contains(&"e".to_owned()));
    }

    #[test]
    fn what_is_no_point_is_removed_and_what_is_not_there_is_none() {
        let (_directory, cache) = cache();
        let machine = machine();
        let kind = BootedKind {
            machine: &machine,
            backend: "soft",
            cpu: "v2",
            vcpus: 1,
        };
        assert!(cache.find("k", &kind).is_none());
        assert!(!cache.folder.exists(), "who only looks makes nothing");
        let entry = cache.begin().unwrap();
        fs::write(entry.path().join("point.record"), b"rubbish").unwrap();
        cache.publish(entry, "k").unwrap();
        assert!(cache.find("k", &kind).is_none());
        let empty = cache.begin().unwrap();
        cache.publish(empty, "k").unwrap();
        assert!(cache.find("k", &kind).is_none());
        assert!(entries(&cache).is_empty());
    }

    #[test]
    fn what_a_killed_process_left_goes() {
        let (_directory, cache) = cache();
        let alive = cache.begin().unwrap();
        let dead = cache
            .folder
            .join(format!("{}x", durable_files::STAGING_MARK));
        fs::create_dir(&dead).unwrap();
        cache.tidy();
        assert!(!dead.exists());
        assert!(alive.path().exists());
    }
    #[test]
    fn what_is_written_is_for_its_user_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("base-1.map");
        write_private(&path, b"a map").unwrap();
        let mode =
            std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
        assert_eq!(
            (mode & 0o777, fs::read(&path).unwrap()),
            (0o600, b"a map".to_vec())
        );
    }
}
