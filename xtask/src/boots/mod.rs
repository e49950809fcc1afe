//! `cargo xtask boots`: one guest booted on the software CPU and on QEMU, both with the features of
//! profile v2; what it computes must be the same.
//!
//! Kernel, initramfs and disk are equal to the byte. The machines around the processor are not: QEMU's
//! has PCI and an i8254, smolvm's has neither, so nothing that belongs to them is compared.

pub mod report;

use std::fs;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::cargo::{self, Workspace};
use crate::error::{Error, Result};
use crate::totals::Totals;
use crate::vmtest::kernel::Kernel;
use crate::vmtest::qemu::{Disk, Emulator};
use crate::vmtest::{Host, disk, initrd};
use crate::{output, process};
use report::Report;

/// Profile v2 (`vmm_core::x86::CpuProfile`) in QEMU's words. A feature that is on one side only is a
/// difference in the report.
const QEMU_CPU: &str = "base,vendor=AuthenticAMD,family=15,model=107,stepping=1,level=7,\
    xlevel=0x80000008,phys-bits=40,+fpu,+de,+pse,+tsc,+msr,+pae,+cx8,+apic,+sep,+mtrr,+pge,+cmov,\
    +pat,+pse36,+clflush,+mmx,+fxsr,+sse,+sse2,+cx16,+hypervisor,+smep,+syscall,+nx,+lm,+pni,\
    +ssse3,+sse4.1,+sse4.2,+popcnt,+lahf-lm,+arat";

/// Values that differ for a reason: kvm-clock tells the rate of the time stamp counter, TCG has none.
const EXPECTED: &[&str] = &["flag tsc_known_freq"];

/// What the kernel says of machine model 1, which has no PCI, at level err.
const EXPECTED_MESSAGE: &str = "PCI: Fatal: No config space access function found";

const INIT: &str = include_str!("init.sh");
const MODULES: &[&str] = &["virtio_mmio", "virtio_pci", "virtio_blk"];

const DISK_BYTES: u64 = 64 << 20;
/// The size of the file that is on the disk from the start.
const GIVEN_BYTES: u32 = 4 << 20;
const MEMORY_MIB: u32 = 512;

/// A guest that hangs is ended after this time.
const LIMIT: Duration = Duration::from_secs(900);

/// Builds what is needed, boots on both and reports each difference.
pub fn run(workspace: &Workspace) -> Result<Totals> {
    let name = "boots";
    let host = Host::prepare(workspace)?;
    let home = host.prepare_home(&cargo::build_smolvm(workspace)?)?;
    let guest = Guest::prepare(workspace, host.kernel(), &home)?;
    let (ours, theirs) = guest.boot_on_both(&host)?;
    for message in &theirs.messages {
        output::note(format_args!("QEMU's kernel said: {message}"));
    }
    let mut problems = ours.differences(&theirs, EXPECTED);
    problems.extend(
        (ours.messages.iter())
            .filter(|message| !message.ends_with(EXPECTED_MESSAGE))
            .map(|message| format!("the software CPU's kernel said: {message}")),
    );
    for problem in &problems {
        output::line(format_args!("{name}: {problem}"));
    }
    let word = if problems.is_empty() { "ok" } else { "FAILED" };
    let compared = ours.values.len();
    output::line(format_args!(
        "test {name} ... {word} ({compared} values compared)"
    ));
    Ok(Totals::one(problems.is_empty()))
}

/// What both machines boot.
struct Guest {
    folder: PathBuf,
    vmlinux: PathBuf,
    initrd: PathBuf,
    disk: PathBuf,
    /// The example `boot_kernel`, which runs the software CPU.
    boot_kernel: PathBuf,
}

