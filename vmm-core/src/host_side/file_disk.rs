use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::BlockBackend;

/// Bytes of zeros that are written at once where a hole cannot be made.
const ZERO_BYTES: usize = 64 << 10;
/// Size of a sector in bytes; what lies behind the last whole one is not part of the disk.
const SECTOR_BYTES: u64 = 512;

/// A disk that is a plain file, or a block device.
#[derive(Debug)]
pub struct FileDisk {
    file: File,
    bytes: u64,
    read_only: bool,
}

impl FileDisk {
    /// Opens the file at `path`, for writing too unless `read_only`.
    pub fn open(path: impl AsRef<Path>, read_only: bool) -> io::Result<Self> {
        let file = File::options().read(true).write(!read_only).open(path)?;
        Self::new(file, read_only)
    }

    /// A disk over an open file, as large as that is now.
    pub fn new(mut file: File, read_only: bool) -> io::Result<Self> {
        // A block device has a size only at its end.
        let end = io::Seek::seek(&mut file, io::SeekFrom::End(0))?;
        Ok(Self {
            file,
            bytes: end / SECTOR_BYTES * SECTOR_BYTES,
            read_only,
        })
    }

    /// Makes a hole; false where the file cannot have one.
    #[cfg(target_os = "linux")]
    fn punch(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<bool> {
        use rustix::fs::{FallocateFlags, fallocate};
        use rustix::io::Errno;

        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(&self.file, flags, offset_bytes, length_bytes) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NODEV | Errno::NOSYS) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn punch(&self, _: u64, _: u64) -> io::Result<bool> {
        Ok(false)
    }

    /// The caller of a trait's method asks for what lies on the disk; this is for those who do not.
    fn check(&self, offset_bytes: u64, length_bytes: u64, writes: bool) -> io::Result<()> {
        if writes && self.read_only {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        match offset_bytes.checked_add(length_bytes) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }
}

impl BlockBackend for FileDisk {
    fn size_bytes(&self) -> u64 {
        self.bytes
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn read_at(&self, offset_bytes: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.check(offset_bytes, buffer.len() as u64, false)?;
        self.file.read_exact_at(buffer, offset_bytes)
    }

    fn write_at(&self, offset_bytes: u64, data: &[u8]) -> io::Result<()> {
        self.check(offset_bytes, data.len() as u64, true)?;
        self.file.write_all_at(data, offset_bytes)
    }

    fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.write_zeroes(offset_bytes, length_bytes)
    }

    fn write_zeroes(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.check(offset_bytes, length_bytes, true)?;
        if length_bytes == 0 || self.punch(offset_bytes, length_bytes)? {
            return Ok(());
        }
        let zeros = vec![0; ZERO_BYTES];
        for done in (0..length_bytes).step_by(ZERO_BYTES) {
            let length = (length_bytes - done).min(ZERO_BYTES as u64) as usize;
            self.file
                .write_all_at(&zeros[..length], offset_bytes + done)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_zeroed_exactly() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&vec![7; (1 << 20) + 100], 0).unwrap();
        let disk = FileDisk::new(file, false).unwrap();
        assert_eq!(disk.size_bytes(), 1 << 20, "a part of a sector is none");
        disk.write_at(4000, &[1, 2, 3]).unwrap();
        disk.write_zeroes(512, 1024).unwrap();
        disk.discard(8192, 200_000).unwrap();
        let mut bytes = vec![9; 1 << 20];
        disk.read_at(0, &mut bytes).unwrap();
        let expected = |at: usize| match at {
            512..1536 | 8192..208_192 => 0,
            4000..4003 => at as u8 - 159,
            _ => 7,
        };
        assert!((0..1 << 20).all(|at| bytes[at] == expected(at)));
        disk.flush().unwrap();
    }

    #[test]
    fn nothing_reaches_past_the_end_or_into_a_read_only_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(4096).unwrap();
        let disk = FileDisk::open(file.path(), false).unwrap();
        for offset in [4096, 4000, u64::MAX - 50] {
            assert!(disk.write_at(offset, &[1; 100]).is_err(), "{offset}");
            assert!(disk.read_at(offset, &mut [1; 100]).is_err(), "{offset}");
            assert!(disk.write_zeroes(offset, 512).is_err(), "{offset}");
        }
        assert_eq!(file.as_file().metadata().unwrap().len(), 4096);
        let disk = FileDisk::open(file.path(), true).unwrap();
        assert!(disk.read_only() && disk.write_at(0, &[1]).is_err());
        assert!(disk.discard(0, 512).is_err());
        disk.read_at(0, &mut [1; 512]).unwrap();
    }
}
