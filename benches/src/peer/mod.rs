//! The peer: QEMU with smolvm's guest, measured in the same run.
//!
//! # Model
//!
//! Machine `microvm`, which has virtio-mmio and no PCI as smolvm's has, so it boots the same kernel
//! with the same modules. Memory, number of vCPUs, features of the processor and content of the root
//! disk are those of smolvm's machine; KVM where smolvm used it, else QEMU's translator TCG.
//! A save is `savevm` into the machine's own disk file, the way back `-loadvm` in a new process.
//!
//! # What is not alike
//!
//! - Commands go through a shell on a serial line, started by `init.sh`, which does for the guest what
//!   smolvm's agent does before it serves. What smolvm does after that at each start (clock, random
//!   pool, growing the file system, a new identity), QEMU does not do: its starts have less to do.
//! - smolvm's machine is restored while its source runs on; QEMU's source has to end first.
//! - The kernel is told the rate of the time stamp counter, and to trust it: without that it does not
//!   boot on this machine, or has no fine clock.

mod error;
mod guest;
mod monitor;
mod process;
mod shell;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

use smolvm_engine::{DEFAULT_DISK_BYTES, Engine, EngineError};
use tempfile::TempDir;

pub use error::PeerError;
pub use monitor::Saved;

use crate::BenchError;
pub(crate) use monitor::Monitor;
pub(crate) use process::Process;
pub(crate) use shell::Shell;

const MACHINE: &str = "microvm";
/// The vendor, family and model that smolvm shows, and the features of its profile v2.
const CPU: &str = "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt,+lahf-lm,+smep,+arat";
/// Bytes of a block in `stat`, whatever the file system's are.
const STAT_BLOCK_BYTES: u64 = 512;

/// How to measure QEMU.
#[derive(Debug, Clone, Copy)]
pub struct PeerOptions {
    /// Rate of the host's time stamp counter in kHz, which TCG shows to its guest.
    pub tsc_khz: u64,
}

/// What all of its machines need.
pub(crate) struct Peer {
    folder: TempDir,
    command_line: String,
    memory_bytes: u64,
    tsc_khz: u64,
}

/// A machine of QEMU's: its disk, and the folder of its processes. Both go with this value.
pub(crate) struct PeerMachine<'a> {
    peer: &'a Peer,
    folder: TempDir,
    /// What runs the vCPU: `tcg` or `kvm`.
    pub(crate) accelerator: &'static str,
}

impl PeerMachine<'_> {
    /// Starts a process that runs the machine: from a save, or with a boot. Two of them cannot have the disk at one time.
    pub(crate) fn start(&self, save: Option<&str>) -> Result<Process, PeerError> {
        let mut arguments = self.peer.arguments(self.accelerator);
        if let Some(save) = save {
            arguments.extend(["-loadvm".to_owned(), save.to_owned()]);
        }
        Process::start(self.folder.path(), &arguments)
    }

    /// Saves the machine into its disk file.
    pub(crate) fn save(&self, monitor: &mut Monitor, tag: &str) -> Result<Saved, PeerError> {
        let allocated = || -> Result<u64, PeerError> {
            let metadata = fs::metadata(self.folder.path().join(guest::DISK));
            let metadata = metadata.map_err(PeerError::host("look at its disk"))?;
            Ok(metadata.blocks() * STAT_BLOCK_BYTES)
        };
        let before = allocated()?;
        let (paused, saved_in) = monitor.save(tag)?;
        let after = allocated()?;
        Ok(Saved {
            paused,
            saved_in,
            written_bytes: after.saturating_sub(before),
        })
    }
}

impl Peer {
    /// Looks whether QEMU can be measured here, and prepares its guest.
    pub(crate) fn prepare(
        engine: &Engine,
        memory_bytes: u64,
        options: PeerOptions,
    ) -> Result<Self, BenchError> {
        require(process::QEMU, "--version", "qemu-system-x86")?;
        require(guest::BUSYBOX, "true", "busybox-static")?;
        engine.home().ensure().map_err(EngineError::from)?;
        // On the file system of smolvm's machines.
        let folder = tempfile::Builder::new()
            .prefix("bench-peer-")
            .tempdir_in(engine.home().root())
            .map_err(BenchError::Folder)?;
        Ok(Self {
            command_line: guest::prepare(engine, folder.path())?,
            folder,
            memory_bytes,
            tsc_khz: options.tsc_khz,
        })
    }

