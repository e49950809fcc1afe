//! A point's root disk as a file system.

use std::io;
use std::sync::Arc;

use cas_store::PackSet;
use cow_disk::BaseReader;
use guest_image::file_system::{DiskReader, FileSystem, FileSystemError};
use snapshot_format::Point;
use snapshot_format::verify::ROOT_DISK;

use crate::machine::{BaseMap, ChunkBase, ChunkSource};

/// The files of a point.
pub(crate) type PointFiles = FileSystem<PointDisk>;

/// A point's root disk; its chunks are verified as they are read.
pub(crate) struct PointDisk(ChunkBase);

impl DiskReader for PointDisk {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset_bytes, buf)
    }

    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }
}

/// Opens the files of a point whose chunks lie in these packs.
pub(crate) fn open_disk(
    point: &Point,
    packs: &Arc<PackSet>,
) -> Result<PointFiles, FileSystemError> {
    let disk = point.record().disk(ROOT_DISK);
    let disk = disk.ok_or_else(|| io::Error::other("the point has no root disk"))?;
    let chunks = ChunkSource::of(packs.clone());
    FileSystem::open(PointDisk(ChunkBase::new(chunks, BaseMap::of_point(disk))))
}
