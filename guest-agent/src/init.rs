//! PID 1, in two stages.
//!
//! 1. In the initramfs: kernel modules, the root disk, the switch to it. The agent stays in memory;
//!    the image needs nothing of it.
//! 2. In the root file system: mounts, loopback, host name, and then a child that is the agent.
//!    PID 1 itself only reaps, takes the signals that mean power-off and reboot, and starts the
//!    agent again should it end.
//!
//! # Kernel command line
//!
//! | option | meaning | default |
//! |---|---|---|
//! | `smolvm.root=DEVICE` | root disk | `/dev/vda` |
//! | `smolvm.rootfstype=TYPE` | its file system | `ext4` |
//! | `smolvm.rootflags=FLAGS` | mount options for it | none |
//! | `smolvm.hostname=NAME` | host name until an identity is set | `/etc/hostname`, else `smolvm` |
//!
//! # Initramfs
//!
//! `/init` is the agent. `/modules/order` lists module files under `/modules`, one a line, in the
//! order in which they are loaded; they are not compressed. Lines that are empty or begin with `#`
//! are passed over.
//!
//! # Console
//!
//! `smolvm-agent: ready` is written when connections are accepted, `smolvm-agent: fatal: …` when
//! the machine cannot come up and powers off.

mod command_line;
mod console;
mod modules;
mod mounts;
mod root_disk;
mod serve;
mod supervise;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use crate::control::power::{End, end_machine};
use crate::ready;
use agent_protocol::message::chain;
use command_line::CommandLine;

/// Time for the reason of a failed start to leave the console.
const FAREWELL: Duration = Duration::from_millis(500);

/// Why the machine does not come up.
#[derive(Debug, Error)]
enum InitError {
    #[error("cannot {step} {}", path.display())]
    Path {
        step: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("no root disk {} within {} s", path.display(), .limit.as_secs())]
    NoRootDisk { path: PathBuf, limit: Duration },
    #[error("cannot {step}")]
    System {
        step: &'static str,
        #[source]
        source: io::Error,
    },
}

impl InitError {
    fn path<E: Into<io::Error>>(
        step: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(E) -> Self {
        let path = path.into();
        move |source| Self::Path {
            step,
            path,
            source: source.into(),
        }
    }

    fn system<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System {
            step,
            source: source.into(),
        }
    }
}

/// Runs as PID 1; never returns, since the kernel would panic.
pub fn run() -> ! {
    let failure = match start() {
        Ok(never) => match never {},
        Err(error) => error,
    };
    console::say(&format!("fatal: {}", chain(&failure)));
    std::thread::sleep(FAREWELL);
    if let Err(error) = end_machine(End::PowerOff, Duration::ZERO) {
        console::say(&format!("the kernel does not power off: {error}"));
    }
    loop {
        // Stay, as PID 1 must.
        std::thread::sleep(Duration::from_secs(3600));
    }
}

fn start() -> Result<std::convert::Infallible, InitError> {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    if root_disk::in_initramfs() {
        mounts::early()?;
        console::attach();
        let options = CommandLine::read()?;
        modules::load_all()?;
        root_disk::switch_to(&options)?;
    }
    mounts::system()?;
    console::attach();
    let options = CommandLine::read()?;
    name_machine(&options);
    if let Err(error) = crate::sys::network::bring_up_loopback() {
        console::say(&format!("no loopback interface: {error}"));
    }
    if let Err(error) = offer_tool() {
        console::say(&format!("no {}: {error}", ready::NAME));
    }
    raise_limits();
    supervise::run()
}

/// A machine without a name still works.
fn name_machine(options: &CommandLine) {
    let file = || std::fs::read_to_string("/etc/hostname").ok();
    let name = options.hostname.clone().or_else(file);
    let name = name
        .as_deref()
        .map(str::trim)
        .filter(|name| !name.is_empty());
    if let Err(error) = rustix::system::sethostname(name.unwrap_or("smolvm").as_bytes()) {
        console::say(&format!("cannot set the host name: {error}"));
    }
}

/// Shows this program under its second name. It is in memory already: a mount needs no room, where the kernel makes one.
fn offer_tool() -> io::Result<()> {
    let tools = Path::new(ready::TOOLS);
    std::fs::create_dir_all(tools)?;
    let tool = tools.join(ready::NAME);
    std::fs::File::create(&tool)?;
    let own = "/proc/self/exe";
    match rustix::mount::mount_bind(own, &tool) {
        Ok(()) => Ok(()),
        Err(_) => std::fs::copy(own, &tool).map(drop),
    }
}

/// The kernel's own limit on open files for PID 1 is low; commands inherit what is set here.
fn raise_limits() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = Rlimit {
        current: Some(1024),
        maximum: Some(524_288),
    };
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        console::say(&format!("cannot raise the limit on open files: {error}"));
    }
}
