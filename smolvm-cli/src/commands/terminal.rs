//! The terminal that we are on.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use smolvm_engine::agent_protocol::message::TtySize;

use crate::failure::Failure;

/// Size of a terminal that cannot be asked.
const DEFAULT_SIZE: TtySize = TtySize {
    rows: 24,
    columns: 80,
};

/// How the terminal was before we changed it.
static SAVED: Mutex<Option<Termios>> = Mutex::new(None);

/// Keeps the terminal raw: every key goes to whoever reads stdin. The terminal is as before when this
/// is dropped.
pub(crate) struct RawMode(());

impl RawMode {
    /// Makes the terminal that is our stdin raw; `None` where stdin is none.
    pub(crate) fn enter() -> Result<Option<Self>, Failure> {
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return Ok(None);
        }
        let failed = |error: rustix::io::Errno| Failure::host("set up the terminal")(error.into());
        let before = tcgetattr(&stdin).map_err(failed)?;
        let mut raw = before.clone();
        raw.make_raw();
        *SAVED.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        let guard = Self(());
        tcsetattr(&stdin, OptionalActions::Now, &raw).map_err(failed)?;
        Ok(Some(guard))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        restore();
    }
}

/// Makes the terminal as it was before [`RawMode::enter`]. Does nothing where it was not changed.
pub(crate) fn restore() {
    let saved = SAVED.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(before) = saved {
        // A terminal that is gone needs nothing.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &before);
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