    /// Makes a machine that runs as smolvm's did with this backend.
    pub(crate) fn machine(&self, backend: &str) -> Result<PeerMachine<'_>, BenchError> {
        let accelerator = accelerator(backend)?;
        let folder = TempDir::new_in(self.folder.path()).map_err(BenchError::Folder)?;
        guest::create_disk(folder.path(), DEFAULT_DISK_BYTES)?;
        Ok(PeerMachine {
            peer: self,
            folder,
            accelerator,
        })
    }

    /// The command line of a machine that runs as smolvm's did with this backend, for people.
    pub(crate) fn command(&self, backend: &str) -> Result<String, PeerError> {
        let words = self.arguments(accelerator(backend)?);
        let shown = words.into_iter().map(|word| match word.contains(' ') {
            true => format!("'{word}'"),
            false => word,
        });
        let words: Vec<String> = std::iter::once(process::QEMU.to_owned())
            .chain(shown)
            .collect();
        Ok(words.join(" "))
    }

    /// What it says of its version.
    pub(crate) fn version() -> Result<String, PeerError> {
        let output = Command::new(process::QEMU)
            .arg("--version")
            .output()
            .map_err(PeerError::host("ask for its version"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().next().unwrap_or_default().to_owned())
    }

    /// Paths are relative to a machine's folder, so nothing in them has to be escaped.
    fn arguments(&self, accelerator: &str) -> Vec<String> {
        let clock = format!("tsc_early_khz={} tsc=reliable", self.tsc_khz);
        let command_line = format!("{} {clock}", self.command_line);
        let memory = format!("{}M", self.memory_bytes >> 20);
        let disk = format!("if=none,id=root,format=qcow2,file={}", guest::DISK);
        let socket = |path| format!("path={path},server=on,wait=off");
        let shell = format!("socket,id=shell,{}", socket(process::SHELL_SOCKET));
        let monitor = format!("socket,id=monitor,{}", socket(process::MONITOR_SOCKET));
        let console = format!("file:{}", process::CONSOLE);
        let (kernel, initrd) = (guest::VMLINUX, guest::INITRD);
        let (kernel, initrd) = (format!("../{kernel}"), format!("../{initrd}"));
        let pairs = [
            ("-M", MACHINE),
            ("-accel", accelerator),
            ("-cpu", CPU),
            ("-smp", "1"),
            ("-m", &memory),
            ("-display", "none"),
            ("-kernel", &kernel),
            ("-initrd", &initrd),
            ("-append", &command_line),
            ("-serial", &console),
            ("-chardev", &shell),
            ("-device", "isa-serial,chardev=shell,index=1"),
            ("-chardev", &monitor),
            ("-mon", "chardev=monitor,mode=control"),
            ("-drive", &disk),
            ("-device", "virtio-blk-device,drive=root"),
            ("-device", "virtio-rng-device"),
        ];
        ["-nodefaults", "-no-user-config", "-no-reboot"]
            .into_iter()
            .chain(
                pairs
                    .into_iter()
                    .flat_map(|(option, value)| [option, value]),
            )
            .map(str::to_owned)
            .collect()
    }
}

/// QEMU's counterpart to a backend of smolvm.
fn accelerator(backend: &str) -> Result<&'static str, PeerError> {
    match backend {
        "soft" => Ok("tcg"),
        "kvm" => Ok("kvm"),
        _ => Err(PeerError::NoCounterpart {
            backend: backend.to_owned(),
        }),
    }
}

fn require(program: &'static str, argument: &str, package: &'static str) -> Result<(), PeerError> {
    let mut command = Command::new(program);
    command.arg(argument).stdout(Stdio::null());
    let missing = |source| PeerError::Missing {
        program,
        package,
        source,
    };
    let status = command.status().map_err(missing)?;
    match status.success() {
        true => Ok(()),
        false => Err(missing(std::io::Error::other(status.to_string()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_have_counterparts() {
        assert_eq!(accelerator("soft").unwrap(), "tcg");
        assert_eq!(accelerator("kvm").unwrap(), "kvm");
        assert!(accelerator("hvf").is_err());
    }

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let error = require("/nowhere/qemu", "--version", "a-package").unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/nowhere/qemu"), "{text}");
        assert!(text.contains("apt-get install a-package"), "{text}");
        assert!(require("false", "x", "a-package").is_err());
        require("true", "x", "a-package").unwrap();
    }
}