impl Guest {
    fn prepare(workspace: &Workspace, kernel: &Kernel, home: &Path) -> Result<Self> {
        let folder = workspace.target_folder.join("boots");
        let guest = Self {
            vmlinux: home.join("kernels/default/vmlinux"),
            initrd: folder.join("initrd"),
            disk: folder.join("disk.img"),
            boot_kernel: build_boot_kernel(workspace)?,
            folder,
        };
        let content = guest.folder.join("content");
        fs::create_dir_all(&content).map_err(Error::file("create", &content))?;
        let given = content.join("given");
        fs::write(&given, given_bytes()).map_err(Error::file("write", &given))?;
        disk::format(&guest.disk, DISK_BYTES, Some(&content))?;

        let mut archive = initrd::with_busybox(kernel, MODULES, INIT)?;
        let program = build_work(workspace)?;
        let program = fs::read(&program).map_err(Error::file("read", &program))?;
        archive.executable("bin/guest_work", &program);
        fs::write(&guest.initrd, archive.finish()).map_err(Error::file("write", &guest.initrd))?;
        Ok(guest)
    }

    /// At the same time: each has one virtual processor.
    fn boot_on_both(&self, host: &Host) -> Result<(Report, Report)> {
        let (ours, theirs) = thread::scope(|scope| {
            let ours = scope.spawn(|| self.boot_on_software_cpu());
            let theirs = self.boot_on_qemu(host);
            let ours = ours.join();
            (ours.unwrap_or_else(|panic| resume_unwind(panic)), theirs)
        });
        let ours = Report::parse("the software CPU", &ours?)?;
        Ok((ours, Report::parse("QEMU", &theirs?)?))
    }

    fn boot_on_software_cpu(&self) -> Result<String> {
        // The one machine writes to the disk, the other must not see that.
        let disk = self.folder.join("disk-written.img");
        fs::copy(&self.disk, &disk).map_err(Error::file("copy", &self.disk))?;
        let mut command = Command::new("timeout");
        command.args(["--kill-after=10", &LIMIT.as_secs().to_string()]);
        command.arg(&self.boot_kernel).args(["soft", "v2"]);
        command.arg(&self.vmlinux).arg(&self.initrd).arg(disk);
        command
            .args(["1", &MEMORY_MIB.to_string()])
            .stdin(Stdio::null());
        let console = process::capture(&mut command)?;
        Ok(String::from_utf8_lossy(&console).into_owned())
    }

    fn boot_on_qemu(&self, host: &Host) -> Result<String> {
        let emulator = Emulator {
            program: host.program(),
            kernel: &host.kernel().image,
            initrd: &self.initrd,
            mode: "compare",
            cpu: QEMU_CPU,
            cpus: 1,
            memory_mib: MEMORY_MIB,
            disks: &[Disk {
                path: &self.disk,
                keep: false,
            }],
            folder: &self.folder.join("run"),
        };
        emulator.run_silently(LIMIT)
    }
}

/// Bytes without a pattern that a compressor or a cache would find.
fn given_bytes() -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        // A linear congruential generator (Numerical Recipes, section 7.1).
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..GIVEN_BYTES).map(|_| next()).collect()
}

/// Without optimisation's last word, but with checks of overflows and assertions, and built for the tests anyway.
fn build_boot_kernel(workspace: &Workspace) -> Result<PathBuf> {
    let examples = cargo::build_examples(workspace, "examples")?;
    let found = examples.into_iter().find(|(name, _)| name == "boot_kernel");
    found
        .map(|(_, executable)| executable)
        .ok_or_else(|| Error::Failed("finding the example boot_kernel".to_owned()))
}

/// The static program that the guest runs, with the instructions of the profile.
fn build_work(workspace: &Workspace) -> Result<PathBuf> {
    let arguments = ["rustc", "-p", "xtask", "--example", "guest_work"];
    let compiler = [
        "-Copt-level=3",
        "-Ctarget-cpu=x86-64-v2",
        "-Ctarget-feature=+crt-static",
    ];
    cargo::build_one(workspace, "example", &arguments, &compiler)
}
