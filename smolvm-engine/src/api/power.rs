//! Starting and stopping machines.

use std::os::unix::net::UnixStream;
use std::process::Child;
use std::time::Duration;

use super::Engine;
use super::process::{self, ProcessModel};
use crate::api::{EngineError, MachineState};
use crate::backend::{self, NotKvm};
use crate::channel::branch::{Alone, Begin};
use crate::channel::child::spawn_supervisor;
use crate::channel::control::{Control, LiveStatus, StartReport, Trouble};
use crate::channel::{self, ChannelError};
use crate::file_error::FileError;
use crate::machine::{Change, MachineDir, RecordedState};
use crate::name::MachineName;
use crate::restore::{BootedCache, take_back};
use crate::supervisor::{self, VmmHost};
use crate::vmm;

/// Pause between two looks at a machine that somebody else starts.
const READY_PAUSE: Duration = Duration::from_millis(20);

/// Pause between two looks at a machine whose save is not over.
const SAVE_PAUSE: Duration = Duration::from_millis(200);

/// How to start a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StartOptions {
    /// Boot, whatever the machine could be restored from: a point, or at its first start the booted point of its kind.
    pub cold: bool,
    /// Track changed pages, which branches and incremental saves need.
    pub branchable: bool,
}

impl StartOptions {
    /// Boots, whatever the machine could be restored from, or not.
    #[must_use]
    pub fn with_cold(mut self, cold: bool) -> Self {
        self.cold = cold;
        self
    }

    /// Tracks changed pages, or not.
    #[must_use]
    pub fn with_branchable(mut self, branchable: bool) -> Self {
        self.branchable = branchable;
        self
    }
}

impl Default for StartOptions {
    fn default() -> Self {
        Self {
            cold: false,
            branchable: true,
        }
    }
}

/// What [`Engine::start`] did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    /// It ran already.
    pub was_running: bool,
    /// It was paused and goes on.
    pub was_paused: bool,
    /// The backend in use.
    pub backend: String,
    /// What was left undone or does not last, though the machine can be used: its disk is full or
    /// read-only, say. The next start tries it again, also of a machine that runs.
    pub pending: Vec<String>,
    /// Why it is not KVM, and what the user can do about that.
    pub not_kvm: Option<NotKvm>,
}

impl Engine {
    /// Starts a machine. Returns when its agent answers.
    ///
    /// # Errors
    ///
    /// [`EngineError::NoMachine`]; [`EngineError::NotStarted`]; [`EngineError::AgentSilent`] and
    /// [`EngineError::NotSetUp`] (it runs all the same, and another start tries again what failed).
    pub fn start(&self, name: &MachineName, options: StartOptions) -> Result<Started, EngineError> {
        self.remove_cut_off()?;
        let dir = self.dir(name);
        self.read(name)?;
        let _operation = self.lock_operation(name, &dir)?;
        self.start_locked(name, &dir, options)
    }

