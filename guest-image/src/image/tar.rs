//! A bounded reader of tar archives: ustar, GNU and pax.
//!
//! Everything that an image needs is decoded (long names, owners beyond the
//! octal fields, times below a second, extended attributes, devices, sparse
//! files of GNU tar in all its forms) and everything read into memory has a
//! limit. Spec: POSIX.1-2017 `pax`, GNU tar manual "Basic Tar Format".
//!
//! The crate `tar` (0.4.46) does not do here: it takes a newline in an extended attribute, which is
//! binary (file capabilities), for the end of a record and then overlooks those behind it, sizes
//! included; it reads a header of any length into memory; and it hands out sparse files of the
//! pax format as they are stored.

mod header;
mod pax;
mod sparse;

use std::io::{self, Read};

use super::spool::ContentReader;
use super::tree::{Device, MAX_PATH_BYTES, Timestamp, Xattrs};
use header::{Header, until_nul};
use pax::{Extensions, parse_pax};
use sparse::SparseData;

const RECORD_BYTES: usize = 512;
/// Largest pax header or long name record, and most of them in front of one
/// entry together.
const MAX_EXTENSION_BYTES: u64 = 1 << 20;
/// Most header records (pax, long names) in front of one entry.
const MAX_EXTENSIONS: usize = 64;

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TarKind {
    File,
    HardLink(Vec<u8>),
    Symlink(Vec<u8>),
    Char(Device),
    Block(Device),
    Dir,
    Fifo,
}

/// One entry's header.
#[derive(Debug, Clone)]
pub(crate) struct TarEntry {
    pub(crate) path: Vec<u8>,
    pub(crate) kind: TarKind,
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: Timestamp,
    pub(crate) xattrs: Xattrs,
    /// Keys of extended headers with metadata that is not read.
    pub(crate) not_read: Vec<&'static str>,
    /// Size of the file as it is to be, holes included.
    pub(crate) size_bytes: u64,
    /// Where its data begins in the archive (meaningless for sparse files).
    pub(crate) data_offset: u64,
    /// Offset and length of the pieces of a sparse file.
    sparse: Option<Vec<(u64, u64)>>,
}

impl TarEntry {
    /// Whether the entry was stored as a sparse file.
    pub(crate) fn is_sparse(&self) -> bool {
        self.sparse.is_some()
    }
}

