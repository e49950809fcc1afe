//! The engine: machines of one home.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use agent_protocol::client::Connection;

use crate::artifact::staging;
use crate::backend::{self, NotKvm};
use crate::channel::{self, ChannelError};
use crate::create::{CreateOptions, io_error};
use crate::error::EngineError;
use crate::home::Home;
use crate::machine::{MachineDir, MachineFile, MachineOrigin, MachineSpec, RecordedState};
use crate::name::MachineName;
use crate::process::{self, ProcessModel};
use crate::supervisor::control::{Control, ControlReply, LiveStatus};
use crate::supervisor::{self, StartReport};

/// Pause between two looks at a machine that somebody else starts.
const READY_PAUSE: Duration = Duration::from_millis(20);

/// How long the hello of a fresh connection to the agent may take.
const HELLO_TIMEOUT: Duration = Duration::from_secs(20);

/// Where an engine works and how it runs machines.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// The home.
    pub home: Home,
    /// How machines are run.
    pub process_model: ProcessModel,
}

impl EngineOptions {
    /// The home that the environment names, machines as processes of the calling program.
    pub fn from_environment() -> Result<Self, EngineError> {
        let program = std::env::current_exe().map_err(|source| EngineError::Io {
            operation: "find",
            path: PathBuf::from("the running program"),
            source,
        })?;
        Ok(Self {
            home: Home::from_environment()?,
            process_model: ProcessModel::Processes { program },
        })
    }
}

/// Works on the machines of one home. Cheap to clone; any number may work on one home at once.
#[derive(Debug, Clone)]
pub struct Engine {
    options: EngineOptions,
}

/// How to start a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StartOptions {
    /// Boot, whatever the machine could be restored from.
    pub cold: bool,
    /// Track changed pages, which branches and incremental saves need.
    pub branchable: bool,
}

impl Default for StartOptions {
    fn default() -> Self {
        Self {
            cold: false,
            branchable: true,
        }
    }
}

/// How to stop a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StopOptions {
    /// How long the guest may take to end by itself.
    pub timeout: Duration,
}

impl StopOptions {
    /// With this timeout.
    pub fn with_timeout(timeout: Duration) -> Self {
        Self { timeout }
    }
}

impl Default for StopOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(10),
        }
    }
}

/// What [`Engine::start`] did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    /// The machine had to be created first.
    pub created: bool,
    /// It ran already.
    pub was_running: bool,
    /// The backend in use.
    pub backend: String,
    /// Why it is not KVM, and what the user can do about that.
    pub not_kvm: Option<NotKvm>,
}

/// What [`Engine::stop`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped {
    /// It did not run.
    pub was_stopped: bool,
    /// The guest did not end by itself.
    pub forced: bool,
}

/// The state of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MachineState {
    /// Never started.
    Created,
    /// Its processes run.
    Running,
    /// Ended in order.
    Stopped,
    /// Ended by itself.
    Failed {
        /// Why.
        reason: String,
    },
    /// Chunks that it needs are lost.
    Damaged {
        /// Which, in which pack, of which point.
        reason: String,
    },
}

impl MachineState {
    /// One word.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Running => "running",
            Self::Stopped => "stopped",
            Self::Failed { .. } => "failed",
            Self::Damaged { .. } => "damaged",
        }
    }

    /// Why it is in this state, where there is a reason.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Failed { reason } | Self::Damaged { reason } => Some(reason),
            _ => None,
        }
    }
}

/// What is known about a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MachineInfo {
    /// Its name.
    pub name: MachineName,
    /// Its state.
    pub state: MachineState,
    /// What it is.
    pub spec: MachineSpec,
    /// What it was made from.
    pub origin: MachineOrigin,
    /// Seconds since 1970 when it was created.
    pub created_unix: u64,
    /// The point it was last saved to or restored from.
    pub head: Option<String>,
    /// The backend, while it runs.
    pub backend: Option<String>,
    /// vCPUs, while it runs.
    pub vcpus: Option<u8>,
    /// Seconds since 1970 when it was started, while it runs.
    pub started_unix: Option<u64>,
    /// Whether its agent answers, while it runs.
    pub ready: bool,
    /// The guest's kernel killed a process for lack of memory.
    pub out_of_memory: Option<String>,
}

