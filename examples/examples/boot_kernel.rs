//! A virtual machine without the engine: boots a kernel and an initramfs until the guest switches
//! itself off. Its serial console goes to standard output.
//!
//! ```text
//! cargo run --release --example boot_kernel -- kvm|soft v1|v2|v3|host VMLINUX INITRAMFS DISK.img [VCPUS [MIB [ARG ...]]]
//! ```

#![allow(clippy::print_stdout)] // an example talks to whoever runs it

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vmm_core::host_side::FileDisk;
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
        return Err("arguments: kvm|soft v1|v2|v3|host VMLINUX INITRAMFS DISK.img ...".into());
    };
    let vcpus = rest.first().map_or(Ok(1), |text| text.parse())?;
    let ram_mib: u64 = rest.get(1).map_or(Ok(256), |text| text.parse())?;
    let more = rest.get(2..).unwrap_or_default().join(" ");
    let hypervisor = open(backend)?;
    let record = X86MachineRecord::for_profile(profile.parse()?, &*hypervisor)?;
    let ram = GuestRam::new(x86::ram_layout(ram_mib << 20)?, &RamBacking::Anonymous)?;
    let machine = MachineBuilder::new(ram, vcpus, record)
        .console(Box::new(io::stdout()))
        .root_disk(Arc::new(FileDisk::open(disk, false)?))
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
