use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use snapshot_format::{CheckpointId, InvalidId, Point};
use thiserror::Error;

use super::autosave;
use super::booted::{AtBooted, Booted, Making};
use super::checkpoint::CaptureState;
use super::end_record::{damaged, record_end};
use super::identity::IdentityError;
use super::layers::{LayersError, fresh_layer, merge_layers};
use super::owner;
use super::serve;
use super::set_up;
use super::shared::Shared;
use super::signals;
use super::tidy::tidy;
use super::vmm_process::{self, SpawnError, VmmHandle, VmmHost};
use crate::backend::{self, BackendError};
use crate::channel::branch::{Alone, Begin, StartAsChild};
use crate::channel::control::StartReport;
use crate::channel::messages::{ConsoleNote, EndReason, FromVmm, StartMachine};
use crate::channel::{self, ChannelError, control_socket};
use crate::error_chain::{chain, host_hint};
use crate::home::Home;
use crate::machine::{
    Backend, BootedStart, MachineDir, MachineDirError, MachineFile, RecordedState, RunLock,
    without_hostname,
};
use crate::name::MachineName;
use crate::phase::Phase;
use crate::point::{PointError, own_record, read_point};
use crate::restore::{BootedKind, PlaceError, make_durable};

/// The context id of every guest: each has a vsock of its own.
pub(crate) const GUEST_CID: u64 = 3;

/// What to do about a machine that has lost a chunk.
const DAMAGE_HINT: &str =
    "make another from a sound copy with: smolvm machine create --from CHECKPOINT";

/// How long commands may still be answered after the machine's end.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
/// How long a VMM may take to flush the disk and end once its guest has.
const VMM_END_PATIENCE: Duration = Duration::from_secs(20);
/// How often a guest may reset itself without its agent answering in between.
const MAX_RESETS: u32 = 5;

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
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error("{0}")]
    Vmm(String),
    #[error("{0}")]
    Damaged(String),
}

/// How a machine begins.
enum Beginning {
    Alone(Alone),
    AsChild(Inherited),
}

/// What a machine goes on from that is a branch of another.
struct Inherited {
    point: StartAsChild,
    descriptors: Vec<OwnedFd>,
}

/// Runs a machine until it ends, reporting its start to `starter`.
pub(crate) fn run(home: &Home, name: &MachineName, host: &VmmHost, starter: UnixStream) {
    let failed = |error: &StartError| StartReport::Failed {
        message: chain(error),
        hint: host_hint(error).or_else(|| match error {
            StartError::Damaged(_) => Some(DAMAGE_HINT.to_owned()),
            _ => None,
        }),
    };
    // Its name may change while it runs.
    let dir = MachineDir::held(&home.machine(name)).map_err(StartError::from);
    let begun = dir.and_then(|dir| Ok((begin(&starter, &dir)?, dir)));
    let ((lock, beginning), dir) = match begun {
        Ok(begun) => begun,
        Err(error) => return report(&starter, &failed(&error)),
    };
    match start(home, name, host, &dir, &lock, beginning) {
        Ok((shared, vmm)) => supervise(&shared, vmm, starter),
        Err(error) => {
            tracing::error!(error = %chain(&error), "the machine does not start");
            report(&starter, &failed(&error));
        }
    }
}

