use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use cas_store::ReadError;
use vmm_core::machine::{MachineEvent, RunningMachine};

use super::capture::{CaptureSetup, Captured, Peer, capture};
use super::start::{Parts, StartError};
use crate::channel::messages::{
    BeginCapture, CaptureEvent, CaptureNumber, CaptureRequest, ConsoleNote, EndReason, FromVmm,
    ToVmm,
};
use crate::channel::{self as socket_channel, ChannelError, Received};
use crate::error_chain::chain;
use crate::machine::is_damage;
use crate::phase::Phase;

/// What wakes the VMM.
enum Input {
    Request(ToVmm, Vec<OwnedFd>),
    Event,
    Note(ConsoleNote),
    /// A chunk of the disk is lost.
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
        deferred: VecDeque::new(),
        panic: None,
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

fn capture_failed(number: CaptureNumber, message: String, switched: bool) -> FromVmm {
    FromVmm::Capture(number, CaptureEvent::Failed { message, switched })
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
    /// What came while a capture waited for something else.
    deferred: VecDeque<Input>,
    /// The last panic that the console showed since the last boot.
    panic: Option<String>,
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
            let mut machine = match self.start() {
                Ok(machine) => machine,
                Err(error) => return tell(&self.socket, start_failed(&error)),
            };
            tell(&self.socket, told_start)?;
            let outcome = self.serve(&mut machine)?;
            machine.flush_console();
            drop(machine);
            match outcome {
                Outcome::Reset => told_start = FromVmm::Rebooted,
                Outcome::Ended(reason) => {
                    self.parts.flush_disk();
                    return tell(&self.socket, FromVmm::Ended(reason));
                }
            }
        }
    }

    fn start(&self) -> Result<RunningMachine, StartError> {
        let (events, notes) = (self.sender.clone(), self.sender.clone());
        // A send fails only when this VMM has ended.
        self.parts.start(
            Box::new(move || drop(events.send(Input::Event))),
            Box::new(move |note| drop(notes.send(Input::Note(note)))),
        )
    }

    fn serve(&mut self, machine: &mut RunningMachine) -> Result<Outcome, ChannelError> {
        let mut captured: Option<(CaptureNumber, Captured)> = None;
        loop {
            // This VMM holds a sender itself: the queue is never closed.
            let Some(input) = self.deferred.pop_front().or_else(|| self.inbox.recv().ok()) else {
                return Ok(Outcome::Ended(EndReason::Asked));
            };
            match input {
                Input::Event => {
                    if let Some(event) = machine.next_event(Duration::ZERO) {
                        machine.flush_console();
                        self.drain_notes()?;
                        return Ok(self.outcome_of(event));
                    }
                }
                Input::Note(note) => self.take_note(note)?,
                Input::Damage(reason) => return Ok(Outcome::Ended(EndReason::Damaged(reason))),
                Input::Request(ToVmm::ConsoleInput(bytes), _) => {
                    machine.console_input(&bytes);
                }
                Input::Request(ToVmm::Capture(number, request), descriptors) => match request {
                    CaptureRequest::Begin(request) => {
                        let taken = self.capture(machine, number, request, descriptors)?;
                        captured = taken.map(|taken| (number, taken));
                    }
                    CaptureRequest::End => {
                        let base = descriptors.into_iter().next();
                        let ended = captured.take_if(|(held, _)| *held == number);
                        let taken = ended.map(|(_, taken)| taken);
                        self.end_capture(machine, number, taken, base)?;
                    }
                    // Slots that were given back after the last chunk was sent.
                    CaptureRequest::FreeSlots(_) => {}
                },
                Input::Request(ToVmm::Quit, _) | Input::SupervisorGone => {
                    return Ok(Outcome::Ended(EndReason::Asked));
                }
                Input::Request(ToVmm::Start(_), _) => {
                    tracing::warn!("a second start was ignored");
                }
            }
        }
    }

    fn capture(
        &mut self,
        machine: &mut RunningMachine,
        number: CaptureNumber,
        request: BeginCapture,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Option<Captured>, ChannelError> {
        let mut files = descriptors.into_iter().map(File::from);
        let (Some(window), Some(top)) = (files.next(), files.next()) else {
            let message = "the capture came without its descriptors".to_owned();
            tell(&self.socket, capture_failed(number, message, false))?;
            return Ok(None);
        };
        let mut talk = Talk {
            number,
            socket: &self.socket,
            inbox: &self.inbox,
            deferred: &mut self.deferred,
        };
        let setup = CaptureSetup {
            disk: self.parts.disk(),
            request,
            tracked: self.parts.tracked(),
            window: &window,
            top,
        };
        match capture(machine, setup, &mut talk) {
            Ok(captured) => Ok(Some(captured)),
            Err(failed) => {
                let message = capture_failed(number, chain(&failed.error), failed.switched);
                tell(&self.socket, message)?;
                Ok(None)
            }
        }
    }

    /// Ends a capture: with a new base it was published, else what it took is given back.
    fn end_capture(
        &self,
        machine: &RunningMachine,
        number: CaptureNumber,
        captured: Option<Captured>,
        base: Option<OwnedFd>,
    ) -> Result<(), ChannelError> {
        if let Some(captured) = captured {
            let rebased = base.map(|base| self.parts.rebase(base, captured.frozen.newest().id()));
            match rebased {
                Some(Ok(())) => Phase::Rebased.reached(),
                Some(Err(error)) => {
                    // The layers stay in use; only their files must not be removed.
                    tell(&self.socket, capture_failed(number, chain(&error), true))?;
                    return Ok(());
                }
                None => captured.give_back(machine),
            }
        }
        let ended = FromVmm::Capture(number, CaptureEvent::Ended);
        tell(&self.socket, ended)
    }

    /// Looks at what the console said before an event; other inputs wait for the next boot.
    fn drain_notes(&mut self) -> Result<(), ChannelError> {
        let waiting: Vec<Input> = self
            .deferred
            .drain(..)
            .chain(self.inbox.try_iter())
            .collect();
        for input in waiting {
            match input {
                Input::Note(note) => self.take_note(note)?,
                Input::Event => {}
                other => self.deferred.push_back(other),
            }
        }
        Ok(())
    }

    fn take_note(&mut self, note: ConsoleNote) -> Result<(), ChannelError> {
        if let ConsoleNote::Panic(reason) = &note {
            self.panic.get_or_insert_with(|| reason.clone());
        }
        tell(&self.socket, FromVmm::Console(note))
    }

    fn outcome_of(&mut self, event: MachineEvent) -> Outcome {
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

/// A capture's talk with the supervisor; what is not for it waits.
struct Talk<'a> {
    number: CaptureNumber,
    socket: &'a UnixStream,
    inbox: &'a Receiver<Input>,
    deferred: &'a mut VecDeque<Input>,
}

impl Talk<'_> {
    /// Whether this says that the capture need not go on: the supervisor is gone or gave it up.
    fn ends(&self, input: &Input) -> bool {
        match input {
            Input::SupervisorGone | Input::Request(ToVmm::Quit, _) => true,
            Input::Request(ToVmm::Capture(number, CaptureRequest::End), _) => {
                *number == self.number
            }
            _ => false,
        }
    }
}

