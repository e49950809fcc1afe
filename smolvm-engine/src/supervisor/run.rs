use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use snapshot_format::{CheckpointId, InvalidId, Point};
use thiserror::Error;

use super::agent::{AgentDialer, AgentError};
use super::capture_route::CaptureRouter;
use super::checkpoint::CaptureState;
use super::identity::IdentityError;
use super::layers::{LayersError, fresh_layer, merge_layers};
use super::serve;
use super::set_up::set_up_guest;
use super::tidy::tidy;
use super::vmm_process::{self, SpawnError, VmmHandle};
use crate::backend::{self, BackendError};
use crate::channel::{self, ChannelError};
use crate::error::{chain, full_hint};
use crate::home::Home;
use crate::machine::{MachineDir, MachineDirError, MachineFile, RecordedState, RunLock};
use crate::name::MachineName;
use crate::phase::Phase;
use crate::point::{PointError, read_point, record_file_name};
use crate::process::ProcessModel;
use crate::vmm::messages::{ConsoleNote, EndReason, FromVmm, StartMachine, ToVmm};

/// The context id of every guest: each has a vsock of its own.
pub(crate) const GUEST_CID: u64 = 3;
/// How long a VMM that was told to end may take.
const QUIT_PATIENCE: Duration = Duration::from_secs(5);

/// What to do about a machine that has lost a chunk.
const DAMAGE_HINT: &str =
    "make another from a sound copy with: smolvm machine create --from CHECKPOINT";
/// Digits of an id that a message shows.
const SHORT_ID_DIGITS: usize = 12;

/// How long commands may still be answered after the machine's end.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);

/// What a supervisor tells whoever started it; the last thing before it only serves commands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StartReport {
    /// The machine runs and its agent answers.
    Ready {
        /// The backend in use.
        backend: String,
    },
    /// The machine runs, but its agent does not answer.
    AgentSilent {
        /// What was tried.
        message: String,
    },
    /// The machine does not run.
    Failed {
        /// Why.
        message: String,
        /// The next step, where there is one.
        hint: Option<String>,
    },
}

