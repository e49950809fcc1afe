//! A bounded reader of tar archives: ustar, GNU and pax.
//!
//! Everything that an image needs is decoded (long names, owners beyond the
//! octal fields, times below a second, extended attributes, devices, sparse
//! files of GNU tar in all its forms) and everything read into memory has a
//! limit. Spec: POSIX.1-2017 `pax`, GNU tar manual "Basic Tar Format".

use std::io::{self, Read};

use super::spool::MAX_FILE_BYTES;
use super::tree::{Device, MAX_PATH_BYTES, Timestamp, Xattrs};

const RECORD_BYTES: usize = 512;
/// Largest pax header or long name record.
const MAX_EXTENSION_BYTES: u64 = 1 << 20;
/// Most header records (pax, long names) in front of one entry.
const MAX_EXTENSIONS: usize = 64;
/// Most segments of one sparse file.
const MAX_SPARSE_SEGMENTS: usize = 65536;
/// Prefixes under which archivers keep extended attributes in pax headers.
const XATTR_PREFIX: &str = "SCHILY.xattr.";

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

/// Values from extended headers that override the fixed one.
#[derive(Default)]
struct Extensions {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u32>,
    gid: Option<u32>,
    mtime: Option<Timestamp>,
    xattrs: Xattrs,
    sparse: SparseHeaders,
}

#[derive(Default)]
struct SparseHeaders {
    name: Option<Vec<u8>>,
    real_size: Option<u64>,
    major: Option<u64>,
    numbers: Vec<u64>,
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
        for _ in 0..MAX_EXTENSIONS {
            let Some(header) = self.read_header()? else {
                return Ok(None);
            };
            let size = header.number(124, 12)?;
            match header.bytes[156] {
                b'x' => {
                    let body = self.read_extension(size)?;
                    parse_pax(&body, &mut extensions, header.offset)?;
                }
                b'g' => drop(self.read_extension(size)?),
                b'L' => extensions.path = Some(until_nul(&self.read_extension(size)?).to_vec()),
                b'K' => extensions.link = Some(until_nul(&self.read_extension(size)?).to_vec()),
                // Volume labels and GNU multi-volume or dump records.
                b'V' | b'M' | b'N' => self.skip(size.next_multiple_of(RECORD_BYTES as u64))?,
                _ => return self.entry(&header, extensions).map(Some),
            }
        }
        Err(self.bad("too many extended headers"))
    }

    /// A reader of the current entry's content: `entry.size_bytes` bytes,
    /// with the holes of a sparse file filled in.
    pub(crate) fn content(&mut self, entry: &TarEntry) -> Box<dyn Read + '_> {
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

    /// Sparse map in the header and in records behind it (GNU "oldgnu").
    fn old_gnu_sparse(&mut self, header: &Header, entry: &mut TarEntry) -> Result<(), TarError> {
        let mut numbers = Vec::new();
        read_sparse_structs(&header.bytes[386..482], &mut numbers).map_err(|w| header.bad(w))?;
        let mut more = header.bytes[482] != 0;
        while more {
            let record = self.read_record()?.ok_or(TarError::Truncated {
                offset: self.offset,
            })?;
            read_sparse_structs(&record[..504], &mut numbers).map_err(|w| self.bad(w))?;
            more = record[504] != 0;
        }
        entry.size_bytes = header.number(483, 12)?;
        entry.sparse = Some(self.check_sparse(&numbers, entry.size_bytes)?);
        Ok(())
    }

    /// Sparse map in pax headers (0.0, 0.1) or in front of the data (1.0).
    fn pax_sparse(
        &mut self,
        mut headers: SparseHeaders,
        entry: &mut TarEntry,
    ) -> Result<(), TarError> {
        if headers.major == Some(1) {
            headers.numbers.clear();
            let count = self.read_map_number()?;
            if count > MAX_SPARSE_SEGMENTS as u64 {
                return Err(self.bad("too many sparse segments"));
            }
            for _ in 0..2 * count {
                headers.numbers.push(self.read_map_number()?);
            }
            // The map fills whole records.
            let rest = padding(entry.size_bytes.wrapping_sub(self.data_left));
            let rest = rest.min(self.data_left);
            self.skip(rest)?;
            self.data_left -= rest;
        }
        entry.size_bytes = headers.real_size.unwrap_or(entry.size_bytes);
        entry.sparse = Some(self.check_sparse(&headers.numbers, entry.size_bytes)?);
        Ok(())
    }

    fn check_sparse(&self, numbers: &[u64], size: u64) -> Result<Vec<(u64, u64)>, TarError> {
        if size > MAX_FILE_BYTES || !numbers.len().is_multiple_of(2) {
            return Err(self.bad("bad sparse file"));
        }
        let mut end = 0;
        let mut stored = 0u64;
        let mut segments = Vec::with_capacity(numbers.len() / 2);
        for pair in numbers.chunks_exact(2) {
            let (at, len) = (pair[0], pair[1]);
            let stop = at
                .checked_add(len)
                .filter(|stop| at >= end && *stop <= size);
            end = stop.ok_or_else(|| self.bad("bad sparse map"))?;
            stored += len;
            if len > 0 {
                segments.push((at, len));
            }
        }
        if stored > self.data_left {
            return Err(self.bad("sparse map larger than its data"));
        }
        Ok(segments)
    }

    /// One decimal line of a sparse 1.0 map.
    fn read_map_number(&mut self) -> Result<u64, TarError> {
        let mut digits = Vec::new();
        loop {
            let mut byte = [0];
            EntryData { tar: self }
                .read_exact(&mut byte)
                .map_err(|source| TarError::Read {
                    offset: self.offset,
                    source,
                })?;
            match byte[0] {
                b'\n' => break,
                digit if digits.len() < 20 => digits.push(digit),
                _ => return Err(self.bad("bad sparse map")),
            }
        }
        decimal(&digits).ok_or_else(|| self.bad("bad sparse map"))
    }

    fn read_extension(&mut self, size: u64) -> Result<Vec<u8>, TarError> {
        if size > MAX_EXTENSION_BYTES {
            return Err(self.bad("extended header larger than 1 MiB"));
        }
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

/// The contents of a sparse file, holes as zeros.
struct SparseData<'a, R> {
    segments: std::vec::IntoIter<(u64, u64)>,
    current: Option<(u64, u64)>,
    position: u64,
    size_bytes: u64,
    data: EntryData<'a, R>,
}

