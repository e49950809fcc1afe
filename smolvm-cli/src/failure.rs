//! Why a command was not carried out, and the exit code that says so.

use std::io;
use std::process::ExitCode;

use smolvm_engine::agent_protocol::client::ClientError;
use smolvm_engine::image::ImageError;
use smolvm_engine::kernel::KernelError;
use smolvm_engine::{EngineError, InvalidName, MachineName};
use thiserror::Error;

use crate::output;

/// Exit code of a command that failed.
pub(crate) const FAILED: u8 = 1;
/// Exit code of wrong usage.
pub(crate) const USAGE: u8 = 2;
/// Exit code of run and exec when the command's time is over.
const TIMED_OUT: u8 = 124;
/// Exit code of run, exec and shell when smolvm, not the command, failed.
pub(crate) const FAILED_AROUND_COMMAND: u8 = 125;
/// A process ended by signal `n` has exit code `SIGNALED + n`.
pub(crate) const SIGNALED: u8 = 128;
/// Signal number of a write that nobody reads.
const SIGPIPE: u8 = 13;

/// Why a command was not carried out.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    /// The engine refused or failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Asked for what nobody has made yet.
    #[error("{what} is not available yet")]
    NotAvailable {
        /// The command or flag.
        what: String,
    },
    /// The arguments do not go together.
    #[error("{what}")]
    Usage {
        /// Why not.
        what: String,
        /// What to type instead.
        hint: Option<String>,
    },
    /// What was named is not there.
    #[error("{what}")]
    NotFound {
        /// What was looked for.
        what: String,
        /// What to type instead.
        hint: String,
    },
    /// Saved data is damaged; which is told already.
    #[error("{what}")]
    Damaged {
        /// What cannot be restored.
        what: String,
        /// What to type to repair it.
        hint: String,
    },
    /// Something was done only in part; what was not is told already.
    #[error("{what}")]
    Partly {
        /// What was left out.
        what: String,
    },
    /// A file that was named cannot be opened.
    #[error("cannot open {}", path.display())]
    File {
        /// The file.
        path: std::path::PathBuf,
        /// The host's answer.
        #[source]
        source: io::Error,
    },
    /// This host's terminal, signals or files failed.
    #[error("cannot {operation}")]
    Host {
        /// What was tried.
        operation: &'static str,
        /// The host's answer.
        #[source]
        source: io::Error,
    },
    /// Data could not be written to stdout.
    #[error("cannot write to stdout")]
    Output(#[source] io::Error),
    /// With a machine that is gone by now.
    #[error("{failure}")]
    Passing {
        /// What failed.
        #[source]
        failure: Box<Failure>,
        /// The machine.
        machine: MachineName,
    },
    /// Failed before or beside the command that was to be run in a machine.
    #[error(transparent)]
    AroundCommand(Box<Failure>),
}