/// A connection to a machine's agent.
pub type AgentConnection = Connection<UnixStream, UnixStream>;

impl Engine {
    /// An engine over a home, which need not exist.
    pub fn open(options: EngineOptions) -> Result<Self, EngineError> {
        Ok(Self { options })
    }

    /// The home.
    pub fn home(&self) -> &Home {
        &self.options.home
    }

    /// The names of all machines, sorted. Changes nothing.
    pub fn machine_names(&self) -> Result<Vec<MachineName>, EngineError> {
        let machines = self.home().machines();
        let names = staging::list(&machines).map_err(io_error("list", &machines))?;
        Ok(names
            .into_iter()
            .filter_map(|name| name.parse().ok())
            .collect())
    }

    /// All machines, sorted by name. Changes nothing; one that is being deleted may be missing.
    pub fn machines(&self) -> Result<Vec<MachineInfo>, EngineError> {
        let mut machines = Vec::new();
        for name in self.machine_names()? {
            match self.machine(&name) {
                Err(EngineError::NoMachine { .. }) => {}
                result => machines.push(result?),
            }
        }
        Ok(machines)
    }

    /// One machine. Changes nothing.
    pub fn machine(&self, name: &MachineName) -> Result<MachineInfo, EngineError> {
        let dir = self.dir(name);
        let file = self.read(name)?;
        let running = dir.is_running()?;
        let live = if running {
            self.live_status(name)
        } else {
            None
        };
        // Between reading the file and looking at the lock the machine may have ended.
        let file = if running { file } else { self.read(name)? };
        Ok(describe(file, running, live))
    }

    /// The machine that is meant: the one named, else the one that `SMOLVM_MACHINE_NAME` names, else
    /// the only one.
    pub fn resolve(&self, name: Option<MachineName>) -> Result<MachineName, EngineError> {
        if let Some(name) = name {
            return Ok(name);
        }
        if let Ok(name) = std::env::var("SMOLVM_MACHINE_NAME")
            && !name.is_empty()
        {
            return Ok(name.parse()?);
        }
        let mut names = self.machine_names()?;
        match (names.pop(), names.len()) {
            (Some(only), 0) => Ok(only),
            (None, _) => Err(EngineError::WhichMachine { count: 0 }),
            (Some(_), more) => Err(EngineError::WhichMachine { count: more + 1 }),
        }
    }

    /// Starts a machine; one that does not exist is created from the default image first. Returns when
    /// its agent answers.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotStarted`], [`EngineError::AgentSilent`] (it runs all the same).
    pub fn start(&self, name: &MachineName, options: StartOptions) -> Result<Started, EngineError> {
        let dir = self.dir(name);
        let mut created = false;
        if !dir.exists() {
            let create = CreateOptions {
                name: Some(name.clone()),
                ..CreateOptions::default()
            };
            match self.create(create) {
                // Somebody else was faster: theirs is as good.
                Err(EngineError::MachineExists { .. }) => {}
                result => {
                    result?;
                    created = true;
                }
            }
        }
        let _operation = dir.lock_operation()?;
        let mut file = self.read(name)?;
        if dir.is_running()? {
            // Whoever started it may have been killed before it was ready.
            self.wait_ready(name, &dir)?;
            let backend = match self.read(name)?.state {
                RecordedState::Running { backend } => backend,
                _ => String::new(),
            };
            return Ok(Started {
                created,
                was_running: true,
                not_kvm: None,
                backend,
            });
        }
        backend::check_named(file.spec.backend)?;
        if file.branchable != options.branchable || (options.cold && file.restore.is_some()) {
            file.branchable = options.branchable;
            if options.cold {
                file.restore = None;
            }
            dir.write(&file)?;
        }
        let report = self.launch(name, &dir);
        if !matches!(
            report,
            Ok(StartReport::Ready { .. } | StartReport::AgentSilent { .. })
        ) {
            // It does not run: the next command must not find its last process and think it did.
            drop(dir.lock_running()?);
        }
        let report = report?;
        let name = name.clone();
        match report {
            StartReport::Ready { backend } => Ok(Started {
                created,
                was_running: false,
                not_kvm: NotKvm::of(file.spec.backend, &backend),
                backend,
            }),
            StartReport::AgentSilent { message } => Err(EngineError::AgentSilent {
                name,
                reason: message,
            }),
            StartReport::Failed { message, hint } => Err(EngineError::NotStarted {
                name,
                reason: message,
                hint,
            }),
        }
    }

