use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use cas_store::ReadError;
use vmm_core::machine::{MachineEvent, RunningMachine};
use vmm_core::ram::MemoryLost;

use super::capture::{CaptureError, CaptureSetup, Captured, Failed, capture};
use super::capture_socket::{CaptureSocket, Over};
use super::notes::Notes;
use super::start::{Parts, StartError};
use super::undo;
use crate::channel::capture::{BeginCapture, CaptureDescriptors, CaptureEvent};
use crate::channel::messages::{ConsoleNote, EndReason, FromVmm, ToVmm};
use crate::channel::{self as socket_channel, ChannelError, Received};
use crate::error_chain::chain;
use crate::machine::is_damage;
use crate::phase::Phase;

/// What wakes the VMM.
enum Input {
    Request(ToVmm, Vec<OwnedFd>),
    /// The machine has an event.
    Event,
    /// The console had something to say.
    Notes,
    /// A write of the guest did not fit onto the host.
    HostFull,
    /// The supervisor has said its last about the capture at hand.
    CaptureOver,
    /// A chunk of the disk or of memory is lost.
    Damage(String),
    SupervisorGone,
}

/// Runs one machine until it ends or the supervisor closes `socket`.
pub(crate) fn run(socket: UnixStream) -> Result<(), ChannelError> {
    let first: Received<ToVmm> = socket_channel::receive(&socket)?;
    let ToVmm::Start(request) = first.message else {
        return tell(
            &socket,
            FromVmm::StartFailed {
                reason: "the first message is not a start".to_owned(),
                damaged: false,
            },
        );
    };
    let (sender, inbox) = channel();
    let damages = sender.clone();
    // A send fails only when this VMM has ended.
    let on_damage = move |error: &ReadError| drop(damages.send(Input::Damage(chain(error))));
    let parts = match Parts::open(*request, first.descriptors, Arc::new(on_damage)) {
        Ok(parts) => parts,
        Err(error) => return tell(&socket, start_failed(&error)),
    };
    let on_full = sender.clone();
    // As above.
    parts
        .full()
        .on_failure(move || drop(on_full.send(Input::HostFull)));
    let requests = socket.try_clone()?;
    let forward = sender.clone();
    std::thread::Builder::new()
        .name("requests".to_owned())
        .spawn(move || read_requests(&requests, &forward))?;
    let vmm = Vmm {
        socket,
        parts,
        sender,
        inbox,
        notes: Notes::default(),
        panic: None,
        booted: true,
        held: None,
    };
    vmm.run()
}

fn tell(socket: &UnixStream, message: FromVmm) -> Result<(), ChannelError> {
    socket_channel::send(socket, &message, &[])
}

fn start_failed(error: &StartError) -> FromVmm {
    FromVmm::StartFailed {
        reason: chain(error),
        damaged: is_damage(error),
    }
}

fn read_requests(socket: &UnixStream, inbox: &Sender<Input>) {
    loop {
        let input = match socket_channel::receive(socket) {
            Ok(received) => Input::Request(received.message, received.descriptors),
            Err(ChannelError::Closed) => Input::SupervisorGone,
            Err(error) => {
                tracing::error!(error = %chain(&error), "nothing more can be heard of the supervisor");
                Input::SupervisorGone
            }
        };
        let last = matches!(input, Input::SupervisorGone);
        if inbox.send(input).is_err() || last {
            return;
        }
    }
}

struct Vmm {
    socket: UnixStream,
    parts: Parts,
    sender: Sender<Input>,
    inbox: Receiver<Input>,
    /// What the console said that was not told yet.
    notes: Notes,
    /// The last panic that the console showed since the last boot.
    panic: Option<String>,
    /// The machine's memory is that of a boot: what changed in it is not known relative to any point.
    booted: bool,
    /// A capture whose memory is out, until its point is published or given up. It outlives a reset of the guest.
    held: Option<Held>,
}

struct Held {
    captured: Captured,
    socket: CaptureSocket,
    /// The machine was reset: what was taken from its tracker went with it.
    reset: bool,
}

/// A machine that runs, and whether its guest has ended.
struct Guest {
    machine: RunningMachine,
    ended: Arc<AtomicBool>,
}

/// How a run of the guest went on.
enum Outcome {
    Reset,
    Ended(EndReason),
}

