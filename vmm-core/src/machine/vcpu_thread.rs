//! One thread per vCPU: it binds the vCPU, then obeys commands.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::VcpuIndex;
use crate::cpu_state::VcpuState;
use crate::exit::ExitHandler;
use crate::hypervisor::{HypervisorError, Vcpu, VcpuBinder, VcpuKick, VcpuStop};

use super::exits::MachineExits;

type Reply<T> = Sender<Result<T, HypervisorError>>;

enum Command {
    Load(Box<VcpuState>, Reply<()>),
    SetTscRate(u32, Reply<()>),
    Save(Reply<VcpuState>),
    NotifyStopped(Reply<()>),
    Run,
    Exit,
}

/// What a vCPU thread reports when its vCPU ends by itself.
pub(super) type StopCallback = Arc<dyn Fn(VcpuIndex, VcpuStop) + Send + Sync>;

/// Where all vCPU threads of a machine meet: who runs, and whether they shall stop.
#[derive(Default)]
pub(super) struct Rendezvous {
    stop_requested: AtomicBool,
    running: Mutex<usize>,
    parked: Condvar,
}

impl Rendezvous {
    /// Asks the vCPUs to stop; they still must be kicked.
    pub(super) fn request_stop(&self) {
        self.stop_requested.store(true, Ordering::SeqCst);
    }

    fn stop_requested(&self) -> bool {
        self.stop_requested.load(Ordering::SeqCst)
    }

    /// Waits until no vCPU runs.
    pub(super) fn wait_parked(&self) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        while *running > 0 {
            running = self
                .parked
                .wait(running)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Counts `vcpus` as running and takes the wish to stop back.
    fn begin(&self, vcpus: usize) {
        self.stop_requested.store(false, Ordering::SeqCst);
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) += vcpus;
    }

    fn park(&self) {
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.parked.notify_all();
    }
}

/// The owner's side of a vCPU thread.
pub(super) struct VcpuThread {
    index: VcpuIndex,
    commands: Sender<Command>,
    kicker: Arc<dyn VcpuKick>,
    thread: Option<JoinHandle<()>>,
}

impl VcpuThread {
    /// Starts the thread and binds the vCPU on it.
    pub(super) fn spawn(
        binder: Box<dyn VcpuBinder>,
        exits: MachineExits,
        rendezvous: Arc<Rendezvous>,
        on_stop: StopCallback,
    ) -> Result<Self, HypervisorError> {
        let index = binder.index();
        let kicker = binder.kicker();
        let (commands, inbox) = channel();
        let (bound, is_bound) = channel();
        let body = move || match binder.bind() {
            Ok(vcpu) => {
                // Whoever starts the thread waits for this answer.
                let _ = bound.send(Ok(()));
                Body {
                    index,
                    vcpu,
                    exits,
                    rendezvous,
                    on_stop,
                }
                .obey(&inbox);
            }
            Err(error) => {
                let _ = bound.send(Err(error));
            }
        };
        let thread = std::thread::Builder::new()
            .name(index.to_string())
            .spawn(body)
            .map_err(|source| HypervisorError::Host {
                operation: "starting a thread",
                source,
            })?;
        is_bound.recv().unwrap_or_else(|_| Err(gone(index)))?;
        Ok(Self {
            index,
            commands,
            kicker,
            thread: Some(thread),
        })
    }

    pub(super) fn kicker(&self) -> Arc<dyn VcpuKick> {
        self.kicker.clone()
    }

    pub(super) fn load(&self, state: VcpuState) -> Result<(), HypervisorError> {
        self.call(|reply| Command::Load(Box::new(state), reply))
    }

    pub(super) fn set_tsc_rate(&self, khz: u32) -> Result<(), HypervisorError> {
        self.call(|reply| Command::SetTscRate(khz, reply))
    }

    pub(super) fn save(&self) -> Result<VcpuState, HypervisorError> {
        self.call(Command::Save)
    }

    pub(super) fn notify_stopped(&self) -> Result<(), HypervisorError> {
        self.call(Command::NotifyStopped)
    }

    fn call<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, HypervisorError> {
        let (reply, answer) = channel();
        self.commands
            .send(command(reply))
            .map_err(|_| gone(self.index))?;
        answer.recv().unwrap_or_else(|_| Err(gone(self.index)))
    }
}

impl Drop for VcpuThread {
    fn drop(&mut self) {
        // The vCPU is parked, or its thread has ended: it takes the command at once.
        let _ = self.commands.send(Command::Exit);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(vcpu = %self.index, "vCPU thread panicked");
        }
    }
}

/// Lets parked vCPUs run.
pub(super) fn run_all(
    threads: &[VcpuThread],
    rendezvous: &Rendezvous,
) -> Result<(), HypervisorError> {
    rendezvous.begin(threads.len());
    for (position, thread) in threads.iter().enumerate() {
        if thread.commands.send(Command::Run).is_err() {
            // Those that were not asked to run do not count.
            (position..threads.len()).for_each(|_| rendezvous.park());
            return Err(gone(thread.index));
        }
    }
    Ok(())
}

fn gone(index: VcpuIndex) -> HypervisorError {
    HypervisorError::State {
        what: format!("the thread of {index} has ended"),
    }
}

struct Body {
    index: VcpuIndex,
    vcpu: Box<dyn Vcpu>,
    exits: MachineExits,
    rendezvous: Arc<Rendezvous>,
    on_stop: StopCallback,
}

/// Counts a vCPU as parked even when its thread unwinds.
struct ParkOnDrop<'a>(&'a Rendezvous);

impl Drop for ParkOnDrop<'_> {
    fn drop(&mut self) {
        self.0.park();
    }
}

impl Body {
    fn obey(mut self, inbox: &Receiver<Command>) {
        while let Ok(command) = inbox.recv() {
            // Whoever asked may be gone: nobody wants the answer then.
            match command {
                Command::Load(state, reply) => drop(reply.send(self.vcpu.load(&state))),
                Command::SetTscRate(khz, reply) => {
                    drop(reply.send(self.vcpu.set_tsc_rate(khz)));
                }
                Command::Save(reply) => drop(reply.send(self.vcpu.save())),
                Command::NotifyStopped(reply) => drop(reply.send(self.vcpu.notify_stopped())),
                Command::Run => self.run(),
                Command::Exit => return,
            }
        }
    }

    fn run(&mut self) {
        let rendezvous = self.rendezvous.clone();
        let _parked = ParkOnDrop(&rendezvous);
        let exits: &mut dyn ExitHandler = &mut self.exits;
        while !rendezvous.stop_requested() {
            match self.vcpu.run(exits) {
                Ok(VcpuStop::Kicked) => {}
                Ok(stop) => return (self.on_stop)(self.index, stop),
                Err(error) => {
                    return (self.on_stop)(self.index, VcpuStop::Failed(chain(&error)));
                }
            }
        }
        if let Err(error) = self.vcpu.finish_pending_exit(exits) {
            (self.on_stop)(self.index, VcpuStop::Failed(chain(&error)));
        }
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}
