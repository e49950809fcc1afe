//! Kernels and initramfs files that machines made from points share: `$SMOLVM_HOME/cache/boot/DIGEST`.
//!
//! A point holds them as chunks. They are written out once; after that each machine gets a hard link, which is its own: the
//! cache may be removed at any time. A file that no machine has any more goes when another has to be written.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use cas_store::{ChunkId, MAX_CHUNK_BYTES, PackSet, for_all};
use snapshot_format::{Blob, CHUNK_BYTES, ChunkRef, MapReader, chunks_in};

use crate::error_chain::chain;
use crate::file_error::FileError;
use crate::home::{Home, make_private_dir};
use crate::machine::NodesIn;
use crate::point::{PointError, open_regular};

/// Where the files are.
pub(crate) struct BootCache {
    folder: PathBuf,
}

impl BootCache {
    /// The cache of this home.
    pub(crate) fn new(home: &Home) -> Self {
        Self {
            folder: home.cache().join("boot"),
        }
    }

    /// Makes `path` a file with what the blob holds: a link, or written from chunks and verified.
    pub(crate) fn place(
        &self,
        blob: &Blob,
        packs: &PackSet,
        path: &Path,
    ) -> Result<(), PointError> {
        let cached = self.folder.join(name(blob));
        if fs::hard_link(&cached, path).is_ok() {
            if holds(packs, blob, path)? {
                return Ok(());
            }
            // Somebody changed it. Another process may have removed it meanwhile.
            fs::remove_file(path).map_err(FileError::at("remove", path))?;
            match fs::remove_file(&cached) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(FileError::at("remove", &cached)(error).into());
                }
                _ => {}
            }
        }
        // Room may be short.
        self.tidy();
        write(packs, blob, path)
    }

    /// Keeps a file that holds the blob, and is durable, for other machines. Where that fails it costs them only time.
    pub(crate) fn keep(&self, blob: &Blob, path: &Path) {
        let cached = self.folder.join(name(blob));
        if cached.exists() {
            return;
        }
        if let Err(error) = self.add(path, &cached) {
            tracing::debug!(error = %chain(&error), "a boot file is not kept for other machines");
        }
    }

    fn add(&self, path: &Path, cached: &Path) -> Result<(), PointError> {
        make_private_dir(&self.folder)?;
        Ok(fs::hard_link(path, cached).map_err(FileError::at("link", path))?)
    }

    /// Removes files that no machine has any more.
    fn tidy(&self) {
        // Without the folder there is nothing to remove.
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            if entry.metadata().is_ok_and(|file| file.nlink() == 1)
                && let Err(error) = fs::remove_file(entry.path())
            {
                tracing::debug!(%error, "a boot file that nobody has is kept");
            }
        }
    }
}

/// The blob's name: the digest of its size and its map.
fn name(blob: &Blob) -> String {
    let mut digest = blake3::Hasher::new();
    digest.update(&blob.size_bytes.to_le_bytes());
    digest.update(&[blob.map.level()]);
    digest.update(&blob.map.node().0);
    digest.finalize().to_hex().to_string()
}

/// Whether a file holds the blob, every byte of it.
fn holds(packs: &PackSet, blob: &Blob, path: &Path) -> Result<bool, PointError> {
    let Ok(file) = open_regular(path) else {
        return Ok(false);
    };
    if !file
        .metadata()
        .is_ok_and(|file| file.len() == blob.size_bytes)
    {
        return Ok(false);
    }
    let data: Result<HashMap<u64, ChunkRef>, _> =
        MapReader::new(NodesIn(packs)).data(&blob.map).collect();
    let data = data?;
    let chunks: Vec<u64> = (0..chunks_in(blob.size_bytes)).collect();
    let same = for_all(&chunks, |index, buffer| {
        let at = index * CHUNK_BYTES;
        let bytes = &mut buffer[..(blob.size_bytes - at).min(CHUNK_BYTES) as usize];
        file.read_exact_at(bytes, at)?;
        let expected = data.get(index).copied().unwrap_or_default();
        match ChunkId::of(bytes).0 == expected.0 {
            true => Ok(()),
            false => Err(io::Error::from(io::ErrorKind::InvalidData)),
        }
    });
    Ok(same.is_ok())
}

