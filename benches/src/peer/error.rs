use std::io;

use smolvm_engine::image::ImageError;
use smolvm_engine::kernel::KernelError;

/// Why the peer was not measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// A program that is needed is not there.
    #[error("{program} is missing or does not run; install it with: apt-get install {package}")]
    Missing {
        /// The program.
        program: &'static str,
        /// Debian's package of it.
        package: &'static str,
        /// The host's answer.
        #[source]
        source: io::Error,
    },
    /// The kernel of the home cannot be used.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The image of the home cannot be used.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// Something on the host failed.
    #[error("the peer: cannot {step}")]
    Host {
        /// What was tried.
        step: &'static str,
        /// The host's answer.
        #[source]
        source: io::Error,
    },
    /// Its process ended early.
    #[error("the peer's process ended early: {messages}")]
    Ended {
        /// What it and its guest's console said last.
        messages: String,
    },
    /// Its monitor refused a command, or did not answer as expected.
    #[error("the peer's monitor answered {command:?} with {answer}")]
    Monitor {
        /// The command.
        command: String,
        /// What came back.
        answer: String,
    },
    /// A command in its guest failed.
    #[error("`{command}` in the peer's guest ended with {code}: {output}")]
    Failed {
        /// The command.
        command: String,
        /// How it ended.
        code: u8,
        /// What it printed.
        output: String,
    },
    /// A backend that it has nothing alike to.
    #[error("the peer has no counterpart to the backend {backend:?}, only to kvm and soft")]
    NoCounterpart {
        /// The backend.
        backend: String,
    },
}

impl PeerError {
    /// Wraps an error of the host.
    pub(super) fn host(step: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Host { step, source }
    }
}
