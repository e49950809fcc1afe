//! Running the emulated host under QEMU.

use std::fs;
use std::io::Read;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::program::{self, Program};
use super::tsc;
use crate::error::{Error, Result};
use crate::{cache, process};

/// How long QEMU may take to exit after the emulated host has said all it had to say.
const EXIT_GRACE: Duration = Duration::from_secs(60);

/// What Linux says last when it powers off.
const POWERED_OFF: &str = "reboot: Power down";

/// The emulated host's kernel stands still if nothing comes for so long, not even the sign of life
/// that `inside.sh` gives every few seconds.
const SILENCE_LIMIT: Duration = Duration::from_secs(120);

/// The emulated host's processor: AMD's, with virtualization.
pub const HOST_CPU: &str = "EPYC,+svm,+npt";

/// One disk of the emulated host.
pub struct Disk<'a> {
    /// A raw image, or any file to be seen as one.
    pub path: &'a Path,
    /// Whether writes reach the file; otherwise they are dropped when QEMU ends.
    pub keep: bool,
}

/// What to run.
pub struct Emulator<'a> {
    /// The QEMU that runs it.
    pub program: &'a Program,
    /// Kernel image.
    pub kernel: &'a Path,
    /// Initramfs.
    pub initrd: &'a Path,
    /// What the initramfs shall do (`vmtest.mode=`).
    pub mode: &'a str,
    /// Processor model and features, as `-cpu` takes them.
    pub cpu: &'a str,
    /// Number of processors.
    pub cpus: u32,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// The disks, `/dev/vda` first.
    pub disks: &'a [Disk<'a>],
    /// A folder of its own for the console's text and for writes that are dropped at the end;
    /// emptied at the start.
    pub folder: &'a Path,
}

/// How a run ended, with what the serial console said.
pub enum Ending {
    /// The emulated host powered off.
    PoweredOff(String),
    /// It stood still and was killed.
    Hung(String),
}

/// What the receiver of bytes thinks of going on.
pub type Verdict = ControlFlow<()>;

/// Where the emulated host's virtio port leads.
enum Port {
    /// To this program, byte by byte.
    Piped,
    /// To the terminal: the emulated host's `/dev/hvc0`.
    Terminal,
}

