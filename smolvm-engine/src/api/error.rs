//! Errors of the engine.

use std::path::PathBuf;
use std::time::Duration;

use agent_protocol::client::ClientError;
use agent_protocol::tree::ReceiveError;
use cas_store::StoreError;
use guest_image::file_system::FileSystemError;
use snapshot_format::ResolveError;
use thiserror::Error;

use crate::api::MachineState;
use crate::backend::{self, BackendError};
use crate::channel::ChannelError;
use crate::error_chain::host_hint;
use crate::file_error::FileError;
use crate::home::HomeError;
use crate::image::ImageError;
use crate::kernel::KernelError;
use crate::machine::MachineDirError;
use crate::name::{InvalidName, MachineName};
use crate::point::PointError;
use crate::restore::PlaceError;
use crate::save::disk_capture::DiskCaptureError;

/// Where a guest has file systems in memory.
const IN_MEMORY: [&str; 4] = ["/run", "/proc", "/sys", "/dev"];

/// What kind of error it is, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorCode {
    /// Something named does not exist.
    NotFound,
    /// A name is taken.
    Exists,
    /// A value is not allowed.
    Invalid,
    /// The machine's state does not allow it.
    State,
    /// This host cannot do it.
    Unavailable,
    /// It was tried and failed.
    Failed,
}

impl ErrorCode {
    /// Its name in machine-readable output.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::Exists => "exists",
            Self::Invalid => "invalid",
            Self::State => "state",
            Self::Unavailable => "unavailable",
            Self::Failed => "failed",
        }
    }
}

