//! Machines that repeat themselves bit by bit, for tests.
//!
//! [`Engine::run_deterministic`] boots a machine, or goes on at its point, on the software CPU, in this
//! process and under the caller's control: the guest runs only inside the methods of
//! [`DeterministicMachine`]. Its time is the count of instructions; whatever is random follows from a
//! seed. The same machine, seed and calls give the same guest, down to its [`MachineDigest`].
//!
//! What the guest writes to its disk is dropped at the end, and the machine's files stay as they are.

mod stream;

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agent_protocol::client::{ClientError, Connection, ExecEvent};
use agent_protocol::codec::Bytes;
use agent_protocol::message::{ErrorKind, Identity, Outcome, StepOutcome, StepReport};
use cas_store::ReadError;
use thiserror::Error;
use vmm_core::entropy::SeededEntropy;
use vmm_core::machine::{MachineError, MachineEvent, RunningMachine};

use self::stream::GuestStream;
use crate::api::exec::{ExecOptions, exec_request};
use crate::api::{Engine, EngineError, MachineState};
use crate::backend;
use crate::channel::messages::StartMachine;
use crate::error_chain::chain;
use crate::file_error::FileError;
use crate::machine::{Backend, MachineDir, MachineFile, MachineSpec, RunLock, create_overlay};
use crate::name::MachineName;
use crate::supervisor::{self, AgentDialer, AgentError, GUEST_CID, SEED_BYTES, SpawnError};
use crate::vmm::{Parts, StartError};

/// Instructions that the guest runs at a time while somebody waits for it: a millisecond of its time.
const STEP: u64 = 1_000_000;
/// Instructions that a guest may take to answer: ten minutes of its time.
const PATIENCE: u64 = 600_000_000_000;
/// Instructions between two attempts to reach an agent that does not listen yet.
const RETRY_PAUSE: u64 = 20_000_000;

/// Why a deterministic machine could not be run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DeterministicError {
    /// The machine or its files.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The machine could not be built or started.
    #[error("the machine cannot be started: {0}")]
    Start(String),
    /// The machine could not be run or read.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The guest's memory cannot be read.
    #[error("guest memory cannot be read")]
    Memory(#[source] vm_memory::GuestMemoryError),
    /// The guest ended by itself.
    #[error("the guest ended: {0:?}")]
    Ended(MachineEvent),
    /// Input would come at moments that depend on the host.
    #[error("a command of a deterministic machine takes no input and no terminal")]
    Input,
    /// The agent could not be reached, or a call failed.
    #[error("the agent's {call} failed")]
    Agent {
        /// Which call.
        call: &'static str,
        /// What went wrong.
        #[source]
        source: ClientError,
    },
    /// There are no sockets left.
    #[error("no connection to the agent")]
    Connect(#[source] io::Error),
}

impl From<SpawnError> for DeterministicError {
    fn from(error: SpawnError) -> Self {
        Self::Start(crate::error_chain::chain(&error))
    }
}

impl From<StartError> for DeterministicError {
    fn from(error: StartError) -> Self {
        Self::Start(crate::error_chain::chain(&error))
    }
}

impl From<AgentError> for DeterministicError {
    fn from(error: AgentError) -> Self {
        Self::Connect(io::Error::other(error))
    }
}

/// All that a machine is at an instruction count, as digests (BLAKE3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineDigest {
    /// The count.
    pub instructions: u64,
    /// The state of vCPUs, clock, interrupt controller and devices.
    pub units: [u8; 32],
    /// Memory.
    pub memory: [u8; 32],
    /// What was written to the disk, in order, since the machine was started.
    pub disk_writes: [u8; 32],
}

/// What a command left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecOutput {
    /// How it ended.
    pub outcome: Outcome,
    /// What it wrote to its standard output.
    pub stdout: Vec<u8>,
    /// What it wrote to its standard error.
    pub stderr: Vec<u8>,
}

/// A machine under the caller's control. Dropping it ends it.
pub struct DeterministicMachine {
    guest: Guest,
    dialer: AgentDialer,
    spec: MachineSpec,
    seed: u64,
    parts: Parts,
    _running: RunLock,
}

/// The running guest; its streams drive it too.
#[derive(Clone)]
struct Guest(Arc<Mutex<RunningMachine>>);

impl Guest {
    fn lock(&self) -> MutexGuard<'_, RunningMachine> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self) -> u64 {
        self.lock().instruction_count().unwrap_or(0)
    }

    fn run_until(&self, count: u64) -> Result<(), DeterministicError> {
        match self.lock().run_until(count)? {
            MachineEvent::CountReached => Ok(()),
            event => Err(DeterministicError::Ended(event)),
        }
    }

    /// Lets the guest run a little.
    fn run_for(&self, instructions: u64) -> Result<(), DeterministicError> {
        self.run_until(self.count().saturating_add(instructions))
    }
}

