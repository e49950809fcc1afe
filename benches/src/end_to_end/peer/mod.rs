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
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use smolvm_engine::{DEFAULT_DISK_BYTES, Engine, EngineError};
use tempfile::TempDir;

pub use error::PeerError;
pub use monitor::Saved;

use super::host_cost::Processes;
use super::{BenchError, Options, median, workload};
use monitor::Monitor;
use process::Process;

const MACHINE: &str = "microvm";
/// The vendor, family and model that smolvm shows, and the features of its profile v2.
const CPU: &str = "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt,+lahf-lm,+smep";
/// Bytes of a block in `stat`, whatever the file system's are.
const STAT_BLOCK_BYTES: u64 = 512;

/// How to measure QEMU.
#[derive(Debug, Clone, Copy)]
pub struct PeerOptions {
    /// Rate of the host's time stamp counter in kHz, which TCG shows to its guest.
    pub tsc_khz: u64,
}

/// What was measured with one machine of QEMU's.
#[derive(Debug, Clone)]
pub struct PeerRound {
    /// QEMU's version.
    pub version: String,
    /// What ran the vCPU: `tcg` or `kvm`.
    pub accelerator: &'static str,
    /// A new process until a command works in it.
    pub boot: Duration,
    /// One command that does nothing, median of several.
    pub exec: Duration,
    /// The same work as smolvm's.
    pub work: Duration,
    /// First save.
    pub first: Saved,
    /// Second save, after the same change.
    pub second: Saved,
    /// The part of one processor that it uses while the guest has nothing to do.
    pub idle_share: f64,
    /// What it takes of the host's memory besides the guest's, after all that was done in it.
    pub host_memory_bytes: u64,
    /// A new process that goes on at the second save, until a command works in it.
    pub go_back: Duration,
}

/// What all rounds need.
pub(super) struct Peer {
    folder: TempDir,
    command_line: String,
    options: Options,
    tsc_khz: u64,
}

impl Peer {
    /// Looks whether QEMU can be measured here, and prepares its guest.
    pub(super) fn prepare(
        engine: &Engine,
        options: &Options,
        peer: PeerOptions,
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
            options: *options,
            tsc_khz: peer.tsc_khz,
        })
    }

    /// Makes a machine that runs as smolvm's did with this backend, measures it and removes it.
    pub(super) fn measure(&self, backend: &str) -> Result<PeerRound, BenchError> {
        let accelerator = accelerator(backend)?;
        // Made first, so that it goes last.
        let folder = TempDir::new_in(self.folder.path()).map_err(BenchError::Folder)?;
        guest::create_disk(folder.path(), DEFAULT_DISK_BYTES)?;
        let begin = Instant::now();
        let mut process = self.start(folder.path(), accelerator, None)?;
        let mut shell = process.starting_shell()?;
        shell.run("true")?;
        let boot = begin.elapsed();
        let exec =
            median((0..self.options.execs.max(1)).map(|_| timed(|| shell.run("/bin/true"))))?;
        let work = timed(|| shell.sh(workload::WORK))?;
        let mut monitor = process.monitor()?;
        let first = save(&mut monitor, folder.path(), "first")?;
        let digest = shell.sh(&workload::dirty(self.options.dirty_mib))?;
        let second = save(&mut monitor, folder.path(), "second")?;
        let processes = Processes::single(process.id());
        let (idle_share, host_memory_bytes) = processes
            .cost(&self.options)
            .map_err(BenchError::HostCost)?;
        // Two processes cannot have the disk.
        drop(process);

        let begin = Instant::now();
        let mut process = self.start(folder.path(), accelerator, Some("second"))?;
        let mut shell = process.waiting_shell()?;
        shell.run("true")?;
        let go_back = begin.elapsed();
        workload::check(digest, shell.sh(workload::DIGEST)?)?;
        Ok(PeerRound {
            version: monitor.version().to_owned(),
            accelerator,
            boot,
            exec,
            work,
            first,
            second,
            idle_share,
            host_memory_bytes,
            go_back,
        })
    }

    fn start(
        &self,
        folder: &Path,
        accelerator: &str,
        point: Option<&str>,
    ) -> Result<Process, PeerError> {
        let mut arguments = self.arguments(accelerator);
        if let Some(point) = point {
            arguments.extend(["-loadvm".to_owned(), point.to_owned()]);
        }
        Process::start(folder, &arguments)
    }

    /// Paths are relative to a machine's folder, so nothing in them has to be escaped.
    fn arguments(&self, accelerator: &str) -> Vec<String> {
        let clock = format!("tsc_early_khz={} tsc=reliable", self.tsc_khz);
        let command_line = format!("{} {clock}", self.command_line);
        let memory = format!("{}M", self.options.memory_bytes >> 20);
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

fn timed(work: impl FnOnce() -> Result<String, PeerError>) -> Result<Duration, PeerError> {
    let begin = Instant::now();
    work()?;
    Ok(begin.elapsed())
}

fn save(monitor: &mut Monitor, folder: &Path, tag: &str) -> Result<Saved, PeerError> {
    let allocated = || -> Result<u64, PeerError> {
        let metadata = fs::metadata(folder.join(guest::DISK));
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
