//! What client and agent say to each other.
//!
//! After the hello the client sends one [`Request`]. `Exec`, `CopyIn`, `CopyOut` `Log` and `AwaitReady` make the
//! connection theirs; every other request is answered by one [`Reply`] and may be followed by
//! another such request.
//!
//! Numbers are never given a second meaning. See [`codec`](crate::codec) for what may be added.

mod copy;
mod exec;
mod identity;
mod log;
mod status;

pub use copy::{CopyIn, CopyReport, Owner};
pub use exec::{EnvVar, ExecInput, ExecOutput, ExecRequest, MAX_WORDS, Outcome, TtySize};
pub use identity::{Identity, MAX_SSH_HOST_KEYS, SshHostKey, StepOutcome, StepReport};
pub use log::LogOutput;
pub use status::{
    Activity, MAX_ANNOUNCED, MAX_LISTED_SESSIONS, MAX_PROCESS_NAME_BYTES, MAX_PROCESSES, Process,
    Processes, SessionStatus, Status, SyncReport,
};

use minicbor::{Decode, Encode};

use crate::codec::{Bytes, Id, Wire, bounded_list};
use crate::tree::RootName;

/// Largest [`Request`] in bytes. Linux takes command lines and environments of at most 6 MiB together
/// (three quarters of `_STK_LIM`, `execve(2)`); there is room for the lengths of their words.
pub const MAX_REQUEST_BYTES: usize = 8 << 20;
/// Most seed bytes of one [`Request::Reseed`].
pub const MAX_SEED_BYTES: usize = 4096;
/// Longest name in [`Request::Release`] in bytes: letters, digits, `-`, `_` and `.`.
pub const MAX_BRANCH_NAME_BYTES: usize = 63;
/// Most steps in [`Reply::Steps`].
pub const MAX_STEPS: usize = 64;