impl<R: Read> Read for SparseData<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self
            .current
            .is_none_or(|(at, len)| self.position >= at + len)
        {
            self.current = self.segments.next();
        }
        let (at, len) = self.current.unwrap_or((self.size_bytes, 0));
        let in_data = self.position >= at && len > 0;
        let end = if in_data { at + len } else { at };
        let left = usize::try_from(end - self.position).unwrap_or(usize::MAX);
        let most = left.min(buf.len());
        let n = if in_data {
            self.data.read(&mut buf[..most])?
        } else {
            buf[..most].fill(0);
            most
        };
        self.position += n as u64;
        Ok(n)
    }
}

/// One 512-byte header record.
struct Header {
    bytes: [u8; RECORD_BYTES],
    offset: u64,
}

impl Header {
    fn bad(&self, what: &'static str) -> TarError {
        TarError::Header {
            offset: self.offset,
            what,
        }
    }

    /// The sum of all bytes, its own field counted as spaces.
    fn check_sum(&self) -> Result<(), TarError> {
        let sum = self.bytes.iter().enumerate().fold(0u64, |sum, (at, byte)| {
            sum + u64::from(if (148..156).contains(&at) {
                b' '
            } else {
                *byte
            })
        });
        if self.number(148, 8)? != sum {
            return Err(self.bad("checksum mismatch (not a tar archive, or damaged)"));
        }
        Ok(())
    }

    /// A numeric field: octal digits, or base-256 with the top bit set.
    fn number(&self, at: usize, len: usize) -> Result<u64, TarError> {
        numeric(&self.bytes[at..at + len]).ok_or_else(|| self.bad("bad number"))
    }

    fn u32(&self, at: usize, len: usize) -> Result<u32, TarError> {
        u32::try_from(self.number(at, len)?).map_err(|_| self.bad("number too large"))
    }

    fn mtime(&self) -> Result<Timestamp, TarError> {
        let field = &self.bytes[136..148];
        // Base-256 of a time before 1970 is a negative number.
        let seconds = if field[0] == 0xff {
            i64::from_be_bytes(field[4..12].try_into().unwrap_or([0; 8]))
        } else {
            i64::try_from(self.number(136, 12)?).map_err(|_| self.bad("bad time"))?
        };
        Ok(Timestamp {
            seconds,
            nanoseconds: 0,
        })
    }

    /// Name and, for POSIX headers, its prefix.
    fn path(&self) -> Vec<u8> {
        let name = until_nul(&self.bytes[..100]);
        let prefix = until_nul(&self.bytes[345..500]);
        if &self.bytes[257..263] == b"ustar\0" && !prefix.is_empty() {
            return [prefix, b"/", name].concat();
        }
        name.to_vec()
    }
}

