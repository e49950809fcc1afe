//! One output stream of a command, until its end or until the command's own end.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::{Errno, ioctl_fionread, read};

/// After the command's end a terminal is done when it was quiet for so long: what was written last
/// reaches the reader a little later.
const TERMINAL_QUIET: Duration = Duration::from_millis(30);
/// Most that a terminal gives after the command's end, should others keep writing.
const TERMINAL_REST_BYTES: usize = 1 << 20;

/// How much is still to be read.
#[derive(Debug, Clone, Copy)]
enum Rest {
    /// All, the command runs.
    All,
    /// What was in the pipe when the command ended.
    Bytes(usize),
    /// What a terminal gives before this moment, each read moving it on.
    Quiet { until: Instant, left: usize },
}

/// What one read gave.
#[derive(Debug)]
pub(crate) enum Piece {
    Data(usize),
    Nothing,
    /// All writers are gone.
    End,
}

/// The agent's end of a pipe or terminal, non-blocking.
#[derive(Debug)]
pub(crate) struct Output {
    fd: OwnedFd,
    terminal: bool,
    rest: Rest,
}

impl Output {
    pub(crate) fn new(fd: OwnedFd, terminal: bool) -> Self {
        Self {
            fd,
            terminal,
            rest: Rest::All,
        }
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    pub(crate) fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// The command has ended: only what it wrote itself is still of interest. Processes that it
    /// left may hold the stream open for ever.
    pub(crate) fn command_ended(&mut self) {
        self.rest = if self.terminal {
            Rest::Quiet {
                until: Instant::now() + TERMINAL_QUIET,
                left: TERMINAL_REST_BYTES,
            }
        } else {
            let waiting = ioctl_fionread(&self.fd).unwrap_or(0);
            Rest::Bytes(usize::try_from(waiting).unwrap_or(usize::MAX))
        };
    }

    /// Whether everything of interest has been read.
    pub(crate) fn is_done(&self) -> bool {
        match self.rest {
            Rest::All => false,
            Rest::Bytes(left) => left == 0,
            Rest::Quiet { until, left } => left == 0 || Instant::now() >= until,
        }
    }

    /// When to look at [`Output::is_done`] again though nothing arrives.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        match self.rest {
            Rest::Quiet { until, .. } => Some(until),
            _ => None,
        }
    }

    /// Reads into `buffer`.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Piece {
        let want = match self.rest {
            Rest::All => buffer.len(),
            Rest::Bytes(left) | Rest::Quiet { left, .. } => left.min(buffer.len()),
        };
        match read(&self.fd, &mut buffer[..want]) {
            Ok(0) => Piece::End,
            Ok(count) => {
                match &mut self.rest {
                    Rest::All => {}
                    Rest::Bytes(left) => *left -= count,
                    Rest::Quiet { until, left } => {
                        *left -= count;
                        *until = Instant::now() + TERMINAL_QUIET;
                    }
                }
                Piece::Data(count)
            }
            Err(Errno::AGAIN | Errno::INTR) => Piece::Nothing,
            Err(_) => Piece::End,
        }
    }
}
