//! Starting a command with its pipes or terminal.
#![allow(unsafe_code)] // `pre_exec` runs between fork and exec

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use agent_protocol::message::TtySize;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Resource, Rlimit, ioctl_tiocsctty, setrlimit, setsid};
use rustix::pty::{OpenptFlags, grantpt, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
use thiserror::Error;

use super::process::Process;
use super::request::Plan;
use crate::agent::Agent;
use crate::sys::signal;

/// Why a command was not started.
#[derive(Debug, Error)]
pub(crate) enum StartError {
    #[error("{program:?} was not found in the guest")]
    NotFound { program: String },
    #[error("{program:?} cannot be executed in the guest")]
    NotExecutable {
        program: String,
        #[source]
        source: io::Error,
    },
    #[error("user {user:?} is not known in the guest")]
    NoUser { user: String },
    #[error("the guest's user files cannot be read")]
    Accounts {
        #[source]
        source: io::Error,
    },
    #[error("{name:?} is no name for an environment variable")]
    BadVariable { name: String },
    #[error("directory {} of the guest cannot be entered", path.display())]
    Directory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("directory {} of the guest is not there and cannot be made", path.display())]
    MakeDirectory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("user {user:?} cannot enter directory {} of the guest", path.display())]
    Closed { path: PathBuf, user: String },
    #[error("{} of the guest is not a directory", path.display())]
    NotDirectory { path: PathBuf },
    #[error("the guest has no room for another command")]
    Resources {
        #[source]
        source: io::Error,
    },
}

impl StartError {
    /// The exit code for it, as a shell gives it.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::NotFound { .. } => 127,
            _ => 126,
        }
    }
}

/// A command that runs, with the agent's ends of its streams, all non-blocking.
#[derive(Debug)]
pub(crate) struct Spawned {
    pub(crate) process: Process,
    pub(crate) program: Vec<u8>,
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: Option<OwnedFd>,
    pub(crate) tty: bool,
}

/// Both ends of a command's streams.
struct Streams {
    stdin: Option<OwnedFd>,
    stdout: OwnedFd,
    stderr: Option<OwnedFd>,
    /// The command's stdin, stdout and stderr.
    child: [Stdio; 3],
}

/// Starts `plan`.
pub(crate) fn spawn(agent: &Agent, plan: &Plan) -> Result<Spawned, StartError> {
    let resources = |source: io::Error| StartError::Resources { source };
    let streams = match plan.tty {
        Some(size) => terminal(size).map_err(resources)?,
        None => pipes(plan.stdin).map_err(resources)?,
    };
    let mut command = Command::new(&plan.program);
    let [stdin, stdout, stderr] = streams.child;
    command
        .arg0(&plan.name)
        .args(&plan.arguments)
        .env_clear()
        .envs(&plan.environment)
        .stdin(stdin)
        .stdout(stdout)
        .stderr(stderr);
    let setup = ChildSetup::new(plan, agent.open_files).map_err(resources)?;
    // SAFETY: the closure only makes system calls on memory prepared before the fork; it takes no
    // lock and allocates nothing.
    unsafe {
        command.pre_exec(move || setup.apply());
    }
    let child = command
        .spawn()
        .map_err(|source| start_error(plan, source))?;
    let process = Process::new(&child).map_err(|errno| resources(errno.into()))?;
    Ok(Spawned {
        process,
        program: plan.program.as_encoded_bytes().to_vec(),
        stdin: streams.stdin,
        stdout: streams.stdout,
        stderr: streams.stderr,
        tty: plan.tty.is_some(),
    })
}

fn start_error(plan: &Plan, source: io::Error) -> StartError {
    let program = plan.program.to_string_lossy().into_owned();
    if source.raw_os_error() == Some(CANNOT_ENTER.raw_os_error()) {
        return StartError::Closed {
            path: plan.directory.clone(),
            user: plan.user.name.clone(),
        };
    }
    match source.kind() {
        io::ErrorKind::NotFound => StartError::NotFound { program },
        io::ErrorKind::OutOfMemory | io::ErrorKind::WouldBlock => StartError::Resources { source },
        _ => StartError::NotExecutable { program, source },
    }
}

