//! Starting and stopping machines.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::Engine;
use super::info::{MachineState, describe};
use super::process::ProcessModel;
use crate::api::CreateOptions;
use crate::api::EngineError;
use crate::backend::{self, NotKvm};
use crate::channel;
use crate::channel::child::spawn_supervisor;
use crate::channel::control::{Control, ControlReply, LiveStatus, StartReport};
use crate::file_error::FileError;
use crate::machine::{MachineDir, RecordedState};
use crate::name::MachineName;
use crate::supervisor::{self, VmmHost};
use crate::vmm;

/// Pause between two looks at a machine that somebody else starts.
const READY_PAUSE: Duration = Duration::from_millis(20);

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

impl Engine {
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
    pub(super) fn launch(
        &self,
        name: &MachineName,
        dir: &MachineDir,
    ) -> Result<StartReport, EngineError> {
        let log = dir.process_log();
        let (socket, child) = match &self.options.process_model {
            ProcessModel::Processes { program } => {
                let (child, socket) = spawn_supervisor(program, self.home(), name, &log)
                    .map_err(FileError::at("start", program))?;
                (socket, Some(child))
            }
            ProcessModel::Threads => {
                let (ours, theirs) = UnixStream::pair().map_err(FileError::at("start", &log))?;
                let (home, name) = (self.home().clone(), name.clone());
                let host = VmmHost::Thread { main: vmm::run };
                std::thread::Builder::new()
                    .name(format!("supervisor of {name}"))
                    .spawn(move || supervisor::run(&home, &name, &host, theirs))
                    .map_err(FileError::at("start", &log))?;
                (ours, None)
            }
        };
        if let Ok(received) = channel::receive(&socket) {
            return Ok(received.message);
        }
        // It ended without a word: collect it, its log says more.
        let how = child
            .and_then(|mut child| child.wait().ok())
            .map_or_else(String::new, |status| format!(" ({status})"));
        Err(EngineError::NotStarted {
            name: name.clone(),
            reason: format!("its supervisor ended early{how}, see {}", log.display()),
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

    /// Ends a machine's processes at once, also while another call starts or stops it. Returns whether
    /// there was anything to end.
    pub fn force_off(&self, name: &MachineName) -> bool {
        self.control(name, &Control::Stop { timeout_ms: 0 }).is_ok()
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
}