impl Failure {
    /// The exit code.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::NotAvailable { .. } | Self::Usage { .. } => USAGE,
            Self::AroundCommand(inner) => match inner.bare() {
                Self::Engine(EngineError::CommandNotStarted {
                    source: ClientError::NotStarted { code, .. },
                    ..
                }) => *code,
                Self::Engine(
                    EngineError::CommandNotStarted { source, .. }
                    | EngineError::CommandLost { source, .. },
                ) if matches!(source, ClientError::Late) => TIMED_OUT,
                inner if inner.is_broken_pipe() => SIGNALED + SIGPIPE,
                inner => match inner.exit_code() {
                    FAILED => FAILED_AROUND_COMMAND,
                    code => code,
                },
            },
            Self::Passing { failure, .. } => failure.exit_code(),
            failure if failure.is_broken_pipe() => 0,
            _ => FAILED,
        }
    }

    /// What failed, whatever it was with.
    fn bare(&self) -> &Self {
        match self {
            Self::Passing { failure, .. } => failure.bare(),
            failure => failure,
        }
    }

    /// The word for programs.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::Engine(error) => error.code().name(),
            Self::NotAvailable { .. } => "not_available",
            Self::Usage { .. } => "usage",
            Self::NotFound { .. } => "not_found",
            Self::Damaged { .. } => "damaged",
            Self::AroundCommand(inner) => inner.code(),
            Self::Passing { failure, .. } => failure.code(),
            Self::File { source, .. } if source.kind() == io::ErrorKind::NotFound => "not_found",
            Self::Partly { .. } | Self::File { .. } | Self::Host { .. } | Self::Output(_) => {
                "failed"
            }
        }
    }

    /// [`Failure::Partly`] unless each machine was `done`, as in "stopped"; `failed` is how many were not.
    pub(crate) fn unless_all(failed: u64, done: &str) -> Result<(), Self> {
        if failed == 0 {
            return Ok(());
        }
        let machines = output::count(failed, "machine was", "machines were");
        Err(Self::Partly {
            what: format!("{machines} not {done}"),
        })
    }

    /// [`Failure::Partly`] unless everything could be read; `damaged` is how many could not.
    pub(crate) fn unless_readable(damaged: u64, one: &str, many: &str) -> Result<(), Self> {
        if damaged == 0 {
            return Ok(());
        }
        let what = output::count(damaged, one, many);
        Err(Self::Partly {
            what: format!("{what} could not be read"),
        })
    }

    /// What to type next.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Engine(error) => error.hint(),
            Self::Usage { hint, .. } => hint.clone(),
            Self::NotFound { hint, .. } | Self::Damaged { hint, .. } => Some(hint.clone()),
            Self::AroundCommand(inner) => inner.hint(),
            // Not what is to be done with the machine.
            Self::Passing { failure, machine } => failure
                .hint()
                .filter(|hint| !hint.contains(machine.as_str())),
            _ => None,
        }
    }

    /// Whether it is only that nobody reads our output any more.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        let broken = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
        match self {
            Self::Output(error) => broken(error),
            Self::AroundCommand(inner) => inner.is_broken_pipe(),
            Self::Passing { failure, .. } => failure.is_broken_pipe(),
            _ => false,
        }
    }

    /// For `map_err`: the host failed at `operation`.
    pub(crate) fn host(operation: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Host { operation, source }
    }

    /// The same as a failure of run, exec or shell.
    pub(crate) fn around_command(self) -> Self {
        Self::AroundCommand(Box::new(self))
    }

    /// For a flag or command that is not there yet.
    pub(crate) fn not_available(what: impl Into<String>) -> Self {
        Self::NotAvailable { what: what.into() }
    }
}

impl From<ImageError> for Failure {
    fn from(error: ImageError) -> Self {
        Self::Engine(error.into())
    }
}

impl From<KernelError> for Failure {
    fn from(error: KernelError) -> Self {
        Self::Engine(error.into())
    }
}

impl From<InvalidName> for Failure {
    fn from(error: InvalidName) -> Self {
        Self::Engine(error.into())
    }
}

/// The exit code of a process that the signal `number` interrupts.
pub(crate) fn interrupted(number: i32) -> u8 {
    u8::try_from(number).map_or(FAILED, |number| SIGNALED.saturating_add(number))
}

impl From<&Failure> for ExitCode {
    fn from(failure: &Failure) -> Self {
        failure.exit_code().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn not_started(code: u8) -> Failure {
        Failure::Engine(EngineError::CommandNotStarted {
            name: "a".parse().unwrap(),
            source: ClientError::NotStarted {
                code,
                message: "no".into(),
            },
        })
    }

    #[test]
    fn exit_codes_follow_the_rules() {
        assert_eq!(not_started(127).around_command().exit_code(), 127);
        assert_eq!(not_started(126).around_command().exit_code(), 126);
        let late = || {
            Failure::Engine(EngineError::CommandLost {
                name: "a".parse().unwrap(),
                state: "is running".into(),
                source: ClientError::Late,
            })
        };
        assert_eq!(late().around_command().exit_code(), 124);
        let nothing = || Failure::Engine(EngineError::WhichMachine { count: 0 });
        assert_eq!(nothing().exit_code(), 1);
        assert_eq!(nothing().around_command().exit_code(), 125);
        let later = || Failure::not_available("`try`");
        assert_eq!(later().exit_code(), 2);
        assert_eq!(later().around_command().exit_code(), 2);
        let unread = || Failure::Output(io::ErrorKind::BrokenPipe.into());
        assert_eq!(unread().exit_code(), 0);
        assert_eq!(unread().around_command().exit_code(), 141);
        let passing = |failure| {
            let failure = Box::new(failure);
            let machine = "a".parse().unwrap();
            Failure::Passing { failure, machine }
        };
        assert_eq!(passing(not_started(127)).around_command().exit_code(), 127);
        assert_eq!(passing(unread()).around_command().exit_code(), 141);
        assert_eq!(passing(nothing()).around_command().exit_code(), 125);
        let full = Failure::Output(io::ErrorKind::StorageFull.into());
        assert_eq!(full.exit_code(), 1);
        assert_eq!(interrupted(2), 130);
    }
}