/// Hears how the machine is to begin; its run lock is held then.
fn begin(starter: &UnixStream, dir: &MachineDir) -> Result<(RunLock, Beginning), StartError> {
    let received = channel::receive::<Begin>(starter)?;
    let point = match received.message {
        Begin::Alone(alone) => return Ok((dir.lock_running()?, Beginning::Alone(alone))),
        Begin::AsChild(point) => point,
    };
    let mut descriptors = received.descriptors.into_iter();
    let lock = descriptors.next().ok_or(ChannelError::Closed)?;
    let inherited = Inherited {
        point,
        descriptors: descriptors.collect(),
    };
    Ok((RunLock::taken(lock), Beginning::AsChild(inherited)))
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
    host: &VmmHost,
    dir: &MachineDir,
    lock: &RunLock,
    beginning: Beginning,
) -> Result<(Arc<Shared>, VmmHandle), StartError> {
    let mut machine = dir
        .read()?
        .ok_or_else(|| StartError::Missing(name.clone()))?;
    let alone = match &beginning {
        Beginning::Alone(alone) => Some(*alone),
        Beginning::AsChild(_) => None,
    };
    let interpret = match &beginning {
        Beginning::Alone(alone) => alone.interpret,
        Beginning::AsChild(child) => child.point.interpret,
    };
    // A new branch has nothing that is left over.
    if alone.is_some()
        && let Err(error) = tidy(dir, &machine)
    {
        // What is left over does no harm but take space.
        tracing::warn!(error = %chain(&error), "leftovers of the last run are kept");
    }
    let backend = backend::choose(machine.spec.backend, home)?;
    let restore = restored_point(dir, &machine)?;
    // What is saved has the vCPUs that it has, whatever the machine would boot with.
    let recorded = restore.as_ref().map(|point| point.record());
    let vcpus = recorded
        .and_then(|record| u8::try_from(record.spec.vcpus).ok())
        .or(machine.spec.cpus)
        .unwrap_or_else(|| backend::default_vcpus(backend));
    let recorded_cpu = recorded.map(|record| record.host.cpu_profile.to_string());
    if restore.is_some() {
        Phase::RunLocked.reached();
        fresh_layer(dir, &mut machine)?;
        Phase::LayerReplaced.reached();
    } else {
        merge_layers(dir, &mut machine)?;
    }
    let cpu = match recorded_cpu.or_else(|| machine.spec.cpu.clone()) {
        Some(cpu) => cpu,
        None => backend::default_profile(&*backend::open(backend)?).to_owned(),
    };
    let kind = BootedKind {
        machine: &machine,
        backend: backend.name(),
        cpu: &cpu,
        vcpus,
    };
    let booted = alone.map(|alone| Booted::look(home, &kind, alone));
    let no_socket = |source| StartError::Listen {
        path: dir.control_socket(),
        source,
    };
    let listener = control_socket::listen(&dir.control_socket()).map_err(no_socket)?;
    let launch = Launch {
        home,
        host,
        dir,
        lock,
        backend,
        vcpus,
        cpu: &cpu,
        interpret,
    };
    let begun = launch.begin(machine, restore, beginning, booted)?;
    let recorded = dir.change(|machine| {
        machine.state = RecordedState::Running {
            backend: backend.to_string(),
        };
        machine.starts += 1;
        machine.restore = None;
        if alone.is_some() {
            machine.booted = begun.booted.clone();
        }
        if begun.booted.is_some() {
            machine.disk = begun.machine.disk.clone();
        }
    });
    let machine = recorded.visible()?;
    Phase::RunRecorded.reached();
    let restored = begun.point.is_some() || begun.child.is_some();
    let begun_at = begun.point.map(Arc::new);
    let base = match begun.child {
        Some(child) => child
            .base
            .and_then(|id| compared_with(dir, &id))
            .map(Arc::new),
        None => begun_at.clone(),
    };
    let base = base.filter(|_| machine.branchable);
    let vmm = begun.vmm;
    let shared = Arc::new(Shared {
        dir: dir.clone(),
        default_store: home.store(),
        vmm_socket: Mutex::new(vmm.socket.try_clone().map_err(ChannelError::Io)?),
        backend: backend.to_string(),
        interpret,
        vcpus,
        vmm_pid: vmm.pid(),
        vmm_process: vmm.pidfd(),
        started_unix: unix_now(),
        cpu,
        branchable: machine.branchable,
        passing: machine.passing,
        restored,
        at_booted: begun.booted.is_some(),
        rebooted: AtomicBool::new(false),
        making: Mutex::new(begun.making.filter(|_| machine.branchable)),
        capture: Mutex::new(CaptureState {
            begun_at,
            base,
            vmm_top: machine.disk.layers.last().cloned(),
            ..CaptureState::default()
        }),
        dialer: vmm.dialer.clone(),
        live: Mutex::default(),
        changed: Condvar::new(),
    });
    serve::spawn(listener, &shared).map_err(no_socket)?;
    if let VmmHost::Process { .. } = host {
        signals::stop_when_told(&shared);
    }
    Ok((shared, vmm))
}

/// A VMM that runs a machine, and how that began.
struct Begun {
    vmm: VmmHandle,
    machine: MachineFile,
    /// It goes on at this point.
    point: Option<Point>,
    /// Which is a booted one.
    booted: Option<BootedStart>,
    /// It goes on from another machine's instant.
    child: Option<StartAsChild>,
    /// It boots, and leaves a booted point behind.
    making: Option<Making>,
}

