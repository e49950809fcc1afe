//! What lies under the lowest layer.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::error::DiskError;

/// An unchanging content that a caller provides, such as a map of stored chunks.
///
/// Used from several threads. A reader that checks its data says so by an error, never by other
/// bytes: the error goes to whoever reads the disk.
pub trait BaseReader: Send + Sync {
    /// Fills `buf`; the range lies inside [`size_bytes`](Self::size_bytes).
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()>;

    /// The size, which never changes.
    fn size_bytes(&self) -> u64;
}

/// The content under the lowest layer of a disk. Beyond its end a disk reads as zero.
#[derive(Clone)]
pub struct Base(Kind);

#[derive(Clone)]
enum Kind {
    Zeroes,
    File { file: Arc<File>, size_bytes: u64 },
    Reader(Arc<dyn BaseReader>),
}

impl Base {
    /// Nothing: the whole disk reads as zero.
    pub fn zeroes() -> Self {
        Self(Kind::Zeroes)
    }

    /// A raw image, which nobody may change or shorten while it is in use. Its size is read now.
    ///
    /// # Errors
    ///
    /// When the file's size cannot be read.
    pub fn file(file: File) -> io::Result<Self> {
        let size_bytes = file.metadata()?.len();
        let file = Arc::new(file);
        Ok(Self(Kind::File { file, size_bytes }))
    }

    /// A reader of the caller's.
    pub fn reader(reader: Arc<dyn BaseReader>) -> Self {
        Self(Kind::Reader(reader))
    }

    /// The size of the content; a disk may be larger.
    pub fn size_bytes(&self) -> u64 {
        match &self.0 {
            Kind::Zeroes => 0,
            Kind::File { size_bytes, .. } => *size_bytes,
            Kind::Reader(reader) => reader.size_bytes(),
        }
    }

    /// Reads, with zeroes beyond the end.
    pub(crate) fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), DiskError> {
        let available = self.size_bytes().saturating_sub(offset_bytes);
        let len = usize::try_from(available).map_or(buf.len(), |len| len.min(buf.len()));
        let (inside, beyond) = buf.split_at_mut(len);
        beyond.fill(0);
        if inside.is_empty() {
            return Ok(());
        }
        match &self.0 {
            Kind::Zeroes => Ok(()),
            Kind::File { file, .. } => file.read_exact_at(inside, offset_bytes),
            Kind::Reader(reader) => reader.read_at(offset_bytes, inside),
        }
        .map_err(|source| DiskError::Base {
            offset_bytes,
            source,
        })
    }
}

impl fmt::Debug for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.0 {
            Kind::Zeroes => "zeroes",
            Kind::File { .. } => "file",
            Kind::Reader(_) => "reader",
        };
        f.debug_struct("Base")
            .field("kind", &kind)
            .field("size_bytes", &self.size_bytes())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn reads_zero_beyond_its_end() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[5; 1000]).unwrap();
        let base = Base::file(file).unwrap();
        let mut buf = [9; 100];
        base.read(950, &mut buf).unwrap();
        assert_eq!(buf[..50], [5; 50]);
        assert_eq!(buf[50..], [0; 50]);
        buf.fill(9);
        base.read(u64::MAX - 5, &mut buf).unwrap();
        assert_eq!(buf, [0; 100]);
    }

    #[test]
    fn a_base_that_shrinks_is_an_error() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[5; 1000]).unwrap();
        let base = Base::file(file.try_clone().unwrap()).unwrap();
        file.set_len(500).unwrap();
        let error = base.read(450, &mut [0; 100]).unwrap_err();
        assert!(matches!(
            error,
            DiskError::Base {
                offset_bytes: 450,
                ..
            }
        ));
    }
}