/// Why the engine did not do what it was asked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// There is no home.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// Not a name.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// A machine's directory could not be read or changed.
    #[error(transparent)]
    MachineDir(#[from] MachineDirError),
    /// The image is not usable.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The kernel is not usable.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// Chunks could not be stored or linked.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No backend can run the machine.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A point could not be read or published.
    #[error(transparent)]
    Point(#[from] PointError),
    /// This host cannot run the point.
    #[error("point {id} cannot run here: {reason}")]
    Unrestorable {
        /// The point's short id.
        id: String,
        /// What is missing.
        reason: String,
    },
    /// No machine of that name.
    #[error("there is no machine {name}")]
    NoMachine {
        /// The name.
        name: MachineName,
    },
    /// No machine was named, and there is not exactly one.
    #[error("which machine? {}", match count { 0 => "there is none yet".to_owned(), n => format!("there are {n}") })]
    WhichMachine {
        /// How many there are.
        count: usize,
    },
    /// The name is taken.
    #[error("there is a machine {name} already")]
    MachineExists {
        /// The name.
        name: MachineName,
    },
    /// The name that a machine was to be given is another's.
    #[error("cannot rename {name}: there is a machine {to} already")]
    NameTaken {
        /// The machine.
        name: MachineName,
        /// The name.
        to: MachineName,
    },
    /// The machine's state does not allow it.
    #[error("cannot {operation} {name}: it is {state}")]
    WrongState {
        /// What was to be done.
        operation: &'static str,
        /// The machine.
        name: MachineName,
        /// Its state.
        state: String,
    },
    /// A machine that keeps no track of changes.
    #[error("cannot branch {name}: it was started with --no-branchable")]
    NotBranchable {
        /// The machine.
        name: MachineName,
    },
    /// Only a branch has processes that waited for it.
    #[error("cannot release {name}: it is no branch of another machine")]
    NotABranch {
        /// The machine.
        name: MachineName,
    },
    /// A process that has announced itself does not wait for the branch yet.
    #[error(
        "{name} was not branched: process {processes} announced that it would call smolvm-branch-ready, and has not within {} s",
        limit.as_secs_f64()
    )]
    NotReady {
        /// The machine.
        name: MachineName,
        /// Process ids in the guest.
        processes: String,
        /// How long that was waited for.
        limit: Duration,
    },
    /// There is nothing to go back to.
    #[error("{name} has no point to go back to: it was never saved")]
    NoPoint {
        /// The machine.
        name: MachineName,
    },
    /// Not a point that the machine can go to, or an ambiguous prefix.
    #[error("{}", match candidates.len() {
        0 => format!("{name} has no point {asked}: neither it nor its stores hold one"),
        _ => format!("{asked} names several points: {}", candidates.join(", ")),
    })]
    NoSuchPoint {
        /// The machine.
        name: MachineName,
        /// What was asked for.
        asked: String,
        /// Short ids of the points that it may mean.
        candidates: Vec<String>,
        /// The store that the machine is saved into.
        store: PathBuf,
    },
    /// A machine has not so many points.
    #[error("{name} cannot go back so far")]
    NoGeneration {
        /// The machine.
        name: MachineName,
        /// What there is.
        #[source]
        source: ResolveError,
        /// The store that the machine is saved into.
        store: PathBuf,
    },
    /// A point of a machine of another kind.
    #[error("{name} cannot become point {id}: it has another {what}")]
    OtherMachine {
        /// The machine.
        name: MachineName,
        /// The point's id.
        id: String,
        /// What of it differs.
        what: &'static str,
    },
    /// A machine that does not run has written to its disk since its head: no point can hold that.
    #[error(
        "{name} does not run and its disk changed since it was saved: that state cannot be kept"
    )]
    DiskNotKept {
        /// The machine.
        name: MachineName,
    },
    /// What a machine needs to go to a point cannot be had.
    #[error("{name} stays as it is, it cannot go to that point: {reason}")]
    NotUndone {
        /// The machine.
        name: MachineName,
        /// Why not.
        reason: String,
    },
    /// The state that an undo would leave could not be saved.
    #[error("{name} stays as it is, its state could not be kept: {reason}")]
    NotKept {
        /// The machine.
        name: MachineName,
        /// Why not.
        reason: String,
    },
    /// A point that was to be deleted is being read.
    #[error("cannot delete {what}: it is in use, by a restore for instance")]
    PointInUse {
        /// Which.
        what: String,
    },
    /// A point of which nothing but its line is left.
    #[error("point {id} of {} is gone already", store.display())]
    PointGone {
        /// Its short id.
        id: String,
        /// The store.
        store: PathBuf,
    },
    /// Nothing was saved there yet.
    #[error("there is no store {}", path.display())]
    NoStore {
        /// Its place.
        path: PathBuf,
    },
    /// No point of a store, or several.
    #[error("{}", match candidates.len() {
        0 => format!("{asked} names no point of {}", store.display()),
        _ => format!("{asked} names several points: {}", candidates.join(", ")),
    })]
    NotStored {
        /// What was asked for.
        asked: String,
        /// Short ids of the points that it may mean.
        candidates: Vec<String>,
        /// The store.
        store: PathBuf,
    },
    /// A store in which a point cannot be read.
    #[error("no data of {} is removed: point {point} cannot be read", store.display())]
    NotPruned {
        /// The store.
        store: PathBuf,
        /// The point's full id.
        point: String,
        /// What is wrong with it.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A value that is not allowed.
    #[error("{what}")]
    Invalid {
        /// Which, and why.
        what: String,
        /// What to do instead.
        hint: Option<String>,
    },
    /// The machine did not start.
    #[error("{name} did not start: {reason}")]
    NotStarted {
        /// The machine.
        name: MachineName,
        /// Why.
        reason: String,
        /// The next step, if it is not to look at the console.
        hint: Option<String>,
    },
    /// The machine runs, but its agent does not answer.
    #[error("{name} runs, but does not answer: {reason}")]
    AgentSilent {
        /// The machine.
        name: MachineName,
        /// What was tried.
        reason: String,
    },
    /// The machine runs and its agent answers, but a step without which it must not be used failed.
    #[error("{name} runs and answers, but could not be set up: {reason}")]
    NotSetUp {
        /// The machine.
        name: MachineName,
        /// Which steps, and why.
        reason: String,
    },
    /// The agent refused or failed.
    #[error("the agent of {name} did not {operation}")]
    Agent {
        /// The machine.
        name: MachineName,
        /// What was to be done.
        operation: &'static str,
        /// The agent's answer.
        #[source]
        source: ClientError,
    },
    /// A command could not be started in a machine.
    #[error("cannot run the command in {name}")]
    CommandNotStarted {
        /// The machine.
        name: MachineName,
        /// Why, with the exit code for it.
        #[source]
        source: ClientError,
    },
    /// The connection to a command ended before the command did.
    #[error("the command in {name} was cut off: the machine {state}")]
    CommandLost {
        /// The machine.
        name: MachineName,
        /// How the machine is, as in `is running`.
        state: String,
        /// How the connection ended.
        #[source]
        source: ClientError,
    },
    /// Files could not be copied into or out of a machine.
    #[error("nothing, or not everything, was copied between this host and {name}")]
    Copy {
        /// The machine.
        name: MachineName,
        /// Why.
        #[source]
        source: ClientError,
    },
    /// The files of a point could not be read.
    #[error("cannot read {path} in point {id}")]
    PointFiles {
        /// The point's short id.
        id: String,
        /// What was to be read.
        path: String,
        /// Why.
        #[source]
        source: FileSystemError,
    },
    /// Files could not be copied out of a point.
    #[error("nothing, or not everything, was copied out of point {id}")]
    CopyFromPoint {
        /// The point's short id.
        id: String,
        /// Why.
        #[source]
        source: ReceiveError,
    },
    /// The supervisor could not be reached or did not answer.
    #[error("the supervisor of {name} does not answer")]
    Supervisor {
        /// The machine.
        name: MachineName,
        /// What went wrong.
        #[source]
        source: ChannelError,
    },
    /// The supervisor refused or failed.
    #[error("{name}: {reason}")]
    Refused {
        /// The machine.
        name: MachineName,
        /// Why.
        reason: String,
        /// The next step, where there is one.
        hint: Option<String>,
    },
    /// A machine's disk could not be read.
    #[error(transparent)]
    Disk(Box<dyn std::error::Error + Send + Sync>),
    /// This process is one that the engine started, but does not call
    /// [`process::run_if_asked`](crate::process::run_if_asked).
    #[error(
        "this program starts itself as a machine's process, but does not call smolvm_engine::process::run_if_asked"
    )]
    NotAsked,
    /// The host failed.
    #[error(transparent)]
    Io(#[from] FileError),
}

