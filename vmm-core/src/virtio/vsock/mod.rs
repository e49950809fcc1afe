//! Stream sockets between guest and host (virtio 1.2, section 5.10).

mod connection;
mod header;
mod table;

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use snapshot_format::fields::{FieldReader, FieldWriter};
use thiserror::Error;

use self::table::{Host, Key, Table};
use super::device::{DeviceError, VirtioDevice, read_config_bytes};
use super::io::DeviceIo;
use super::mmio::lock;
use crate::host_side::VsockBackend;
use crate::warn_limit::WarnLimit;

/// Device type.
const DEVICE_ID: u32 = 19;
/// Sizes of the receive, transmit and event queues.
const QUEUE_SIZES: [u16; 3] = [128, 128, 16];
/// Packets to the guest.
const RX: usize = 0;
/// Packets from the guest.
const TX: usize = 1;
/// Events for the guest.
const EVENTS: usize = 2;
/// The least context id of a guest.
const MIN_GUEST_CID: u64 = 3;
/// Dials taken before connections get their turn.
const MAX_DIALS_PER_ROUND: usize = 64;
/// How long dials wait for the guest to have dealt with a transport reset: without waiting the
/// guest could reset the new connection along with the old ones.
const RESET_GRACE: Duration = Duration::from_millis(500);

/// Why a vsock device cannot be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VsockError {
    /// The context id is reserved.
    #[error("context id {cid} is reserved: guests have {MIN_GUEST_CID} to 4294967294")]
    Cid {
        /// The id.
        cid: u64,
    },
    /// The backend has no descriptor to wait on.
    #[error("no descriptor to wait for dials")]
    Backend(#[source] io::Error),
}

/// A vsock device over a [`VsockBackend`].
///
/// Connections are not part of the saved state: where it is restored, whatever connections the
/// device has are closed, the guest is told by a transport reset event (its listeners survive), and
/// the host's ports start at a random number. A device that was quiesced and goes on keeps its
/// connections.
pub struct Vsock {
    backend: Arc<dyn VsockBackend>,
    dial_ready: OwnedFd,
    cid: u64,
    first_port: Option<u32>,
    state: Mutex<State>,
    io: OnceLock<Weak<DeviceIo>>,
    warnings: WarnLimit,
}

#[derive(Debug)]
struct State {
    table: Table,
    reset: ResetEvent,
}

/// The transport reset event on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResetEvent {
    None,
    /// The guest has not been told yet; dials wait until the time given.
    Pending(Duration),
    /// The guest was told and gives the event's buffer back once it has dealt with it: the
    /// available ring's index then differs from the one noted.
    Delivered {
        index: u16,
        until: Duration,
    },
}

impl ResetEvent {
    fn pending(now: Duration) -> Self {
        Self::Pending(now + RESET_GRACE)
    }

    fn until(self) -> Option<Duration> {
        match self {
            Self::None => None,
            Self::Pending(until) | Self::Delivered { until, .. } => Some(until),
        }
    }
}

impl Vsock {
    /// A device for the guest with context id `cid`.
    pub fn new(cid: u64, backend: Arc<dyn VsockBackend>) -> Result<Self, VsockError> {
        if !(MIN_GUEST_CID..u64::from(u32::MAX)).contains(&cid) {
            return Err(VsockError::Cid { cid });
        }
        Ok(Self {
            dial_ready: backend.dial_ready().map_err(VsockError::Backend)?,
            backend,
            cid,
            first_port: None,
            state: Mutex::new(State {
                table: Table::new(cid, None),
                reset: ResetEvent::None,
            }),
            io: OnceLock::new(),
            warnings: WarnLimit::default(),
        })
    }

    /// The same device, but its host ports start at a number that follows from this one instead of at
    /// random, for machines that have to repeat themselves.
    #[must_use]
    pub fn with_first_port(mut self, first: u32) -> Self {
        self.first_port = Some(first);
        lock(&self.state).table = Table::new(self.cid, self.first_port);
        self
    }