impl Peer for Talk<'_> {
    fn send(&mut self, event: CaptureEvent) -> Result<(), ChannelError> {
        tell(self.socket, FromVmm::Capture(self.number, event))
    }

    fn wait_free_slots(&mut self) -> Result<Vec<u32>, ChannelError> {
        // What came before a reboot of the guest waits there already, and does not come again.
        if self.deferred.iter().any(|input| self.ends(input)) {
            return Err(ChannelError::Closed);
        }
        loop {
            match self.inbox.recv() {
                Ok(Input::Request(ToVmm::Capture(number, CaptureRequest::FreeSlots(slots)), _)) => {
                    // Slots of another capture are slots of another window.
                    if number == self.number {
                        return Ok(slots);
                    }
                }
                Ok(input) => {
                    let over = self.ends(&input);
                    self.deferred.push_back(input);
                    if over {
                        return Err(ChannelError::Closed);
                    }
                }
                Err(_) => return Err(ChannelError::Closed),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(number: CaptureNumber, request: CaptureRequest) -> Input {
        Input::Request(ToVmm::Capture(number, request), Vec::new())
    }

    /// What a capture of this number gets that waits for slots, when these inputs wait for it.
    fn wait(
        number: CaptureNumber,
        deferred: Vec<Input>,
        inputs: Vec<Input>,
    ) -> (Result<Vec<u32>, ChannelError>, usize) {
        let (socket, _supervisor) = UnixStream::pair().unwrap();
        let (sender, inbox) = channel();
        inputs
            .into_iter()
            .for_each(|input| sender.send(input).unwrap());
        drop(sender);
        let mut deferred = VecDeque::from(deferred);
        let mut talk = Talk {
            number,
            socket: &socket,
            inbox: &inbox,
            deferred: &mut deferred,
        };
        (talk.wait_free_slots(), deferred.len())
    }

    #[test]
    fn slots_of_another_capture_are_not_taken() {
        let former = CaptureNumber::default().next();
        let current = former.next();
        let inputs = vec![
            request(former, CaptureRequest::FreeSlots(vec![1, 2])),
            request(former, CaptureRequest::End),
            request(current, CaptureRequest::FreeSlots(vec![3])),
        ];
        let (slots, deferred) = wait(current, Vec::new(), inputs);
        assert_eq!(slots.unwrap(), [3]);
        // The end of the former one is still answered, after this one.
        assert_eq!(deferred, 1);
    }

    #[test]
    fn a_capture_that_is_given_up_waits_for_no_slots() {
        let number = CaptureNumber::default().next();
        let end = || request(number, CaptureRequest::End);
        let free = || request(number, CaptureRequest::FreeSlots(vec![7]));
        let (slots, deferred) = wait(number, Vec::new(), vec![end(), free()]);
        assert!(matches!(slots, Err(ChannelError::Closed)));
        assert_eq!(deferred, 1);
        // It came before a reboot, together with the begin.
        let (slots, deferred) = wait(number, vec![end()], vec![free()]);
        assert!(matches!(slots, Err(ChannelError::Closed)));
        assert_eq!(deferred, 1);
    }

    #[test]
    fn messages_of_a_capture_carry_its_number() {
        let number = CaptureNumber::default().next();
        let (socket, supervisor) = UnixStream::pair().unwrap();
        let (_sender, inbox) = channel();
        let mut deferred = VecDeque::new();
        let mut talk = Talk {
            number,
            socket: &socket,
            inbox: &inbox,
            deferred: &mut deferred,
        };
        talk.send(CaptureEvent::MemoryDone).unwrap();
        let received: Received<FromVmm> = socket_channel::receive(&supervisor).unwrap();
        let expected = FromVmm::Capture(number, CaptureEvent::MemoryDone);
        assert_eq!(received.message, expected);
    }
}