    /// Starts the supervisor and waits for its report.
    fn launch(&self, name: &MachineName, dir: &MachineDir) -> Result<StartReport, EngineError> {
        let log = dir.process_log();
        let (socket, child) = match &self.options.process_model {
            ProcessModel::Processes { program } => {
                let (child, socket) = process::spawn_supervisor(program, self.home(), name, &log)
                    .map_err(io_error("start", program))?;
                (socket, Some(child))
            }
            ProcessModel::Threads => {
                let (ours, theirs) = UnixStream::pair().map_err(io_error("start", &log))?;
                let (home, name, model) = (
                    self.home().clone(),
                    name.clone(),
                    self.options.process_model.clone(),
                );
                std::thread::Builder::new()
                    .name(format!("supervisor of {name}"))
                    .spawn(move || supervisor::run(&home, &name, &model, theirs))
                    .map_err(io_error("start", &log))?;
                (ours, None)
            }
        };
        let report = channel::receive(&socket).map(|received| received.message);
        if let (Err(_), Some(mut child)) = (&report, child) {
            // It ended without a word: collect it, its log says more.
            let _ = child.wait();
        }
        report.map_err(|_| EngineError::NotStarted {
            name: name.clone(),
            reason: format!("its supervisor ended early, see {}", log.display()),
            hint: None,
        })
    }

    /// Stops a machine: in order if the guest obeys in time, else by force.
    pub fn stop(&self, name: &MachineName, options: StopOptions) -> Result<Stopped, EngineError> {
        let dir = self.dir(name);
        self.read(name)?;
        let _operation = dir.lock_operation()?;
        self.read(name)?;
        if !dir.is_running()? {
            return Ok(Stopped {
                was_stopped: true,
                forced: false,
            });
        }
        let timeout_ms = u64::try_from(options.timeout.as_millis()).unwrap_or(u64::MAX);
        let forced = match self.control(name, &Control::Stop { timeout_ms }) {
            Ok((ControlReply::Stopped { forced }, _)) => forced,
            Ok((ControlReply::Failed { message, hint }, _)) => {
                return Err(EngineError::Refused {
                    name: name.clone(),
                    reason: message,
                    hint,
                });
            }
            Ok(_) => false,
            // A supervisor that ends or was killed: the lock below tells when its VMM is gone too.
            Err(_) => true,
        };
        // The lock is free when both processes are gone.
        drop(dir.lock_running()?);
        Ok(Stopped {
            was_stopped: false,
            forced,
        })
    }

    /// Deletes a machine with all that is its own. One that runs is stopped by force if `force`.
    pub fn delete(&self, name: &MachineName, force: bool) -> Result<(), EngineError> {
        let dir = self.dir(name);
        match self.read(name) {
            // What cannot be read can still be removed.
            Err(EngineError::MachineDir(_)) if force => {}
            result => drop(result?),
        }
        let _operation = dir.lock_operation()?;
        if dir.is_running()? {
            if !force {
                return Err(EngineError::WrongState {
                    operation: "delete",
                    name: name.clone(),
                    state: MachineState::Running.word().to_owned(),
                });
            }
            // Whether it ended in order does not matter any more.
            let _ = self.control(name, &Control::Stop { timeout_ms: 0 });
            drop(dir.lock_running()?);
        }
        let machines = self.home().machines();
        if !staging::remove(&machines, name.as_str()).map_err(io_error("remove", dir.path()))? {
            return Err(EngineError::NoMachine { name: name.clone() });
        }
        Ok(())
    }