impl EngineError {
    /// What kind of error it is.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NoMachine { .. } => ErrorCode::NotFound,
            Self::Image(ImageError::NotFound { .. } | ImageError::NoDefault { .. })
            | Self::Kernel(KernelError::NotFound { .. } | KernelError::NoDefault { .. }) => {
                ErrorCode::NotFound
            }
            Self::NoSuchPoint { .. }
            | Self::NoGeneration { .. }
            | Self::PointGone { .. }
            | Self::NoStore { .. }
            | Self::NotStored { .. } => ErrorCode::NotFound,
            Self::PointFiles {
                source: FileSystemError::NotFound | FileSystemError::NotADirectory,
                ..
            } => ErrorCode::NotFound,
            Self::PointInUse { .. } => ErrorCode::State,
            Self::NoPoint { .. } | Self::DiskNotKept { .. } => ErrorCode::State,
            Self::OtherMachine { .. } => ErrorCode::Invalid,
            Self::MachineExists { .. } | Self::NameTaken { .. } => ErrorCode::Exists,
            Self::Name(_) | Self::Invalid { .. } | Self::WhichMachine { .. } => ErrorCode::Invalid,
            Self::WrongState { .. } | Self::NotBranchable { .. } | Self::NotABranch { .. } => {
                ErrorCode::State
            }
            Self::Backend(_) | Self::Unrestorable { .. } => ErrorCode::Unavailable,
            Self::Point(
                PointError::NotACheckpoint { .. }
                | PointError::Resolve(_)
                | PointError::NotInStore { .. },
            ) => ErrorCode::NotFound,
            Self::Point(PointError::Taken { .. }) => ErrorCode::Exists,
            _ => ErrorCode::Failed,
        }
    }

    /// The next step, where there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Home(HomeError::Foreign { .. }) => {
                Some("set SMOLVM_HOME to a directory of yours".to_owned())
            }
            Self::Home(HomeError::Shared { path }) => {
                Some(format!("protect it with: chmod go-w {}", path.display()))
            }
            Self::NotAsked => Some("call it first thing in main".to_owned()),
            Self::NoMachine { .. } => Some("list the machines with: smolvm machine ls".to_owned()),
            Self::WhichMachine { count: 0 } => {
                Some("make one with: smolvm machine start --name NAME".to_owned())
            }
            Self::WhichMachine { .. } => Some("name one with --name NAME".to_owned()),
            Self::MachineExists { name } => Some(format!(
                "choose another --name, or remove it with: smolvm machine delete --name {name} -f"
            )),
            Self::WrongState {
                operation: "delete",
                name,
                ..
            } => Some(format!(
                "stop it with: smolvm machine stop --name {name}, or delete it with -f"
            )),
            Self::WrongState {
                operation: "cold-start",
                name,
                ..
            } => Some(format!("stop it first: smolvm machine stop --name {name}")),
            Self::NameTaken { to, .. } => Some(format!(
                "choose another name, or give that machine another with: smolvm machine rename {to} NEW"
            )),
            Self::WrongState {
                operation: "start", ..
            } => None,
            Self::WrongState {
                operation: "stop",
                name,
                ..
            } => Some(format!(
                "let it go on with: smolvm machine resume --name {name}, or give its memory up with --discard"
            )),
            Self::WrongState { name, state, .. } if state == MachineState::Paused.word() => Some(
                format!("let it go on with: smolvm machine resume --name {name}"),
            ),
            Self::WrongState { name, .. } => {
                Some(format!("start it with: smolvm machine start --name {name}"))
            }
            Self::NotBranchable { name } => Some(format!(
                "restart it without that: smolvm machine restart --name {name}"
            )),
            Self::NotABranch { name } => Some(format!(
                "what waits in it goes on in its branches: smolvm machine branch --from {name} --name NEW"
            )),
            Self::NotReady { name, .. } => Some(format!(
                "see what it does with: smolvm machine logs --name {name}, or wait longer with --ready-timeout"
            )),
            Self::NoPoint { name } => Some(format!(
                "save it while it runs with: smolvm machine checkpoint --name {name}"
            )),
            Self::NoStore { path } => Some(format!(
                "a save makes it: smolvm machine checkpoint --name NAME --store {}",
                path.display()
            )),
            Self::NoSuchPoint { store, .. }
            | Self::NoGeneration { store, .. }
            | Self::PointGone { store, .. }
            | Self::NotStored { store, .. } => Some(format!(
                "list the points with: smolvm machine checkpoint-log --store {}",
                store.display()
            )),
            Self::OtherMachine { id, .. } => Some(format!(
                "make a machine of it with: smolvm machine create --name NEW --from {id}"
            )),
            Self::NotUndone { name, .. } => Some(format!(
                "list its points with: smolvm machine checkpoint-log {name}"
            )),
            Self::DiskNotKept { name } | Self::NotKept { name, .. } => Some(format!(
                "give that state up with: smolvm machine undo --name {name} --discard"
            )),
            Self::PointInUse { .. } => Some("try again when that has ended".to_owned()),
            Self::NotPruned { store, point, .. } => Some(format!(
                "repair it as told by `smolvm machine checkpoint-verify --store {store}`, or delete it with: \
                 smolvm machine checkpoint-delete {point} --store {store} -f",
                store = store.display()
            )),
            Self::Store(StoreError::Foreign { .. }) => Some(
                "choose a store of yours with --store, or work as the user whose store it is".to_owned(),
            ),
            Self::Invalid { hint, .. } => hint.clone(),
            Self::MachineDir(MachineDirError::Damaged { path, .. }) => {
                let name = path.parent()?.file_name()?.to_string_lossy();
                Some(format!(
                    "remove it with: smolvm machine delete --name {name} -f"
                ))
            }
            Self::NotStarted {
                hint: Some(hint), ..
            } => Some(hint.clone()),
            Self::NotStarted { name, .. } | Self::AgentSilent { name, .. } => Some(format!(
                "see its console with: smolvm machine logs --name {name}"
            )),
            Self::NotSetUp { name, .. } => Some(format!(
                "try again with: smolvm machine start --name {name}"
            )),
            Self::Point(PointError::Resolve(_)) => {
                Some("list its points with: smolvm machine checkpoint-log CHECKPOINT".to_owned())
            }
            Self::Point(PointError::Taken { path }) => Some(format!(
                "choose a free name, for instance: -o {}",
                free_name(path).display()
            )),
            Self::Unrestorable { .. } => {
                Some("see what this host can do with: smolvm doctor".to_owned())
            }
            Self::PointFiles {
                path,
                source: FileSystemError::NotFound,
                ..
            } if IN_MEMORY.iter().any(|place| path.starts_with(place)) => Some(
                "what lies there is in the guest's memory, not on its disk: make a machine of the point and copy out of that".to_owned(),
            ),
            Self::Image(error) => error.hint(),
            Self::Kernel(error) => error.hint(),
            Self::Backend(error) => Some(
                match error {
                    BackendError::Unusable(reason) => backend::mend(reason),
                    BackendError::None { .. } => None,
                }
                .unwrap_or_else(|| "see what this host can do with: smolvm doctor".to_owned()),
            ),
            Self::Refused { hint, .. } => hint.clone(),
            error => host_hint(error),
        }
    }
}

impl From<DiskCaptureError> for EngineError {
    fn from(error: DiskCaptureError) -> Self {
        Self::Disk(error.into())
    }
}

impl From<PlaceError> for EngineError {
    fn from(error: PlaceError) -> Self {
        match error {
            PlaceError::Io(error) => error.into(),
            PlaceError::Dir(error) => error.into(),
            PlaceError::Point(error) => error.into(),
            PlaceError::Store(error) => error.into(),
        }
    }
}

/// A path like `path` that does not exist.
pub(crate) fn free_name(path: &std::path::Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.strip_suffix(crate::point::SUFFIX).unwrap_or(&name);
    (2..)
        .map(|number| path.with_file_name(format!("{stem}-{number}{}", crate::point::SUFFIX)))
        .find(|candidate| candidate.symlink_metadata().is_err())
        .unwrap_or_else(|| path.to_owned())
}