    /// As [`Self::start`]; the operation lock is held.
    pub(super) fn start_locked(
        &self,
        name: &MachineName,
        dir: &MachineDir,
        options: StartOptions,
    ) -> Result<Started, EngineError> {
        let runs = self.runs_on(name, dir)?;
        if runs && options.cold {
            return Err(EngineError::WrongState {
                operation: "cold-start",
                name: name.clone(),
                state: MachineState::Running.word().to_owned(),
            });
        }
        // Whoever started it may have been killed before it was ready. One that ends meanwhile is started.
        if runs && let Some(pending) = self.wait_ready(name, dir)? {
            let backend = match self.read(name)?.state {
                RecordedState::Running { backend } => backend,
                _ => String::new(),
            };
            return Ok(Started {
                was_running: true,
                was_paused: false,
                not_kvm: None,
                backend,
                pending,
            });
        }
        let file = self.read(name)?;
        backend::check_named(file.spec.backend)?;
        let was_paused = matches!(file.state, RecordedState::Paused { .. }) && !options.cold;
        if was_paused {
            self.check_host(&self.paused_point(dir, &file)?.1, file.spec.backend)?;
        }
        if file.branchable != options.branchable || (options.cold && file.restore.is_some()) {
            let change = dir.change(|file| {
                file.branchable = options.branchable;
                if options.cold {
                    file.restore = None;
                    if matches!(file.state, RecordedState::Paused { .. }) {
                        file.state = RecordedState::Stopped;
                    }
                }
            });
            change.visible()?;
        }
        let alone = Alone {
            booted_points: self.options.booted_points,
            cold: options.cold,
            interpret: !self.options.translation,
        };
        let mut report = self.launch(name, dir, alone);
        if file.booted.is_none() && self.was_booted_in_vain(name, dir, &report)? {
            let cold = Alone {
                cold: true,
                ..alone
            };
            report = self.launch(name, dir, cold);
        }
        if !matches!(
            report,
            Ok(StartReport::Ready { .. } | StartReport::NotReady(_))
        ) {
            // It does not run: the next command must not find its last process and think it did.
            self.wait_for_end(name, dir)?;
        }
        let report = report?;
        let name = name.clone();
        match report {
            StartReport::Ready { backend, pending } => Ok(Started {
                pending,
                was_running: false,
                was_paused,
                not_kvm: NotKvm::of(file.spec.backend, &backend),
                backend,
            }),
            StartReport::NotReady(trouble) => Err(not_ready(name, trouble)),
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
        alone: Alone,
    ) -> Result<StartReport, EngineError> {
        self.launch_as(name, dir, |socket| {
            channel::send(socket, &Begin::Alone(alone), &[])
        })
    }

    /// Whether a first start went on at a booted point and did not come up: the machine is then as it was before, and the point gone.
    fn was_booted_in_vain(
        &self,
        name: &MachineName,
        dir: &MachineDir,
        report: &Result<StartReport, EngineError>,
    ) -> Result<bool, EngineError> {
        let silent = match report {
            Ok(StartReport::NotReady(_)) => true,
            Ok(StartReport::Failed { .. }) => false,
            Ok(StartReport::Ready { .. }) | Err(_) => return Ok(false),
        };
        let machine = self.read(name)?;
        let Some(booted) = &machine.booted else {
            return Ok(false);
        };
        if silent {
            self.end(name, dir, Duration::ZERO)?;
        } else {
            self.wait_for_end(name, dir)?;
            // Somebody wanted its end.
            if self.read(name)?.state == RecordedState::Stopped {
                return Ok(false);
            }
        }
        tracing::warn!(machine = %name, "it did not come up at a booted point, and boots");
        let change = dir.change(|file| {
            let next = file.disk.next;
            file.disk = booted.before.clone();
            file.disk.next = next;
            file.state = RecordedState::Created;
            file.starts = 0;
            file.has_identity = false;
            file.identity_since = None;
            file.booted = None;
        });
        let durable = matches!(change, Change::Done(_));
        change.visible()?;
        if durable {
            // A power failure may bring the disk at the point back into use otherwise.
            take_back(dir, &machine, booted);
        }
        BootedCache::new(self.home()).remove(&booted.entry);
        Ok(true)
    }

    /// As [`Self::launch`]; `tell` sends the [`Begin`] that the supervisor waits for.
    pub(super) fn launch_as(
        &self,
        name: &MachineName,
        dir: &MachineDir,
        tell: impl FnOnce(&UnixStream) -> Result<(), ChannelError>,
    ) -> Result<StartReport, EngineError> {
        if process::is_child_unasked() {
            return Err(EngineError::NotAsked);
        }
        let log = dir.process_log();
        let (socket, child) = match &self.options.process_model {
            ProcessModel::Processes { program } => {
                let (child, socket) = spawn_supervisor(program, self.home(), name, &log)?;
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
        let told = tell(&socket).and_then(|()| channel::receive(&socket));
        if let Ok(received) = told {
            if let Some(child) = child {
                reap(child);
            }
            return Ok(received.message);
        }
        // It ended without a word, or waits for one: this tells it that none will come. Its log says more.
        drop(socket);
        let how = child
            .and_then(|mut child| child.wait().ok())
            .map_or_else(String::new, |status| format!(" ({status})"));
        Err(EngineError::NotStarted {
            name: name.clone(),
            reason: format!("its supervisor ended early{how}, see {}", log.display()),
            hint: None,
        })
    }

    /// Whether the machine runs. One that has ended, but is still being saved, is waited for.
    fn runs_on(&self, name: &MachineName, dir: &MachineDir) -> Result<bool, EngineError> {
        while dir.is_running()? {
            match self.live_status(name) {
                Some(LiveStatus { ended: true, .. }) => {
                    dir.wait_until_free(SAVE_PAUSE)?;
                }
                _ => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Waits until a machine that runs already can be worked in, and has tried again what was left undone
    /// when it was set up. Returns what still is; `None` where it has ended: it may have been about to when it was found.
    fn wait_ready(
        &self,
        name: &MachineName,
        dir: &MachineDir,
    ) -> Result<Option<Vec<String>>, EngineError> {
        let mut tried = false;
        while dir.is_running()? {
            match self.live_status(name) {
                Some(live) if !tried && (live.trouble.is_some() || !live.pending.is_empty()) => {
                    // What became of it shows in the status.
                    tried = self.control(name, &Control::SetUp).is_ok();
                }
                Some(LiveStatus {
                    ready: true,
                    pending,
                    ..
                }) => return Ok(Some(pending)),
                Some(LiveStatus {
                    trouble: Some(trouble),
                    ..
                }) => return Err(not_ready(name.clone(), trouble)),
                // Its set-up goes on, or it just begins or ends.
                _ => std::thread::sleep(READY_PAUSE),
            }
        }
        Ok(None)
    }
}

/// Why a machine that runs cannot be used.
pub(super) fn not_ready(name: MachineName, trouble: Trouble) -> EngineError {
    match trouble {
        Trouble::Silent(reason) => EngineError::AgentSilent { name, reason },
        Trouble::Incomplete(reason) => EngineError::NotSetUp { name, reason },
    }
}

/// Waits for the end of a supervisor in the background: a program that goes on would keep it as a zombie.
fn reap(mut child: Child) {
    let wait = move || match child.wait() {
        Ok(status) => tracing::debug!(%status, "a supervisor has ended"),
        Err(error) => tracing::warn!(%error, "a supervisor is not waited for"),
    };
    let spawned = std::thread::Builder::new()
        .name("reaper".to_owned())
        .spawn(wait);
    if let Err(error) = spawned {
        tracing::warn!(%error, "a supervisor is not waited for");
    }
}