/// All that a machine is launched with.
struct Launch<'a> {
    home: &'a Home,
    host: &'a VmmHost,
    dir: &'a MachineDir,
    lock: &'a RunLock,
    backend: Backend,
    vcpus: u8,
    cpu: &'a str,
    interpret: bool,
}

impl Launch<'_> {
    fn begin(
        &self,
        mut machine: MachineFile,
        point: Option<Point>,
        beginning: Beginning,
        booted: Option<Booted>,
    ) -> Result<Begun, StartError> {
        let Self { dir, .. } = self;
        let mut making = None;
        match booted {
            Some(Booted::Found(cache, found)) => {
                let key = found.key().to_owned();
                if let Some(at) = AtBooted::place(dir, &machine, cache.clone(), &found) {
                    match self.begin_at(&at.machine) {
                        Ok(vmm) => {
                            return Ok(Begun {
                                vmm,
                                machine: at.machine,
                                point: Some(found.into_point()),
                                booted: Some(at.start),
                                child: None,
                                making: None,
                            });
                        }
                        Err(error) => at.give_up(dir, &error),
                    }
                }
                making = Some(Making { cache, key });
            }
            Some(Booted::Missing(missing)) => making = Some(missing),
            Some(Booted::Unused) | None => {}
        }
        if making.is_some() {
            // What is left behind belongs to nobody.
            machine.command_line = without_hostname(&machine.command_line);
        }
        let (descriptors, child) = match beginning {
            Beginning::AsChild(Inherited { point, descriptors }) => {
                (Some(descriptors), Some(point))
            }
            Beginning::Alone(_) => (None, None),
        };
        let vmm = self.launch(&machine, descriptors.as_deref())?;
        match started(&vmm)? {
            Ok(()) => {}
            Err(Refusal {
                reason,
                damaged: true,
            }) => return Err(damaged(dir, &reason)),
            Err(Refusal { reason, .. }) => return Err(StartError::Vmm(reason)),
        }
        Ok(Begun {
            vmm,
            machine,
            point,
            booted: None,
            child,
            making,
        })
    }

    /// Goes on at a booted point, which is made durable in the machine's directory meanwhile.
    fn begin_at(&self, machine: &MachineFile) -> Result<VmmHandle, StartError> {
        let vmm = self.launch(machine, None)?;
        let durable = make_durable(self.dir, machine).map_err(StartError::from);
        let runs = durable.and_then(|()| match started(&vmm)? {
            Ok(()) => Ok(()),
            Err(Refusal { reason, .. }) => Err(StartError::Vmm(reason)),
        });
        match runs {
            Ok(()) => Ok(vmm),
            Err(error) => {
                vmm.give_up(VMM_END_PATIENCE);
                Err(error)
            }
        }
    }

    /// Starts a VMM; `inherited` is what a branch goes on from.
    fn launch(
        &self,
        machine: &MachineFile,
        inherited: Option<&[OwnedFd]>,
    ) -> Result<VmmHandle, StartError> {
        let request = StartMachine {
            backend: self.backend,
            vcpus: self.vcpus,
            memory_bytes: machine.spec.memory_bytes,
            cpu: self.cpu.to_owned(),
            command_line: machine.command_line.clone(),
            vsock_cid: GUEST_CID,
            disk_bytes: machine.spec.disk_bytes,
            other_pack_directories: machine.packs_elsewhere(&self.home.store()),
            branchable: machine.branchable,
            restore: machine.restore.is_some(),
            inherited: inherited.map(<[OwnedFd]>::len),
            deterministic: None,
            interpret: self.interpret,
        };
        let inherited = inherited.unwrap_or_default();
        Ok(vmm_process::start(
            self.host, self.dir, machine, self.lock, request, inherited,
        )?)
    }
}

/// Why a VMM did not start a machine.
struct Refusal {
    reason: String,
    /// Chunks are lost.
    damaged: bool,
}

/// Waits until the VMM runs the machine.
fn started(vmm: &VmmHandle) -> Result<Result<(), Refusal>, StartError> {
    match channel::receive(&vmm.socket)?.message {
        FromVmm::Started => Ok(Ok(())),
        FromVmm::StartFailed { reason, damaged } => Ok(Err(Refusal { reason, damaged })),
        other => Err(StartError::Vmm(format!("unexpected answer {other:?}"))),
    }
}

