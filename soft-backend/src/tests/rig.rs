//! A machine of RAM and one vCPU, set up directly.

use std::sync::atomic::{AtomicBool, AtomicUsize};

use vm_memory::{Bytes, GuestAddress};
use vmm_core::Gpa;
use vmm_core::exit::{ExitHandler, PsciCall};
use vmm_core::ram::{GuestRam, MemoryRegion, RamBacking, RamLayout};
use vmm_core::x86::{CpuidEntry, CpuidTable};

use crate::block::CodeCache;
use crate::cpu::Cpu;
use crate::cpu::state::{cr0, cr4, efer};
use crate::invalidate::CodePages;
use crate::mem::RamMap;
use crate::router::Router;
use crate::run::{Engine, Stop};
use crate::segments::{CS, DescTable, Segment};
use crate::time::Tsc;

/// RAM of the rig.
pub(super) const RAM_BYTES: u64 = 64 << 20;
/// Where the rig's page tables, GDT, IDT and TSS are.
pub(super) const PML4: u64 = 0x1000;
pub(super) const PDPT: u64 = 0x2000;
pub(super) const PD: u64 = 0x3000;
pub(super) const GDT: u64 = 0x4000;
pub(super) const IDT: u64 = 0x5000;
pub(super) const TSS: u64 = 0x6000;
/// Where the code of most tests is.
pub(super) const CODE: u64 = 0x10_0000;
/// Where handlers of the tests are.
pub(super) const HANDLER: u64 = 0x11_0000;
/// A page table for single pages; the 2 MiB at `FINE` are mapped through it, see [`fine_pages`].
const PT: u64 = 0x7000;
pub(super) const FINE: u64 = 0x80_0000;
/// Selectors of the rig's GDT.
pub(super) const KERNEL_CS: u16 = 0x08;
pub(super) const KERNEL_DS: u16 = 0x10;
pub(super) const USER_DS: u16 = 0x1b;
pub(super) const USER_CS: u16 = 0x23;
pub(super) const TSS_SELECTOR: u16 = 0x28;

/// Ports and device memory remember what was written.
#[derive(Default)]
pub(super) struct Devices {
    pub(super) out: Vec<(u64, u64)>,
    pub(super) reads: u64,
}

impl ExitHandler for Devices {
    fn pio_read(&mut self, port: u16, data: &mut [u8]) {
        self.reads += 1;
        data.fill(port as u8);
    }
    fn pio_write(&mut self, port: u16, data: &[u8]) {
        let mut v = [0; 8];
        v[..data.len()].copy_from_slice(data);
        self.out.push((port.into(), u64::from_le_bytes(v)));
    }
    fn mmio_read(&mut self, gpa: Gpa, data: &mut [u8]) {
        self.reads += 1;
        for (i, b) in data.iter_mut().enumerate() {
            *b = (gpa.0 as u8).wrapping_add(i as u8);
        }
    }
    fn mmio_write(&mut self, gpa: Gpa, data: &[u8]) {
        let mut v = [0; 8];
        v[..data.len()].copy_from_slice(data);
        self.out.push((gpa.0, u64::from_le_bytes(v)));
    }
    fn ioapic_eoi(&mut self, _: u8) {}
    fn psci(&mut self, _: PsciCall) -> u64 {
        0
    }
    fn virtual_timer_fired(&mut self) {}
    fn undecoded_abort(&mut self, _: Gpa, _: u64) -> bool {
        false
    }
}

/// The tests' choice of the tier: SOFT_TRANSLATE_AFTER is a number of runs, zero for the interpreter alone.
pub(super) fn translate_after() -> Option<u16> {
    let runs = std::env::var("SOFT_TRANSLATE_AFTER").ok();
    match runs.and_then(|runs| runs.parse().ok()) {
        Some(0) => None,
        Some(runs) => Some(runs),
        None => Some(1),
    }
}

/// The machine.
pub(super) struct Rig {
    pub(super) cpu: Cpu,
    pub(super) cache: CodeCache,
    pub(super) ram: GuestRam,
    pub(super) devices: Devices,
}