impl Emulator<'_> {
    /// Runs a program that says nothing on the virtio port to its end; returns what the serial
    /// console said.
    pub fn run_silently(&self, limit: Duration) -> Result<String> {
        match self.run_within(limit, limit, |_| Verdict::Continue(()))? {
            Ending::PoweredOff(console) => Ok(console),
            Ending::Hung(console) => Err(late(limit, &console)),
        }
    }

    /// Runs to the end, handing on what comes out of the virtio port as it comes. `received` says
    /// that the emulated host counts as hung by breaking off.
    pub fn run(&self, limit: Duration, received: impl FnMut(&[u8]) -> Verdict) -> Result<Ending> {
        self.run_within(limit, SILENCE_LIMIT, received)
    }

    fn run_within(
        &self,
        limit: Duration,
        silence: Duration,
        mut received: impl FnMut(&[u8]) -> Verdict,
    ) -> Result<Ending> {
        let mut command = self.command(&Port::Piped)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut running = Running::start(&mut command)?;
        let deadline = Instant::now() + limit;
        let chunks = running.read_in_background();
        let powered_off = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match chunks.recv_timeout(left.min(silence)) {
                Ok(bytes) if received(&bytes).is_break() => break false,
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => break running.exits_within(EXIT_GRACE)?,
                Err(RecvTimeoutError::Timeout) => break false,
            }
        };
        drop(running);
        let console = read_console(self.folder);
        match powered_off {
            true => Ok(Ending::PoweredOff(console)),
            false if Instant::now() < deadline => Ok(Ending::Hung(console)),
            false => Err(late(limit, &console)),
        }
    }

    /// Runs with the terminal connected to the emulated host's `/dev/hvc0`.
    pub fn run_on_terminal(&self) -> Result<()> {
        let mut command = self.command(&Port::Terminal)?;
        let mut running = Running::start(&mut command)?;
        let status = running
            .child
            .wait()
            .map_err(|e| process::start_error(&command, e))?;
        let console = read_console(self.folder);
        if !status.success() {
            return Err(Error::Program {
                program: process::shown(&command),
                status,
                output: console,
            });
        }
        // A kernel that panicked ends QEMU in the same way as one that powered off.
        if console.contains(POWERED_OFF) {
            return Ok(());
        }
        Err(Error::EmulatedHost {
            problem: "did not power off: what it ran is lost".to_owned(),
            console: process::tail(&console, 3000).to_owned(),
        })
    }

    fn command(&self, port: &Port) -> Result<Command> {
        let folder = self.folder;
        cache::remove(folder)?;
        fs::create_dir_all(folder).map_err(Error::file("create", folder))?;
        let mut command = self.program.command();
        let threads = match self.program.parallel {
            true => "multi",
            false => "single",
        };
        command.arg("-accel").arg(format!("tcg,thread={threads}"));
        command.args(["-cpu", self.cpu]);
        command.arg("-smp").arg(self.cpus.to_string());
        command.arg("-m").arg(self.memory_mib.to_string());
        command.args(["-nodefaults", "-display", "none", "-no-reboot"]);
        command.arg("-serial");
        command.arg(format!("file:{}", folder.join("console").display()));
        command.arg("-kernel").arg(self.kernel);
        command.arg("-initrd").arg(self.initrd);
        command.arg("-append").arg(format!(
            "console=ttyS0 panic=-1 loglevel=5 cryptomgr.notests tsc_early_khz={} vmtest.mode={}",
            tsc::measure_khz(),
            self.mode
        ));
        for disk in self.disks {
            let snapshot = if disk.keep { "off" } else { "on" };
            // A comma in a path is doubled in QEMU's option syntax.
            let path = disk.path.display().to_string().replace(',', ",,");
            command.arg("-drive").arg(format!(
                "file={path},format=raw,if=virtio,snapshot={snapshot},cache=unsafe"
            ));
        }
        command.args(["-device", "virtio-rng-pci", "-device", "virtio-serial-pci"]);
        command.args(["-chardev", "stdio,id=port,signal=off", "-device"]);
        command.arg(match port {
            Port::Piped => "virtserialport,chardev=port,name=vmtest",
            Port::Terminal => "virtconsole,chardev=port",
        });
        // Where QEMU puts the writes that are dropped at the end.
        command.env("TMPDIR", folder);
        let messages = folder.join("messages");
        command.stderr(fs::File::create(&messages).map_err(Error::file("create", &messages))?);
        Ok(command)
    }
}

fn late(limit: Duration, console: &str) -> Error {
    Error::EmulatedHost {
        problem: format!("did not end within {} s", limit.as_secs()),
        console: process::tail(console, 3000).to_owned(),
    }
}

/// What QEMU itself said and then the serial console; a missing file says nothing.
fn read_console(folder: &Path) -> String {
    let text = |name: &str| {
        let bytes = fs::read(folder.join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\r', "")
    };
    // It warns at every start about features of the processor model that TCG lacks.
    let messages: String = text("messages")
        .split_inclusive('\n')
        .filter(|line| !line.contains("TCG doesn't support requested feature"))
        .collect();
    messages + &text("console")
}

/// A QEMU process that is killed when this value goes.
struct Running {
    child: Child,
    /// Held open: its end would close the virtio port.
    _stdin: Option<ChildStdin>,
}

impl Running {
    fn start(command: &mut Command) -> Result<Self> {
        let mut child = command
            .spawn()
            .map_err(|e| process::start_error(command, e))?;
        Ok(Self {
            _stdin: child.stdin.take(),
            child,
        })
    }

    fn read_in_background(&mut self) -> mpsc::Receiver<Vec<u8>> {
        let (sender, receiver) = mpsc::channel();
        if let Some(mut stdout) = self.child.stdout.take() {
            thread::spawn(move || {
                let mut buffer = vec![0; 64 << 10];
                while let Ok(length @ 1..) = stdout.read(&mut buffer) {
                    if sender.send(buffer[..length].to_vec()).is_err() {
                        return;
                    }
                }
            });
        }
        receiver
    }

    fn exits_within(&mut self, grace: Duration) -> Result<bool> {
        let deadline = Instant::now() + grace;
        loop {
            let ended = self
                .child
                .try_wait()
                .map_err(Error::file("wait for", Path::new(program::INSTALLED)))?;
            if ended.is_some() {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails only if it has ended already, which is what is wanted.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}