/// The point that the start goes on at.
fn restored_point(dir: &MachineDir, machine: &MachineFile) -> Result<Option<Point>, StartError> {
    let Some(id) = &machine.restore else {
        return Ok(None);
    };
    let id: CheckpointId = id.parse().map_err(StartError::Id)?;
    Ok(Some(read_point(
        &own_record(&dir.records(), &id),
        Some(id),
    )?))
}

/// The point that a branch's memory is compared with; without it the first save takes all of memory.
fn compared_with(dir: &MachineDir, id: &str) -> Option<Point> {
    let id: CheckpointId = id.parse().ok()?;
    let read = read_point(&own_record(&dir.records(), &id), Some(id));
    let read = read.inspect_err(|error| {
        tracing::warn!(error = %chain(error), "the first save takes all of memory");
    });
    read.ok()
}

/// Seconds since 1970.
pub(crate) fn unix_now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// Follows a machine to its end and records it.
fn supervise(shared: &Arc<Shared>, mut vmm: VmmHandle, starter: UnixStream) {
    // A guest that ends meanwhile is told to whoever waits for the start before the process ends.
    let answering = shared.begin_command();
    let (for_setup, mut starter) = (shared.clone(), Some((starter, answering)));
    let told = move |outcome: &StartReport| {
        if let Some((starter, _answering)) = starter.take() {
            Phase::RestoreDone.reached();
            report(&starter, outcome);
        } else if let StartReport::NotReady(trouble) = outcome {
            tracing::error!(?trouble, "the guest is not ready");
        }
    };
    let setup = std::thread::Builder::new()
        .name("setup".to_owned())
        .spawn(move || set_up::each_boot(&for_setup, told));
    if let Err(error) = setup {
        tracing::error!(%error, "the guest is not set up");
    }
    autosave::spawn(shared);
    if shared.passing {
        owner::follow(shared);
    }
    let reason = follow(shared, &vmm.socket);
    shared.change(|live| live.end = Some(reason.clone()));
    if !vmm.reap(VMM_END_PATIENCE) {
        tracing::error!("the VMM does not end, and is killed");
        shared.kill_vmm();
        vmm.reap(VMM_END_PATIENCE);
    }
    record_end(shared, &reason);
    shared.change(|live| live.finished = true);
    // A save that has its moment is published, however long that takes.
    while !shared.wait(Duration::from_secs(3600), |live| live.saves == 0) {}
    if !shared.wait(ANSWER_PATIENCE, |live| live.commands == 0) {
        tracing::warn!("a command was not answered in time");
    }
    // The last: as long as it is there, whoever asks is told that the machine has ended.
    if let Err(error) = std::fs::remove_file(shared.dir.control_socket()) {
        tracing::debug!(%error, "the control socket was not removed");
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
            Ok(FromVmm::HostFull { failed }) => note_full(shared, failed),
            Ok(FromVmm::Rebooted) => note_reset(shared),
            // What this process kills has not crashed.
            Err(_) if shared.is_quitting() => return EndReason::Asked,
            Err(error) => {
                tracing::error!(%error, "the VMM is gone");
                return EndReason::Crashed("its VMM process was killed or crashed".to_owned());
            }
        }
    }
}

/// Writes of the guest did not fit onto the host: its owner looks at the host, not into the guest.
fn note_full(shared: &Arc<Shared>, failed: u64) {
    let mut first = false;
    shared.change(|live| {
        first = live.full.is_none();
        live.full = Some((failed, unix_now()));
    });
    if first {
        tracing::error!(
            "writes of the guest's disk fail: the file system of {} is full",
            shared.dir.disk().display()
        );
    }
}

/// The guest boots again: it is set up again, unless it never comes so far.
fn note_reset(shared: &Arc<Shared>) {
    // Memory is new: the next capture takes all of it.
    shared.rebooted.store(true, Ordering::SeqCst);
    let mut hopeless = false;
    shared.change(|live| {
        live.forget_set_up();
        live.resets += 1;
        live.resets_unready += 1;
        hopeless = live.resets_unready == MAX_RESETS;
    });
    if hopeless {
        let shared = shared.clone();
        let verdict = format!("it reset itself {MAX_RESETS} times without its agent answering");
        let spawned = std::thread::Builder::new()
            .name("verdict".to_owned())
            .spawn(move || shared.condemn(verdict));
        if let Err(error) = spawned {
            tracing::error!(%error, "a guest that resets itself all the time goes on");
        }
    }
}
