//! Publishing a checkpoint directory: it appears whole, durable and never in place of another.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use cas_store::{ChunkId, PackSet, STAGING_MARK, SealedCapture};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::checkpoint_dir::CheckpointDir;
use super::error::PointError;
use super::history::{History, record_file_name};
use crate::file_error::FileError;
use crate::machine::needed_chunks;
use crate::phase::Phase;

/// What is published.
pub(crate) struct Publication<'a> {
    /// Where; must not exist.
    pub(crate) target: &'a Path,
    /// The new point's record.
    pub(crate) record: &'a [u8],
    /// The chunks that it needs.
    pub(crate) chunks: &'a [ChunkId],
    /// Earlier points, newest first.
    pub(crate) earlier: Option<&'a History>,
    /// Chunks of the earlier points.
    pub(crate) earlier_packs: &'a PackSet,
    /// The capture that holds the new point's chunks.
    pub(crate) sealed: &'a SealedCapture,
}

/// Publishes. On an error nothing is left.
pub(crate) fn publish(publication: &Publication<'_>) -> Result<Published, PointError> {
    let target = publication.target;
    if target.symlink_metadata().is_ok() {
        return Err(PointError::Taken {
            path: target.to_owned(),
        });
    }
    let staging = Staging::create(target, publication.sealed)?;
    let dir = CheckpointDir::new(&staging.path);
    for path in [dir.packs(), dir.generations()] {
        make_directory(&path)?;
    }
    publication
        .sealed
        .pin_into(&dir.packs(), publication.chunks)?;
    if let Some(earlier) = publication.earlier {
        let ids = needed_chunks(earlier.points(), publication.earlier_packs)?;
        publication.earlier_packs.pin_into(&dir.packs(), &ids)?;
        for (point, file) in earlier.with_files() {
            let name = record_file_name(&point.id());
            link_record(file, &dir.generations().join(name))?;
        }
    }
    write_synced(&dir.record(), publication.record)?;
    for path in [dir.generations(), staging.path.clone()] {
        sync_directory(&path)?;
    }
    Phase::Staged.reached();
    staging.publish(target)
}

/// Puts a record at `to`, by link where possible.
pub(crate) fn link_record(from: &Path, to: &Path) -> Result<(), PointError> {
    if fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    let bytes = fs::read(from).map_err(FileError::at("read", from))?;
    write_synced(to, &bytes)
}

fn make_directory(path: &Path) -> Result<(), PointError> {
    fs::DirBuilder::new()
        .mode(0o700)
        .create(path)
        .map_err(FileError::at("create directory", path))?;
    Ok(())
}

/// Writes a new file and makes its content durable.
pub(crate) fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), PointError> {
    use std::io::Write;
    let mut file = fs::File::options()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .map_err(FileError::at("create", path))?;
    file.write_all(bytes)
        .map_err(FileError::at("write", path))?;
    file.sync_all().map_err(FileError::at("sync", path))?;
    Ok(())
}

/// Makes the entries of a directory durable.
pub(crate) fn sync_directory(path: &Path) -> Result<(), PointError> {
    fs::File::open(path)
        .and_then(|directory| directory.sync_all())
        .map_err(FileError::at("sync directory", path))?;
    Ok(())
}

/// A hidden sibling of the target; removed again unless it is published. If this process is killed,
/// the store removes it when it is opened next.
struct Staging {
    path: PathBuf,
    published: bool,
}

/// A directory that has its name.
pub(crate) struct Published {
    target: PathBuf,
    /// Its hidden name before that, by which the store knows it as staged.
    hidden: PathBuf,
}

impl Published {
    /// Takes the directory back: its name is gone before its contents are.
    pub(crate) fn withdraw(self) {
        let withdrawn =
            fs::rename(&self.target, &self.hidden).and_then(|()| fs::remove_dir_all(&self.hidden));
        if let Err(error) = withdrawn {
            tracing::error!(path = %self.target.display(), %error, "a checkpoint that failed is left behind");
        }
    }
}

impl Staging {
    fn create(target: &Path, sealed: &SealedCapture) -> Result<Self, PointError> {
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let parent = target.parent().unwrap_or(Path::new("."));
        let unique = std::process::id();
        let nanos = snapshot_format::WallTime::now().nanos;
        let path = parent.join(format!(".{name}{STAGING_MARK}{unique}-{nanos}"));
        make_directory(&path)?;
        let staging = Self {
            path,
            published: false,
        };
        sealed.stage_outside(&staging.path)?;
        Ok(staging)
    }

    fn publish(mut self, target: &Path) -> Result<Published, PointError> {
        match renameat_with(CWD, &self.path, CWD, target, RenameFlags::NOREPLACE) {
            Ok(()) => self.published = true,
            Err(rustix::io::Errno::EXIST) => {
                return Err(PointError::Taken {
                    path: target.to_owned(),
                });
            }
            Err(error) => return Err(FileError::at("publish", target)(error).into()),
        }
        let published = Published {
            target: target.to_owned(),
            hidden: self.path.clone(),
        };
        match sync_directory(target.parent().unwrap_or(Path::new("."))) {
            Ok(()) => Ok(published),
            Err(error) => {
                published.withdraw();
                Err(error)
            }
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.published
            && let Err(error) = fs::remove_dir_all(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "staging directory left behind");
        }
    }
}
