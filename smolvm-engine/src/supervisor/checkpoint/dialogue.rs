//! A capture's talk with the VMM.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use snapshot_format::WallTime;

use super::error::CheckpointError;
use super::{CaptureState, OnProgress, Run};
use crate::channel as socket_channel;
use crate::channel::messages::{BeginCapture, CaptureEvent, CaptureRequest, ToVmm, UnitState};
use crate::file_error::FileError;
use crate::machine::MachineFile;
use crate::save::chunk_sink::ChunkSink;

/// Slots of the window between VMM and supervisor: 64 MiB.
const WINDOW_SLOTS: u32 = 1024;
/// How long the VMM may stay silent during a capture.
const VMM_PATIENCE: Duration = Duration::from_secs(120);

/// What the VMM brought out.
pub(super) struct Moment {
    pub(super) states: Vec<UnitState>,
    pub(super) pause_micros: u64,
    pub(super) taken: WallTime,
}

impl Run<'_> {
    /// Lets the VMM capture and takes what it sends.
    pub(super) fn receive(
        &mut self,
        machine: &MachineFile,
        full: bool,
        sink: &mut ChunkSink<'_>,
        progress: OnProgress<'_>,
    ) -> Result<Moment, CheckpointError> {
        let window = sink.window()?;
        let top = machine.disk.layers.last().ok_or(CheckpointError::Ended)?;
        let top_path = self.shared.dir.disk().join(top);
        let top = File::options()
            .read(true)
            .write(true)
            .open(&top_path)
            .map_err(FileError::at("open", &top_path))?;
        let begin = CaptureRequest::Begin(BeginCapture {
            full,
            slots: WINDOW_SLOTS,
        });
        self.send(begin, &[window.as_fd(), top.as_fd()])?;
        let mut total = None;
        let mut instant = None;
        loop {
            match self.next()? {
                CaptureEvent::ToCome { bytes } => total = Some(bytes),
                CaptureEvent::Chunks(chunks) => {
                    let freed = sink.take(&chunks)?;
                    if !freed.is_empty() {
                        self.send(CaptureRequest::FreeSlots(freed), &[])?;
                    }
                    if !progress("memory", sink.seen_bytes(), total) {
                        return Err(CheckpointError::Cancelled);
                    }
                }
                CaptureEvent::Frozen {
                    states,
                    pause_micros,
                    taken,
                } => {
                    self.frozen = true;
                    let taken = WallTime::new(taken.0, taken.1).unwrap_or_default();
                    instant = Some(Moment {
                        states,
                        pause_micros,
                        taken,
                    });
                }
                CaptureEvent::MemoryDone => {
                    return instant.ok_or(CheckpointError::Vmm("no instant".to_owned()));
                }
                CaptureEvent::Failed { message, switched } => {
                    self.frozen |= switched;
                    return Err(CheckpointError::Vmm(message));
                }
                other => return Err(CheckpointError::Vmm(format!("unexpected {other:?}"))),
            }
        }
    }

    pub(super) fn next(&self) -> Result<CaptureEvent, CheckpointError> {
        match self.route.next(VMM_PATIENCE) {
            Ok(message) => Ok(message),
            Err(RecvTimeoutError::Disconnected) => Err(CheckpointError::Ended),
            Err(RecvTimeoutError::Timeout) => {
                Err(CheckpointError::Vmm("it stays silent".to_owned()))
            }
        }
    }

    pub(super) fn send(
        &self,
        request: CaptureRequest,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), CheckpointError> {
        let message = ToVmm::Capture(self.route.number(), request);
        let socket = self
            .shared
            .vmm_socket
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        Ok(socket_channel::send(&socket, &message, descriptors)?)
    }

    /// After an error: the VMM forgets the capture, an unused layer goes away, nothing else changed.
    pub(super) fn abort(&mut self, state: &mut MutexGuard<'_, CaptureState>) {
        if self.shared.has_ended() {
            return;
        }
        if let Err(error) = self.send(CaptureRequest::End, &[]) {
            tracing::debug!(%error, "the VMM is gone");
            return;
        }
        loop {
            match self.next() {
                Ok(CaptureEvent::Ended) => break,
                Ok(CaptureEvent::Frozen { .. }) => self.frozen = true,
                Ok(CaptureEvent::Failed { switched, .. }) => self.frozen |= switched,
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%error, "the VMM does not end the capture");
                    // What it holds is unknown: the next capture takes everything.
                    state.base = None;
                    return;
                }
            }
        }
        if !self.frozen
            && let Err(error) = self.drop_unused_layer()
        {
            tracing::warn!(%error, "an unused layer is kept");
        }
    }
}
