//! What client and agent say to each other.
//!
//! After the hello the client sends one [`Request`]. `Exec`, `CopyIn` and `CopyOut` make the
//! connection theirs; every other request is answered by one [`Reply`] and may be followed by
//! another such request.

use crate::codec::{Bytes, wire_enum, wire_struct};

/// Most seed bytes of one [`Request::Reseed`].
pub const MAX_SEED_BYTES: usize = 4096;

/// What the client wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Runs a command: [`Reply::Started`] or [`Reply::NotStarted`], then [`ExecInput`] and
    /// [`ExecOutput`] until [`ExecOutput::Exit`].
    Exec(ExecRequest),
    /// Receives a tree: tree items follow, the agent answers [`Reply::Copied`].
    CopyIn(CopyIn),
    /// Sends a tree: [`Reply::Ok`], then tree items; a source that cannot be read is an abort.
    CopyOut {
        /// Path in the guest.
        source: Bytes,
    },
    /// Is the agent there? [`Reply::Ok`].
    Ping,
    /// Writes the page cache of all file systems; [`Reply::Ok`], or an error of kind
    /// [`ErrorKind::TimedOut`] when that takes longer.
    Sync {
        /// Longest wait in milliseconds.
        timeout_ms: u32,
    },
    /// Ends all processes and powers off; [`Reply::Ok`] comes before.
    PowerOff {
        /// Time between SIGTERM and SIGKILL in milliseconds.
        grace_ms: u32,
    },
    /// Ends all processes and reboots; [`Reply::Ok`] comes before.
    Reboot {
        /// Time between SIGTERM and SIGKILL in milliseconds.
        grace_ms: u32,
    },
    /// Sets the wall clock.
    SetClock {
        /// Nanoseconds since 1970 at the moment the agent reads the request.
        unix_nanos: u64,
    },
    /// Credits entropy to the kernel's pool and makes the kernel draw new keys from it.
    Reseed {
        /// At most [`MAX_SEED_BYTES`] secret random bytes.
        seed: Bytes,
        /// Random id of this restore, written to `/run/smolvm/restore-id` for programs to watch.
        restore_id: [u8; 16],
    },
    /// Gives the machine a name and keys of its own.
    SetIdentity(Identity),
    /// Grows the root file system to its device: [`Reply::Resized`].
    ResizeRoot,
    /// What runs: [`Reply::Status`].
    Status,
}

wire_enum!(Request {
    1 => Exec(exec),
    2 => CopyIn(copy),
    3 => CopyOut { source },
    4 => Ping,
    5 => Sync { timeout_ms },
    6 => PowerOff { grace_ms },
    7 => Reboot { grace_ms },
    8 => SetClock { unix_nanos },
    9 => Reseed { seed, restore_id },
    10 => SetIdentity(identity),
    11 => ResizeRoot,
    12 => Status,
});

/// The agent's answer to a [`Request`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// Done.
    Ok,
    /// Not done.
    Error {
        /// What kind of failure.
        kind: ErrorKind,
        /// What was tried, on what, and why it failed.
        message: String,
    },
    /// The command runs.
    Started {
        /// Number of this exec, unique while the agent's machine lives.
        session: u64,
        /// Process id, which is also its process group and session.
        pid: u32,
        /// Bytes of stdin that may be sent before the first [`ExecOutput::StdinCredit`].
        stdin_window: u32,
    },
    /// The command could not be started.
    NotStarted {
        /// 126 (cannot be executed) or 127 (not found).
        code: u8,
        /// Why.
        message: String,
    },
    /// A copy into the guest ended.
    Copied(CopyReport),
    /// Size of the root file system after [`Request::ResizeRoot`].
    Resized {
        /// Bytes.
        size_bytes: u64,
    },
    /// Answer to [`Request::Status`].
    Status(Status),
}

wire_enum!(Reply {
    1 => Ok,
    2 => Error { kind, message },
    3 => Started { session, pid, stdin_window },
    4 => NotStarted { code, message },
    5 => Copied(report),
    6 => Resized { size_bytes },
    7 => Status(status),
});

/// Kinds of failure in the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request itself is not valid.
    Invalid,
    /// Too many sessions.
    Busy,
    /// A file or directory is not there.
    NotFound,
    /// A step took too long.
    TimedOut,
    /// The guest's kernel or file system refused a step.
    Failed,
}

wire_enum!(ErrorKind {
    1 => Invalid,
    2 => Busy,
    3 => NotFound,
    4 => TimedOut,
    5 => Failed,
});

/// A command to run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExecRequest {
    /// Program and arguments; empty means the user's login shell.
    pub argv: Vec<Bytes>,
    /// Variables set on top of the defaults (HOME, PATH, USER, LOGNAME; TERM with a tty).
    pub env: Vec<EnvVar>,
    /// Directory to start in; `None` means the user's home if there, else `/`.
    pub directory: Option<Bytes>,
    /// `NAME`, `UID`, `NAME:GROUP` or `UID:GID`; `None` means root.
    pub user: Option<String>,
    /// Whether stdin follows; otherwise it is `/dev/null` (with a tty: the tty).
    pub stdin: bool,
    /// Run on a terminal of this size; stderr is then part of stdout.
    pub tty: Option<TtySize>,
    /// End the process group after this time.
    pub timeout_ms: Option<u64>,
    /// Only start it: output goes to the machine's log, the connection ends after
    /// [`Reply::Started`].
    pub detach: bool,
}

wire_struct!(ExecRequest {
    argv,
    env,
    directory,
    user,
    stdin,
    tty,
    timeout_ms,
    detach
});

/// One environment variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvVar {
    /// Name, without `=` and NUL.
    pub name: Bytes,
    /// Value, without NUL.
    pub value: Bytes,
}

wire_struct!(EnvVar { name, value });

