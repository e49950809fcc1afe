//! The engine's own processes: the hidden subcommands of the program that embeds it.
//!
//! A machine has two: its supervisor and its VMM. Both are the same program as the command, started
//! with a hidden first argument; their standard input is a socket to whoever started them.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use crate::error::chain;
use crate::home::Home;
use crate::name::MachineName;
use crate::{supervisor, vmm};

/// First argument of a supervisor process.
const SUPERVISOR: &str = "__supervisor";
/// First argument of a VMM process.
const VMM: &str = "__vmm";

/// What glibc's allocator is told, see mallopt(3): a block as large as a chunk goes back to the system
/// when it is freed, and so does a free end of the heap. Left alone it raises both limits with the first kernel
/// that was read and freed, and a machine keeps what one checkpoint needed.
const ALLOCATOR: [(&str, &str); 2] = [
    ("MALLOC_MMAP_THRESHOLD_", "65536"),
    ("MALLOC_TRIM_THRESHOLD_", "131072"),
];

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

/// Runs the process that the arguments ask for, if they do; `None`: go on with `main`.
///
/// `arguments` are those of the program, without its name.
pub fn run_if_asked(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter();
    let first = arguments.next()?;
    let result = if first == SUPERVISOR {
        run_supervisor(arguments)
    } else if first == VMM {
        end_at_panics();
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
    let model = ProcessModel::Processes { program };
    supervisor::run(&Home::at(home), &name, &model, UnixStream::from(socket));
    Ok(())
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

/// Takes the socket that is standard input, and leaves nothing there.
fn take_standard_input() -> io::Result<OwnedFd> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    let nothing = File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    Ok(socket)
}

/// Starts a supervisor process; its reports come over the returned socket.
pub(crate) fn spawn_supervisor(
    program: &Path,
    home: &Home,
    name: &MachineName,
    log: &Path,
) -> io::Result<(Child, UnixStream)> {
    spawn(
        program,
        [
            OsStr::new(SUPERVISOR),
            home.root().as_os_str(),
            name.as_str().as_ref(),
        ],
        log,
    )
}

/// Starts a VMM process; commands go over the returned socket.
pub(crate) fn spawn_vmm(program: &Path, log: &Path) -> io::Result<(Child, UnixStream)> {
    spawn(program, [OsStr::new(VMM)], log)
}

fn spawn<'a>(
    program: &Path,
    arguments: impl IntoIterator<Item = &'a OsStr>,
    log: &Path,
) -> io::Result<(Child, UnixStream)> {
    let log = File::options().create(true).append(true).open(log)?;
    let (ours, theirs) = UnixStream::pair()?;
    let child = Command::new(program)
        .args(arguments)
        .envs(ALLOCATOR)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::from(log.try_clone()?))
        .stderr(Stdio::from(log))
        .current_dir("/")
        .spawn()?;
    Ok((child, ours))
}
