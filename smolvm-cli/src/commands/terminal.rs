//! The terminal that we are on.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rustix::termios::{OptionalActions, OutputModes, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use smolvm_engine::agent_protocol::message::TtySize;

use crate::failure::Failure;

/// Size of a terminal that cannot be asked.
const DEFAULT_SIZE: TtySize = TtySize {
    rows: 24,
    columns: 80,
};

/// The terminal that we changed, and how it was before.
static SAVED: Mutex<Option<(OwnedFd, Termios)>> = Mutex::new(None);

/// Keeps the terminal raw. It is as before when this is dropped.
pub(crate) struct RawMode(());

impl RawMode {
    /// Lets every key of the terminal that is our stdin go to whoever reads it; `None` where stdin is
    /// none.
    pub(crate) fn for_input() -> Result<Option<Self>, Failure> {
        change(io::stdin().as_fd(), Termios::make_raw)
    }

    /// Lets the terminal that is our stdout show what the guest's terminal has prepared already: a second
    /// carriage return for each line is one too many. `None` where stdout is none.
    pub(crate) fn for_output() -> Result<Option<Self>, Failure> {
        change(io::stdout().as_fd(), |mode| {
            mode.output_modes.remove(OutputModes::OPOST);
        })
    }
}

fn change(
    terminal: BorrowedFd<'_>,
    change: impl FnOnce(&mut Termios),
) -> Result<Option<RawMode>, Failure> {
    if !terminal.is_terminal() {
        return Ok(None);
    }
    let set_up = Failure::host("set up the terminal");
    let failed = |error: rustix::io::Errno| Failure::host("set up the terminal")(error.into());
    let ours = terminal.try_clone_to_owned().map_err(set_up)?;
    let before = tcgetattr(terminal).map_err(failed)?;
    let mut raw = before.clone();
    change(&mut raw);
    *SAVED.lock().unwrap_or_else(PoisonError::into_inner) = Some((ours, before));
    let guard = RawMode(());
    tcsetattr(terminal, OptionalActions::Now, &raw).map_err(failed)?;
    Ok(Some(guard))
}

impl Drop for RawMode {
    fn drop(&mut self) {
        restore();
    }
}

/// Makes the terminal as it was before it was changed. Does nothing where it was not.
pub(crate) fn restore() {
    let saved = SAVED.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some((terminal, before)) = saved {
        // A terminal that is gone needs nothing.
        let _ = tcsetattr(terminal, OptionalActions::Now, &before);
    }
}

/// The size of the terminal that any of our standard streams is.
pub(crate) fn size() -> TtySize {
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    [stdout.as_fd(), stdin.as_fd(), stderr.as_fd()]
        .into_iter()
        .filter_map(|stream| tcgetwinsize(stream).ok())
        .find(|size| size.ws_row > 0 && size.ws_col > 0)
        .map_or(DEFAULT_SIZE, |size| TtySize {
            rows: size.ws_row,
            columns: size.ws_col,
        })
}