/// Size of a terminal in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TtySize {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub columns: u16,
}

wire_struct!(TtySize { rows, columns });

/// Client to agent while a command runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecInput {
    /// Bytes for stdin, within the credit given.
    Stdin(Bytes),
    /// No more stdin.
    StdinEnd,
    /// The client's terminal has a new size.
    Resize(TtySize),
    /// Sends a signal to the command's process group.
    Signal {
        /// Linux signal number of the guest's architecture.
        number: i32,
    },
}

wire_enum!(ExecInput {
    1 => Stdin(data),
    2 => StdinEnd,
    3 => Resize(size),
    4 => Signal { number },
});

/// Agent to client while a command runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecOutput {
    /// Bytes that the command wrote to stdout, or to its terminal.
    Stdout(Bytes),
    /// Bytes that the command wrote to stderr.
    Stderr(Bytes),
    /// So many more bytes of stdin may be sent.
    StdinCredit {
        /// Bytes.
        bytes: u32,
    },
    /// The command ended; nothing follows.
    Exit(Outcome),
}

wire_enum!(ExecOutput {
    1 => Stdout(data),
    2 => Stderr(data),
    3 => StdinCredit { bytes },
    4 => Exit(outcome),
});

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// By exit with this code.
    Exited {
        /// The code.
        code: u8,
    },
    /// By this signal.
    Signaled {
        /// Linux signal number.
        number: u8,
    },
    /// Its time was over and its process group was ended.
    TimedOut,
}

wire_enum!(Outcome {
    1 => Exited { code },
    2 => Signaled { number },
    3 => TimedOut,
});

impl Outcome {
    /// The exit code as a shell gives it: the command's, 128 + signal, 124 after a timeout.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Exited { code } => code,
            Self::Signaled { number } => number.saturating_add(128),
            Self::TimedOut => 124,
        }
    }
}

/// A copy into the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyIn {
    /// Path in the guest: inside it when it is a directory, else as it.
    pub target: Bytes,
    /// Owner of what is made; `None` keeps the numbers of the source.
    pub owner: Option<Owner>,
}

wire_struct!(CopyIn { target, owner });

/// Numeric owner of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

wire_struct!(Owner { uid, gid });

/// What a copy did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CopyReport {
    /// Files, directories, links and others made.
    pub entries: u64,
    /// Bytes of file data written, holes not counted.
    pub data_bytes: u64,
    /// What could not be copied, or not wholly; the copy went on without it. At most
    /// [`MAX_PROBLEMS`](crate::tree::MAX_PROBLEMS) are kept.
    pub problems: Vec<String>,
    /// How many problems there were.
    pub problem_count: u64,
}

wire_struct!(CopyReport {
    entries,
    data_bytes,
    problems,
    problem_count
});

/// What makes a machine itself. A field that is `None` or empty is left as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    /// New host name: kernel, `/etc/hostname`, `/etc/hosts`.
    pub hostname: Option<String>,
    /// New machine id, for `/etc/machine-id` and the D-Bus copy.
    pub machine_id: Option<[u8; 16]>,
    /// New boot id, shown in place of the kernel's.
    pub boot_id: Option<[u8; 16]>,
    /// New contents of random-seed files that exist.
    pub random_seed: Option<Bytes>,
    /// New SSH host keys; all others are removed. Empty: left alone.
    pub ssh_host_keys: Vec<SshHostKey>,
    /// Forget DHCP leases and client ids.
    pub forget_dhcp: bool,
}

wire_struct!(Identity {
    hostname,
    machine_id,
    boot_id,
    random_seed,
    ssh_host_keys,
    forget_dhcp
});

/// One SSH host key, as files under `/etc/ssh`.
#[derive(Clone, PartialEq, Eq)]
pub struct SshHostKey {
    /// `ed25519`, `ecdsa` or `rsa`.
    pub algorithm: String,
    /// Contents of `ssh_host_ALGORITHM_key`.
    pub private_key: Bytes,
    /// Contents of `ssh_host_ALGORITHM_key.pub`.
    pub public_key: Bytes,
}

wire_struct!(SshHostKey {
    algorithm,
    private_key,
    public_key
});

impl std::fmt::Debug for SshHostKey {
    // The private key must not reach a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SshHostKey")
            .field("algorithm", &self.algorithm)
            .field("public_key", &self.public_key)
            .finish_non_exhaustive()
    }
}

/// State of the agent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Status {
    /// Version of the agent's program.
    pub agent_version: String,
    /// Milliseconds since the guest booted, suspended time included.
    pub uptime_ms: u64,
    /// Commands that run, and detached ones that ended lately.
    pub sessions: Vec<SessionStatus>,
}

wire_struct!(Status {
    agent_version,
    uptime_ms,
    sessions
});

/// One command in [`Status`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionStatus {
    /// Number given in [`Reply::Started`].
    pub session: u64,
    /// Its process id.
    pub pid: u32,
    /// The program.
    pub program: Bytes,
    /// Whether it was started detached.
    pub detached: bool,
    /// `None` while it runs.
    pub outcome: Option<Outcome>,
}

wire_struct!(SessionStatus {
    session,
    pid,
    program,
    detached,
    outcome
});

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_a_shell() {
        assert_eq!(Outcome::Exited { code: 7 }.exit_code(), 7);
        assert_eq!(Outcome::Signaled { number: 9 }.exit_code(), 137);
        assert_eq!(Outcome::TimedOut.exit_code(), 124);
    }

    #[test]
    fn private_keys_stay_out_of_logs() {
        let key = SshHostKey {
            algorithm: "ed25519".into(),
            private_key: Bytes::from("SECRET"),
            public_key: Bytes::from("public"),
        };
        assert!(!format!("{key:?}").contains("SECRET"));
    }
}
