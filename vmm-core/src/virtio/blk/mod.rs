//! The disk (virtio 1.2, section 5.2).

mod request;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use snapshot_format::fields::{FieldReader, FieldWriter};
use thiserror::Error;
use vm_memory::{Bytes, GuestAddress};

use self::request::{Outcome, Request, SECTOR_BYTES};
use super::device::{DeviceError, VirtioDevice, read_config_bytes};
use super::io::{DeviceIo, Taken};
use super::mmio::lock;
use crate::host_side::BlockBackend;
use crate::warn_limit::WarnLimit;

/// Longest serial number of a disk in bytes (`VIRTIO_BLK_T_GET_ID`).
pub const MAX_ID_BYTES: usize = 20;
/// Device type.
const DEVICE_ID: u32 = 2;
/// Size of the request queue.
const QUEUE_SIZE: u16 = 128;
/// Requests that are worked on at the same time.
const WORKERS: usize = 4;
/// Most data descriptors of a request; header and status take two of the queue's.
const SEG_MAX: u32 = QUEUE_SIZE as u32 - 2;
/// Greatest length of one data descriptor in bytes.
const SIZE_MAX: u32 = 256 << 10;
/// Most sectors in one range of a discard or write-zeroes request: 1 GiB.
const MAX_RANGE_SECTORS: u32 = 1 << 21;
/// Most ranges in one discard or write-zeroes request.
const MAX_RANGES: u32 = 16;
/// log2 of the physical block's logical blocks: 4 KiB of 512 bytes.
const PHYSICAL_BLOCK_EXP: u8 = 3;
/// Most flushes in flight that a saved state may name: as many as the queue has chains.
const MAX_FLUSHES: usize = QUEUE_SIZE as usize;

/// Feature bits (5.2.3).
mod feature {
    pub(super) const SIZE_MAX: u64 = 1 << 1;
    pub(super) const SEG_MAX: u64 = 1 << 2;
    pub(super) const RO: u64 = 1 << 5;
    pub(super) const BLK_SIZE: u64 = 1 << 6;
    pub(super) const FLUSH: u64 = 1 << 9;
    pub(super) const TOPOLOGY: u64 = 1 << 10;
    pub(super) const DISCARD: u64 = 1 << 13;
    pub(super) const WRITE_ZEROES: u64 = 1 << 14;
}

/// Why a disk cannot be made.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BlkError {
    /// The size is not a multiple of 512 bytes.
    #[error("disk of {bytes} bytes: not a multiple of 512")]
    Size {
        /// The disk's size in bytes.
        bytes: u64,
    },
    /// Not a disk that can take the place of the other.
    #[error(
        "a disk of {given} bytes cannot take the place of one of {have}, or one of them is read-only"
    )]
    Other {
        /// Size in bytes of the disk that there is.
        have: u64,
        /// Size in bytes of the one given.
        given: u64,
    },
    /// The serial number is too long.
    #[error("serial number of {length} bytes, at most {MAX_ID_BYTES} fit")]
    Id {
        /// Its length in bytes.
        length: usize,
    },
}

/// A disk over a [`BlockBackend`].
///
/// Four requests are worked on in parallel and complete in any order. A flush does not keep the
/// device from coming to rest: its name is part of the saved state, a restored device flushes again,
/// and the device it was saved from goes on with it.
pub struct Blk {
    backend: RwLock<Arc<dyn BlockBackend>>,
    config: [u8; CONFIG_BYTES],
    id: [u8; MAX_ID_BYTES],
    flushes: Mutex<Flushes>,
    /// For requests and flushes that the host failed: a guest can repeat them.
    warnings: WarnLimit,
}

