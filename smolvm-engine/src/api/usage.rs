//! What lies on the disk, and what of it belongs to several.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cas_store::{DirectoryState, Store, is_store};
use durable_files::OsBackend;
use snapshot_format::{CheckpointId, LineageEntry};

use super::checkpoint::{LogEntry, log_entry};
use super::error::EngineError;
use crate::api::Engine;
use crate::file_error::FileError;
use crate::machine::ChunksOf;
use crate::point::{CheckpointDir, StoreLog};

/// Bytes of a block, as the system counts them.
const BLOCK_BYTES: u64 = 512;
/// Directories within one another that are looked into.
const MAX_DEPTH: usize = 32;

/// What something takes on the disk, as `du` counts it: each file once, whatever its names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiskBytes {
    /// Files that have no name elsewhere.
    pub own_bytes: u64,
    /// Files that something else has as well, by hard links.
    pub shared_bytes: u64,
}

/// What something is that takes room.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum UsageOf {
    /// An image.
    Image(String),
    /// A kernel.
    Kernel(String),
    /// A machine.
    Machine(String),
    /// What can be made again.
    Cache,
    /// A store, and how many points it keeps.
    Store {
        /// Where it is.
        path: PathBuf,
        /// Points that it keeps.
        points: usize,
    },
    /// A checkpoint directory that was made with the store and is at its place.
    Checkpoint(PathBuf),
}

/// What one of them takes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Used {
    /// What it is.
    pub what: UsageOf,
    /// What it takes.
    pub bytes: DiskBytes,
}

/// What the data of a point takes that a store keeps. It lies in the store's files.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UsedByPoint {
    /// The point.
    pub entry: LogEntry,
    /// Own is what deleting it gives back: no other point needs it, and nothing else has it by links. `None` if it cannot be read.
    pub bytes: Option<DiskBytes>,
}

/// What takes how much room.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiskUsage {
    /// Images, kernels, machines, the cache, the store, checkpoints.
    pub items: Vec<Used>,
    /// The points that the store keeps, oldest first.
    pub points: Vec<UsedByPoint>,
    /// All of the items together: each file once.
    pub total_bytes: u64,
}

impl Engine {
    /// What images, kernels, machines and the points of a store, or of the default one, take on the disk. Changes nothing; what is
    /// removed meanwhile is left out.
    ///
    /// # Errors
    ///
    /// A directory cannot be read; the store that was named is none.
    pub fn disk_usage(&self, store: Option<&Path>) -> Result<DiskUsage, EngineError> {
        let home = self.home();
        let mut files = Files::default();
        let mut items = Vec::new();
        type Kind = fn(String) -> UsageOf;
        let named: [(&str, Kind); 3] = [
            ("images", UsageOf::Image),
            ("kernels", UsageOf::Kernel),
            ("machines", UsageOf::Machine),
        ];
        for (part, what) in named {
            let directory = home.root().join(part);
            for name in guest_image::names_in(&directory)? {
                let bytes = files.measure(&[&directory.join(&name)])?;
                items.extend(bytes.map(|bytes| Used {
                    what: what(name),
                    bytes,
                }));
            }
        }
        if let Some(bytes) = files.measure(&[&home.cache()])? {
            let what = UsageOf::Cache;
            items.push(Used { what, bytes });
        }
        let points = match (store, is_store(&OsBackend, &home.store())?) {
            (None, false) => Vec::new(),
            _ => self.store_usage(store, &mut files, &mut items)?,
        };
        Ok(DiskUsage {
            items,
            points,
            total_bytes: files.total_bytes,
        })
    }

    fn store_usage(
        &self,
        store: Option<&Path>,
        files: &mut Files,
        items: &mut Vec<Used>,
    ) -> Result<Vec<UsedByPoint>, EngineError> {
        let store = self.existing_store(store)?;
        let log = StoreLog::read(&store)?;
        let mut usage: HashMap<CheckpointId, Option<DiskBytes>> = HashMap::new();
        for point in store.point_usage(&ChunksOf(store.chunks()))? {
            let bytes = point.bytes.map(|bytes| DiskBytes {
                own_bytes: bytes.own_bytes,
                shared_bytes: bytes.shared_bytes,
            });
            usage.insert(CheckpointId(point.id.0), bytes);
        }
        let parts = cas_store::STORE_PARTS.map(|part| store.dir().join(part));
        let parts: Vec<&Path> = parts.iter().map(PathBuf::as_path).collect();
        let bytes = files.measure(&parts)?;
        items.extend(bytes.map(|bytes| Used {
            what: UsageOf::Store {
                path: store.dir().to_owned(),
                points: usage.len(),
            },
            bytes,
        }));
        for path in directories(&store)? {
            let bytes = files.measure(&[&path])?;
            items.extend(bytes.map(|bytes| Used {
                what: UsageOf::Checkpoint(path),
                bytes,
            }));
        }
        let entry = |line: LineageEntry| UsedByPoint {
            bytes: usage.get(&line.id).copied().flatten(),
            entry: log_entry(&line, None, false),
        };
        Ok(log.kept().into_iter().map(entry).collect())
    }
}

