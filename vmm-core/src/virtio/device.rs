use std::io;
use std::sync::Arc;

use snapshot_format::FieldError;
use snapshot_format::fields::{FieldReader, FieldWriter};
use thiserror::Error;

use super::io::DeviceIo;

/// Why a device's part of a saved state cannot be restored.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The fields are damaged.
    #[error(transparent)]
    Fields(#[from] FieldError),
    /// A value that the device cannot have.
    #[error("{0}")]
    Invalid(String),
    /// The host failed.
    #[error("{what}")]
    Host {
        /// What was tried.
        what: &'static str,
        /// The host's answer.
        #[source]
        source: io::Error,
    },
}

/// What makes a virtio device a disk, a socket, ...; [`super::VirtioMmio`] does the rest.
///
/// Methods other than [`run`](Self::run), [`serve`](Self::serve) and the configuration accesses are called while no worker
/// holds a ticket.
pub trait VirtioDevice: Send + Sync + 'static {
    /// The device type of the virtio specification, section 5.
    fn device_id(&self) -> u32;

    /// Kind of its saved state: `virtio-blk`.
    fn kind(&self) -> &'static str;

    /// Feature bits of the device type (not the transport's) that it offers.
    fn features(&self) -> u64;

    /// Greatest size of each queue, powers of two.
    fn queue_sizes(&self) -> &[u16];

    /// Number of worker threads.
    fn workers(&self) -> usize {
        1
    }

    /// Whether the worker waits in `poll` on [`DeviceIo::wake_fd`] instead of in
    /// [`DeviceIo::wait`].
    fn polls(&self) -> bool {
        false
    }

    /// Called once, before anything else.
    fn attach(&self, _io: &Arc<DeviceIo>) {}

    /// Reads the configuration space; bytes behind its end stay as they are (zero).
    fn read_config(&self, offset: u64, data: &mut [u8]);

    /// Writes the configuration space.
    fn write_config(&self, _offset: u64, _data: &[u8]) {}

    /// The driver reset the device.
    fn reset(&self);

    /// Does all that can be done now, without waiting for anything but the host's answers.
    /// `scratch` is the caller's buffer, reused; it holds nothing of meaning between calls.
    fn serve(&self, io: &DeviceIo, scratch: &mut Vec<u8>);

    /// Body of a worker thread; returns when [`DeviceIo`] says that the device stopped.
    fn run(&self, io: &DeviceIo) {
        let mut scratch = Vec::new();
        while io.wait() {
            self.serve(io, &mut scratch);
        }
    }

    /// Writes the device's own state (not the transport's).
    fn save(&self, state: &mut FieldWriter);

    /// Takes the device's own state; untrusted.
    fn restore(&self, state: &FieldReader<'_>) -> Result<(), DeviceError>;

    /// Called after the transport's state was restored too.
    fn restored(&self, _io: &DeviceIo) {}
}

/// Copies what lies at `offset` of a configuration space.
pub(super) fn read_config_bytes(config: &[u8], offset: u64, data: &mut [u8]) {
    let Some(rest) = usize::try_from(offset)
        .ok()
        .and_then(|offset| config.get(offset..))
    else {
        return;
    };
    let length = rest.len().min(data.len());
    data[..length].copy_from_slice(&rest[..length]);
}
