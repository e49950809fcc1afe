use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use vmm_core::machine::{MachineEvent, RunningMachine};

use super::messages::{ConsoleNote, EndReason, FromVmm, ToVmm};
use super::start::{Parts, StartError};
use crate::channel::{self as socket_channel, ChannelError, Received};
use crate::error::chain;

/// What wakes the VMM.
enum Input {
    Request(ToVmm),
    Event,
    Note(ConsoleNote),
    SupervisorGone,
}

/// Runs one machine until it ends or the supervisor closes `socket`.
pub(crate) fn run(socket: UnixStream) -> Result<(), ChannelError> {
    let first: Received<ToVmm> = socket_channel::receive(&socket)?;
    let ToVmm::Start(request) = first.message else {
        return tell(
            &socket,
            FromVmm::StartFailed("the first message is not a start".to_owned()),
        );
    };
    let parts = match Parts::open(*request, first.descriptors) {
        Ok(parts) => parts,
        Err(error) => return tell(&socket, FromVmm::StartFailed(chain(&error))),
    };
    let (sender, inbox) = channel();
    let requests = socket.try_clone()?;
    let forward = sender.clone();
    std::thread::Builder::new()
        .name("requests".to_owned())
        .spawn(move || read_requests(&requests, &forward))?;
    Vmm {
        socket,
        parts,
        sender,
        inbox,
        panic: None,
    }
    .run()
}

fn tell(socket: &UnixStream, message: FromVmm) -> Result<(), ChannelError> {
    socket_channel::send(socket, &message, &[])
}

fn read_requests(socket: &UnixStream, inbox: &Sender<Input>) {
    loop {
        let input = match socket_channel::receive(socket) {
            Ok(received) => Input::Request(received.message),
            Err(_) => Input::SupervisorGone,
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
            let mut machine = match self.boot() {
                Ok(machine) => machine,
                Err(error) => return tell(&self.socket, FromVmm::StartFailed(chain(&error))),
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

    fn boot(&self) -> Result<RunningMachine, StartError> {
        let (events, notes) = (self.sender.clone(), self.sender.clone());
        // A send fails only when this VMM has ended.
        self.parts.boot(
            Box::new(move || drop(events.send(Input::Event))),
            Box::new(move |note| drop(notes.send(Input::Note(note)))),
        )
    }

    fn serve(&mut self, machine: &mut RunningMachine) -> Result<Outcome, ChannelError> {
        loop {
            // This VMM holds a sender itself: the queue is never closed.
            let Ok(input) = self.inbox.recv() else {
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
                Input::Request(ToVmm::ConsoleInput(bytes)) => {
                    machine.console_input(&bytes);
                }
                Input::Request(ToVmm::Quit) | Input::SupervisorGone => {
                    return Ok(Outcome::Ended(EndReason::Asked));
                }
                Input::Request(ToVmm::Start(_)) => {
                    tracing::warn!("a second start was ignored");
                }
            }
        }
    }

    /// Looks at what the console said before an event; other inputs wait for the next boot.
    fn drain_notes(&mut self) -> Result<(), ChannelError> {
        let waiting: Vec<Input> = self.inbox.try_iter().collect();
        for input in waiting {
            match input {
                Input::Note(note) => self.take_note(note)?,
                Input::Event => {}
                other => drop(self.sender.send(other)),
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
