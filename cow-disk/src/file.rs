//! The file under an overlay: a narrow seam for real, crashing and failing files.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};

/// What an overlay needs from its file.
///
/// Implementors are used from several threads. Offsets and lengths are bytes; the overlay
/// validates them. Writes must be visible to later reads at once, as in a page cache.
pub trait OverlayFile: fmt::Debug + Send + Sync {
    /// Fills `buf` from the file; an end of file within it is an error.
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Writes all of `data`.
    fn write_at(&self, offset_bytes: u64, data: &[u8]) -> io::Result<()>;

    /// Makes the range read as zero and gives its space back where the file system can. Neither
    /// the size of the file nor anything outside the range changes.
    fn punch_hole(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<()>;

    /// The first range at or after the offset that may hold other bytes than zero; `None` if there
    /// is none. It may say too much, never too little.
    fn next_stored(&self, offset_bytes: u64) -> io::Result<Option<Range<u64>>>;

    /// Returns when all that was written, punched and sized before is on stable storage.
    fn sync_data(&self) -> io::Result<()>;

    /// The size of the file.
    fn size_bytes(&self) -> io::Result<u64>;

    /// Sets the size; what is new reads as zero and takes no space.
    fn set_size_bytes(&self, size_bytes: u64) -> io::Result<()>;

    /// What the file takes on its disk.
    fn stored_bytes(&self) -> io::Result<u64>;
}

impl OverlayFile for File {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(buf, offset_bytes)
    }

    fn write_at(&self, offset_bytes: u64, data: &[u8]) -> io::Result<()> {
        self.write_all_at(data, offset_bytes)
    }

    fn punch_hole(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        {
            use rustix::fs::{FallocateFlags, fallocate};
            use rustix::io::Errno;

            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            match fallocate(self, flags, offset_bytes, len_bytes) {
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
                result => return result.map_err(io::Error::from),
            }
        }
        write_zeroes(self, offset_bytes, len_bytes)
    }

    fn next_stored(&self, offset_bytes: u64) -> io::Result<Option<Range<u64>>> {
        #[cfg(target_os = "linux")]
        {
            use rustix::fs::{SeekFrom, seek};
            use rustix::io::Errno;

            // Overlays use no file position, so moving it is harmless.
            let start = match seek(self, SeekFrom::Data(offset_bytes)) {
                Ok(start) => start,
                Err(Errno::NXIO) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            // The end of the file counts as a hole.
            let end = seek(self, SeekFrom::Hole(start))?;
            Ok(Some(start..end))
        }
        #[cfg(not(target_os = "linux"))]
        {
            let size_bytes = self.size_bytes()?;
            Ok((offset_bytes < size_bytes).then_some(offset_bytes..size_bytes))
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        File::sync_data(self)
    }

    fn size_bytes(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn set_size_bytes(&self, size_bytes: u64) -> io::Result<()> {
        self.set_len(size_bytes)
    }

    fn stored_bytes(&self) -> io::Result<u64> {
        // POSIX leaves the unit open; Linux and macOS both count 512 bytes.
        Ok(self.metadata()?.blocks() * 512)
    }
}

/// The slow way, for file systems without holes.
fn write_zeroes(file: &File, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
    static ZEROES: [u8; 64 << 10] = [0; 64 << 10];
    let end = offset_bytes + len_bytes;
    let mut at = offset_bytes;
    while at < end {
        let len = (end - at).min(ZEROES.len() as u64);
        file.write_all_at(&ZEROES[..len as usize], at)?;
        at += len;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroes_are_written_where_holes_are_not_to_be_had() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&vec![7; 300_000], 0).unwrap();
        write_zeroes(&file, 10, 200_000).unwrap();
        let mut back = vec![0; 300_000];
        file.read_exact_at(&mut back, 0).unwrap();
        let zeroes = back.iter().filter(|byte| **byte == 0).count();
        assert_eq!((back[9], back[10], back[200_010]), (7, 0, 7));
        assert_eq!(zeroes, 200_000);
    }

    #[test]
    fn a_punched_hole_is_given_back() {
        let file = tempfile::tempfile().unwrap();
        OverlayFile::write_at(&file, 0, &vec![7; 1 << 20]).unwrap();
        file.punch_hole(0, 1 << 20).unwrap();
        let mut back = vec![1; 1 << 20];
        OverlayFile::read_at(&file, 0, &mut back).unwrap();
        assert!(back.iter().all(|byte| *byte == 0));
        assert_eq!(file.size_bytes().unwrap(), 1 << 20);
    }
}