impl Engine {
    /// Starts a machine that does not run, as a deterministic one, and waits for its agent. It boots or,
    /// made from a point, goes on there. Meanwhile no other start of it succeeds.
    ///
    /// The guest's clock begins with the year 2025 or goes on from the point; its identity and
    /// random pool follow from `seed`, and it gets no SSH host keys. Nothing of this is secret.
    ///
    /// # Errors
    ///
    /// [`DeterministicError::Engine`], where it runs already; [`DeterministicError::Start`].
    pub fn run_deterministic(
        &self,
        name: &MachineName,
        seed: u64,
    ) -> Result<DeterministicMachine, DeterministicError> {
        let (dir, file) = (self.dir(name), self.read(name)?);
        let _operation = dir.lock_operation().map_err(EngineError::from)?;
        if dir.is_running().map_err(EngineError::from)? {
            return Err(DeterministicError::Engine(EngineError::WrongState {
                operation: "start",
                name: name.clone(),
                state: MachineState::Running.word().to_owned(),
            }));
        }
        let running = dir.lock_running().map_err(EngineError::from)?;
        let interpret = !self.options.translation;
        let (parts, dialer) = open_parts(&dir, &file, &running, (seed, interpret))?;
        // Events come back from each run; the console is in the machine's log.
        let machine = parts.start(Box::new(|| {}), Box::new(|_| {}))?;
        let machine = DeterministicMachine {
            guest: Guest(Arc::new(Mutex::new(machine))),
            dialer,
            spec: file.spec,
            seed,
            parts,
            _running: running,
        };
        machine.set_up(&file.name)?;
        Ok(machine)
    }
}

/// The machine's files, opened as for any start with a seed and whether all code is interpreted, and a layer for what the guest writes.
fn open_parts(
    dir: &MachineDir,
    file: &MachineFile,
    running: &RunLock,
    how: (u64, bool),
) -> Result<(Parts, AgentDialer), DeterministicError> {
    let mut file = file.clone();
    if file.restore.is_some() {
        // An earlier start that was killed may have written to them.
        file.disk.layers.clear();
    }
    let scratch = tempfile::Builder::new()
        .prefix("deterministic-")
        .tempdir_in(dir.disk())
        .map_err(FileError::at("create a folder in", &dir.disk()))
        .map_err(EngineError::from)?;
    // Open files outlive the folder, which goes at the end of this function.
    let top = create_overlay(&scratch.path().join("layer"), file.spec.disk_bytes)
        .map_err(EngineError::from)?;
    let (ours, theirs) = UnixStream::pair().map_err(DeterministicError::Connect)?;
    let descriptors = supervisor::descriptors(dir, &file, running, theirs, Some(top))?;
    let on_damage = |error: &ReadError| tracing::error!(error = %chain(error), "a chunk is lost");
    let parts = Parts::open(request(&file, how)?, descriptors, Arc::new(on_damage))?;
    Ok((parts, AgentDialer::new(ours)))
}

fn request(
    file: &MachineFile,
    (seed, interpret): (u64, bool),
) -> Result<StartMachine, DeterministicError> {
    let spec = &file.spec;
    let cpu = match &spec.cpu {
        Some(cpu) => cpu.clone(),
        None => {
            let backend = backend::open_deterministic().map_err(EngineError::from)?;
            backend::default_profile(&*backend).to_owned()
        }
    };
    Ok(StartMachine {
        backend: Backend::Soft,
        vcpus: spec
            .cpus
            .unwrap_or_else(|| backend::default_vcpus(Backend::Soft)),
        memory_bytes: spec.memory_bytes,
        cpu,
        command_line: file.command_line.clone(),
        vsock_cid: GUEST_CID,
        disk_bytes: spec.disk_bytes,
        other_pack_directories: Vec::new(),
        branchable: false,
        restore: file.restore.is_some(),
        inherited: None,
        deterministic: Some(seed),
        interpret,
    })
}

impl DeterministicMachine {
    /// Instructions of all vCPUs so far, and idle time in instructions: nanoseconds for a machine that
    /// was booted.
    pub fn instructions(&self) -> u64 {
        self.guest.count()
    }

    /// Lets the guest run to an instruction count, or a little behind it.
    ///
    /// # Errors
    ///
    /// [`DeterministicError::Ended`] when the guest ends before.
    pub fn run_until(&mut self, instructions: u64) -> Result<(), DeterministicError> {
        self.guest.run_until(instructions)
    }

