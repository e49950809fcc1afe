//! Starting the VMM and giving it what it needs.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use thiserror::Error;

use super::agent::AgentDialer;
use crate::channel::child::spawn_vmm;
use crate::channel::messages::{StartMachine, ToVmm};
use crate::channel::{self, ChannelError};
use crate::file_error::FileError;
use crate::machine::{MachineDir, MachineFile, RunLock, open_log};
use crate::point::own_record;
use snapshot_format::InvalidId;

/// Pause between two looks at a VMM that ends.
const REAP_PAUSE: Duration = Duration::from_millis(2);

/// Why a VMM could not be started.
#[derive(Debug, Error)]
pub(crate) enum SpawnError {
    /// A file of the machine cannot be opened, or the VMM's process not started.
    #[error(transparent)]
    File(#[from] FileError),
    /// The machine's file names no point.
    #[error("the id of the point to restore is damaged")]
    Id(#[source] InvalidId),
    /// The process or thread could not be made.
    #[error("cannot start the VMM")]
    Spawn(#[source] io::Error),
    /// It did not take the message.
    #[error("the VMM took no message")]
    Channel(#[from] ChannelError),
}

/// Where VMMs run.
#[derive(Debug, Clone)]
pub(crate) enum VmmHost {
    /// In a process of this program each, which asks [`channel::child`] what it is to be.
    Process {
        /// The program.
        program: PathBuf,
    },
    /// In a thread of this process, as `main` of the other end of the channel.
    Thread {
        /// Runs a VMM until it ends.
        main: fn(UnixStream) -> Result<(), ChannelError>,
    },
}

/// A VMM that was told to start a machine.
pub(super) struct VmmHandle {
    pub(super) socket: UnixStream,
    pub(super) dialer: AgentDialer,
    body: VmmBody,
}

enum VmmBody {
    Process(Child),
    Thread(Option<JoinHandle<()>>),
}

impl VmmHandle {
    /// Process id; 0 for a thread.
    pub(super) fn pid(&self) -> u32 {
        match &self.body {
            VmmBody::Process(child) => child.id(),
            VmmBody::Thread(_) => 0,
        }
    }

    /// A descriptor of its process, if it is one.
    pub(super) fn pidfd(&self) -> Option<OwnedFd> {
        let VmmBody::Process(child) = &self.body else {
            return None;
        };
        let pid = Pid::from_raw(i32::try_from(child.id()).ok()?)?;
        // Without one it is ended only by its socket.
        pidfd_open(pid, PidfdFlags::empty())
            .inspect_err(|error| tracing::warn!(%error, "the VMM cannot be killed"))
            .ok()
    }

    /// Ends a VMM whose machine is not wanted, and waits for that. One that does not end is left alone.
    pub(super) fn give_up(mut self, patience: Duration) {
        if let Err(error) = self.socket.shutdown(std::net::Shutdown::Both) {
            tracing::debug!(%error, "the VMM has closed its socket");
        }
        if !self.reap(patience) {
            tracing::error!("a VMM does not end");
        }
    }

    /// Waits for its end; false when it has not ended within `patience`. A thread is always waited for.
    pub(super) fn reap(&mut self, patience: Duration) -> bool {
        match &mut self.body {
            VmmBody::Process(child) => {
                let deadline = Instant::now() + patience;
                loop {
                    match child.try_wait() {
                        Ok(Some(_)) => return true,
                        Ok(None) if Instant::now() >= deadline => return false,
                        Ok(None) => std::thread::sleep(REAP_PAUSE),
                        Err(error) => {
                            tracing::warn!(%error, "the VMM could not be waited for");
                            return true;
                        }
                    }
                }
            }
            VmmBody::Thread(thread) => {
                if thread.take().is_some_and(|thread| thread.join().is_err()) {
                    tracing::error!("the VMM's thread panicked");
                }
                true
            }
        }
    }
}

/// Starts a VMM for the machine and tells it to start; `inherited` is what a branch goes on from.
pub(super) fn start(
    host: &VmmHost,
    dir: &MachineDir,
    machine: &MachineFile,
    lock: &RunLock,
    request: StartMachine,
    inherited: &[OwnedFd],
) -> Result<VmmHandle, SpawnError> {
    let (body, socket) = match host {
        VmmHost::Process { program } => {
            let (child, socket) = spawn_vmm(program, &dir.process_log())?;
            (VmmBody::Process(child), socket)
        }
        VmmHost::Thread { main } => {
            let (ours, theirs) = UnixStream::pair().map_err(SpawnError::Spawn)?;
            let main = *main;
            let run = move || {
                if let Err(error) = main(theirs) {
                    tracing::warn!(%error, "the VMM ended early");
                }
            };
            let thread = std::thread::Builder::new()
                .name("vmm".to_owned())
                .spawn(run);
            (
                VmmBody::Thread(Some(thread.map_err(SpawnError::Spawn)?)),
                ours,
            )
        }
    };
    let (dial, vmm_dial) = UnixStream::pair().map_err(SpawnError::Spawn)?;
    let owned = descriptors(dir, machine, lock, vmm_dial, None)?;
    let borrowed: Vec<_> = owned.iter().chain(inherited).map(AsFd::as_fd).collect();
    channel::send(&socket, &ToVmm::Start(Box::new(request)), &borrowed)?;
    Ok(VmmHandle {
        socket,
        dialer: AgentDialer::new(dial),
        body,
    })
}

/// All that a VMM gets, in order; `top` is a layer over those of the machine.
pub(crate) fn descriptors(
    dir: &MachineDir,
    machine: &MachineFile,
    lock: &RunLock,
    dial: UnixStream,
    top: Option<File>,
) -> Result<Vec<OwnedFd>, SpawnError> {
    let files = open_files(dir, machine)?;
    let lock = lock.descriptor().try_clone_to_owned();
    let mut all: Vec<OwnedFd> = files.boot.map(OwnedFd::from).into();
    all.push(dial.into());
    all.push(files.base_map.into());
    all.push(lock.map_err(SpawnError::Spawn)?);
    all.push(open(dir.path(), File::options().read(true))?.into());
    let behind = files.layers.into_iter().chain(top).chain(files.record);
    all.extend(behind.map(OwnedFd::from));
    Ok(all)
}

/// What a VMM gets, opened. Order: see [`crate::channel::messages::StartDescriptors`].
struct MachineFiles {
    /// Kernel, initramfs, console log.
    boot: [File; 3],
    base_map: File,
    layers: Vec<File>,
    /// The record of the point to go on at.
    record: Option<File>,
}

fn open_files(dir: &MachineDir, machine: &MachineFile) -> Result<MachineFiles, SpawnError> {
    let layer = |name: &String| {
        open(
            &dir.disk().join(name),
            File::options().read(true).write(true),
        )
    };
    let console = dir.console_log();
    Ok(MachineFiles {
        boot: [
            open(&dir.kernel(), File::options().read(true))?,
            open(&dir.initramfs(), File::options().read(true))?,
            open_log(&console).map_err(FileError::at("open", &console))?,
        ],
        base_map: open(
            &dir.disk().join(&machine.disk.base),
            File::options().read(true),
        )?,
        layers: machine
            .disk
            .layers
            .iter()
            .map(layer)
            .collect::<Result<_, _>>()?,
        record: machine
            .restore
            .as_ref()
            .map(|id| {
                let id = id.parse().map_err(SpawnError::Id)?;
                open(&own_record(&dir.records(), &id), File::options().read(true))
            })
            .transpose()?,
    })
}

fn open(path: &Path, options: &std::fs::OpenOptions) -> Result<File, SpawnError> {
    Ok(options.open(path).map_err(FileError::at("open", path))?)
}