impl Vmm {
    fn run(mut self) -> Result<(), ChannelError> {
        let mut told_start = FromVmm::Started;
        loop {
            self.panic = None;
            // Those of the last boot.
            self.notes.take();
            let mut guest = match self.start() {
                Ok(guest) => guest,
                Err(error) => return tell(&self.socket, start_failed(&error)),
            };
            self.booted = !(told_start == FromVmm::Started && self.parts.begins_at_point());
            tell(&self.socket, told_start)?;
            let outcome = self.serve(&mut guest)?;
            guest.machine.flush_console();
            match outcome {
                Outcome::Reset => told_start = FromVmm::Rebooted,
                Outcome::Ended(reason) => {
                    // Before the guest's connections break: whoever asks then why, is told the truth.
                    let told = tell(&self.socket, FromVmm::Ended(reason));
                    drop(guest);
                    self.parts.flush_disk();
                    return told;
                }
            }
            if let Some(held) = &mut self.held {
                held.reset = true;
            }
        }
    }

    fn start(&self) -> Result<Guest, StartError> {
        let (events, notes) = (self.sender.clone(), self.sender.clone());
        let ended = Arc::new(AtomicBool::new(false));
        let note_end = ended.clone();
        // A send fails only when this VMM has ended.
        let machine = self.parts.start(
            Box::new(move || {
                note_end.store(true, Ordering::SeqCst);
                drop(events.send(Input::Event));
            }),
            self.notes.listener(move || drop(notes.send(Input::Notes))),
        )?;
        Ok(Guest { machine, ended })
    }

    fn serve(&mut self, guest: &mut Guest) -> Result<Outcome, ChannelError> {
        loop {
            // This VMM holds a sender itself: the queue is never closed.
            let Ok(input) = self.inbox.recv() else {
                return Ok(Outcome::Ended(EndReason::Asked));
            };
            match input {
                Input::Event => {
                    if let Some(event) = guest.machine.next_event(Duration::ZERO) {
                        guest.machine.flush_console();
                        self.take_notes()?;
                        let lost = guest.machine.ram().lost();
                        return Ok(self.outcome_of(event, lost));
                    }
                }
                Input::Notes => self.take_notes()?,
                Input::HostFull => {
                    let failed = self.parts.full().take();
                    tell(&self.socket, FromVmm::HostFull { failed })?;
                }
                Input::Damage(reason) => return Ok(Outcome::Ended(EndReason::Damaged(reason))),
                Input::CaptureOver => {
                    // A nudge of an earlier capture finds this one not over.
                    if let Some(over) = self.held.as_ref().and_then(|held| held.socket.over()) {
                        self.end_capture(&mut guest.machine, over);
                    }
                }
                Input::Request(ToVmm::ConsoleInput(bytes), _) => {
                    guest.machine.console_input(&bytes);
                }
                Input::Request(ToVmm::Capture(request), descriptors) => {
                    // The supervisor makes one capture at a time: the former one is over.
                    if let Some(over) = self.held.as_ref().map(|held| held.socket.wait_over()) {
                        self.end_capture(&mut guest.machine, over);
                    }
                    self.capture(guest, request, descriptors);
                }
                Input::Request(ToVmm::GoBack, descriptors) => {
                    self.go_back(guest, descriptors);
                }
                Input::Request(ToVmm::Quit, _) | Input::SupervisorGone => {
                    return Ok(Outcome::Ended(EndReason::Asked));
                }
                Input::Request(ToVmm::Start(_), _) => {
                    tracing::warn!("a second start was ignored");
                }
            }
        }
    }

    fn capture(&mut self, guest: &mut Guest, request: BeginCapture, descriptors: Vec<OwnedFd>) {
        let Some((socket, files)) = self.open_capture(request, descriptors) else {
            tracing::error!("a capture came without its descriptors");
            return;
        };
        let setup = CaptureSetup {
            disk: self.parts.disk(),
            request,
            tracked: self.parts.tracked(),
            window: files.window.as_ref(),
            booted: self.booted,
            top: files.top,
            merged: files.merged,
            ended: &guest.ended,
        };
        let ready = if self.booted && request.point && !request.full {
            // The supervisor hears of a reset later than this process.
            Err(CaptureError::Reset)
        } else {
            // Afterwards the packs that memory still comes from may go.
            self.parts.wait_for_memory(|| {
                if guest.ended.load(Ordering::SeqCst) {
                    return Err(CaptureError::GuestEnded);
                }
                Ok(socket.still_waiting()?)
            })
        };
        let result = match ready {
            Ok(()) => capture(&mut guest.machine, setup, &socket),
            Err(error) => Err(Failed {
                error,
                switched: false,
            }),
        };
        match result {
            Ok(captured) => {
                self.held = Some(Held {
                    captured,
                    socket,
                    reset: false,
                });
            }
            Err(Failed { error, switched }) => {
                let ended =
                    matches!(error, CaptureError::GuestEnded) || guest.ended.load(Ordering::SeqCst);
                let message = chain(&error);
                let failed = CaptureEvent::Failed {
                    message,
                    switched,
                    ended,
                };
                if let Err(error) = socket.send(failed) {
                    tracing::debug!(%error, "nobody waits for a capture that failed");
                }
            }
        }
    }

