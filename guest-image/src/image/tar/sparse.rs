//! Sparse files of GNU tar, in all the forms in which it stores them.

use std::io::{self, Read};

use super::header::{Header, numeric};
use super::pax::{SparseHeaders, decimal};
use super::{EntryData, TarEntry, TarError, TarReader, padding};
use crate::image::spool::{ContentReader, MAX_FILE_BYTES};

/// Most segments of one sparse file.
pub(super) const MAX_SPARSE_SEGMENTS: usize = 65536;

impl<R: Read> TarReader<R> {
    /// Sparse map in the header and in records behind it (GNU "oldgnu").
    pub(super) fn old_gnu_sparse(
        &mut self,
        header: &Header,
        entry: &mut TarEntry,
    ) -> Result<(), TarError> {
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
    pub(super) fn pax_sparse(
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

/// The contents of a sparse file, holes as zeros.
pub(super) struct SparseData<'a, R> {
    pub(super) segments: std::vec::IntoIter<(u64, u64)>,
    pub(super) current: Option<(u64, u64)>,
    pub(super) position: u64,
    pub(super) size_bytes: u64,
    pub(super) data: EntryData<'a, R>,
}

impl<R: Read> Read for SparseData<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.next_segment();
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

impl<R: Read> ContentReader for SparseData<'_, R> {
    fn skip_hole(&mut self, most: u64) -> io::Result<u64> {
        self.next_segment();
        let at = self.current.map_or(self.size_bytes, |(at, _)| at);
        let hole = at.saturating_sub(self.position).min(most);
        self.position += hole;
        Ok(hole)
    }
}

impl<R> SparseData<'_, R> {
    /// Moves on to the segment that lies at the position or behind it.
    fn next_segment(&mut self) {
        let is_behind = |(at, len): (u64, u64)| self.position >= at + len;
        if self.current.is_none_or(is_behind) {
            self.current = self.segments.next();
        }
    }
}
