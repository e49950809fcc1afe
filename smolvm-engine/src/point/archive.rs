//! A checkpoint directory as one file: a POSIX tar archive with its records first, then its packs, all in one directory.
//!
//! Only what a checkpoint directory consists of is written or read: plain headers, whose names fit into them, so that
//! nothing of an archive is held in memory and no extension of the format is ever followed.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use cas_store::{MAX_PACKS_PER_SET, PACK_SUFFIX, PackId};
use snapshot_format::CheckpointId;
use snapshot_format::limits::MAX_RECORD_BYTES;
use tar::{EntryType, Header};
use thiserror::Error;

use super::checkpoint_dir::{CheckpointDir, OWN_RECORD, SUFFIX};
use super::history::{MAX_GENERATIONS, RECORD_SUFFIX, open_regular};
use crate::file_error::FileError;

/// Bytes that are copied at a time.
const BLOCK_BYTES: usize = 1 << 20;
/// Why an archive could not be written or read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// The host failed at a file of a checkpoint.
    #[error(transparent)]
    Io(#[from] FileError),
    /// The archive cannot be written.
    #[error("the archive cannot be written")]
    Write(#[source] io::Error),
    /// The archive cannot be read, or is none.
    #[error("the archive cannot be read")]
    Read(#[source] io::Error),
    /// Something that no checkpoint has.
    #[error("it is not an exported checkpoint: {name:?} {problem}")]
    Foreign {
        /// The entry's name.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// It ends in the middle.
    #[error("the archive is cut off in {name:?}")]
    CutOff {
        /// The entry in which it ends.
        name: String,
    },
    /// Nothing but an end.
    #[error("the archive holds no checkpoint")]
    Empty,
}

/// Writes the checkpoint in `dir` as an archive of a directory `name`. `advance` is told of bytes that are written.
///
/// # Errors
/// The directory cannot be read, or the archive not written.
pub(crate) fn write(
    dir: &CheckpointDir,
    name: &str,
    modified_unix: u64,
    to: &mut dyn Write,
    advance: &dyn Fn(u64),
) -> Result<u64, ArchiveError> {
    let mut archive = tar::Builder::new(to);
    let mut bytes = 0;
    let mut files = vec![(OWN_RECORD.to_owned(), dir.record(), 0o600)];
    for (part, directory, mode) in [
        ("generations", dir.generations(), 0o600),
        ("packs", dir.packs(), 0o400),
    ] {
        for (file_name, path) in sorted_files(&directory)? {
            files.push((format!("{part}/{file_name}"), path, mode));
        }
    }
    for (inner, path, mode) in files {
        let file = open_regular(&path)?;
        let length = file.metadata().map_err(FileError::at("read", &path))?.len();
        let mut header = Header::new_ustar();
        header
            .set_path(format!("{name}/{inner}"))
            .map_err(ArchiveError::Write)?;
        header.set_entry_type(EntryType::Regular);
        header.set_mode(mode);
        header.set_mtime(modified_unix);
        header.set_size(length);
        header.set_cksum();
        let counted = Counted {
            inner: file.take(length),
            advance,
        };
        archive
            .append(&header, counted)
            .map_err(ArchiveError::Write)?;
        bytes += length;
    }
    let to = archive.into_inner().map_err(ArchiveError::Write)?;
    to.flush().map_err(ArchiveError::Write)?;
    Ok(bytes)
}

/// The files of a directory, by name.
fn sorted_files(directory: &Path) -> Result<Vec<(String, PathBuf)>, FileError> {
    let list = || FileError::at("list", directory);
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(list())? {
        let entry = entry.map_err(list())?;
        if let Ok(name) = entry.file_name().into_string() {
            files.push((name, entry.path()));
        }
    }
    files.sort();
    Ok(files)
}

/// Unpacks an archive into the empty directory `dir`. What it holds is not to be trusted: it is verified by whoever calls this.
/// Returns the bytes of its files.
///
/// # Errors
/// It is not the archive of a checkpoint. What is in the directory is of no use then.
pub(crate) fn read(
    from: &mut dyn Read,
    dir: &CheckpointDir,
    advance: &dyn Fn(u64),
) -> Result<u64, ArchiveError> {
    let mut archive = tar::Archive::new(from);
    let mut unpacking = Unpacking {
        dir,
        top: None,
        generations: 0,
        packs: 0,
        has_own: false,
        buffer: vec![0; BLOCK_BYTES],
        bytes: 0,
    };
    // Raw: headers of extensions are entries, which are refused; followed, they would be held in memory.
    for entry in archive.entries().map_err(ArchiveError::Read)?.raw(true) {
        unpacking.entry(entry.map_err(ArchiveError::Read)?, advance)?;
    }
    match unpacking.has_own {
        true => Ok(unpacking.bytes),
        false => Err(ArchiveError::Empty),
    }
}

/// An archive that is being unpacked.
struct Unpacking<'a> {
    dir: &'a CheckpointDir,
    /// The directory that everything in it lies in.
    top: Option<String>,
    generations: usize,
    packs: usize,
    has_own: bool,
    buffer: Vec<u8>,
    bytes: u64,
}

impl Unpacking<'_> {
    fn entry<R: Read>(
        &mut self,
        mut entry: tar::Entry<'_, R>,
        advance: &dyn Fn(u64),
    ) -> Result<(), ArchiveError> {
        let path = entry.path_bytes();
        let name = String::from_utf8_lossy(&path).into_owned();
        let foreign = |problem| ArchiveError::Foreign {
            name: name.clone(),
            problem,
        };
        let length = entry.header().entry_size().map_err(ArchiveError::Read)?;
        match entry.header().entry_type() {
            EntryType::Directory if length == 0 => return Ok(()),
            EntryType::Regular => {}
            _ => return Err(foreign("is no file")),
        }
        let (top, inner) = name.split_once('/').unwrap_or(("", &name));
        if !top.ends_with(SUFFIX) || self.top.as_deref().is_some_and(|known| known != top) {
            return Err(foreign("does not lie in the checkpoint's directory"));
        }
        self.top.get_or_insert_with(|| top.to_owned());
        let place = self.place(inner, length).map_err(foreign)?;
        let to = File::options()
            .create_new(true)
            .write(true)
            .mode(place.mode)
            .open(&place.path);
        let mut to = match to {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(foreign("comes twice"));
            }
            to => to.map_err(FileError::at("create", &place.path))?,
        };
        let mut left = length;
        while left > 0 {
            let want = self
                .buffer
                .len()
                .min(usize::try_from(left).unwrap_or(usize::MAX));
            let read = match entry.read(&mut self.buffer[..want]) {
                Ok(0) => return Err(ArchiveError::CutOff { name }),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read.map_err(ArchiveError::Read)?,
            };
            to.write_all(&self.buffer[..read])
                .map_err(FileError::at("write", &place.path))?;
            left -= read as u64;
            advance(read as u64);
        }
        self.bytes = self.bytes.saturating_add(length);
        Ok(())
    }

    /// Where a file of a checkpoint goes, or what is wrong with its name or length.
    fn place(&mut self, inner: &str, length: u64) -> Result<UnpackedFile, &'static str> {
        let record = |path: PathBuf| match length {
            0..=MAX_RECORD_BYTES => Ok(UnpackedFile { path, mode: 0o600 }),
            _ => Err("is too large for a record"),
        };
        if inner == OWN_RECORD {
            self.has_own = true;
            return record(self.dir.record());
        }
        let unknown = "is no part of a checkpoint";
        match inner.split_once('/') {
            Some(("generations", file)) => {
                let id = file.strip_suffix(RECORD_SUFFIX).ok_or(unknown)?;
                id.parse::<CheckpointId>().map_err(|_| unknown)?;
                self.generations += 1;
                match self.generations {
                    0..=MAX_GENERATIONS => record(self.dir.generations().join(file)),
                    _ => Err("is one generation too many"),
                }
            }
            Some(("packs", file)) => {
                let id = file.strip_suffix(PACK_SUFFIX).ok_or(unknown)?;
                id.parse::<PackId>().map_err(|_| unknown)?;
                self.packs += 1;
                let path = self.dir.packs().join(file);
                match self.packs {
                    0..=MAX_PACKS_PER_SET => Ok(UnpackedFile { path, mode: 0o400 }),
                    _ => Err("is one pack too many"),
                }
            }
            _ => Err(unknown),
        }
    }
}

