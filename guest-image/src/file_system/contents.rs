//! The data of a file, from front to back.

use super::{DiskReader, Extent, Extents, FileSystem, FileSystemError, Inode};

/// Reads a file's data from front to back without holding it.
pub struct FileReader<'a, D> {
    from: &'a FileSystem<D>,
    extents: Extents<'a, D>,
    /// The first extent that ends behind what was asked for last.
    extent: Option<Extent>,
}

impl<D: DiskReader> FileSystem<D> {
    /// The data of a regular file.
    ///
    /// # Errors
    /// As [`FileSystem::extents`].
    pub fn reader(&self, inode: &Inode) -> Result<FileReader<'_, D>, FileSystemError> {
        Ok(FileReader {
            from: self,
            extents: self.extents(inode)?,
            extent: None,
        })
    }
}

impl<D: DiskReader> FileReader<'_, D> {
    /// The next run of data that ends behind `offset_bytes`, cut where that lies in it; `None` when only a hole is left.
    /// Offsets never go back.
    ///
    /// # Errors
    /// The file is damaged.
    pub fn data_from(&mut self, offset_bytes: u64) -> Result<Option<(u64, u64)>, FileSystemError> {
        let behind = |extent: &Extent| extent.end_bytes() > offset_bytes;
        if !self.extent.as_ref().is_some_and(behind) {
            self.extent = loop {
                match self.extents.next().transpose()? {
                    Some(extent) if !behind(&extent) => {}
                    found => break found,
                }
            };
        }
        let run = |extent: Extent| (extent.offset_bytes.max(offset_bytes), extent.end_bytes());
        Ok(self.extent.map(run))
    }

    /// Fills `buf` with the data at `offset_bytes`; zeros in holes and behind the end. Offsets never go back.
    ///
    /// # Errors
    /// The file is damaged, or the disk cannot be read.
    pub fn read(&mut self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), FileSystemError> {
        let mut done = 0;
        while done < buf.len() {
            let at = offset_bytes + done as u64;
            let left = (buf.len() - done) as u64;
            let run = self.data_from(at)?;
            let (Some((start, end)), Some(extent)) = (run, self.extent) else {
                buf[done..].fill(0);
                return Ok(());
            };
            // Both are at most what is left of `buf`.
            let hole = (start - at).min(left) as usize;
            buf[done..done + hole].fill(0);
            done += hole;
            if done == buf.len() {
                return Ok(());
            }
            let length = (end - start).min((buf.len() - done) as u64) as usize;
            let within = start - extent.offset_bytes;
            self.from
                .read(&extent, within, &mut buf[done..done + length])?;
            done += length;
        }
        Ok(())
    }
}