impl Rig {
    /// In real mode at 0:`rip`.
    pub(super) fn real(rip: u64) -> Self {
        let layout = RamLayout::new(vec![MemoryRegion {
            start: Gpa(0),
            bytes: RAM_BYTES,
        }])
        .unwrap();
        let ram = GuestRam::new(layout, &RamBacking::Anonymous).unwrap();
        let map = RamMap::new(ram.clone());
        let leaf = |leaf, eax, ebx, edx| CpuidEntry {
            leaf,
            eax,
            ebx,
            edx,
            ..Default::default()
        };
        // SMEP, SMAP, FSGSBASE; RDTSCP; 40 address bits.
        let cpuid = CpuidTable::new(vec![
            leaf(7, 0, 1 << 7 | 1 << 20 | 1, 0),
            leaf(0x8000_0001, 0, 0, 1 << 27),
            leaf(0x8000_0008, 40, 0, 0),
        ]);
        let code = CodePages::new(map.clone());
        let time = Tsc::deterministic(1_000_000);
        let mut cpu = Cpu::new(0, map, code, cpuid, time, Router::new(1, None));
        cpu.seg[CS] = Segment::real(0, true);
        cpu.update_mode();
        cpu.rip = rip;
        Rig {
            cpu,
            cache: CodeCache::new().translating(translate_after()),
            ram,
            devices: Devices::default(),
        }
    }

    /// In 64-bit mode at privilege level 0, RAM mapped one to one by 2 MiB pages that user code may
    /// use, with GDT, IDT and TSS in place (the IDT without gates).
    pub(super) fn long(rip: u64) -> Self {
        let mut r = Self::real(rip);
        r.put64(PML4, PDPT | 7);
        r.put64(PDPT, PD | 7);
        for i in 0..RAM_BYTES >> 21 {
            r.put64(PD + 8 * i, i << 21 | 0x87);
        }
        let gdt = [
            0,
            0x00af_9b00_0000_ffff,
            0x00cf_9300_0000_ffff,
            0x00cf_f300_0000_ffff,
            0x00af_fb00_0000_ffff,
            0x0000_8900_0000_0067 | TSS << 16,
            0,
        ];
        for (i, d) in gdt.into_iter().enumerate() {
            r.put64(GDT + 8 * i as u64, d);
        }
        let cpu = &mut r.cpu;
        cpu.gdtr = DescTable {
            base: GDT,
            limit: 0x37,
        };
        cpu.idtr = DescTable {
            base: IDT,
            limit: 0xfff,
        };
        cpu.cr0 = cr0::PE | cr0::PG | cr0::WP | cr0::NE | cr0::ET;
        cpu.cr4 = cr4::PAE | cr4::OSFXSR;
        cpu.cr3 = PML4;
        cpu.efer = efer::LME | efer::LMA | efer::NXE | efer::SCE;
        let s = |sel: u16| Segment::from_descriptor(sel, gdt[usize::from(sel >> 3)]);
        cpu.seg = [s(KERNEL_DS); 6];
        cpu.tr = Segment {
            base: TSS,
            limit: 0x67,
            attr: 0x8b,
            selector: TSS_SELECTOR,
        };
        cpu.set_cs(s(KERNEL_CS), 0);
        cpu.regs[4] = 0x20_0000;
        cpu.flush_tlb();
        r
    }

    pub(super) fn put64(&self, gpa: u64, v: u64) {
        self.ram.write_obj(v, GuestAddress(gpa)).unwrap();
    }

    pub(super) fn get64(&self, gpa: u64) -> u64 {
        self.ram.read_obj(GuestAddress(gpa)).unwrap()
    }

    /// Writes as a device does.
    pub(super) fn code(&self, gpa: u64, bytes: &[u8]) {
        self.ram.write_slice(bytes, GuestAddress(gpa)).unwrap();
    }

    /// A 64-bit interrupt gate.
    pub(super) fn gate(&self, vector: u64, target: u64, ist: u64, dpl: u64) {
        let low = target & 0xffff
            | u64::from(KERNEL_CS) << 16
            | ist << 32
            | 0x8e00 << 32
            | dpl << 45
            | (target >> 16 & 0xffff) << 48;
        self.put64(IDT + 16 * vector, low);
        self.put64(IDT + 16 * vector + 8, target >> 32);
    }

    /// Runs until HLT or a shutdown; at most a million instructions.
    pub(super) fn run(&mut self) -> Stop {
        let (attention, waiting) = (AtomicBool::new(false), AtomicUsize::new(0));
        let mut engine = Engine {
            cpu: &mut self.cpu,
            cache: &mut self.cache,
            handler: &mut self.devices,
            attention: &attention,
            waiting: &waiting,
        };
        engine.run(1_000_000)
    }
}

/// Maps the 2 MiB at [`FINE`] by 4 KiB pages, one to one, and gives the address of an entry.
pub(super) fn fine_pages(r: &Rig) -> impl Fn(u64) -> u64 + use<> {
    for i in 0..512 {
        r.put64(PT + 8 * i, (FINE + i * 4096) | 7);
    }
    r.put64(PD + 8 * (FINE >> 21), PT | 7);
    |page| PT + 8 * page
}

/// `mov [address], rax`-free way to see results: handlers end with HLT and the stack is looked at.
pub(super) fn frame(r: &Rig, n: u64) -> u64 {
    r.get64(r.cpu.regs[4] + 8 * n)
}