/// The checkpoint directories of a store's log that are at their places, each once.
fn directories(store: &Store) -> Result<Vec<PathBuf>, EngineError> {
    let points = store.points()?.into_iter();
    let present = points
        .filter_map(|point| point.directory)
        .filter(|directory| directory.state == DirectoryState::Present)
        .map(|directory| directory.path)
        .filter(|path| CheckpointDir::new(path).record().exists());
    let mut paths: Vec<PathBuf> = present.collect();
    paths.sort();
    paths.dedup();
    Ok(paths)
}

/// The files that were counted.
#[derive(Debug, Default)]
struct Files {
    seen: HashSet<(u64, u64)>,
    total_bytes: u64,
}

/// A file of what is measured.
struct Found {
    bytes: u64,
    links: u64,
    /// Names in what is measured.
    names: u64,
}

impl Files {
    /// What lies in directories that are measured as one; `None` if none of them is there.
    fn measure(&mut self, directories: &[&Path]) -> Result<Option<DiskBytes>, EngineError> {
        let mut found = HashMap::new();
        let mut is_there = false;
        for directory in directories {
            is_there |= look_into(directory, MAX_DEPTH, &mut found)?;
        }
        let mut bytes = DiskBytes::default();
        for (
            file,
            Found {
                bytes: of_file,
                links,
                names,
            },
        ) in found
        {
            match links > names {
                true => bytes.shared_bytes += of_file,
                false => bytes.own_bytes += of_file,
            }
            if self.seen.insert(file) {
                self.total_bytes += of_file;
            }
        }
        Ok(is_there.then_some(bytes))
    }
}

/// Notes the files below a directory, links are not followed. False if it is not there.
fn look_into(
    directory: &Path,
    depth: usize,
    found: &mut HashMap<(u64, u64), Found>,
) -> Result<bool, FileError> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        entries => entries.map_err(FileError::at("list", directory))?,
    };
    for entry in entries {
        let entry = entry.map_err(FileError::at("list", directory))?;
        let path = entry.path();
        let meta = match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            meta => meta.map_err(FileError::at("find", &path))?,
        };
        if meta.is_dir() {
            if depth > 0 {
                look_into(&path, depth - 1, found)?;
            }
            continue;
        }
        let file = found.entry((meta.dev(), meta.ino())).or_insert(Found {
            bytes: meta.blocks() * BLOCK_BYTES,
            links: meta.nlink(),
            names: 0,
        });
        file.names += 1;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_counts_once_and_links_tell_what_is_shared() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for directory in ["a/deep", "b"] {
            fs::create_dir_all(at(directory)).unwrap();
        }
        let block = |path: &str| fs::metadata(at(path)).unwrap().blocks() * BLOCK_BYTES;
        fs::write(at("a/own"), [1; 10_000]).unwrap();
        fs::hard_link(at("a/own"), at("a/deep/again")).unwrap();
        fs::write(at("a/both"), [1; 50_000]).unwrap();
        fs::hard_link(at("a/both"), at("b/both")).unwrap();
        std::os::unix::fs::symlink(at("b"), at("a/link")).unwrap();
        let mut files = Files::default();
        let a = files.measure(&[&at("a")]).unwrap().unwrap();
        assert_eq!(a.shared_bytes, block("a/both"));
        assert!(a.own_bytes >= block("a/own") && a.own_bytes < block("a/own") + 4097);
        let total = files.total_bytes;
        assert_eq!(total, a.own_bytes + a.shared_bytes);
        let b = files.measure(&[&at("b")]).unwrap().unwrap();
        assert_eq!((b.own_bytes, b.shared_bytes), (0, block("a/both")));
        assert_eq!(files.total_bytes, total);
        // As one nothing is shared.
        let both = Files::default().measure(&[&at("a"), &at("b")]).unwrap();
        assert_eq!(both.unwrap().shared_bytes, 0);
        assert_eq!(files.measure(&[&at("c")]).unwrap(), None);
    }
}
