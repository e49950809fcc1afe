//! Ctrl-C and its kin while a command runs in a machine.
//!
//! Whoever has something to put in order first asks for a [`Watch`]; all other commands die of these
//! signals as programs do.

use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGWINCH};
use signal_hook::iterator::{Handle, Signals};

use crate::failure::Failure;

/// What a watcher does about a signal.
pub(crate) enum Answer {
    /// Nothing further.
    GoOn,
    /// End the process with this exit code.
    Exit(u8),
}

/// A signal that is watched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// The terminal has another size.
    Resized,
    /// Asked to end, by this signal number.
    End(i32),
}

/// Watches for signals until dropped.
pub(crate) struct Watch {
    handle: Handle,
}

impl Watch {
    /// Calls `answer` on a thread of its own for each signal.
    pub(crate) fn start(
        mut answer: impl FnMut(Signal) -> Answer + Send + 'static,
    ) -> Result<Self, Failure> {
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGWINCH])
            .map_err(Failure::host("watch for signals"))?;
        let handle = signals.handle();
        let watch = move || {
            for number in signals.forever() {
                let signal = match number {
                    SIGWINCH => Signal::Resized,
                    number => Signal::End(number),
                };
                if let Answer::Exit(code) = answer(signal) {
                    std::process::exit(code.into());
                }
            }
        };
        thread::Builder::new()
            .name("signals".to_owned())
            .spawn(watch)
            .map_err(Failure::host("watch for signals"))?;
        Ok(Self { handle })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.handle.close();
    }
}
