//! One output stream of a command, until its end or until the command's own end.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::{Errno, ioctl_fionread, read};

/// After the command's end a terminal is done when reads found nothing in it for so long: what was
/// written last reaches the reader a little later.
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
    /// What a terminal gives until it is quiet. Only reads can tell: while nobody is allowed to read,
    /// for want of room, no time counts.
    Quiet {
        /// When reads began to find nothing.
        since: Option<Instant>,
        /// Reads found nothing for long enough.
        over: bool,
        left: usize,
    },
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
                since: None,
                over: false,
                left: TERMINAL_REST_BYTES,
            }
        } else {
            let waiting = ioctl_fionread(&self.fd).unwrap_or(0);
            Rest::Bytes(usize::try_from(waiting).unwrap_or(usize::MAX))
        };
    }

    /// Once what the command wrote itself has been read: what others write to the stream is of interest
    /// as well, until its end.
    pub(crate) fn go_on(&mut self) {
        self.rest = Rest::All;
    }

    /// Whether everything of interest has been read.
    pub(crate) fn is_done(&self) -> bool {
        match self.rest {
            Rest::All => false,
            Rest::Bytes(left) => left == 0,
            Rest::Quiet { over, left, .. } => over || left == 0,
        }
    }

    /// When to read though nothing has arrived, if there is room: only so does a terminal get done.
    pub(crate) fn read_at(&self) -> Option<Instant> {
        match self.rest {
            _ if self.is_done() => None,
            Rest::Quiet { since, .. } => {
                Some(since.map_or_else(Instant::now, |since| since + TERMINAL_QUIET))
            }
            _ => None,
        }
    }

    /// Reads into `buffer`.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Piece {
        let want = match self.rest {
            Rest::All => buffer.len(),
            Rest::Bytes(left) | Rest::Quiet { left, .. } => left.min(buffer.len()),
        };
        let now = Instant::now();
        match read(&self.fd, &mut buffer[..want]) {
            Ok(0) => Piece::End,
            Ok(count) => {
                match &mut self.rest {
                    Rest::All => {}
                    Rest::Bytes(left) => *left -= count,
                    Rest::Quiet { since, left, .. } => {
                        *left -= count;
                        *since = None;
                    }
                }
                Piece::Data(count)
            }
            Err(Errno::AGAIN) => {
                if let Rest::Quiet { since, over, .. } = &mut self.rest {
                    let since = *since.get_or_insert(now);
                    *over = now.saturating_duration_since(since) >= TERMINAL_QUIET;
                }
                Piece::Nothing
            }
            Err(Errno::INTR) => Piece::Nothing,
            Err(_) => Piece::End,
        }
    }
}