    /// Gives a machine that does not run another name.
    pub fn rename(&self, name: &MachineName, to: &MachineName) -> Result<(), EngineError> {
        let dir = self.dir(name);
        self.read(name)?;
        let _operation = dir.lock_operation()?;
        let mut file = self.read(name)?;
        if dir.is_running()? {
            return Err(EngineError::WrongState {
                operation: "rename",
                name: name.clone(),
                state: MachineState::Running.word().to_owned(),
            });
        }
        let target = self.home().machine(to);
        let (cwd, flags) = (rustix::fs::CWD, rustix::fs::RenameFlags::NOREPLACE);
        match rustix::fs::renameat_with(cwd, dir.path(), cwd, &target, flags) {
            Ok(()) => {}
            Err(rustix::io::Errno::EXIST) => {
                return Err(EngineError::MachineExists { name: to.clone() });
            }
            Err(error) => return Err(io_error("rename to", &target)(error.into())),
        }
        file.name = to.clone();
        let dir = self.dir(to);
        dir.write(&file)?;
        Ok(crate::machine::sync_directory(&self.home().machines())?)
    }

    /// A fresh connection to the agent of a running machine.
    pub fn connect_agent(&self, name: &MachineName) -> Result<AgentConnection, EngineError> {
        let stream = self.agent_stream(name)?;
        let failed = |source| EngineError::Supervisor {
            name: name.clone(),
            source: ChannelError::Io(source),
        };
        stream
            .set_read_timeout(Some(HELLO_TIMEOUT))
            .map_err(failed)?;
        let (reader, writer) = (
            stream.try_clone().map_err(failed)?,
            stream.try_clone().map_err(failed)?,
        );
        let connection = Connection::open(reader, writer).map_err(|source| EngineError::Agent {
            name: name.clone(),
            operation: "answer",
            source,
        })?;
        stream.set_read_timeout(None).map_err(failed)?;
        Ok(connection)
    }

    /// A fresh stream to the agent of a running machine, before the hello.
    pub fn agent_stream(&self, name: &MachineName) -> Result<UnixStream, EngineError> {
        self.require_running(name, "work in")?;
        let (reply, stream) = self.control(name, &Control::Agent)?;
        match (reply, stream) {
            (ControlReply::Agent, Some(stream)) => Ok(stream),
            (ControlReply::Failed { message, hint }, _) => Err(EngineError::Refused {
                name: name.clone(),
                reason: message,
                hint,
            }),
            _ => Err(EngineError::Supervisor {
                name: name.clone(),
                source: ChannelError::Closed,
            }),
        }
    }

    /// The file that holds the serial console's output.
    pub fn console_log(&self, name: &MachineName) -> Result<PathBuf, EngineError> {
        self.read(name)?;
        Ok(self.dir(name).console_log())
    }

    pub(crate) fn dir(&self, name: &MachineName) -> MachineDir {
        MachineDir::new(self.home().machine(name))
    }

    pub(crate) fn read(&self, name: &MachineName) -> Result<MachineFile, EngineError> {
        self.dir(name)
            .read()?
            .ok_or_else(|| EngineError::NoMachine { name: name.clone() })
    }

    pub(crate) fn require_running(
        &self,
        name: &MachineName,
        operation: &'static str,
    ) -> Result<(), EngineError> {
        let info = self.machine(name)?;
        if info.state == MachineState::Running {
            return Ok(());
        }
        let word = info.state.word();
        let state = match info.state.reason() {
            Some(reason) => format!("{word} ({reason})"),
            None => word.to_owned(),
        };
        Err(EngineError::WrongState {
            operation,
            name: name.clone(),
            state,
        })
    }

    /// Ends a machine's processes at once, also while another call starts or stops it. Returns whether
    /// there was anything to end.
    pub fn force_off(&self, name: &MachineName) -> bool {
        self.control(name, &Control::Stop { timeout_ms: 0 }).is_ok()
    }