/// What the child does to itself before it becomes the program.
struct ChildSetup {
    directory: std::ffi::CString,
    /// Groups, group and user to change to.
    user: Option<(Vec<rustix::fs::Gid>, rustix::fs::Gid, rustix::fs::Uid)>,
    open_files: Rlimit,
    tty: bool,
}

impl ChildSetup {
    fn new(plan: &Plan, open_files: Rlimit) -> io::Result<Self> {
        use std::os::unix::ffi::OsStrExt;
        let user = plan.change_user.then(|| {
            let groups = plan
                .user
                .groups
                .iter()
                .copied()
                .map(rustix::fs::Gid::from_raw);
            let gid = rustix::fs::Gid::from_raw(plan.user.gid);
            (
                groups.collect(),
                gid,
                rustix::fs::Uid::from_raw(plan.user.uid),
            )
        });
        Ok(Self {
            directory: std::ffi::CString::new(plan.directory.as_os_str().as_bytes())?,
            user,
            open_files,
            tty: plan.tty.is_some(),
        })
    }

    fn apply(&self) -> io::Result<()> {
        signal::default_all();
        setsid()?;
        if self.tty {
            ioctl_tiocsctty(rustix::stdio::stdin())?;
        }
        reset_oom_score();
        // The agent runs before its commands, they among each other. Nobody may refuse to be slower.
        let _ = rustix::process::setpriority_process(None, 0);
        setrlimit(Resource::Nofile, self.open_files)?;
        if let Some((groups, gid, uid)) = &self.user {
            set_thread_groups(groups)?;
            set_thread_gid(*gid)?;
            set_thread_uid(*uid)?;
        }
        // As the user, since the directory may be closed to it.
        Ok(rustix::process::chdir(&*self.directory).map_err(|_| CANNOT_ENTER)?)
    }
}

/// Tells the agent that the directory was the obstacle: no other step of a start gives this.
const CANNOT_ENTER: Errno = Errno::XDEV;

/// The agent is spared by the OOM killer, its commands are not.
fn reset_oom_score() {
    let open = rustix::fs::openat(
        rustix::fs::CWD,
        c"/proc/self/oom_score_adj",
        OFlags::WRONLY | OFlags::CLOEXEC,
        Mode::empty(),
    );
    if let Ok(file) = open {
        // Without /proc there is nothing to reset, and a command matters more than its score.
        let _ = rustix::io::write(&file, b"0");
    }
}

fn pipes(stdin: bool) -> io::Result<Streams> {
    let (out_reader, out_writer) = pipe_with(PipeFlags::CLOEXEC)?;
    let (err_reader, err_writer) = pipe_with(PipeFlags::CLOEXEC)?;
    nonblocking(&out_reader)?;
    nonblocking(&err_reader)?;
    let (ours, theirs) = if stdin {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        nonblocking(&writer)?;
        (Some(writer), Stdio::from(reader))
    } else {
        (None, Stdio::null())
    };
    Ok(Streams {
        stdin: ours,
        stdout: out_reader,
        stderr: Some(err_reader),
        child: [theirs, Stdio::from(out_writer), Stdio::from(err_writer)],
    })
}

fn terminal(size: TtySize) -> io::Result<Streams> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
    resize(&master, size)?;
    nonblocking(&master)?;
    let input = rustix::io::fcntl_dupfd_cloexec(&master, 0)?;
    Ok(Streams {
        stdin: Some(input),
        stdout: master,
        stderr: None,
        child: [
            slave.try_clone()?.into(),
            slave.try_clone()?.into(),
            slave.into(),
        ],
    })
}

/// Tells a terminal its size; its foreground processes get SIGWINCH.
pub(crate) fn resize(master: &OwnedFd, size: TtySize) -> Result<(), Errno> {
    tcsetwinsize(
        master,
        Winsize {
            ws_row: size.rows,
            ws_col: size.columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        },
    )
}

fn nonblocking(fd: &OwnedFd) -> Result<(), Errno> {
    rustix::fs::fcntl_setfl(fd, rustix::fs::fcntl_getfl(fd)? | OFlags::NONBLOCK)
}