/// Why an archive cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TarError {
    /// The input failed or ended too early.
    #[error("reading it failed at byte {offset}")]
    Read {
        /// Offset in the unpacked archive.
        offset: u64,
        /// The failure.
        #[source]
        source: io::Error,
    },
    /// The archive ends in the middle or without its end marker.
    #[error("it ends at byte {offset}, before its end marker: cut off?")]
    Truncated {
        /// Offset in the unpacked archive.
        offset: u64,
    },
    /// A header does not decode.
    #[error("bad header at byte {offset}: {what}")]
    Header {
        /// Offset in the unpacked archive.
        offset: u64,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// Reads the entries of an archive one after the other.
pub(crate) struct TarReader<R> {
    input: R,
    offset: u64,
    /// Data of the current entry not yet read, then its padding.
    data_left: u64,
    padding: u64,
    /// Whether the end of the input without an end marker is an error.
    strict_end: bool,
}

impl<R: Read> TarReader<R> {
    /// Reads from the beginning of an uncompressed archive. With `strict_end`
    /// an archive without end marker counts as cut off.
    pub(crate) fn new(input: R, strict_end: bool) -> Self {
        Self {
            input,
            offset: 0,
            data_left: 0,
            padding: 0,
            strict_end,
        }
    }

    /// The next entry, skipping what was not read of the last one. `None` at
    /// the end marker.
    pub(crate) fn next_entry(&mut self) -> Result<Option<TarEntry>, TarError> {
        self.skip_rest()?;
        let mut extensions = Extensions::default();
        let mut extension_bytes = MAX_EXTENSION_BYTES;
        for _ in 0..MAX_EXTENSIONS {
            let Some(header) = self.read_header()? else {
                return Ok(None);
            };
            let size = header.number(124, 12)?;
            let is_extension = matches!(header.bytes[156], b'x' | b'g' | b'L' | b'K');
            if is_extension {
                let left = u64::checked_sub(extension_bytes, size);
                extension_bytes =
                    left.ok_or_else(|| self.bad("extended headers larger than 1 MiB"))?;
            }
            match header.bytes[156] {
                b'x' => {
                    let body = self.read_extension(size)?;
                    parse_pax(&body, &mut extensions, header.offset)?;
                }
                b'g' => drop(self.read_extension(size)?),
                b'L' => extensions.path = Some(until_nul(&self.read_extension(size)?).to_vec()),
                b'K' => extensions.link = Some(until_nul(&self.read_extension(size)?).to_vec()),
                // Volume labels and GNU multi-volume or dump records.
                b'V' | b'M' | b'N' => {
                    let whole = size.checked_next_multiple_of(RECORD_BYTES as u64);
                    let whole = whole.ok_or_else(|| self.bad("its size is too large"))?;
                    self.skip(whole)?;
                }
                _ => return self.entry(&header, extensions).map(Some),
            }
        }
        Err(self.bad("too many extended headers"))
    }

    /// A reader of the current entry's content: `entry.size_bytes` bytes,
    /// with the holes of a sparse file filled in.
    pub(crate) fn content(&mut self, entry: &TarEntry) -> Box<dyn ContentReader + '_> {
        match &entry.sparse {
            None => Box::new(EntryData { tar: self }),
            Some(segments) => Box::new(SparseData {
                segments: segments.clone().into_iter(),
                current: None,
                position: 0,
                size_bytes: entry.size_bytes,
                data: EntryData { tar: self },
            }),
        }
    }

    fn entry(&mut self, header: &Header, ext: Extensions) -> Result<TarEntry, TarError> {
        let device = || -> Result<Device, TarError> {
            Ok(Device {
                major: header.u32(329, 8)?,
                minor: header.u32(337, 8)?,
            })
        };
        let link = ext
            .link
            .unwrap_or_else(|| until_nul(&header.bytes[157..257]).to_vec());
        let path = ext
            .sparse
            .name
            .clone()
            .or(ext.path)
            .unwrap_or_else(|| header.path());
        let type_flag = header.bytes[156];
        let kind = match type_flag {
            0 | b'0' if path.ends_with(b"/") => TarKind::Dir,
            0 | b'0' | b'7' | b'S' => TarKind::File,
            b'1' => TarKind::HardLink(link),
            b'2' => TarKind::Symlink(link),
            b'3' => TarKind::Char(device()?),
            b'4' => TarKind::Block(device()?),
            b'5' | b'D' => TarKind::Dir,
            b'6' => TarKind::Fifo,
            _ => return Err(header.bad("unknown entry type")),
        };
        if path.len() > MAX_PATH_BYTES {
            return Err(header.bad("path too long"));
        }
        let stored = match kind {
            TarKind::File | TarKind::Dir => ext.size.map_or_else(|| header.number(124, 12), Ok)?,
            // Old archivers give hard links a size without data; pax ones may
            // give them data. Without an override, no data follows.
            TarKind::HardLink(_) => ext.size.unwrap_or(0),
            _ => 0,
        };
        self.data_left = stored;
        self.padding = padding(stored);
        let mut entry = TarEntry {
            path,
            kind,
            mode: (header.number(100, 8)? & 0o7777) as u16,
            uid: ext.uid.map_or_else(|| header.u32(108, 8), Ok)?,
            gid: ext.gid.map_or_else(|| header.u32(116, 8), Ok)?,
            mtime: ext.mtime.map_or_else(|| header.mtime(), Ok)?,
            xattrs: ext.xattrs,
            not_read: ext.not_read,
            size_bytes: stored,
            data_offset: 0,
            sparse: None,
        };
        if type_flag == b'S' {
            self.old_gnu_sparse(header, &mut entry)?;
        } else if entry.kind == TarKind::File && ext.sparse.real_size.is_some() {
            self.pax_sparse(ext.sparse, &mut entry)?;
        }
        entry.data_offset = self.offset;
        Ok(entry)
    }

    /// The body of an extended header of at most [`MAX_EXTENSION_BYTES`].
    fn read_extension(&mut self, size: u64) -> Result<Vec<u8>, TarError> {
        let padded = size.next_multiple_of(RECORD_BYTES as u64) as usize;
        let mut body = vec![0; padded];
        self.read_exact(&mut body)?;
        body.truncate(size as usize);
        Ok(body)
    }

    /// The next header; `None` at the end marker.
    fn read_header(&mut self) -> Result<Option<Header>, TarError> {
        let offset = self.offset;
        let Some(bytes) = self.read_record()? else {
            return if self.strict_end {
                Err(TarError::Truncated { offset })
            } else {
                Ok(None)
            };
        };
        if bytes.iter().all(|b| *b == 0) {
            return Ok(None);
        }
        let header = Header { bytes, offset };
        header.check_sum()?;
        Ok(Some(header))
    }

    /// One record; `None` if the input is at its end.
    fn read_record(&mut self) -> Result<Option<[u8; RECORD_BYTES]>, TarError> {
        let mut record = [0; RECORD_BYTES];
        let mut filled = 0;
        while filled < RECORD_BYTES {
            match self.input.read(&mut record[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => {
                    return Err(TarError::Truncated {
                        offset: self.offset,
                    });
                }
                Ok(n) => {
                    filled += n;
                    self.offset += n as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(TarError::Read {
                        offset: self.offset,
                        source,
                    });
                }
            }
        }
        Ok(Some(record))
    }

    fn read_exact(&mut self, out: &mut [u8]) -> Result<(), TarError> {
        for piece in out.chunks_mut(RECORD_BYTES) {
            let record = self.read_record()?.ok_or(TarError::Truncated {
                offset: self.offset,
            })?;
            piece.copy_from_slice(&record[..piece.len()]);
        }
        Ok(())
    }

    fn skip_rest(&mut self) -> Result<(), TarError> {
        let left = self.data_left.checked_add(self.padding);
        let left = left.ok_or_else(|| self.bad("size too large"))?;
        (self.data_left, self.padding) = (0, 0);
        self.skip(left)
    }

    fn skip(&mut self, bytes: u64) -> Result<(), TarError> {
        let offset = self.offset;
        let skipped = io::copy(&mut (&mut self.input).take(bytes), &mut io::sink())
            .map_err(|source| TarError::Read { offset, source })?;
        self.offset += skipped;
        if skipped < bytes {
            return Err(TarError::Truncated {
                offset: self.offset,
            });
        }
        Ok(())
    }

    fn bad(&self, what: &'static str) -> TarError {
        TarError::Header {
            offset: self.offset,
            what,
        }
    }
}

/// The stored bytes of the current entry.
struct EntryData<'a, R> {
    tar: &'a mut TarReader<R>,
}

impl<R: Read> Read for EntryData<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.tar.data_left).unwrap_or(usize::MAX);
        let most = left.min(buf.len());
        if most == 0 {
            return Ok(0);
        }
        let n = self.tar.input.read(&mut buf[..most])?;
        self.tar.data_left -= n as u64;
        self.tar.offset += n as u64;
        Ok(n)
    }
}

impl<R: Read> ContentReader for EntryData<'_, R> {}

/// Whether a record is the header of an entry.
pub(crate) fn is_header(bytes: &[u8; RECORD_BYTES]) -> bool {
    let header = Header {
        bytes: *bytes,
        offset: 0,
    };
    bytes.iter().any(|byte| *byte != 0) && header.check_sum().is_ok()
}

/// What fills a record behind so many bytes.
fn padding(size: u64) -> u64 {
    (RECORD_BYTES as u64 - size % RECORD_BYTES as u64) % RECORD_BYTES as u64
}