    /// Asks the supervisor for long work; progress goes to `on_progress`.
    pub(crate) fn control_with_progress(
        &self,
        name: &MachineName,
        request: &Control,
        on_progress: &mut dyn FnMut(&str, u64, Option<u64>),
    ) -> Result<ControlReply, EngineError> {
        let failed = |source| EngineError::Supervisor {
            name: name.clone(),
            source,
        };
        let socket = supervisor::connect(&self.dir(name).control_socket())
            .map_err(|error| failed(ChannelError::Io(error)))?;
        channel::send(&socket, request, &[]).map_err(failed)?;
        loop {
            let received = channel::receive::<ControlReply>(&socket).map_err(failed)?;
            match received.message {
                ControlReply::Progress {
                    phase,
                    done_bytes,
                    total_bytes,
                } => {
                    on_progress(&phase, done_bytes, total_bytes);
                }
                reply => return Ok(reply),
            }
        }
    }

    /// Asks the supervisor; the stream is what came with its answer.
    fn control(
        &self,
        name: &MachineName,
        request: &Control,
    ) -> Result<(ControlReply, Option<UnixStream>), EngineError> {
        let failed = |source| EngineError::Supervisor {
            name: name.clone(),
            source,
        };
        let socket = supervisor::connect(&self.dir(name).control_socket())
            .map_err(|error| failed(ChannelError::Io(error)))?;
        channel::send(&socket, request, &[]).map_err(failed)?;
        let received = channel::receive::<ControlReply>(&socket).map_err(failed)?;
        let stream = received
            .descriptors
            .into_iter()
            .next()
            .map(UnixStream::from);
        Ok((received.message, stream))
    }

    /// Waits until a machine that runs already can be worked in.
    fn wait_ready(&self, name: &MachineName, dir: &MachineDir) -> Result<(), EngineError> {
        while dir.is_running()? {
            match self.live_status(name) {
                Some(LiveStatus { ready: true, .. }) => return Ok(()),
                Some(LiveStatus {
                    silent: Some(reason),
                    ..
                }) => {
                    let name = name.clone();
                    return Err(EngineError::AgentSilent { name, reason });
                }
                // Its set-up goes on, or it just begins or ends.
                _ => std::thread::sleep(READY_PAUSE),
            }
        }
        let state = describe(self.read(name)?, false, None).state;
        Err(EngineError::NotStarted {
            name: name.clone(),
            reason: match state {
                MachineState::Failed { reason } | MachineState::Damaged { reason } => reason,
                state => format!("it ended while it started, and is {}", state.word()),
            },
            hint: None,
        })
    }

    fn live_status(&self, name: &MachineName) -> Option<LiveStatus> {
        match self.control(name, &Control::Status) {
            Ok((ControlReply::Status(status), _)) => Some(status),
            // It starts, or ends right now.
            _ => None,
        }
    }
}

fn describe(file: MachineFile, running: bool, live: Option<LiveStatus>) -> MachineInfo {
    let state = match file.state {
        _ if running => MachineState::Running,
        RecordedState::Created => MachineState::Created,
        RecordedState::Stopped => MachineState::Stopped,
        RecordedState::Failed { reason } => MachineState::Failed { reason },
        RecordedState::Damaged { reason } => MachineState::Damaged { reason },
        RecordedState::Running { .. } => MachineState::Failed {
            reason: "its processes were killed".to_owned(),
        },
    };
    MachineInfo {
        name: file.name,
        state,
        spec: file.spec,
        origin: file.origin,
        created_unix: file.created_unix,
        head: file.head,
        backend: live.as_ref().map(|live| live.backend.clone()),
        vcpus: live.as_ref().map(|live| live.vcpus),
        started_unix: live.as_ref().map(|live| live.started_unix),
        ready: live.as_ref().is_some_and(|live| live.ready),
        out_of_memory: live.and_then(|live| live.out_of_memory),
    }
}
