//! A capture's talk with the VMM, over a socket of its own.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use snapshot_format::WallTime;

use super::error::CheckpointError;
use super::{CaptureState, Capturing, OnProgress, Run, SharedMemory};
use crate::channel::capture::{BeginCapture, CaptureEvent, CaptureRequest, UnitState};
use crate::channel::messages::ToVmm;
use crate::channel::{self as socket_channel, ChannelError};
use crate::file_error::FileError;
use crate::machine::MachineFile;
use crate::save::chunk_sink::ChunkSink;
use crate::supervisor::shared::STOPPED_PATIENCE;

/// Slots of the window between VMM and supervisor: 64 MiB.
const WINDOW_SLOTS: u32 = 1024;
/// How long the VMM may say nothing during a capture.
const VMM_PATIENCE: Duration = Duration::from_secs(120);
/// How often a capture that waits for the VMM looks whether it is still wanted.
const LOOK: Duration = Duration::from_millis(100);

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
        machine: &mut MachineFile,
        how: Capturing,
        mut sink: Option<&mut ChunkSink<'_>>,
        progress: OnProgress<'_>,
    ) -> Result<Moment, CheckpointError> {
        self.begin(machine, how, sink.as_deref())?;
        let mut total = None;
        let mut instant = None;
        loop {
            let seen = sink.as_ref().map_or(0, |sink| sink.seen_bytes());
            let stays = how.stay || instant.is_some();
            let wanted = || match () {
                () if !progress("memory", seen, total) => Err(CheckpointError::Cancelled),
                () if !stays && self.shared.is_undo_wanted() => Err(CheckpointError::Undone),
                () => Ok(()),
            };
            match self.next_while(&wanted)? {
                CaptureEvent::Waiting => {}
                CaptureEvent::Merged => self.take_merged(machine)?,
                CaptureEvent::ToCome { bytes } => total = Some(bytes),
                CaptureEvent::Chunks(chunks) => {
                    let unasked = || CheckpointError::Vmm("chunks unasked".to_owned());
                    let sink = sink.as_mut().ok_or_else(unasked)?;
                    let freed = sink.take(&chunks)?;
                    if !freed.is_empty() {
                        self.send(CaptureRequest::FreeSlots(freed), &[])?;
                    }
                    if !progress("memory", sink.seen_bytes(), total) {
                        return Err(CheckpointError::Cancelled);
                    }
                    if instant.is_none() && !how.stay && self.shared.is_undo_wanted() {
                        return Err(CheckpointError::Undone);
                    }
                }
                CaptureEvent::Frozen {
                    states,
                    pause_micros,
                    taken,
                } => {
                    let taken = WallTime::new(taken.0, taken.1).unwrap_or_default();
                    instant = Some(Moment {
                        states,
                        pause_micros,
                        taken,
                    });
                }
                CaptureEvent::Shared { .. } if how.share => {}
                CaptureEvent::MemoryDone => {
                    return instant.ok_or(CheckpointError::Vmm("no instant".to_owned()));
                }
                CaptureEvent::Failed { ended: true, .. } => return Err(CheckpointError::Ended),
                CaptureEvent::Failed { message, .. } => return Err(CheckpointError::Vmm(message)),
                other => return Err(CheckpointError::Vmm(format!("unexpected {other:?}"))),
            }
        }
    }

    fn begin(
        &mut self,
        machine: &MachineFile,
        how: Capturing,
        sink: Option<&ChunkSink<'_>>,
    ) -> Result<(), CheckpointError> {
        let (ours, theirs) = UnixStream::pair().map_err(ChannelError::Io)?;
        ours.set_read_timeout(Some(LOOK))
            .map_err(ChannelError::Io)?;
        ours.set_write_timeout(Some(VMM_PATIENCE))
            .map_err(ChannelError::Io)?;
        let window = sink.map(ChunkSink::window).transpose()?;
        let top = machine.disk.layers.last().ok_or(CheckpointError::Ended)?;
        let top = self.open_layer(top)?;
        let merged = self
            .merged
            .as_ref()
            .map(|merged| self.open_layer(&merged.name));
        let merged = merged.transpose()?;
        let request = ToVmm::Capture(BeginCapture {
            merge: merged.is_some(),
            point: window.is_some(),
            share: how.share,
            once: how.once,
            full: how.full,
            stay: how.stay,
            slots: WINDOW_SLOTS,
        });
        let mut descriptors = vec![theirs.as_fd(), top.as_fd()];
        descriptors.extend(window.as_ref().map(AsFd::as_fd));
        descriptors.extend(merged.as_ref().map(AsFd::as_fd));
        self.shared.tell_vmm(&request, &descriptors)?;
        self.socket = Some(ours);
        Ok(())
    }

    fn open_layer(&self, name: &str) -> Result<File, CheckpointError> {
        let path = self.shared.dir.disk().join(name);
        let file = File::options().read(true).write(true).open(&path);
        Ok(file.map_err(FileError::at("open", &path))?)
    }

    /// The next thing that the VMM says.
    pub(super) fn next(&mut self) -> Result<CaptureEvent, CheckpointError> {
        self.next_while(&|| Ok(()))
    }

    /// The next thing that the VMM says, as long as `wanted` has nothing against it; it is asked now and then.
    fn next_while(
        &mut self,
        wanted: &dyn Fn() -> Result<(), CheckpointError>,
    ) -> Result<CaptureEvent, CheckpointError> {
        let since = Instant::now();
        loop {
            if !self.wait_readable()? {
                wanted()?;
                if self.shared.is_quitting() {
                    return Err(CheckpointError::Ended);
                }
                if since.elapsed() > STOPPED_PATIENCE && self.shared.is_vmm_stopped() {
                    let pid = self.shared.vmm_pid;
                    return Err(CheckpointError::VmmStopped { pid });
                }
                if since.elapsed() > VMM_PATIENCE {
                    let silent = "it does not answer".to_owned();
                    return Err(CheckpointError::Vmm(silent));
                }
                continue;
            }
            return self.hear();
        }
    }

    /// Whether there is something to be read, or nothing will be any more; waits a moment.
    fn wait_readable(&self) -> Result<bool, CheckpointError> {
        let socket = self.socket.as_ref().ok_or(CheckpointError::Ended)?;
        Ok(socket_channel::is_readable(socket, LOOK)?)
    }

    /// Reads a message that has begun to come.
    fn hear(&mut self) -> Result<CaptureEvent, CheckpointError> {
        let socket = self.socket.as_ref().ok_or(CheckpointError::Ended)?;
        socket
            .set_read_timeout(Some(VMM_PATIENCE))
            .map_err(ChannelError::Io)?;
        let (event, descriptors) = match socket_channel::receive::<CaptureEvent>(socket) {
            Ok(received) => (received.message, received.descriptors),
            // Its process is gone, or the guest has ended.
            Err(ChannelError::Closed) => return Err(CheckpointError::Ended),
            Err(error) => return Err(error.into()),
        };
        match &event {
            CaptureEvent::Shared { booted } => {
                self.switched = Switched::Yes;
                let booted = *booted;
                self.memory = Some(SharedMemory {
                    descriptors,
                    booted,
                });
            }
            CaptureEvent::Frozen { .. } => self.switched = Switched::Yes,
            CaptureEvent::Failed { switched, .. } if self.switched == Switched::Unknown => {
                self.switched = if *switched {
                    Switched::Yes
                } else {
                    Switched::No
                };
            }
            _ => {}
        }
        Ok(event)
    }

    pub(super) fn send(
        &self,
        request: CaptureRequest,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), CheckpointError> {
        let socket = self.socket.as_ref().ok_or(CheckpointError::Ended)?;
        Ok(socket_channel::send(socket, &request, descriptors)?)
    }

    /// After an error: the VMM forgets the capture, an unused layer goes away, nothing else changed.
    pub(super) fn abort(&mut self, state: &mut CaptureState) {
        if let Some(socket) = &self.socket {
            give_up(socket);
            let over = self.hear_to_the_end();
            if !over && !self.shared.has_ended() {
                tracing::warn!("the VMM does not end the capture");
                // What it holds is unknown: the next capture takes everything.
                state.base = None;
            }
        } else {
            // The VMM never heard of it.
            self.switched = Switched::No;
        }
        self.drop_unused_files();
    }

    /// Whether the VMM has ended the capture.
    fn hear_to_the_end(&mut self) -> bool {
        let since = Instant::now();
        while since.elapsed() < VMM_PATIENCE && !self.shared.is_quitting() {
            match self.wait_readable() {
                Ok(false) if self.shared.is_vmm_stopped() => return false,
                Ok(true) => match self.hear() {
                    Ok(_) => {}
                    Err(CheckpointError::Ended) => return true,
                    Err(_) => return false,
                },
                Ok(false) => {}
                Err(_) => return false,
            }
        }
        false
    }
}

/// Says nothing more about a capture, which gives it up.
fn give_up(socket: &UnixStream) {
    match socket.shutdown(Shutdown::Write) {
        Err(error) if error.kind() != ErrorKind::NotConnected => {
            let error: io::Error = error;
            tracing::debug!(%error, "the VMM has closed the capture's socket");
        }
        _ => {}
    }
}

/// Whether the disk writes to its new top.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Switched {
    /// Not as far as is known: the VMM may do it at any time.
    Unknown,
    Yes,
    /// And it will not.
    No,
}
