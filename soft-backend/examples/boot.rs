//! Boots an unpacked kernel on the software CPU with a serial console: `boot VMLINUX [CMDLINE] [INITRAMFS]`.
//!
//! DETERMINISTIC chooses that mode, TRANSLATE_AFTER when code is translated (0: never). At the end the digest of memory
//! is printed: in deterministic mode it is the same for each TRANSLATE_AFTER.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use sha2::{Digest as _, Sha256};
use vm_memory::{Bytes as _, GuestAddress};
use vmm_core::Gpa;
use vmm_core::bus::BusDevice as _;
use vmm_core::cpu_state::VcpuState;
use vmm_core::exit::{ExitHandler, PsciCall};
use vmm_core::hypervisor::{
    ArchSpec, Hypervisor as _, HypervisorError, VcpuKick, VcpuStop, VmSpec, X86Spec,
};
use vmm_core::irq::Gsi;
use vmm_core::power::{POWER_PORT, POWER_PORT_BYTES};
use vmm_core::ram::{GuestRam, RamBacking};
use vmm_core::serial::Serial;
use vmm_core::x86::{self, CpuProfile, Ioapic, X86VcpuState, layout};

/// Just enough of a machine: a serial port that is always ready.
struct Console {
    serial: Arc<Serial>,
    ioapic: Arc<Ioapic>,
    stop: Arc<dyn VcpuKick>,
    off: Arc<AtomicBool>,
}

impl ExitHandler for Console {
    fn pio_read(&mut self, port: u16, data: &mut [u8]) {
        match port.checked_sub(layout::SERIAL_PORT) {
            Some(offset) if offset < layout::SERIAL_PORTS => self.serial.read(offset.into(), data),
            _ => data.fill(0xff),
        }
    }
    fn pio_write(&mut self, port: u16, data: &[u8]) {
        if (layout::SERIAL_PORT..layout::SERIAL_PORT + layout::SERIAL_PORTS).contains(&port) {
            self.serial.write((port - layout::SERIAL_PORT).into(), data);
        } else if (POWER_PORT..POWER_PORT + POWER_PORT_BYTES).contains(&port.into()) {
            self.off.store(true, Ordering::SeqCst);
            self.stop.kick();
        }
    }
    fn mmio_read(&mut self, gpa: Gpa, data: &mut [u8]) {
        match gpa.0.checked_sub(x86::IOAPIC_BASE.0) {
            Some(offset) if offset < 0x1000 => self.ioapic.read(offset, data),
            _ => data.fill(0xff),
        }
    }
    fn mmio_write(&mut self, gpa: Gpa, data: &[u8]) {
        if let Some(offset) = gpa.0.checked_sub(x86::IOAPIC_BASE.0)
            && offset < 0x1000
        {
            self.ioapic.write(offset, data);
        }
    }
    fn ioapic_eoi(&mut self, vector: u8) {
        self.ioapic.end_of_interrupt(vector);
    }
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

    let mut options = soft_backend::SoftOptions::default()
        .with_deterministic(std::env::var_os("DETERMINISTIC").is_some());
    if let Ok(runs) = std::env::var("TRANSLATE_AFTER") {
        options = options.with_translate_after(Some(runs.parse()?).filter(|runs| *runs > 0));
    }
    let soft = soft_backend::open(options)?;
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
    let vcpus = std::env::var("CPUS").map_or(Ok(1), |n| n.parse())?;
    let state = x86::boot::load(&ram, &image, &x86::acpi::tables(vcpus, &[]))?;
    let arch = ArchSpec::X86(X86Spec {
        cpuid,
        msrs,
        tsc_khz: host.tsc_khz,
    });
    let spec = VmSpec {
        ram: ram.clone(),
        vcpus,
        arch,
    };
    let created = soft.create_vm(&spec)?;
    let ioapic = Ioapic::new(created.vm.clone());
    let line = ioapic.line(Gsi(layout::SERIAL_GSI)).ok_or("no such line")?;
    let serial = Arc::new(Serial::new(Box::new(std::io::stdout()), line)?);
    let kicks: Vec<_> = created.vcpus.iter().map(|b| b.kicker()).collect();
    let off = Arc::new(AtomicBool::new(false));
    let begin = Instant::now();
    let threads: Vec<_> = (created.vcpus.into_iter().enumerate())
        .map(|(i, binder)| {
            let mut console = Console {
                serial: serial.clone(),
                ioapic: ioapic.clone(),
                stop: kicks[i].clone(),
                off: off.clone(),
            };
            let state = if i == 0 {
                state.clone()
            } else {
                X86VcpuState::reset(i as u8)
            };
            let kicks = kicks.clone();
            std::thread::spawn(move || {
                let mut vcpu = binder.bind()?;
                vcpu.load(&VcpuState::X86(Box::new(state)))?;
                let stop = vcpu.run(&mut console)?;
                console.off.store(true, Ordering::SeqCst);
                kicks.iter().for_each(|k| k.kick());
                Ok::<_, HypervisorError>((stop, vcpu.save()?))
            })
        })
        .collect();
    let mut err = std::io::stderr();
    for thread in threads {
        let (stop, state) = thread.join().map_err(|_| "a vCPU thread panicked")??;
        writeln!(err, "{stop:?} after {:?}", begin.elapsed())?;
        if let (VcpuState::X86(s), true) = (state, stop == VcpuStop::TripleFault) {
            writeln!(err, "{:#x?}\n{:#x?}", s.general, s.system)?;
        }
    }
    let mut digest = Sha256::new();
    let mut page = [0; 4096];
    for region in ram.layout().regions() {
        for offset in (0..region.bytes).step_by(page.len()) {
            ram.read_slice(&mut page, GuestAddress(region.start.0 + offset))?;
            digest.update(page);
        }
    }
    writeln!(err, "memory {:x}", digest.finalize())?;
    Ok(())
}