/// Flushes that were taken from the queue and are not in the used ring yet.
#[derive(Debug, Default)]
struct Flushes {
    next: u64,
    in_flight: BTreeMap<u64, Flush>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Flush {
    head: u16,
    /// Where the driver waits for the status byte.
    status: GuestAddress,
    /// Named by a restored state; no worker is on it yet.
    to_reissue: bool,
}

impl Blk {
    /// A disk; `id` is its serial number.
    pub fn new(backend: Arc<dyn BlockBackend>, id: &str) -> Result<Self, BlkError> {
        let bytes = backend.size_bytes();
        if !bytes.is_multiple_of(SECTOR_BYTES) {
            return Err(BlkError::Size { bytes });
        }
        let mut padded = [0; MAX_ID_BYTES];
        padded
            .get_mut(..id.len())
            .ok_or(BlkError::Id { length: id.len() })?
            .copy_from_slice(id.as_bytes());
        Ok(Self {
            config: config(bytes / SECTOR_BYTES),
            backend: RwLock::new(backend),
            id: padded,
            flushes: Mutex::default(),
            warnings: WarnLimit::default(),
        })
    }

    /// Puts another disk in the place of the one that there is; the device is at rest. Flushes in flight are for the new
    /// one: what the old one answers does not count.
    pub(crate) fn exchange(
        &self,
        backend: Arc<dyn BlockBackend>,
    ) -> Result<Arc<dyn BlockBackend>, BlkError> {
        let now = self.backend();
        let (have, given) = (now.size_bytes(), backend.size_bytes());
        if have != given || now.read_only() != backend.read_only() {
            return Err(BlkError::Other { have, given });
        }
        let mut flushes = lock(&self.flushes);
        for flush in std::mem::take(&mut flushes.in_flight).into_values() {
            let number = flushes.next;
            flushes.next += 1;
            let to_reissue = true;
            let flush = Flush {
                to_reissue,
                ..flush
            };
            flushes.in_flight.insert(number, flush);
        }
        let mut place = self.backend.write().unwrap_or_else(PoisonError::into_inner);
        Ok(std::mem::replace(&mut *place, backend))
    }

    fn backend(&self) -> Arc<dyn BlockBackend> {
        let backend = self.backend.read();
        backend.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn answer(&self, io: &DeviceIo, taken: Taken<'_>, bounce: &mut Vec<u8>) {
        let request = match &taken.buffers {
            Ok(buffers) => Request::parse(io.ram(), buffers.clone()),
            Err(error) => Err(error.clone()),
        };
        let request = match request {
            Ok(request) => request,
            Err(error) => {
                // Without a status byte there is nothing to answer with.
                tracing::debug!(%error, "blk request without a usable header");
                return io.finish(taken, 0);
            }
        };
        if request.is_flush() {
            return self.flush(io, taken, request.status_address());
        }
        let Outcome { status, written } = request.execute(io.ram(), self, bounce);
        let status_written = request.write_status(io.ram(), status);
        io.finish(taken, written + u32::from(status_written));
    }

    /// Flushes without holding the device's ticket.
    fn flush(&self, io: &DeviceIo, taken: Taken<'_>, status: GuestAddress) {
        let number = self.record_flush(taken.head(), status, false);
        drop(taken);
        self.carry_out_flush(io, number);
    }

    fn record_flush(&self, head: u16, status: GuestAddress, to_reissue: bool) -> u64 {
        let mut flushes = lock(&self.flushes);
        let number = flushes.next;
        flushes.next += 1;
        flushes.in_flight.insert(
            number,
            Flush {
                head,
                status,
                to_reissue,
            },
        );
        number
    }

    fn carry_out_flush(&self, io: &DeviceIo, number: u64) {
        let status = match self.backend().flush() {
            Ok(()) => request::STATUS_OK,
            Err(error) => {
                if let Some(left_out) = self.warnings.admit() {
                    tracing::warn!(%error, left_out, "disk flush failed");
                }
                request::STATUS_IOERR
            }
        };
        let Some(ticket) = io.begin() else {
            return;
        };
        // It is gone if the device was reset or restored meanwhile.
        let Some(flush) = lock(&self.flushes).in_flight.remove(&number) else {
            return;
        };
        let written = io.ram().write_obj(status, flush.status).is_ok();
        io.put_used(0, flush.head, written.into(), &ticket);
    }

    fn next_to_reissue(&self) -> Option<u64> {
        let mut flushes = lock(&self.flushes);
        let (number, flush) = flushes
            .in_flight
            .iter_mut()
            .find(|(_, flush)| flush.to_reissue)?;
        flush.to_reissue = false;
        Some(*number)
    }
}

impl VirtioDevice for Blk {
    fn device_id(&self) -> u32 {
        DEVICE_ID
    }