    /// Closes all connections and tells the guest that its peers are gone. A restore does that by
    /// itself.
    pub fn transport_reset(&self) {
        let mut state = lock(&self.state);
        state.table.shut_down();
        state.table = Table::new(self.cid, self.first_port);
        let io = self.io.get().and_then(Weak::upgrade);
        // A device that is in no slot yet has no time.
        state.reset = ResetEvent::pending(io.as_ref().map_or(Duration::ZERO, |io| io.now()));
        drop(state);
        if let Some(io) = io {
            io.kick(EVENTS);
        }
    }

    /// Number of connections, for status displays and tests.
    pub fn connections(&self) -> usize {
        lock(&self.state).table.len()
    }

    /// One round: whatever can be moved now. True: there is more.
    fn pass(&self, io: &DeviceIo, ready: &Ready, buffer: &mut Vec<u8>) -> bool {
        let mut state = lock(&self.state);
        if !io.is_live() {
            return false;
        }
        self.deliver_reset(&mut state, io);
        if ready.dial && state.reset == ResetEvent::None {
            self.take_dials(&mut state.table, io.now());
        }
        for (key, flags) in &ready.streams {
            let hung_up = flags.intersects(PollFlags::HUP | PollFlags::ERR);
            let table = &mut state.table;
            table.stream_ready(*key, hung_up, buffer);
        }
        let host = Host {
            backend: self.backend.as_ref(),
            warnings: &self.warnings,
        };
        let more_from_guest = state.table.receive(io, &host, buffer);
        state.table.reap(io.now());
        let more_to_guest = state.table.send(io, buffer);
        more_from_guest || more_to_guest
    }

    fn take_dials(&self, table: &mut Table, now: Duration) {
        for _ in 0..MAX_DIALS_PER_ROUND {
            let dialled = match self.backend.next_dial() {
                Ok(Some(dial)) => table.dial(dial, now),
                Ok(None) => break,
                Err(error) => {
                    self.warn_of_dial(&error);
                    break;
                }
            };
            if let Err(error) = dialled {
                self.warn_of_dial(&error);
            }
        }
    }

    fn warn_of_dial(&self, error: &io::Error) {
        if let Some(left_out) = self.warnings.admit() {
            tracing::warn!(%error, left_out, "vsock dial failed");
        }
    }

    fn deliver_reset(&self, state: &mut State, io: &DeviceIo) {
        match state.reset {
            ResetEvent::None => return,
            ResetEvent::Pending(until) => {
                if let Some(taken) = io.take(EVENTS) {
                    // Other buffers wait, so the guest would not kick when it gives this one back.
                    let index = io.ask_for_kick(EVENTS).unwrap_or(0);
                    // VIRTIO_VSOCK_EVENT_TRANSPORT_RESET is number 0.
                    let event = 0_u32.to_le_bytes();
                    let written = taken
                        .buffers
                        .as_ref()
                        .is_ok_and(|buffers| buffers.writable.write(io.ram(), 0, &event).is_ok());
                    io.finish(taken, if written { 4 } else { 0 });
                    state.reset = ResetEvent::Delivered { index, until };
                }
            }
            ResetEvent::Delivered { index, .. } => {
                if io.available_index(EVENTS) != Some(index) {
                    state.reset = ResetEvent::None;
                }
            }
        }
        // A guest without buffers for events (or one that hangs) does not hold dials up for ever.
        // An undelivered event is then delivered late or never, by the guest's own choice.
        if state.reset.until().is_some_and(|until| io.now() >= until) {
            state.reset = ResetEvent::None;
        }
    }

