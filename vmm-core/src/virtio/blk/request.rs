//! One request: header, data, status (virtio 1.2, section 5.2.6).

use std::io;

use vm_memory::{Bytes, GuestAddress};

use super::{Blk, MAX_RANGE_SECTORS, MAX_RANGES, SEG_MAX, SIZE_MAX};
use crate::host_side::BlockBackend;
use crate::ram::GuestRam;
use crate::virtio::io::Buffers;
use crate::virtio::segments::{ChainError, Segments};
use crate::warn_limit::WarnLimit;

/// Size of a sector in bytes, in which positions are counted.
pub(super) const SECTOR_BYTES: u64 = 512;
/// Length of a request's header in bytes.
const HEADER_BYTES: u64 = 16;
/// Length of one range of a discard or write-zeroes request in bytes.
const RANGE_BYTES: u64 = 16;
/// Most bytes that are moved at once; the size of a worker's buffer.
const BOUNCE_BYTES: usize = 256 << 10;
/// Most data bytes of one request: what a driver that keeps to `size_max` and `seg_max` can ask.
const MAX_DATA_BYTES: u64 = SEG_MAX as u64 * SIZE_MAX as u64;

/// Request types.
mod kind {
    pub(super) const IN: u32 = 0;
    pub(super) const OUT: u32 = 1;
    pub(super) const FLUSH: u32 = 4;
    pub(super) const GET_ID: u32 = 8;
    pub(super) const DISCARD: u32 = 11;
    pub(super) const WRITE_ZEROES: u32 = 13;
}

/// Status: done.
pub(super) const STATUS_OK: u8 = 0;
/// Status: failed.
pub(super) const STATUS_IOERR: u8 = 1;
/// Status: not a request that this device knows.
pub(super) const STATUS_UNSUPPORTED: u8 = 2;

/// A parsed request.
pub(super) struct Request {
    kind: u32,
    sector: u64,
    readable: Segments,
    writable: Segments,
    status: GuestAddress,
}

/// How a request ended, and how many bytes of data went to the guest.
pub(super) struct Outcome {
    pub(super) status: u8,
    pub(super) written: u32,
}

enum Failure {
    Io(io::Error),
    Chain(ChainError),
    Range,
    ReadOnly,
    Unsupported,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<ChainError> for Failure {
    fn from(error: ChainError) -> Self {
        Self::Chain(error)
    }
}

impl Request {
    pub(super) fn parse(ram: &GuestRam, buffers: Buffers) -> Result<Self, ChainError> {
        let Buffers {
            mut readable,
            mut writable,
        } = buffers;
        let mut header = [0; HEADER_BYTES as usize];
        readable
            .take_front(HEADER_BYTES)?
            .read(ram, 0, &mut header)?;
        let status = writable.take_back(1)?.parts()[0].0;
        let [k0, k1, k2, k3, _, _, _, _, sector @ ..] = header;
        Ok(Self {
            kind: u32::from_le_bytes([k0, k1, k2, k3]),
            sector: u64::from_le_bytes(sector),
            readable,
            writable,
            status,
        })
    }

    pub(super) fn is_flush(&self) -> bool {
        self.kind == kind::FLUSH
    }

    pub(super) fn status_address(&self) -> GuestAddress {
        self.status
    }

    /// Whether the status byte lies in memory, and is written.
    pub(super) fn write_status(&self, ram: &GuestRam, status: u8) -> bool {
        ram.write_obj(status, self.status).is_ok()
    }

    /// Does what is asked; `bounce` is the worker's buffer, reused.
    pub(super) fn execute(&self, ram: &GuestRam, disk: &Blk, bounce: &mut Vec<u8>) -> Outcome {
        let backend = &*disk.backend();
        let result = match self.kind {
            kind::IN => self.read(ram, backend, bounce),
            kind::OUT => self.write(ram, backend, bounce).map(|()| 0),
            kind::GET_ID => self.get_id(ram, &disk.id),
            kind::DISCARD => self.ranges(ram, backend).map(|()| 0),
            kind::WRITE_ZEROES => self.ranges(ram, backend).map(|()| 0),
            _ => Err(Failure::Unsupported),
        };
        match result {
            Ok(written) => Outcome {
                status: STATUS_OK,
                written,
            },
            Err(failure) => failure.outcome(&disk.warnings),
        }
    }

    fn read(
        &self,
        ram: &GuestRam,
        backend: &dyn BlockBackend,
        bounce: &mut Vec<u8>,
    ) -> Result<u32, Failure> {
        let (start, length) = self.data_range(backend, &self.writable)?;
        bounce.resize(BOUNCE_BYTES, 0);
        let mut done = 0;
        while done < length {
            let piece = &mut bounce[..(length - done).min(BOUNCE_BYTES as u64) as usize];
            backend.read_at(start + done, piece)?;
            self.writable.write(ram, done, piece)?;
            done += piece.len() as u64;
        }
        // At most MAX_DATA_BYTES.
        Ok(done as u32)
    }