    fn open_capture(
        &self,
        request: BeginCapture,
        mut descriptors: Vec<OwnedFd>,
    ) -> Option<(CaptureSocket, CaptureFiles)> {
        if descriptors.len() < CaptureDescriptors::OTHERS {
            return None;
        }
        let mut others = descriptors
            .split_off(CaptureDescriptors::OTHERS)
            .into_iter();
        let mut other = |wanted: bool| wanted.then(|| others.next()).flatten().map(File::from);
        let top = descriptors.remove(CaptureDescriptors::TOP);
        let socket = UnixStream::from(descriptors.remove(CaptureDescriptors::SOCKET));
        let files = CaptureFiles {
            window: other(request.point),
            top: top.into(),
            merged: other(request.merge),
        };
        let nudge = self.sender.clone();
        // A send fails only when this VMM has ended.
        let socket = CaptureSocket::new(socket, move || drop(nudge.send(Input::CaptureOver)));
        match socket {
            Ok(socket) => Some((socket, files)),
            Err(error) => {
                tracing::error!(%error, "no thread for a capture");
                None
            }
        }
    }

    /// Goes back in place. Where that fails half-way the machine stands, and the supervisor ends this process.
    fn go_back(&mut self, guest: &mut Guest, descriptors: Vec<OwnedFd>) {
        let files = match undo::Files::open(&self.parts, descriptors, self.booted) {
            Ok(files) => files,
            Err((socket, error)) => {
                if let Some(socket) = socket {
                    undo::tell_failure(&socket, &error, false);
                }
                return;
            }
        };
        let held = self.held.take();
        let taken = held.and_then(|held| (!held.reset).then(|| held.captured.into_taken()));
        match undo::go_back(&mut guest.machine, &self.parts, files, taken) {
            undo::Outcome::Back(disk) => {
                self.parts.set_disk(disk);
                self.panic = None;
                self.booted = false;
                guest.ended.store(false, Ordering::SeqCst);
            }
            undo::Outcome::Same => {}
            undo::Outcome::Between => tracing::error!("the machine is between two states"),
        }
    }

    /// Ends the capture at hand: it was published, or what it took is given back.
    fn end_capture(&mut self, machine: &mut RunningMachine, over: Over) {
        let Some(held) = self.held.take() else {
            return;
        };
        let base = match over {
            Over::Published(base) => base,
            Over::GivenUp => None,
        };
        let Some(base) = base else {
            if !held.reset {
                held.captured.give_back(machine);
            }
            return;
        };
        // The point holds what memory was then, whatever becomes of the disk's base.
        self.booted &= held.reset;
        let through = held.captured.frozen.newest().id();
        let told = match self.parts.rebase(base, through) {
            Ok(()) => {
                Phase::Rebased.reached();
                CaptureEvent::Rebased
            }
            // The layers stay in use; only their files must not be removed.
            Err(error) => CaptureEvent::Failed {
                message: chain(&error),
                switched: true,
                ended: false,
            },
        };
        if let Err(error) = held.socket.send(told) {
            tracing::debug!(%error, "nobody waits for the disk's new base");
        }
    }

    /// Tells what the console said.
    fn take_notes(&mut self) -> Result<(), ChannelError> {
        for note in self.notes.take() {
            if let ConsoleNote::Panic(reason) = &note {
                self.panic.get_or_insert_with(|| reason.clone());
            }
            tell(&self.socket, FromVmm::Console(note))?;
        }
        Ok(())
    }

    fn outcome_of(&mut self, event: MachineEvent, lost: Option<MemoryLost>) -> Outcome {
        // Damage is told by the source of the memory, before this.
        if let (MachineEvent::MemoryLost, Some(lost)) = (&event, lost) {
            return Outcome::Ended(EndReason::Crashed(chain(&lost)));
        }
        if let Some(reason) = self.panic.take() {
            return Outcome::Ended(EndReason::Panic(reason));
        }
        match event {
            MachineEvent::PowerOff => Outcome::Ended(EndReason::PowerOff),
            MachineEvent::Reset => Outcome::Reset,
            MachineEvent::TripleFault(vcpu) => {
                Outcome::Ended(EndReason::Crashed(format!("triple fault on {vcpu}")))
            }
            MachineEvent::VcpuFailed(vcpu, reason) => {
                Outcome::Ended(EndReason::Crashed(format!("{vcpu} failed: {reason}")))
            }
            _ => Outcome::Ended(EndReason::Crashed("unknown event".to_owned())),
        }
    }
}

/// What a capture came with besides its socket.
struct CaptureFiles {
    window: Option<File>,
    top: File,
    merged: Option<File>,
}
