//! A virtual machine without the engine: boots a kernel and an initramfs until the guest switches
//! itself off. Its serial console goes to standard output.
//!
//! ```text
//! cargo run --release --example boot_kernel -- kvm|soft v1|v2|v3|host VMLINUX INITRAMFS DISK.img [VCPUS [MIB [ARG ...]]]
//! ```

#![allow(clippy::print_stdout)] // an example talks to whoever runs it

use std::error::Error;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vmm_core::host_side::BlockBackend;
use vmm_core::hypervisor::Hypervisor;
use vmm_core::machine::{MachineBuilder, X86MachineRecord};
use vmm_core::ram::{GuestRam, RamBacking};
use vmm_core::x86;
use vmm_core::x86::boot::BootImage;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.is_empty() {
        println!("skipped: boot_kernel: it needs a kernel, an initramfs and a disk as arguments");
        return Ok(());
    }
    let [backend, profile, kernel, initramfs, disk, rest @ ..] = arguments.as_slice() else {
        return Err(
            "usage: boot_kernel kvm|soft v1|v2|v3|host VMLINUX INITRAMFS DISK.img [VCPUS [MIB [ARG ...]]]"
                .into(),
        );
    };
    let vcpus = rest.first().map_or(Ok(1), |text| text.parse())?;
    let ram_mib: u64 = rest.get(1).map_or(Ok(256), |text| text.parse())?;
    let more = rest.get(2..).unwrap_or_default().join(" ");
    let hypervisor = open(backend)?;
    let cpu = hypervisor
        .capabilities()
        .x86
        .as_ref()
        .ok_or("no x86 guests here")?;
    let (cpuid, msrs) = x86::build_profile(profile.parse()?, &cpu.cpuid)?;
    let record = X86MachineRecord {
        cpuid,
        msrs,
        tsc_khz: cpu.tsc_khz,
    };

    let ram = GuestRam::new(x86::ram_layout(ram_mib << 20)?, &RamBacking::Anonymous)?;
    let machine = MachineBuilder::new(ram, vcpus, record)
        .console(Box::new(io::stdout()))
        .root_disk(Arc::new(RawFile(
            File::options().read(true).write(true).open(disk)?,
        )))
        .build(&*hypervisor)?;
    let (kernel, initramfs) = (std::fs::read(kernel)?, std::fs::read(initramfs)?);
    let begin = Instant::now();
    let mut running = machine.boot(&BootImage {
        kernel: &kernel,
        initramfs: Some(&initramfs),
        command_line: &format!("console=ttyS0 cryptomgr.notests panic=-1 {more}"),
    })?;
    let event = loop {
        if let Some(event) = running.next_event(Duration::from_secs(3600)) {
            break event;
        }
    };
    running.flush_console();
    tracing::info!(?event, elapsed = ?begin.elapsed(), "the machine ended");
    Ok(())
}

fn open(name: &str) -> Result<Box<dyn Hypervisor>, Box<dyn Error>> {
    match name {
        "kvm" => Ok(kvm_backend::open()?),
        "soft" => Ok(Box::new(soft_backend::open(
            soft_backend::SoftOptions::default(),
        )?)),
        other => Err(format!("no backend {other:?}").into()),
    }
}

/// A disk that is a plain file.
struct RawFile(File);

impl BlockBackend for RawFile {
    fn size_bytes(&self) -> u64 {
        self.0
            .metadata()
            .map_or(0, |metadata| metadata.len() / 512 * 512)
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset_bytes: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset_bytes)
    }

    fn write_at(&self, offset_bytes: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(data, offset_bytes)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.write_zeroes(offset_bytes, length_bytes)
    }

    fn write_zeroes(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        let zeros = vec![0; 64 << 10];
        let mut done = 0;
        while done < length_bytes {
            let length = (length_bytes - done).min(zeros.len() as u64);
            self.0
                .write_all_at(&zeros[..length as usize], offset_bytes + done)?;
            done += length;
        }
        Ok(())
    }
}
