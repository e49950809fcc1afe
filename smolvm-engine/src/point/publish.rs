//! Publishing a checkpoint directory: it appears whole, durable and never in place of another.

use std::fs;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cas_store::{Capture, ChunkId, PackSet, SealedCapture};
use durable_files::{OsBackend, PublishError, Published, Staging};
use snapshot_format::limits::MAX_RECORD_BYTES;

use super::checkpoint_dir::CheckpointDir;
use super::error::PointError;
use super::history::{History, open_regular, record_file_name};
use crate::file_error::FileError;
use crate::home::make_private_dir;
use crate::machine::pin_whole_points;
use crate::phase::Phase;

// The store keeps every record that the format allows, and no other.
const _: () = assert!(cas_store::MAX_RECORD_BYTES == MAX_RECORD_BYTES);

/// A checkpoint directory that is being made, as a hidden sibling of its place. It removes itself unless it is published;
/// if this process is killed, the store removes it when it is opened next.
pub(crate) struct Output {
    staging: Staging,
    target: PathBuf,
}

impl Output {
    /// Begins one, before anything is saved: a place where no directory can be made is refused while that costs nothing.
    pub(crate) fn begin(target: &Path, capture: &Capture) -> Result<Self, PointError> {
        let path = target.to_owned();
        if target.symlink_metadata().is_ok() {
            return Err(PointError::Taken { path });
        }
        let staging = Staging::create_beside(Arc::new(OsBackend), target)?;
        capture.stage_outside(staging.path())?;
        Ok(Self {
            staging,
            target: path,
        })
    }
}

/// What is published.
pub(crate) struct Publication<'a> {
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
pub(crate) fn publish(
    output: Output,
    publication: &Publication<'_>,
) -> Result<Published, PointError> {
    let dir = CheckpointDir::new(output.staging.path());
    for path in [dir.packs(), dir.generations()] {
        make_private_dir(&path)?;
    }
    publication
        .sealed
        .pin_into(&dir.packs(), publication.chunks)?;
    if let Some(earlier) = publication.earlier {
        let packs = publication.earlier_packs;
        for (point, file) in pin_whole_points(earlier.sound(), packs, &dir.packs())? {
            let name = record_file_name(&point.id());
            link_record(file, &dir.generations().join(name))?;
        }
    }
    write_synced(&dir.record(), publication.record)?;
    for path in [dir.generations(), output.staging.path().to_owned()] {
        sync_directory(&path)?;
    }
    Phase::Staged.reached();
    let target = output.target;
    let published = output.staging.publish_synced(&target);
    published.map_err(|error| match error {
        PublishError::Taken => PointError::Taken { path: target },
        PublishError::File(error) | PublishError::Unknown(error) => error.into(),
    })
}

/// Puts a record at `to`, by link where possible.
pub(crate) fn link_record(from: &Path, to: &Path) -> Result<(), PointError> {
    if fs::hard_link(from, to).is_ok() {
        // A link to a symbolic link would be one.
        if fs::symlink_metadata(to).is_ok_and(|linked| linked.is_file()) {
            return Ok(());
        }
        fs::remove_file(to).map_err(FileError::at("remove", to))?;
    }
    let mut bytes = Vec::new();
    open_regular(from)?
        .take(MAX_RECORD_BYTES)
        .read_to_end(&mut bytes)
        .map_err(FileError::at("read", from))?;
    write_synced(to, &bytes)
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
