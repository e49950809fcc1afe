//! The engine's own processes: the hidden subcommands of the program that embeds it.
//!
//! A machine has two: its supervisor and its VMM. Both are the same program as the command, started
//! with a hidden first argument; their standard input is a socket to whoever started them.

use std::ffi::OsString;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::channel::child::{SUPERVISOR, VMM, take_standard_input};
use crate::error_chain::chain;
use crate::home::Home;
use crate::name::MachineName;
use crate::supervisor::VmmHost;
use crate::{supervisor, vmm};

/// How machines are run.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ProcessModel {
    /// As processes of this program, which calls [`run_if_asked`] first thing in `main`.
    Processes {
        /// The program.
        program: PathBuf,
    },
    /// As threads of the calling process: machines end with it.
    Threads,
}

/// Whether this process asked what it is to be.
static ASKED: AtomicBool = AtomicBool::new(false);

/// Whether this process was started to be a supervisor or a VMM, but does not call [`run_if_asked`]: it must not start
/// machines, each of which would start it again.
pub(crate) fn is_child_unasked() -> bool {
    let first = std::env::args_os().nth(1);
    !ASKED.load(Ordering::SeqCst) && first.is_some_and(|first| first == SUPERVISOR || first == VMM)
}

/// Runs the process that the arguments ask for, if they do; `None`: go on with `main`.
///
/// `arguments` are those of the program, without its name.
pub fn run_if_asked(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    ASKED.store(true, Ordering::SeqCst);
    let mut arguments = arguments.into_iter();
    let first = arguments.next()?;
    let result = if first == SUPERVISOR {
        run_supervisor(arguments)
    } else if first == VMM {
        end_at_panics();
        leave_signals_to_the_supervisor();
        take_standard_input()
            .map_err(|error| chain(&error))
            .and_then(|socket| vmm::run(UnixStream::from(socket)).map_err(|error| chain(&error)))
    } else {
        return None;
    };
    Some(match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the process ends");
            ExitCode::FAILURE
        }
    })
}

fn run_supervisor(mut arguments: impl Iterator<Item = OsString>) -> Result<(), String> {
    let (Some(home), Some(name)) = (arguments.next(), arguments.next()) else {
        return Err("a supervisor needs a home and a name".to_owned());
    };
    let name: MachineName = name
        .to_string_lossy()
        .parse()
        .map_err(|error| chain(&error as &crate::name::InvalidName))?;
    let socket = take_standard_input().map_err(|error| chain(&error))?;
    // The command's terminal and signals are not ours. Failing means that we lead a group already.
    let _ = rustix::process::setsid();
    let program = std::env::current_exe().map_err(|error| chain(&error))?;
    let host = VmmHost::Process { program };
    supervisor::run(&Home::at(home), &name, &host, UnixStream::from(socket));
    Ok(())
}

/// What ends this process in order is its supervisor, which gets the same signals.
fn leave_signals_to_the_supervisor() {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        if let Err(error) = signal_hook::flag::register(signal, Arc::default()) {
            tracing::warn!(%error, signal, "a signal ends the VMM at once");
        }
    }
}

/// From now on a panic of any thread ends the process: a guest whose disk or vCPU nobody serves any more would
/// hang, while the end of its VMM is seen and told.
fn end_at_panics() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::abort();
    }));
}
