//! Ctrl-C and its kin while a command runs in a machine.
//!
//! Whoever has something to put in order first asks for a [`Watch`]; all other commands die of these
//! signals as programs do. Those that watch die of them too, in the end: a shell ends its loop only if it sees that.

use std::process::ExitCode;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGWINCH};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level::emulate_default_handler;

use crate::failure::{Failure, interrupted};

/// The last signal that asked to end and was watched for; 0: none.
static ASKED_BY: AtomicI32 = AtomicI32::new(0);

/// What a watcher does about a signal.
pub(crate) enum Answer {
    /// Nothing further.
    GoOn,
    /// End the process as the signal of this number does.
    End(i32),
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
                    number => {
                        ASKED_BY.store(number, Ordering::SeqCst);
                        Signal::End(number)
                    }
                };
                if let Answer::End(number) = answer(signal) {
                    die_of(number);
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

/// Ends the process as a signal does that nobody watches for.
pub(crate) fn die_of(number: i32) -> ! {
    // It returns for signals only that do not end a process.
    let _ = emulate_default_handler(number);
    std::process::exit(interrupted(number).into())
}

/// The process is about to end with this code. Where that is a signal's, which was passed on to the command in the machine, this
/// process dies of it as well.
pub(crate) fn die_of_what_was_passed_on(code: ExitCode) {
    let number = ASKED_BY.load(Ordering::SeqCst);
    if number != 0 && code == ExitCode::from(interrupted(number)) {
        die_of(number);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.handle.close();
    }
}