    fn kind(&self) -> &'static str {
        "virtio-blk"
    }

    fn features(&self) -> u64 {
        let common = feature::SIZE_MAX
            | feature::SEG_MAX
            | feature::BLK_SIZE
            | feature::FLUSH
            | feature::TOPOLOGY;
        common
            | if self.backend().read_only() {
                feature::RO
            } else {
                feature::DISCARD | feature::WRITE_ZEROES
            }
    }

    fn queue_sizes(&self) -> &[u16] {
        &[QUEUE_SIZE]
    }

    fn workers(&self) -> usize {
        WORKERS
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        read_config_bytes(&self.config, offset, data);
    }

    fn reset(&self) {
        lock(&self.flushes).in_flight.clear();
    }

    fn serve(&self, io: &DeviceIo, bounce: &mut Vec<u8>) {
        while let Some(number) = self.next_to_reissue() {
            self.carry_out_flush(io, number);
        }
        while let Some(taken) = io.take(0) {
            self.answer(io, taken, bounce);
        }
    }

    fn save(&self, state: &mut FieldWriter) {
        state
            .u64(1, self.backend().size_bytes() / SECTOR_BYTES)
            .bytes(2, &self.id);
        for flush in lock(&self.flushes).in_flight.values() {
            state.nested(3, |inner| {
                inner.u32(1, flush.head.into()).u64(2, flush.status.0);
            });
        }
    }

    fn restore(&self, state: &FieldReader<'_>) -> Result<(), DeviceError> {
        let sectors = self.backend().size_bytes() / SECTOR_BYTES;
        let recorded = state.u64(1)?;
        if recorded != sectors {
            return Err(DeviceError::Invalid(format!(
                "disk of {recorded} sectors, the one given has {sectors}"
            )));
        }
        let id = state.array::<MAX_ID_BYTES>(2)?;
        if id != self.id {
            return Err(DeviceError::Invalid("another serial number".to_owned()));
        }
        if state.all(3).count() > MAX_FLUSHES {
            return Err(DeviceError::Invalid("too many flushes".to_owned()));
        }
        let mut flushes = Vec::new();
        for bytes in state.all(3) {
            let fields = FieldReader::parse(bytes)?;
            flushes.push((fields.u16(1)?, GuestAddress(fields.u64(2)?)));
        }
        lock(&self.flushes).in_flight.clear();
        for (head, status) in flushes {
            self.record_flush(head, status, true);
        }
        Ok(())
    }
}

/// Length of the configuration space in bytes, up to `write_zeroes_may_unmap` and its padding.
const CONFIG_BYTES: usize = 60;

/// The configuration space (5.2.4).
fn config(sectors: u64) -> [u8; CONFIG_BYTES] {
    let mut config = [0; CONFIG_BYTES];
    let mut put = |offset: usize, bytes: &[u8]| {
        config[offset..offset + bytes.len()].copy_from_slice(bytes);
    };
    put(0, &sectors.to_le_bytes());
    put(8, &SIZE_MAX.to_le_bytes());
    put(12, &SEG_MAX.to_le_bytes());
    put(20, &(SECTOR_BYTES as u32).to_le_bytes());
    put(24, &[PHYSICAL_BLOCK_EXP]);
    // Least I/O size: one physical block, in logical blocks.
    put(26, &(1_u16 << PHYSICAL_BLOCK_EXP).to_le_bytes());
    put(36, &MAX_RANGE_SECTORS.to_le_bytes());
    put(40, &MAX_RANGES.to_le_bytes());
    // Discards are best aligned to physical blocks.
    put(44, &(1_u32 << PHYSICAL_BLOCK_EXP).to_le_bytes());
    put(48, &MAX_RANGE_SECTORS.to_le_bytes());
    put(52, &MAX_RANGES.to_le_bytes());
    // Writing zeroes may unmap.
    put(56, &[1]);
    config
}

#[cfg(test)]
mod tests;
