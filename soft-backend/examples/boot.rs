//! Boots an unpacked kernel on the software CPU with a serial console: `boot VMLINUX [CMDLINE] [INITRAMFS]`.

use std::io::Write as _;
use std::time::Instant;

use vmm_core::Gpa;
use vmm_core::cpu_state::VcpuState;
use vmm_core::exit::{ExitHandler, PsciCall};
use vmm_core::hypervisor::{ArchSpec, Hypervisor as _, VmSpec, X86Spec};
use vmm_core::ram::{GuestRam, RamBacking};
use vmm_core::x86::{self, CpuProfile};

/// Just enough of a machine: a serial port that is always ready.
struct Console {
    out: std::io::Stdout,
}

impl ExitHandler for Console {
    fn pio_read(&mut self, port: u16, data: &mut [u8]) {
        data.fill(match port {
            0x3fd => 0x60,
            0x3f8..=0x3ff => 0,
            _ => 0xff,
        });
    }
    fn pio_write(&mut self, port: u16, data: &[u8]) {
        if port == 0x3f8 {
            let _ = self.out.write_all(data);
            let _ = self.out.flush();
        }
    }
    fn mmio_read(&mut self, _: Gpa, data: &mut [u8]) {
        data.fill(0xff);
    }
    fn mmio_write(&mut self, _: Gpa, _: &[u8]) {}
    fn ioapic_eoi(&mut self, _: u8) {}
    fn psci(&mut self, _: PsciCall) -> u64 {
        0
    }
    fn virtual_timer_fired(&mut self) {}
    fn undecoded_abort(&mut self, _: Gpa, _: u64) -> bool {
        false
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let kernel = std::fs::read(args.next().ok_or("which kernel?")?)?;
    let command_line = args.next().unwrap_or_else(|| {
        "earlyprintk=serial console=ttyS0 cryptomgr.notests panic=-1".to_owned()
    });
    let initramfs = args.next().map(std::fs::read).transpose()?;

    let soft = soft_backend::open(soft_backend::SoftOptions::default())?;
    let host = soft.capabilities().x86.clone().ok_or("no x86")?;
    let profile = match std::env::var("PROFILE") {
        Ok(name) => name.parse()?,
        Err(_) => CpuProfile::V1,
    };
    let (cpuid, msrs) = x86::build_profile(profile, &host.cpuid)?;
    let ram = GuestRam::new(x86::ram_layout(512 << 20)?, &RamBacking::Anonymous)?;
    let image = x86::boot::BootImage {
        kernel: &kernel,
        initramfs: initramfs.as_deref(),
        command_line: &command_line,
    };
    let state = x86::boot::load(&ram, &image, &x86::acpi::tables(1, &[]))?;
    let arch = ArchSpec::X86(X86Spec {
        cpuid,
        msrs,
        tsc_khz: host.tsc_khz,
    });
    let created = soft.create_vm(&VmSpec {
        ram,
        vcpus: 1,
        arch,
    })?;
    let binder = created.vcpus.into_iter().next().ok_or("no vCPU")?;
    let mut vcpu = binder.bind()?;
    vcpu.load(&VcpuState::X86(Box::new(state)))?;
    let begin = Instant::now();
    let mut console = Console {
        out: std::io::stdout(),
    };
    let stop = vcpu.run(&mut console)?;
    let mut err = std::io::stderr();
    writeln!(err, "{stop:?} after {:?}", begin.elapsed())?;
    if let VcpuState::X86(s) = vcpu.save()? {
        writeln!(err, "{:#x?}\n{:#x?}", s.general, s.system)?;
    }
    Ok(())
}