/// A file that is made of an entry.
struct UnpackedFile {
    path: PathBuf,
    mode: u32,
}

/// Tells of what is read.
struct Counted<'a, R> {
    inner: R,
    advance: &'a dyn Fn(u64),
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(bytes)?;
        (self.advance)(read as u64);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOP: &str = "c4c23a7c6d3a.checkpoint";

    fn checkpoint(at: &Path) -> CheckpointDir {
        let dir = CheckpointDir::new(at);
        for path in [dir.packs(), dir.generations()] {
            fs::create_dir_all(path).unwrap();
        }
        dir
    }

    fn nothing(_: u64) {}

    /// An archive of entries: name, type, content.
    fn archive(entries: &[(&str, EntryType, &[u8])]) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        for (name, kind, content) in entries {
            let mut header = Header::new_ustar();
            // As it is: a path that leads out is refused by `set_path` already.
            header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(*kind);
            header.set_mode(0o777);
            header.set_size(content.len() as u64);
            header.set_cksum();
            archive.append(&header, *content).unwrap();
        }
        archive.into_inner().unwrap()
    }

    fn unpack(bytes: &[u8]) -> Result<u64, ArchiveError> {
        let place = tempfile::tempdir().unwrap();
        let dir = checkpoint(&place.path().join("x.checkpoint"));
        let result = read(&mut &*bytes, &dir, &nothing);
        // Nothing ever lies outside.
        let around: Vec<_> = fs::read_dir(place.path()).unwrap().collect();
        assert_eq!(around.len(), 1);
        result
    }

    #[test]
    fn a_checkpoint_goes_into_an_archive_and_out_again() {
        let place = tempfile::tempdir().unwrap();
        let dir = checkpoint(&place.path().join("a.checkpoint"));
        let id = "ab".repeat(32);
        fs::write(dir.record(), b"own").unwrap();
        fs::write(dir.generations().join(format!("{id}.record")), b"before").unwrap();
        fs::write(dir.packs().join(format!("{id}.pack")), vec![7; 3 << 20]).unwrap();
        let mut bytes = Vec::new();
        let written = write(&dir, TOP, 1_790_000_000, &mut bytes, &nothing).unwrap();
        let other = checkpoint(&place.path().join("b.checkpoint"));
        assert_eq!(read(&mut &*bytes, &other, &nothing).unwrap(), written);
        assert_eq!(fs::read(other.record()).unwrap(), b"own");
        let generation = other.generations().join(format!("{id}.record"));
        assert_eq!(fs::read(generation).unwrap(), b"before");
        let pack = other.packs().join(format!("{id}.pack"));
        assert_eq!(fs::read(&pack).unwrap(), vec![7; 3 << 20]);
        assert!(fs::metadata(&pack).unwrap().permissions().readonly());

        // Cut anywhere in a file, it is refused.
        for cut in [100, 512, 600, 5 << 10, 2 << 20] {
            let error = unpack(&bytes[..cut]).unwrap_err();
            let expected = matches!(error, ArchiveError::CutOff { .. } | ArchiveError::Read(_));
            assert!(expected, "{cut}: {error:?}");
        }
        assert!(matches!(unpack(&[]), Err(ArchiveError::Empty)));
        assert!(matches!(unpack(&[0; 4096]), Err(ArchiveError::Empty)));
        assert!(matches!(unpack(&[b'x'; 4096]), Err(ArchiveError::Read(_))));
    }

    #[test]
    fn what_no_checkpoint_has_is_refused() {
        let own = format!("{TOP}/point.record");
        let pack = format!("{TOP}/packs/{}.pack", "0".repeat(64));
        let file = EntryType::Regular;
        let foreign: &[&[(&str, EntryType, &[u8])]] = &[
            &[("../point.record", file, b"x")],
            &[("/etc/passwd", file, b"x")],
            &[("a.checkpoint/../../x", file, b"x")],
            &[("a.checkpoint/packs/../point.record", file, b"x")],
            &[("a.checkpoint/packs/x.pack", file, b"x")],
            &[("a.checkpoint/generations/x.record", file, b"x")],
            &[("a.checkpoint/other", file, b"x")],
            &[("point.record", file, b"x")],
            &[(&own, EntryType::Symlink, b"")],
            &[(&pack, EntryType::Link, b"")],
            &[(&pack, EntryType::Fifo, b"")],
            &[(&pack, EntryType::GNUSparse, b"x")],
            &[("././@LongLink", EntryType::GNULongName, b"x")],
            &[("pax_header", EntryType::XHeader, b"10 path=x\n")],
            &[(&own, file, b"x"), (&own, file, b"x")],
            &[
                (&own, file, b"x"),
                ("b.checkpoint/point.record", file, b"x"),
            ],
        ];
        for entries in foreign {
            let error = unpack(&archive(entries)).unwrap_err();
            let expected = matches!(error, ArchiveError::Foreign { .. });
            assert!(expected, "{:?}: {error:?}", entries[0].0);
        }
        // A length that is not there costs nothing.
        let mut huge = archive(&[(&pack, file, b"x")]);
        let mut header = Header::new_ustar();
        header.as_mut_bytes().copy_from_slice(&huge[..512]);
        header.set_size(1 << 60);
        header.set_cksum();
        huge[..512].copy_from_slice(header.as_bytes());
        assert!(matches!(unpack(&huge), Err(ArchiveError::CutOff { .. })));
    }
}
