//! A process of the engine's own and the channel to it, which is its standard input.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::file_error::FileError;
use crate::home::Home;
use crate::machine::open_log;
use crate::name::MachineName;

/// First argument of a supervisor process.
pub(crate) const SUPERVISOR: &str = "__supervisor";
/// First argument of a VMM process.
pub(crate) const VMM: &str = "__vmm";

/// What glibc's allocator is told, see mallopt(3): a block as large as a chunk goes back to the system
/// when it is freed, and so does a free end of the heap. Left alone it raises both limits with the first kernel
/// that was read and freed, and a machine keeps what one checkpoint needed.
const ALLOCATOR: [(&str, &str); 2] = [
    ("MALLOC_MMAP_THRESHOLD_", "65536"),
    ("MALLOC_TRIM_THRESHOLD_", "131072"),
];

/// Takes the socket that is standard input, and leaves nothing there.
pub(crate) fn take_standard_input() -> io::Result<OwnedFd> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    let nothing = File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    Ok(socket)
}

/// Starts a supervisor process, which waits for a [`Begin`](super::branch::Begin); its reports come over the returned socket.
pub(crate) fn spawn_supervisor(
    program: &Path,
    home: &Home,
    name: &MachineName,
    log: &Path,
) -> Result<(Child, UnixStream), FileError> {
    let arguments = [
        OsStr::new(SUPERVISOR),
        home.root().as_os_str(),
        name.as_str().as_ref(),
    ];
    spawn(program, arguments, log)
}

/// Starts a VMM process; commands go over the returned socket.
pub(crate) fn spawn_vmm(program: &Path, log: &Path) -> Result<(Child, UnixStream), FileError> {
    spawn(program, [OsStr::new(VMM)], log)
}

fn spawn<'a>(
    program: &Path,
    arguments: impl IntoIterator<Item = &'a OsStr>,
    log: &Path,
) -> Result<(Child, UnixStream), FileError> {
    let output = open_log(log).map_err(FileError::at("open", log))?;
    let start = || FileError::at("start", program);
    let (ours, theirs) = UnixStream::pair().map_err(start())?;
    let child = Command::new(program)
        .args(arguments)
        .envs(ALLOCATOR)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::from(output.try_clone().map_err(start())?))
        .stderr(Stdio::from(output))
        .current_dir("/")
        .spawn()
        .map_err(start())?;
    Ok((child, ours))
}