    /// Waits for sockets, dials, the guest or a deadline.
    fn wait(&self, io: &DeviceIo, more: bool) -> Ready {
        let interest = self.interest(io);
        let mut fds = Vec::with_capacity(interest.streams.len() + 2);
        if let Some(wake) = io.wake_fd() {
            fds.push(PollFd::from_borrowed_fd(wake, PollFlags::IN));
        }
        if interest.dial {
            fds.push(PollFd::new(&self.dial_ready, PollFlags::IN));
        }
        let fixed = fds.len();
        for (_, stream, flags) in &interest.streams {
            fds.push(PollFd::new(stream, *flags));
        }
        let timeout = if more {
            Some(Timespec::default())
        } else {
            interest
                .deadline
                .map(|at| timespec(at.saturating_sub(io.now())))
        };
        // An interrupted wait looks at everything once and waits again.
        let waited = poll(&mut fds, timeout.as_ref()).is_ok();
        io.clear_wake();
        let streams = interest.streams.iter().zip(&fds[fixed..]);
        Ready {
            dial: interest.dial,
            streams: streams
                .filter(|(_, fd)| waited && !fd.revents().is_empty())
                .map(|((key, ..), fd)| (*key, fd.revents()))
                .collect(),
        }
    }

    fn interest(&self, io: &DeviceIo) -> Interest {
        let state = lock(&self.state);
        if !io.is_live() {
            return Interest::default();
        }
        let deadline = state.table.deadline().into_iter();
        Interest {
            dial: state.reset == ResetEvent::None,
            streams: state.table.interest(),
            deadline: deadline.chain(state.reset.until()).min(),
        }
    }
}

/// What the worker waits for.
#[derive(Default)]
struct Interest {
    dial: bool,
    streams: Vec<(Key, Arc<UnixStream>, PollFlags)>,
    deadline: Option<Duration>,
}

/// What became ready.
struct Ready {
    dial: bool,
    streams: Vec<(Key, PollFlags)>,
}

fn timespec(left: Duration) -> Timespec {
    Timespec {
        // Deadlines are seconds away.
        tv_sec: left.as_secs() as i64,
        tv_nsec: left.subsec_nanos().into(),
    }
}

impl VirtioDevice for Vsock {
    fn device_id(&self) -> u32 {
        DEVICE_ID
    }

    fn kind(&self) -> &'static str {
        "virtio-vsock"
    }

    fn features(&self) -> u64 {
        0
    }

    fn queue_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    fn polls(&self) -> bool {
        true
    }

    fn attach(&self, io: &Arc<DeviceIo>) {
        // A device is attached once; a second time would be a mistake of the builder's.
        let _ = self.io.set(Arc::downgrade(io));
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        read_config_bytes(&self.cid.to_le_bytes(), offset, data);
    }

    fn reset(&self) {
        let mut state = lock(&self.state);
        state.table.shut_down();
        state.table = Table::new(self.cid, self.first_port);
        state.reset = ResetEvent::None;
    }

    fn serve(&self, io: &DeviceIo, buffer: &mut Vec<u8>) {
        loop {
            let ready = self.wait(io, true);
            let Some(_ticket) = io.try_begin() else {
                return;
            };
            let more = self.pass(io, &ready, buffer);
            if !more && ready.streams.is_empty() {
                break;
            }
        }
        if let Some(deadline) = self.interest(io).deadline {
            io.serve_at(deadline);
        }
    }

    fn run(&self, io: &DeviceIo) {
        let mut buffer = Vec::new();
        let mut more = false;
        loop {
            let ready = self.wait(io, more);
            let Some(_ticket) = io.begin() else {
                return;
            };
            more = self.pass(io, &ready, &mut buffer);
        }
    }

    fn save(&self, state: &mut FieldWriter) {
        state.u64(1, self.cid);
    }

    fn restore(&self, state: &FieldReader<'_>) -> Result<(), DeviceError> {
        let cid = state.u64(1)?;
        if cid != self.cid {
            return Err(DeviceError::Invalid(format!(
                "context id {cid}, this machine's is {}",
                self.cid
            )));
        }
        Ok(())
    }

    fn restored(&self, _io: &DeviceIo) {
        self.transport_reset();
    }
}

#[cfg(test)]
mod tests;
