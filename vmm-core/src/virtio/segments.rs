use thiserror::Error;
use virtio_queue::DescriptorChain;
use vm_memory::{Bytes, GuestAddress};

use crate::ram::GuestRam;

/// The longest descriptor chain that a device looks at.
pub const MAX_CHAIN_DESCRIPTORS: usize = 256;

/// Why a descriptor chain cannot be used.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChainError {
    /// More than [`MAX_CHAIN_DESCRIPTORS`], or a loop.
    #[error("descriptor chain is longer than {MAX_CHAIN_DESCRIPTORS}")]
    TooLong,
    /// A device-readable descriptor behind a device-writable one.
    #[error("device-readable descriptor behind a device-writable one")]
    Order,
    /// A buffer ends before what was asked for.
    #[error("buffer of {have} bytes where {need} are needed")]
    Short {
        /// Bytes in the buffer.
        have: u64,
        /// Bytes needed.
        need: u64,
    },
    /// A buffer is not in guest memory.
    #[error("buffer is not in guest memory")]
    Address,
}

/// One direction of a descriptor chain: guest buffers that count as one after the other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Segments {
    parts: Vec<(GuestAddress, u32)>,
}

impl Segments {
    /// Splits a chain into what the device may read and what it may write.
    pub(super) fn split(
        chain: DescriptorChain<&GuestRam>,
    ) -> Result<(Segments, Segments), ChainError> {
        let (mut readable, mut writable) = (Segments::default(), Segments::default());
        let mut writes = false;
        for (index, descriptor) in chain.enumerate() {
            if index == MAX_CHAIN_DESCRIPTORS {
                return Err(ChainError::TooLong);
            }
            let is_write = descriptor.is_write_only();
            if writes && !is_write {
                return Err(ChainError::Order);
            }
            writes |= is_write;
            // A buffer of no bytes is none: whoever takes the first part for the first byte would be wrong.
            if descriptor.len() > 0 {
                let side = if is_write {
                    &mut writable
                } else {
                    &mut readable
                };
                side.parts.push((descriptor.addr(), descriptor.len()));
            }
        }
        Ok((readable, writable))
    }

    /// Total length in bytes.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| u64::from(part.1)).sum()
    }

    /// The buffers.
    pub fn parts(&self) -> &[(GuestAddress, u32)] {
        &self.parts
    }

    /// Cuts `bytes` off the front.
    pub fn take_front(&mut self, bytes: u64) -> Result<Segments, ChainError> {
        let mut rest = self.check(bytes)?;
        let mut front = Segments::default();
        while rest > 0 {
            let (address, length) = self.parts[0];
            let taken = rest.min(u64::from(length));
            front.parts.push((address, taken as u32));
            rest -= taken;
            if taken == u64::from(length) {
                self.parts.remove(0);
            } else {
                self.parts[0] = (
                    GuestAddress(address.0.wrapping_add(taken)),
                    length - taken as u32,
                );
            }
        }
        Ok(front)
    }

    /// Cuts `bytes` off the end.
    pub fn take_back(&mut self, bytes: u64) -> Result<Segments, ChainError> {
        self.check(bytes)?;
        let front = self.take_front(self.bytes() - bytes)?;
        Ok(std::mem::replace(self, front))
    }

    /// Reads at `offset` bytes from the start.
    pub fn read(&self, ram: &GuestRam, offset: u64, into: &mut [u8]) -> Result<(), ChainError> {
        self.each_piece(offset, into.len(), |address, done, length| {
            ram.read_slice(&mut into[done..done + length], address)
                .is_ok()
        })
    }

    /// Writes at `offset` bytes from the start.
    pub fn write(&self, ram: &GuestRam, offset: u64, data: &[u8]) -> Result<(), ChainError> {
        self.each_piece(offset, data.len(), |address, done, length| {
            ram.write_slice(&data[done..done + length], address).is_ok()
        })
    }

    fn check(&self, need: u64) -> Result<u64, ChainError> {
        let have = self.bytes();
        (need <= have)
            .then_some(need)
            .ok_or(ChainError::Short { have, need })
    }

    fn each_piece(
        &self,
        offset: u64,
        length: usize,
        mut copy: impl FnMut(GuestAddress, usize, usize) -> bool,
    ) -> Result<(), ChainError> {
        self.check(offset.saturating_add(length as u64))?;
        let (mut skip, mut done) = (offset, 0);
        for &(address, part_bytes) in &self.parts {
            let part_bytes = u64::from(part_bytes);
            if skip >= part_bytes {
                skip -= part_bytes;
                continue;
            }
            if done == length {
                break;
            }
            let piece = ((part_bytes - skip) as usize).min(length - done);
            let start = address.0.checked_add(skip).ok_or(ChainError::Address)?;
            if !copy(GuestAddress(start), done, piece) {
                return Err(ChainError::Address);
            }
            done += piece;
            skip = 0;
        }
        Ok(())
    }
}