    fn write(
        &self,
        ram: &GuestRam,
        backend: &dyn BlockBackend,
        bounce: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        if backend.read_only() {
            return Err(Failure::ReadOnly);
        }
        let (start, length) = self.data_range(backend, &self.readable)?;
        bounce.resize(BOUNCE_BYTES, 0);
        let mut done = 0;
        while done < length {
            let piece = &mut bounce[..(length - done).min(BOUNCE_BYTES as u64) as usize];
            self.readable.read(ram, done, piece)?;
            backend.write_at(start + done, piece)?;
            done += piece.len() as u64;
        }
        Ok(())
    }

    /// Position and length in bytes, checked against the disk.
    fn data_range(
        &self,
        backend: &dyn BlockBackend,
        data: &Segments,
    ) -> Result<(u64, u64), Failure> {
        let length = data.bytes();
        if !length.is_multiple_of(SECTOR_BYTES) || length > MAX_DATA_BYTES {
            return Err(Failure::Range);
        }
        let start = byte_range(backend, self.sector, length / SECTOR_BYTES)?;
        Ok((start, length))
    }

    fn get_id(&self, ram: &GuestRam, id: &[u8]) -> Result<u32, Failure> {
        let length = self.writable.bytes().min(id.len() as u64) as usize;
        self.writable.write(ram, 0, &id[..length])?;
        Ok(length as u32)
    }

    fn ranges(&self, ram: &GuestRam, backend: &dyn BlockBackend) -> Result<(), Failure> {
        if backend.read_only() {
            return Err(Failure::ReadOnly);
        }
        let count = self.readable.bytes() / RANGE_BYTES;
        if !self.readable.bytes().is_multiple_of(RANGE_BYTES) || count > u64::from(MAX_RANGES) {
            return Err(Failure::Range);
        }
        let mut ranges = Vec::new();
        for index in 0..count {
            ranges.push(self.range(ram, backend, index)?);
        }
        for (start, length) in ranges {
            if self.kind == kind::DISCARD {
                backend.discard(start, length)?;
            } else {
                backend.write_zeroes(start, length)?;
            }
        }
        Ok(())
    }

    fn range(
        &self,
        ram: &GuestRam,
        backend: &dyn BlockBackend,
        index: u64,
    ) -> Result<(u64, u64), Failure> {
        let mut raw = [0; RANGE_BYTES as usize];
        self.readable.read(ram, index * RANGE_BYTES, &mut raw)?;
        let [
            s0,
            s1,
            s2,
            s3,
            s4,
            s5,
            s6,
            s7,
            n0,
            n1,
            n2,
            n3,
            f0,
            f1,
            f2,
            f3,
        ] = raw;
        let sector = u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
        let sectors = u32::from_le_bytes([n0, n1, n2, n3]);
        let flags = u32::from_le_bytes([f0, f1, f2, f3]);
        // The one flag, "unmap", is for write-zeroes only; a discard with it is unsupported.
        let allowed = u32::from(self.kind == kind::WRITE_ZEROES);
        if flags & !allowed != 0 {
            return Err(Failure::Unsupported);
        }
        if sectors > MAX_RANGE_SECTORS {
            return Err(Failure::Range);
        }
        let start = byte_range(backend, sector, sectors.into())?;
        Ok((start, u64::from(sectors) * SECTOR_BYTES))
    }
}

impl Failure {
    fn outcome(self, warnings: &WarnLimit) -> Outcome {
        let status = match self {
            Self::Unsupported => STATUS_UNSUPPORTED,
            Self::Io(error) => {
                if let Some(left_out) = warnings.admit() {
                    tracing::warn!(%error, left_out, "disk request failed");
                }
                STATUS_IOERR
            }
            Self::Chain(error) => {
                tracing::debug!(%error, "disk request with unusable buffers");
                STATUS_IOERR
            }
            Self::Range | Self::ReadOnly => STATUS_IOERR,
        };
        Outcome { status, written: 0 }
    }
}

/// The position in bytes of a range of sectors that lies on the disk.
fn byte_range(backend: &dyn BlockBackend, sector: u64, sectors: u64) -> Result<u64, Failure> {
    let end = sector.checked_add(sectors).ok_or(Failure::Range)?;
    if end > backend.size_bytes() / SECTOR_BYTES {
        return Err(Failure::Range);
    }
    Ok(sector * SECTOR_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::warn_limit::testing::assert_limited;

    #[test]
    fn a_guest_that_repeats_a_failing_request_does_not_fill_the_log() {
        let limit = WarnLimit::default();
        assert_limited(|| {
            let failure = Failure::from(io::Error::other("bad sector"));
            assert_eq!(failure.outcome(&limit).status, STATUS_IOERR);
        });
    }
}