/// Applies the records of a pax extended header: `LENGTH KEY=VALUE\n`.
fn parse_pax(mut body: &[u8], ext: &mut Extensions, offset: u64) -> Result<(), TarError> {
    let bad = |what| TarError::Header { offset, what };
    while !body.is_empty() {
        let space = body.iter().take(20).position(|b| *b == b' ');
        let space = space.ok_or(bad("bad pax record"))?;
        let len = decimal(&body[..space]).and_then(|n| usize::try_from(n).ok());
        let len = len.filter(|n| *n > space + 1 && *n <= body.len());
        let (record, rest) = body.split_at(len.ok_or(bad("bad pax record"))?);
        body = rest;
        let record = record[space + 1..]
            .strip_suffix(b"\n")
            .ok_or(bad("bad pax record"))?;
        let equals = record
            .iter()
            .position(|b| *b == b'=')
            .ok_or(bad("bad pax record"))?;
        let (key, value) = (&record[..equals], &record[equals + 1..]);
        let key = std::str::from_utf8(key).map_err(|_| bad("bad pax key"))?;
        apply_pax(key, value, ext).ok_or(bad("bad pax value"))?;
    }
    Ok(())
}

/// Applies one pax record; `None` if its value does not decode.
fn apply_pax(key: &str, value: &[u8], ext: &mut Extensions) -> Option<()> {
    if let Some(name) = key.strip_prefix(XATTR_PREFIX) {
        ext.xattrs.insert(name.as_bytes().to_vec(), value.to_vec());
        return Some(());
    }
    let sparse = &mut ext.sparse;
    match key {
        "path" => ext.path = Some(value.to_vec()),
        "linkpath" => ext.link = Some(value.to_vec()),
        "size" => ext.size = Some(decimal(value)?),
        "uid" => ext.uid = Some(u32::try_from(decimal(value)?).ok()?),
        "gid" => ext.gid = Some(u32::try_from(decimal(value)?).ok()?),
        "mtime" => ext.mtime = Some(pax_time(value)?),
        "GNU.sparse.name" => sparse.name = Some(value.to_vec()),
        "GNU.sparse.size" | "GNU.sparse.realsize" => sparse.real_size = Some(decimal(value)?),
        "GNU.sparse.major" => sparse.major = Some(decimal(value)?),
        "GNU.sparse.offset" | "GNU.sparse.numbytes" => push_number(sparse, value)?,
        "GNU.sparse.map" => {
            for number in value.split(|b| *b == b',').filter(|n| !n.is_empty()) {
                push_number(sparse, number)?;
            }
        }
        _ => {}
    }
    Some(())
}

fn push_number(sparse: &mut SparseHeaders, digits: &[u8]) -> Option<()> {
    if sparse.numbers.len() >= 2 * MAX_SPARSE_SEGMENTS {
        return None;
    }
    sparse.numbers.push(decimal(digits)?);
    Some(())
}

/// `seconds[.fraction]`, possibly negative.
fn pax_time(value: &[u8]) -> Option<Timestamp> {
    let text = std::str::from_utf8(value).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let mut seconds: i64 = whole.parse().ok()?;
    if !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let digits: String = fraction
        .chars()
        .chain(std::iter::repeat('0'))
        .take(9)
        .collect();
    let mut nanoseconds: u32 = digits.parse().ok()?;
    if whole.starts_with('-') && nanoseconds > 0 {
        seconds = seconds.checked_sub(1)?;
        nanoseconds = 1_000_000_000 - nanoseconds;
    }
    Some(Timestamp {
        seconds,
        nanoseconds,
    })
}

/// Appends the offset/length pairs of old GNU sparse headers.
fn read_sparse_structs(bytes: &[u8], numbers: &mut Vec<u64>) -> Result<(), &'static str> {
    for pair in bytes.chunks_exact(24) {
        if pair[0] == 0 {
            break;
        }
        if numbers.len() >= 2 * MAX_SPARSE_SEGMENTS {
            return Err("too many sparse segments");
        }
        numbers.push(numeric(&pair[..12]).ok_or("bad sparse map")?);
        numbers.push(numeric(&pair[12..]).ok_or("bad sparse map")?);
    }
    Ok(())
}

fn numeric(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let (high, low) = field.split_at(field.len().saturating_sub(8));
        // Eight-byte fields carry the marker bit in the number itself.
        let high_zero = high
            .iter()
            .enumerate()
            .all(|(i, b)| *b == if i == 0 { 0x80 } else { 0 });
        let mut bytes = [0; 8];
        bytes[8 - low.len()..].copy_from_slice(low);
        if high.is_empty() {
            bytes[0] &= 0x7f;
        }
        return high_zero.then(|| u64::from_be_bytes(bytes));
    }
    let text = field.iter().skip_while(|b| **b == b' ');
    let digits: Vec<u8> = text
        .copied()
        .take_while(|b| *b != 0 && *b != b' ')
        .collect();
    digits.iter().try_fold(0u64, |value, digit| match digit {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

fn decimal(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn padding(size: u64) -> u64 {
    (RECORD_BYTES as u64 - size % RECORD_BYTES as u64) % RECORD_BYTES as u64
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|b| *b == 0).next().unwrap_or(bytes)
}
