//! Compression recognised by magic, decompressed under a limit.

use std::io::{self, BufRead, Read};

/// Most memory an xz decoder may ask for (xz -9 needs 65 MiB).
const MAX_XZ_MEMORY_BYTES: u64 = 256 << 20;

/// log2 of the largest zstd window accepted (zstd --ultra -22 uses 27).
const MAX_ZSTD_WINDOW_LOG: u32 = 27;

/// Compression formats known by their first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    /// None of the magics below.
    None,
    /// RFC 1952.
    Gzip,
    /// RFC 8878 (or a skippable frame).
    Zstd,
    /// The .xz file format.
    Xz,
    /// The bzip2 format, recognised only to be refused by name.
    Bzip2,
}

impl Compression {
    /// Tells the format from the first bytes of a file.
    pub(crate) fn detect(head: &[u8]) -> Self {
        match head {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Self::Xz,
            [b'B', b'Z', b'h', ..] => Self::Bzip2,
            _ => Self::None,
        }
    }

    /// A reader of the plain bytes. Members or frames that follow each other
    /// are read as one.
    pub(crate) fn reader<'a>(
        self,
        input: impl BufRead + Send + 'a,
    ) -> io::Result<Box<dyn Read + Send + 'a>> {
        Ok(match self {
            Self::None => Box::new(input),
            Self::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(input)),
            Self::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(input)?;
                decoder.window_log_max(MAX_ZSTD_WINDOW_LOG)?;
                Box::new(decoder)
            }
            Self::Xz => {
                let stream = liblzma::stream::Stream::new_stream_decoder(
                    MAX_XZ_MEMORY_BYTES,
                    liblzma::stream::CONCATENATED,
                )?;
                Box::new(liblzma::bufread::XzDecoder::new_stream(input, stream))
            }
            Self::Bzip2 => {
                return Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    "bzip2 compression is not supported",
                ));
            }
        })
    }
}

/// A reader that fails, instead of ending, when more than its limit comes
/// out: a decompression bomb is an error and not a short file.
pub(crate) struct Bounded<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Bounded<R> {
    /// Allows `limit_bytes` to be read from `inner`.
    pub(crate) fn new(inner: R, limit_bytes: u64) -> Self {
        Self {
            inner,
            left: limit_bytes,
        }
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        if self.left == 0 {
            // At the limit only the end of the data is acceptable.
            return match self.inner.read(&mut [0])? {
                0 => Ok(0),
                _ => Err(io::Error::new(
                    io::ErrorKind::FileTooLarge,
                    "larger than the allowed size when unpacked",
                )),
            };
        }
        let most = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .min(buf.len());
        let n = self.inner.read(&mut buf[..most])?;
        self.left -= n as u64;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn unpack(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        Compression::detect(bytes)
            .reader(bytes)?
            .read_to_end(&mut out)?;
        Ok(out)
    }

    #[test]
    fn unpacks_each_format_and_its_concatenation() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(b"hello ").unwrap();
        let gzip = gzip.finish().unwrap();
        let zstd = zstd::encode_all(&b"hello "[..], 1).unwrap();
        let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 1);
        xz.write_all(b"hello ").unwrap();
        let xz = xz.finish().unwrap();
        for packed in [gzip, zstd, xz] {
            assert_eq!(unpack(&packed).unwrap(), b"hello ");
            assert_eq!(
                unpack(&[&packed[..], &packed[..]].concat()).unwrap(),
                b"hello hello "
            );
            assert!(unpack(&packed[..packed.len() - 2]).is_err(), "cut off");
        }
        assert_eq!(unpack(b"plain").unwrap(), b"plain");
        assert!(unpack(b"BZh91AY").is_err());
    }

    #[test]
    fn the_bound_is_an_error_and_not_an_end() {
        let mut out = Vec::new();
        Bounded::new(&b"12345"[..], 5)
            .read_to_end(&mut out)
            .unwrap();
        assert_eq!(out, b"12345");
        assert!(
            Bounded::new(&b"12345"[..], 4)
                .read_to_end(&mut Vec::new())
                .is_err()
        );
    }
}
