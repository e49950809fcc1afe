//! Commands and their streams.

use minicbor::{Decode, Encode};

use crate::codec::{Bytes, Data, Wire, bounded_list};

/// Most words of a command, and most variables of its environment.
pub const MAX_WORDS: usize = 1 << 20;

/// A command to run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Encode, Decode)]
#[cbor(map)]
pub struct ExecRequest {
    /// Program and arguments; empty means the user's login shell.
    #[cbor(n(0), decode_with = "bounded_list::<_, _, MAX_WORDS>")]
    pub argv: Vec<Bytes>,
    /// Variables set on top of the defaults (HOME, PATH, USER, LOGNAME; TERM with a tty).
    #[cbor(n(1), default, decode_with = "bounded_list::<_, _, MAX_WORDS>")]
    pub env: Vec<EnvVar>,
    /// Directory to start in; `None` means the user's home if there, else `/`.
    #[n(2)]
    pub directory: Option<Bytes>,
    /// `NAME`, `UID`, `NAME:GROUP` or `UID:GID`; `None` means root.
    #[n(3)]
    pub user: Option<String>,
    /// Whether stdin follows; otherwise it is `/dev/null` (with a tty: the tty, on which the end of
    /// input has been typed).
    #[cbor(n(4), default)]
    pub stdin: bool,
    /// Run on a terminal of this size; stderr is then part of stdout.
    #[n(5)]
    pub tty: Option<TtySize>,
    /// End the process group after this time. Where the kernel does not let go of the command, the outcome
    /// is told some seconds later all the same.
    #[n(6)]
    pub timeout_ms: Option<u64>,
    /// Only start it: output goes to the machine's log, the connection ends after
    /// [`Reply::Started`](super::Reply::Started).
    #[cbor(n(7), default)]
    pub detach: bool,
    /// Make `directory` when it is not there, as runtimes of containers do for an image's.
    #[cbor(n(8), default)]
    pub make_directory: bool,
}

/// One environment variable.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct EnvVar {
    /// Name, without `=` and NUL. It may be empty: images have entries like `=x`.
    #[n(0)]
    pub name: Bytes,
    /// Value, without NUL.
    #[n(1)]
    pub value: Bytes,
}

/// Size of a terminal in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct TtySize {
    /// Lines.
    #[n(0)]
    pub rows: u16,
    /// Characters in a line.
    #[n(1)]
    pub columns: u16,
}

/// Client to agent while a command runs.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub enum ExecInput {
    /// Bytes for stdin, within the credit given. Always raw.
    #[n(1)]
    Stdin(#[n(0)] Bytes),
    /// No more stdin.
    #[n(2)]
    StdinEnd,
    /// The client's terminal has a new size.
    #[n(3)]
    Resize(#[n(0)] TtySize),
    /// Sends a signal to the command's process group.
    #[n(4)]
    Signal {
        /// Linux signal number of the guest's architecture.
        #[n(0)]
        number: i32,
    },
}

impl Wire for ExecInput {
    fn as_data(&self) -> Option<(Data, &[u8])> {
        match self {
            Self::Stdin(bytes) => Some((Data::Stdin, bytes)),
            _ => None,
        }
    }

    fn from_data(data: Data, bytes: &[u8]) -> Option<Self> {
        (data == Data::Stdin).then(|| Self::Stdin(bytes.into()))
    }
}

/// Agent to client while a command runs.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub enum ExecOutput {
    /// Bytes that the command wrote to stdout, or to its terminal. Always raw.
    #[n(1)]
    Stdout(#[n(0)] Bytes),
    /// Bytes that the command wrote to stderr. Always raw.
    #[n(2)]
    Stderr(#[n(0)] Bytes),
    /// So many more bytes of stdin may be sent.
    #[n(3)]
    StdinCredit {
        /// Bytes.
        #[n(0)]
        bytes: u32,
    },
    /// The command ended; nothing follows.
    #[n(4)]
    Exit(#[n(0)] Outcome),
}

impl Wire for ExecOutput {
    fn as_data(&self) -> Option<(Data, &[u8])> {
        match self {
            Self::Stdout(bytes) => Some((Data::Stdout, bytes)),
            Self::Stderr(bytes) => Some((Data::Stderr, bytes)),
            _ => None,
        }
    }

    fn from_data(data: Data, bytes: &[u8]) -> Option<Self> {
        match data {
            Data::Stdout => Some(Self::Stdout(bytes.into())),
            Data::Stderr => Some(Self::Stderr(bytes.into())),
            _ => None,
        }
    }
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub enum Outcome {
    /// By exit with this code.
    #[n(1)]
    Exited {
        /// The code.
        #[n(0)]
        code: u8,
    },
    /// By this signal.
    #[n(2)]
    Signaled {
        /// Linux signal number.
        #[n(0)]
        number: u8,
    },
    /// Its time was over and its process group was ended.
    #[n(3)]
    TimedOut,
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_a_shell() {
        assert_eq!(Outcome::Exited { code: 7 }.exit_code(), 7);
        assert_eq!(Outcome::Signaled { number: 9 }.exit_code(), 137);
        assert_eq!(Outcome::TimedOut.exit_code(), 124);
    }
}