/// Why a machine could not be started.
#[derive(Debug, Error)]
pub(super) enum StartError {
    #[error(transparent)]
    Dir(#[from] MachineDirError),
    #[error("there is no machine {0}")]
    Missing(MachineName),
    #[error(transparent)]
    Backend(#[from] BackendError),
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error("cannot listen at {}", path.display())]
    Listen {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    Point(#[from] PointError),
    #[error("the id of the point to restore is damaged")]
    Id(#[source] InvalidId),
    #[error(transparent)]
    Layers(#[from] LayersError),
    #[error("{0}")]
    Vmm(String),
    #[error("{0}")]
    Damaged(String),
}

/// What the supervisor's threads share.
pub(super) struct Shared {
    pub(super) dir: MachineDir,
    pub(super) dialer: AgentDialer,
    pub(super) vmm_socket: Mutex<UnixStream>,
    pub(super) backend: String,
    pub(super) vcpus: u8,
    pub(super) vmm_pid: u32,
    pub(super) started_unix: u64,
    /// CPU profile by name.
    pub(super) cpu: String,
    /// Whether written pages are tracked.
    pub(super) branchable: bool,
    /// It went on at a point, so its kernel believes to be the one that was saved.
    pub(super) restored: bool,
    /// The guest rebooted since the last capture began.
    pub(super) rebooted: AtomicBool,
    /// Held during a capture.
    pub(super) capture: Mutex<CaptureState>,
    /// Where the VMM's messages about captures go.
    pub(super) capture_router: CaptureRouter,
    live: Mutex<Live>,
    changed: Condvar,
}

#[derive(Default)]
struct Live {
    ready: bool,
    /// Why the guest could not be set up.
    silent: Option<String>,
    end: Option<EndReason>,
    /// The run is recorded, files are closed.
    finished: bool,
    out_of_memory: Option<String>,
    /// Commands that are being answered.
    commands: usize,
}

/// A command that is being answered: the process does not end before.
pub(super) struct CommandGuard(Arc<Shared>);

impl Drop for CommandGuard {
    fn drop(&mut self) {
        self.0.change(|live| live.commands -= 1);
    }
}

impl Shared {
    /// Lets the guest write its page cache out, as far as it comes within `patience`. Best effort: the
    /// page cache is part of the memory that is saved.
    pub(super) fn sync_guest(&self, patience: Duration) {
        if !self.is_ready() {
            return;
        }
        let synced = self
            .dialer
            .connect(patience, patience, || self.has_ended())
            .and_then(|mut agent| {
                agent
                    .sync(patience)
                    .map_err(|source| AgentError::of_call("sync", patience, source))
            });
        if let Err(error) = synced {
            tracing::debug!(error = %chain(&error), "the guest did not sync in time");
        }
    }

    /// Notes that a command is being answered.
    pub(super) fn begin_command(self: &Arc<Self>) -> CommandGuard {
        self.change(|live| live.commands += 1);
        CommandGuard(self.clone())
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_ready(&self) -> bool {
        self.live().ready
    }

    pub(super) fn set_ready(&self) {
        self.change(|live| live.ready = true);
    }

    /// Notes why the guest could not be set up.
    pub(super) fn set_silent(&self, why: String) {
        self.change(|live| live.silent = Some(why));
    }

    pub(super) fn silent(&self) -> Option<String> {
        self.live().silent.clone()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.live().end.is_some()
    }

    pub(super) fn out_of_memory(&self) -> Option<String> {
        self.live().out_of_memory.clone()
    }

    /// Waits until the machine has ended; false after `patience`.
    pub(super) fn wait_end(&self, patience: Duration) -> bool {
        self.wait(patience, |live| live.end.is_some())
    }

    /// Waits until the end is recorded.
    pub(super) fn wait_finished(&self) {
        while !self.wait(Duration::from_secs(3600), |live| live.finished) {}
    }

    fn wait(&self, patience: Duration, until: impl Fn(&Live) -> bool) -> bool {
        let deadline = Instant::now() + patience;
        let mut live = self.live();
        while !until(&live) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            live = self
                .changed
                .wait_timeout(live, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        true
    }

    fn change(&self, change: impl FnOnce(&mut Live)) {
        change(&mut self.live());
        self.changed.notify_all();
    }

    /// Ends the VMM, in order if it obeys, else by force.
    pub(super) fn quit_vmm(&self) {
        let socket = self
            .vmm_socket
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // A VMM that is gone needs no message.
        let told = channel::send(&socket, &ToVmm::Quit, &[]).is_ok();
        drop(socket);
        if !(told && self.wait_end(QUIT_PATIENCE)) {
            self.kill_vmm();
        }
    }

    fn kill_vmm(&self) {
        if let Ok(pid) = i32::try_from(self.vmm_pid)
            && let Some(pid) = rustix::process::Pid::from_raw(pid)
            && let Err(error) = rustix::process::kill_process(pid, rustix::process::Signal::KILL)
        {
            tracing::warn!(%error, "the VMM could not be killed");
        }
    }
}

/// Runs a machine until it ends, reporting its start to `starter`.
pub(crate) fn run(home: &Home, name: &MachineName, model: &ProcessModel, starter: UnixStream) {
    let dir = MachineDir::new(home.machine(name));
    let failed = |error: &StartError| StartReport::Failed {
        message: chain(error),
        hint: full_hint(error).or_else(|| match error {
            StartError::Damaged(_) => Some(DAMAGE_HINT.to_owned()),
            _ => None,
        }),
    };
    let lock = match dir.lock_running() {
        Ok(lock) => lock,
        Err(error) => return report(&starter, &failed(&error.into())),
    };
    match start(home, name, model, &dir, &lock) {
        Ok((shared, vmm)) => supervise(&shared, vmm, starter),
        Err(error) => {
            tracing::error!(error = %chain(&error), "the machine does not start");
            report(&starter, &failed(&error));
        }
    }
}

fn report(starter: &UnixStream, report: &StartReport) {
    // Whoever started us may have been killed; the machine runs all the same.
    if let Err(error) = channel::send(starter, report, &[]) {
        tracing::debug!(%error, "nobody waits for the start");
    }
}

fn start(
    home: &Home,
    name: &MachineName,
    model: &ProcessModel,
    dir: &MachineDir,
    lock: &RunLock,
) -> Result<(Arc<Shared>, VmmHandle), StartError> {
    let mut machine = dir
        .read()?
        .ok_or_else(|| StartError::Missing(name.clone()))?;
    if let Err(error) = tidy(dir, &machine) {
        // What is left over does no harm but take space.
        tracing::warn!(error = %chain(&error), "leftovers of the last run are kept");
    }
    let backend = backend::choose(machine.spec.backend, home)?;
    let vcpus = machine
        .spec
        .cpus
        .unwrap_or_else(|| backend::default_vcpus(backend));
    let restore = restored_point(dir, &machine)?;
    if restore.is_some() {
        Phase::RunLocked.reached();
        fresh_layer(dir, &mut machine)?;
        Phase::LayerReplaced.reached();
    } else {
        merge_layers(dir, &mut machine)?;
    }
    let cpu = match &machine.spec.cpu {
        Some(cpu) => cpu.clone(),
        None => backend::default_profile(&*backend::open(backend)?).to_owned(),
    };
    let request = StartMachine {
        backend,
        vcpus,
        memory_bytes: machine.spec.memory_bytes,
        cpu: cpu.clone(),
        command_line: machine.command_line.clone(),
        vsock_cid: GUEST_CID,
        disk_bytes: machine.spec.disk_bytes,
        pack_directories: vec![dir.packs()],
        other_pack_directories: other_packs(home, &machine),
        branchable: machine.branchable,
        restore: restore.is_some(),
        deterministic: None,
    };
    let no_socket = |source| StartError::Listen {
        path: dir.control_socket(),
        source,
    };
    let listener = super::control_socket::listen(&dir.control_socket()).map_err(no_socket)?;
    let vmm = vmm_process::start(model, dir, &machine, lock, request)?;
    match channel::receive(&vmm.socket)?.message {
        FromVmm::Started => {}
        FromVmm::StartFailed {
            reason,
            damaged: true,
        } => return Err(damaged(dir, machine, &reason)),
        FromVmm::StartFailed { reason, .. } => return Err(StartError::Vmm(reason)),
        other => return Err(StartError::Vmm(format!("unexpected answer {other:?}"))),
    }
    machine.state = RecordedState::Running {
        backend: backend.to_string(),
    };
    machine.starts += 1;
    machine.restore = None;
    dir.write(&machine)?;
    Phase::RunRecorded.reached();
    let restored = restore.is_some();
    let base = restore.filter(|_| machine.branchable).map(Arc::new);
    let shared = Arc::new(Shared {
        dir: dir.clone(),
        vmm_socket: Mutex::new(vmm.socket.try_clone().map_err(ChannelError::Io)?),
        backend: backend.to_string(),
        vcpus,
        vmm_pid: vmm.pid(),
        started_unix: unix_now(),
        cpu,
        branchable: machine.branchable,
        restored,
        rebooted: AtomicBool::new(false),
        capture: Mutex::new(CaptureState { base }),
        capture_router: CaptureRouter::default(),
        dialer: vmm.dialer.clone(),
        live: Mutex::default(),
        changed: Condvar::new(),
    });
    serve::spawn(listener, &shared).map_err(no_socket)?;
    Ok((shared, vmm))
}

/// Where copies of the machine's packs may be: in the stores that it was saved into.
fn other_packs(home: &Home, machine: &MachineFile) -> Vec<PathBuf> {
    let stores = [Some(home.store()), machine.store.clone()];
    let packs = stores
        .into_iter()
        .flatten()
        .map(|store| store.join("packs"));
    packs.filter(|packs| packs.is_dir()).collect()
}

/// The point that the start goes on at.
fn restored_point(dir: &MachineDir, machine: &MachineFile) -> Result<Option<Point>, StartError> {
    let Some(id) = &machine.restore else {
        return Ok(None);
    };
    let id: CheckpointId = id.parse().map_err(StartError::Id)?;
    Ok(Some(read_point(
        &dir.records().join(record_file_name(&id)),
        Some(id),
    )?))
}

/// Seconds since 1970.
pub(crate) fn unix_now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// Follows a machine to its end and records it.
fn supervise(shared: &Arc<Shared>, mut vmm: VmmHandle, starter: UnixStream) {
    let for_setup = shared.clone();
    let setup = std::thread::Builder::new()
        .name("setup".to_owned())
        .spawn(move || {
            let outcome = set_up_guest(&for_setup);
            Phase::RestoreDone.reached();
            report(&starter, &outcome);
        });
    if let Err(error) = setup {
        tracing::error!(%error, "the guest is not set up");
    }
    let reason = follow(shared, &vmm.socket);
    shared.capture_router.close();
    shared.change(|live| live.end = Some(reason.clone()));
    vmm.reap();
    record_end(shared, &reason);
    if let Err(error) = std::fs::remove_file(shared.dir.control_socket()) {
        tracing::debug!(%error, "the control socket was not removed");
    }
    shared.change(|live| live.finished = true);
    if !shared.wait(ANSWER_PATIENCE, |live| live.commands == 0) {
        tracing::warn!("a command was not answered in time");
    }
}

/// Reads the VMM's messages until the machine is over.
fn follow(shared: &Arc<Shared>, socket: &UnixStream) -> EndReason {
    loop {
        match channel::receive(socket).map(|received| received.message) {
            Ok(FromVmm::Ended(reason)) => return reason,
            Ok(FromVmm::StartFailed {
                reason,
                damaged: true,
            }) => return EndReason::Damaged(reason),
            Ok(FromVmm::StartFailed { reason, .. }) => return EndReason::Crashed(reason),
            Ok(FromVmm::Console(ConsoleNote::OutOfMemory(text))) => {
                shared.change(|live| live.out_of_memory = Some(text));
            }
            Ok(FromVmm::Console(ConsoleNote::Panic(_)) | FromVmm::Started) => {}
            Ok(FromVmm::Capture(number, event)) => shared.capture_router.forward(number, event),
            Ok(FromVmm::Rebooted) => {
                // Memory is new: the next capture takes all of it.
                shared.rebooted.store(true, Ordering::SeqCst);
                shared.change(|live| (live.ready, live.silent) = (false, None));
                let shared = shared.clone();
                let spawned = std::thread::Builder::new().name("setup".to_owned()).spawn(
                    move || {
                        if let StartReport::AgentSilent { message } = set_up_guest(&shared) {
                            tracing::error!(%message, "the agent does not answer after a reboot");
                        }
                    },
                );
                if let Err(error) = spawned {
                    tracing::error!(%error, "the guest is not set up after a reboot");
                }
            }
            Err(error) => {
                tracing::error!(%error, "the VMM is gone");
                return EndReason::Crashed("its VMM process was killed or crashed".to_owned());
            }
        }
    }
}

fn record_end(shared: &Shared, reason: &EndReason) {
    let state = match reason {
        EndReason::PowerOff | EndReason::Asked => RecordedState::Stopped,
        EndReason::Panic(reason) => RecordedState::Failed {
            reason: format!("kernel panic: {reason}"),
        },
        EndReason::Crashed(reason) => RecordedState::Failed {
            reason: reason.clone(),
        },
        // Whose it is only the machine's file says.
        EndReason::Damaged(reason) => RecordedState::Damaged {
            reason: reason.clone(),
        },
    };
    let record = |machine: &mut MachineFile| {
        machine.state = match state {
            RecordedState::Damaged { reason } => damage(machine, &reason),
            state => state,
        };
    };
    if let Err(error) = change_file(&shared.dir, record) {
        tracing::error!(%error, "the machine's end is not recorded");
    }
}

/// The state of a machine that has lost a chunk.
fn damage(machine: &MachineFile, reason: &str) -> RecordedState {
    let reason = match machine
        .head
        .as_ref()
        .and_then(|head| head.get(..SHORT_ID_DIGITS))
    {
        Some(point) => format!("{reason}, needed by point {point}"),
        None => format!("{reason}, needed by its image"),
    };
    RecordedState::Damaged { reason }
}

/// Records that the machine cannot start for want of a chunk.
fn damaged(dir: &MachineDir, mut machine: MachineFile, reason: &str) -> StartError {
    let state = damage(&machine, reason);
    let RecordedState::Damaged { reason } = &state else {
        return StartError::Vmm(reason.to_owned());
    };
    let error = StartError::Damaged(reason.clone());
    machine.state = state;
    match dir.write(&machine) {
        Ok(()) => error,
        Err(error) => error.into(),
    }
}

pub(super) fn change_file(
    dir: &MachineDir,
    change: impl FnOnce(&mut MachineFile),
) -> Result<(), MachineDirError> {
    if let Some(mut machine) = dir.read()? {
        change(&mut machine);
        dir.write(&machine)?;
    }
    Ok(())
}