/// What the client wants.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub enum Request {
    /// Runs a command: [`Reply::Started`] or [`Reply::NotStarted`], then [`ExecInput`] and
    /// [`ExecOutput`] until [`ExecOutput::Exit`].
    #[n(1)]
    Exec(#[n(0)] ExecRequest),
    /// Receives a tree: tree items follow, the agent answers [`Reply::Copied`].
    #[n(2)]
    CopyIn(#[n(0)] CopyIn),
    /// Sends a tree: [`Reply::Ok`], then tree items; a source that cannot be read is an abort.
    #[n(3)]
    CopyOut {
        /// Path in the guest.
        #[n(0)]
        source: Bytes,
    },
    /// Is the agent there? [`Reply::Ok`].
    #[n(4)]
    Ping,
    /// Writes the page cache of all file systems and lists the processes: [`Reply::Synced`].
    #[n(5)]
    Sync {
        /// Longest wait in milliseconds.
        #[n(0)]
        timeout_ms: u32,
    },
    /// Ends all processes and powers off; [`Reply::Ok`] comes before.
    #[n(6)]
    PowerOff {
        /// Time between SIGTERM and SIGKILL in milliseconds.
        #[n(0)]
        grace_ms: u32,
    },
    /// Ends all processes and reboots; [`Reply::Ok`] comes before.
    #[n(7)]
    Reboot {
        /// Time between SIGTERM and SIGKILL in milliseconds.
        #[n(0)]
        grace_ms: u32,
    },
    /// Sets the wall clock.
    #[n(8)]
    SetClock {
        /// Nanoseconds since 1970 at the moment the agent reads the request.
        #[n(0)]
        unix_nanos: u64,
    },
    /// Credits entropy to the kernel's pool and makes the kernel draw new keys from it. [`Reply::Ok`],
    /// or [`Reply::Steps`] when only the file could not be written.
    #[n(9)]
    Reseed {
        /// At most [`MAX_SEED_BYTES`] secret random bytes.
        #[n(0)]
        seed: Bytes,
        /// Random id of this restore, written to `/run/smolvm/restore-id` for programs to watch.
        #[n(1)]
        restore_id: Id,
    },
    /// Gives the machine a name and keys of its own: [`Reply::Steps`]. Each step is tried, whatever
    /// became of the others.
    #[n(10)]
    SetIdentity(#[n(0)] Identity),
    /// Grows the root file system to its device: [`Reply::Resized`].
    #[n(11)]
    ResizeRoot,
    /// What runs: [`Reply::Status`].
    #[n(12)]
    Status,
    /// The output of detached commands: [`Reply::Ok`], then [`LogOutput`] until the connection ends.
    /// It goes to the client that asked last.
    #[n(13)]
    Log,
    /// Tells the processes that wait in `smolvm-branch-ready` to go on, each with these: [`Reply::Released`].
    #[n(14)]
    Release {
        /// Which of the machines of one branch this is.
        #[n(0)]
        index: u32,
        /// Its name, of at most [`MAX_BRANCH_NAME_BYTES`].
        #[n(1)]
        name: String,
    },
    /// Waits until every process that has announced itself is ready, or has ended: [`Reply::Ok`], at once where none has.
    #[n(15)]
    AwaitReady,
}

impl Wire for Request {
    const MAX_BYTES: usize = MAX_REQUEST_BYTES;
}

/// The agent's answer to a [`Request`].
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub enum Reply {
    /// Done.
    #[n(1)]
    Ok,
    /// Not done.
    #[n(2)]
    Error {
        /// What kind of failure.
        #[n(0)]
        kind: ErrorKind,
        /// What was tried, on what, and why it failed.
        #[n(1)]
        message: String,
    },
    /// The command runs.
    #[n(3)]
    Started {
        /// Number of this exec, unique until the guest boots anew, also when its agent is started again.
        #[n(0)]
        session: u64,
        /// Process id, which is also its process group and session.
        #[n(1)]
        pid: u32,
        /// Bytes of stdin that may be sent before the first [`ExecOutput::StdinCredit`].
        #[n(2)]
        stdin_window: u32,
    },
    /// The command could not be started.
    #[n(4)]
    NotStarted {
        /// 126 (cannot be executed) or 127 (not found).
        #[n(0)]
        code: u8,
        /// Why.
        #[n(1)]
        message: String,
    },
    /// A copy into the guest ended.
    #[n(5)]
    Copied(#[n(0)] CopyReport),
    /// Size of the root file system after [`Request::ResizeRoot`].
    #[n(6)]
    Resized {
        /// Bytes.
        #[n(0)]
        size_bytes: u64,
    },
    /// Answer to [`Request::Status`].
    #[n(7)]
    Status(#[n(0)] Status),
    /// Answer to [`Request::Sync`].
    #[n(8)]
    Synced(#[n(0)] SyncReport),
    /// What became of each step of a call.
    #[n(9)]
    Steps(#[cbor(n(0), decode_with = "bounded_list::<_, _, MAX_STEPS>")] Vec<StepReport>),
    /// Answer to [`Request::Release`].
    #[n(10)]
    Released {
        /// How many processes were told.
        #[n(0)]
        count: u32,
    },
}

impl Wire for Reply {}

/// Kinds of failure in the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode)]
#[cbor(index_only)]
pub enum ErrorKind {
    /// The request itself is not valid.
    #[n(1)]
    Invalid,
    /// Too many sessions.
    #[n(2)]
    Busy,
    /// A file or directory is not there.
    #[n(3)]
    NotFound,
    /// A step took too long.
    #[n(4)]
    TimedOut,
    /// The guest's kernel or file system refused a step. Also what a newer agent means by a kind that
    /// is not known here.
    #[n(5)]
    Failed,
    /// The agent does not know this request: it is older than its client.
    #[n(6)]
    Unsupported,
}

impl<'b, C> Decode<'b, C> for ErrorKind {
    fn decode(
        from: &mut minicbor::Decoder<'b>,
        _: &mut C,
    ) -> Result<Self, minicbor::decode::Error> {
        Ok(match from.u32()? {
            1 => Self::Invalid,
            2 => Self::Busy,
            3 => Self::NotFound,
            4 => Self::TimedOut,
            6 => Self::Unsupported,
            _ => Self::Failed,
        })
    }
}

/// An error with all that caused it in one line, as replies and streams carry it.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

impl CopyIn {
    /// The name of the tree's root, as the client took it from its source.
    ///
    /// # Errors
    /// [`BadRootName`](crate::tree::BadRootName) when it is no name.
    pub fn root_name(&self) -> Result<RootName, crate::tree::BadRootName> {
        RootName::new(&self.name)
    }
}