    /// Runs a command to its end. Input and terminals are refused.
    ///
    /// # Errors
    ///
    /// [`DeterministicError::Input`], [`DeterministicError::Agent`].
    pub fn exec(&mut self, options: ExecOptions) -> Result<ExecOutput, DeterministicError> {
        if options.stdin || options.tty.is_some() {
            return Err(DeterministicError::Input);
        }
        let failed = |source| DeterministicError::Agent {
            call: "exec",
            source,
        };
        let session = self
            .connect()?
            .exec(exec_request(self.spec.clone(), options));
        let mut reader = session.map_err(failed)?.reader;
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        loop {
            match reader.next_event().map_err(failed)? {
                ExecEvent::Stdout(bytes) => stdout.extend_from_slice(&bytes),
                ExecEvent::Stderr(bytes) => stderr.extend_from_slice(&bytes),
                ExecEvent::Exit(outcome) => {
                    return Ok(ExecOutput {
                        outcome,
                        stdout,
                        stderr,
                    });
                }
            }
        }
    }

    /// What the machine is now. Runs nothing.
    ///
    /// # Errors
    ///
    /// [`DeterministicError::Machine`] when a unit cannot be read.
    pub fn digest(&mut self) -> Result<MachineDigest, DeterministicError> {
        let mut machine = self.guest.lock();
        let instructions = machine.instruction_count().unwrap_or(0);
        let paused = machine.pause()?;
        let mut units = blake3::Hasher::new();
        for record in paused.save()? {
            units.update(&(record.bytes.len() as u64).to_le_bytes());
            units.update(record.unit.as_bytes()).update(&record.bytes);
        }
        Ok(MachineDigest {
            instructions,
            units: units.finalize().into(),
            memory: memory_digest(paused.ram())?,
            disk_writes: self.parts.disk_writes(),
        })
    }

    /// A connection to the agent, once it listens.
    fn connect(&self) -> Result<Connection<GuestStream, GuestStream>, DeterministicError> {
        let deadline = self.guest.count().saturating_add(PATIENCE);
        loop {
            let stream = GuestStream::new(self.dialer.dial()?, self.guest.clone());
            let stream = stream.map_err(DeterministicError::Connect)?;
            match Connection::open(stream.clone(), stream) {
                Ok(connection) => return Ok(connection),
                Err(source) if self.guest.count() >= deadline => {
                    return Err(DeterministicError::Agent {
                        call: "hello",
                        source,
                    });
                }
                Err(_) => self.guest.run_for(RETRY_PAUSE)?,
            }
        }
    }

    /// Gives the guest what any start gives it, from the seed instead of from the host.
    fn set_up(&self, name: &MachineName) -> Result<(), DeterministicError> {
        let call = |call| move |source| DeterministicError::Agent { call, source };
        let mut entropy = SeededEntropy::new(self.seed, "set-up");
        let mut seed = [0; SEED_BYTES];
        let (mut restore_id, mut machine_id) = ([0; 16], [0; 16]);
        for bytes in [&mut seed[..], &mut restore_id, &mut machine_id] {
            entropy.fill(bytes);
        }
        let mut agent = self.connect()?;
        let steps = agent.reseed(&seed, restore_id).and_then(all_done);
        steps.map_err(call("reseed"))?;
        agent
            .resize_root()
            .map_err(call("resize of the root file system"))?;
        let identity = Identity {
            hostname: Some(name.hostname()),
            machine_id: Some(machine_id.into()),
            boot_id: None,
            random_seed: Some(Bytes(seed.to_vec())),
            ssh_host_keys: Vec::new(),
            forget_dhcp: true,
        };
        let steps = agent.set_identity(&identity).and_then(all_done);
        steps.map_err(call("new identity"))
    }
}

/// A machine that repeats itself must have got all of what it was given.
fn all_done(steps: Vec<StepReport>) -> Result<(), ClientError> {
    let failed = steps
        .into_iter()
        .find(|step| step.outcome != StepOutcome::Done);
    failed.map_or(Ok(()), |step| {
        Err(ClientError::Agent {
            kind: ErrorKind::Failed,
            message: format!("{}: {}", step.step, step.reason),
        })
    })
}

/// Bytes of memory that are hashed at a time.
const PIECE_BYTES: u64 = 1 << 20;

fn memory_digest(ram: &vmm_core::ram::GuestRam) -> Result<[u8; 32], DeterministicError> {
    use vm_memory::{Bytes as _, GuestAddress};
    let mut digest = blake3::Hasher::new();
    let mut piece = vec![0; PIECE_BYTES as usize];
    for region in ram.layout().regions() {
        let mut at = region.start.0;
        while at < region.end().0 {
            let bytes = (region.end().0 - at).min(PIECE_BYTES) as usize;
            ram.read_slice(&mut piece[..bytes], GuestAddress(at))
                .map_err(DeterministicError::Memory)?;
            digest.update(&piece[..bytes]);
            at += bytes as u64;
        }
    }
    Ok(digest.finalize().into())
}
