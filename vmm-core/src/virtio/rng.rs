//! The entropy source (virtio 1.2, section 5.4).

use std::fs::File;
use std::io::{self, Read};
use std::sync::Mutex;

use snapshot_format::fields::{FieldReader, FieldWriter};

use super::device::{DeviceError, VirtioDevice};
use super::io::{DeviceIo, Taken};
use super::mmio::lock;
use crate::warn_limit::WarnLimit;

/// Device type.
const DEVICE_ID: u32 = 4;
/// Size of the request queue.
const QUEUE_SIZE: u16 = 64;
/// Most bytes given for one request; the driver asks again.
const MAX_REQUEST_BYTES: u64 = 4096;

/// An entropy source. It has no state of its own: bytes come from the host at the time of asking,
/// so two copies of a machine never get the same.
pub struct Rng {
    source: Mutex<Box<dyn Read + Send>>,
    warnings: WarnLimit,
}

impl Rng {
    /// Gives the host's random numbers.
    pub fn from_host() -> io::Result<Self> {
        Ok(Self::from_source(Self::host_source()?))
    }

    /// The host's random numbers, as [`from_host`](Self::from_host) gives them.
    pub fn host_source() -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(File::open("/dev/urandom")?))
    }

    /// Gives what is read from `source`, for runs that have to repeat themselves. The source's
    /// position is not part of the saved state.
    pub fn from_source(source: Box<dyn Read + Send>) -> Self {
        Self {
            source: Mutex::new(source),
            warnings: WarnLimit::default(),
        }
    }

    fn answer(&self, io: &DeviceIo, taken: Taken<'_>) {
        let written = match &taken.buffers {
            Ok(buffers) => {
                let wanted = buffers.writable.bytes().min(MAX_REQUEST_BYTES) as usize;
                let mut data = vec![0; wanted];
                let filled = lock(&self.source).read_exact(&mut data);
                if let Err(error) = &filled
                    && let Some(left_out) = self.warnings.admit()
                {
                    tracing::error!(%error, left_out, "no random numbers from the host");
                }
                // Nothing is given rather than something that is not random.
                let given = filled.is_ok() && buffers.writable.write(io.ram(), 0, &data).is_ok();
                if given { wanted as u32 } else { 0 }
            }
            Err(_) => 0,
        };
        io.finish(taken, written);
    }
}

impl VirtioDevice for Rng {
    fn device_id(&self) -> u32 {
        DEVICE_ID
    }

    fn kind(&self) -> &'static str {
        "virtio-rng"
    }

    fn features(&self) -> u64 {
        0
    }

    fn queue_sizes(&self) -> &[u16] {
        &[QUEUE_SIZE]
    }

    fn read_config(&self, _offset: u64, _data: &mut [u8]) {}

    fn reset(&self) {}

    fn serve(&self, io: &DeviceIo, _scratch: &mut Vec<u8>) {
        while let Some(taken) = io.take(0) {
            self.answer(io, taken);
        }
    }

    fn save(&self, _state: &mut FieldWriter) {}

    fn restore(&self, _state: &FieldReader<'_>) -> Result<(), DeviceError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