/// Writes a blob of a point as a file, verified.
fn write(packs: &PackSet, blob: &Blob, path: &Path) -> Result<(), PointError> {
    let file = File::options()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .map_err(FileError::at("create", path))?;
    // Where nothing is written it reads as zero, and takes no room.
    file.set_len(blob.size_bytes)
        .map_err(FileError::at("write", path))?;
    let mut bytes = vec![0; MAX_CHUNK_BYTES];
    for found in MapReader::new(NodesIn(packs)).data(&blob.map) {
        let (index, chunk) = found?;
        let at = index * CHUNK_BYTES;
        let length = packs.get(&ChunkId(chunk.0), &mut bytes)?;
        let inside = length.min(blob.size_bytes.saturating_sub(at) as usize);
        file.write_all_at(&bytes[..inside], at)
            .map_err(FileError::at("write", path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use cas_store::{CaptureOptions, Store};
    use snapshot_format::{ChunkRef, MapNodes};

    use super::*;

    /// A cache, a blob of three chunks, the second of zeros, and packs that hold it.
    struct Bed {
        directory: tempfile::TempDir,
        cache: BootCache,
        blob: Blob,
        packs: PackSet,
        bytes: Vec<u8>,
    }

    fn bed() -> Bed {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path();
        let store = Store::open(directory.join("store")).unwrap();
        let capture = store.begin_capture(CaptureOptions::default()).unwrap();
        let mut bytes = vec![7; MAX_CHUNK_BYTES];
        bytes.extend(vec![0; MAX_CHUNK_BYTES]);
        bytes.extend([1, 2, 3]);
        let chunks = bytes.chunks(MAX_CHUNK_BYTES);
        let mut ids: Vec<_> = chunks.map(|chunk| capture.put(chunk).unwrap()).collect();
        let mut nodes = MapNodes::new();
        let map = nodes.build((0..).zip(ids.iter().map(|id| ChunkRef(id.0))));
        ids.extend(nodes.iter().map(|(_, node)| capture.put(node).unwrap()));
        let sealed = capture.seal().unwrap();
        fs::create_dir(directory.join("packs")).unwrap();
        sealed.pin_into(&directory.join("packs"), &ids).unwrap();
        let packs = PackSet::open([directory.join("packs")]);
        Bed {
            cache: BootCache::new(&Home::at(directory.join("home"))),
            blob: Blob::new(bytes.len() as u64, map.unwrap()),
            packs,
            bytes,
            directory: place,
        }
    }

    impl Bed {
        fn path(&self, name: &str) -> PathBuf {
            self.directory.path().join(name)
        }

        fn place(&self, path: &Path) {
            self.cache.place(&self.blob, &self.packs, path).unwrap();
        }
    }

    #[test]
    fn a_second_machine_gets_a_link_and_a_cut_file_is_not_taken() {
        let bed = bed();
        let [first, second, third] = ["1", "2", "3"].map(|name| bed.path(name));
        let inode = |path: &Path| fs::metadata(path).unwrap().ino();

        bed.place(&first);
        bed.cache.keep(&bed.blob, &first);
        bed.place(&second);
        assert_eq!(fs::read(&second).unwrap(), bed.bytes);
        assert_eq!(inode(&first), inode(&second));

        let file = File::options().write(true).open(&second).unwrap();
        file.set_len(5).unwrap();
        bed.place(&third);
        assert_eq!(fs::read(&third).unwrap(), bed.bytes);
        assert_ne!(inode(&third), inode(&second));

        // One byte where the blob has data, one where it has none.
        for (name, at) in [("4", 70), ("5", 70_000)] {
            let (changed, other) = (bed.path(name), bed.path(&format!("{name}-again")));
            bed.place(&changed);
            bed.cache.keep(&bed.blob, &changed);
            let file = File::options().write(true).open(&changed).unwrap();
            file.write_all_at(&[1], at).unwrap();
            bed.place(&other);
            assert_eq!(fs::read(&other).unwrap(), bed.bytes);
        }
    }

    #[test]
    fn what_is_nobodys_goes_when_another_comes() {
        let bed = bed();
        make_private_dir(&bed.cache.folder).unwrap();
        fs::write(bed.cache.folder.join("old"), "").unwrap();
        let path = bed.path("file");
        bed.place(&path);
        bed.cache.keep(&bed.blob, &path);
        let names: Vec<_> = fs::read_dir(&bed.cache.folder).unwrap().collect();
        assert_eq!(names.len(), 1);
        assert_eq!(fs::metadata(&path).unwrap().nlink(), 2);
    }
}
