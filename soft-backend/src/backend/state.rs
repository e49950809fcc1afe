//! A vCPU's state as data, and back.

use vmm_core::hypervisor::HypervisorError;
use vmm_core::x86::{
    DebugRegisters, DescriptorTable, GeneralRegisters, InterruptShadow, LAPIC_PAGE_BYTES, Msr,
    MsrList, PendingEvents, PendingException, PendingInterrupt, Segment as SavedSegment,
    SystemRegisters, X86VcpuState, XSAVE_SSE_BYTES, XSAVE_X87_BYTES, XsaveComponent,
};

use crate::cpu::state::{cr0, efer};
use crate::cpu::{Cpu, Mode, Trap};
use crate::debug::{dr6_of, dr7_of};
use crate::exceptions::{Event, NMI};
use crate::fpu::image::{FXSAVE_BYTES, FxLayout};
use crate::segments::{CS, DS, DescTable, ES, FS, GS, SS, Segment, attr};

/// MXCSR_MASK in the FXSAVE image.
const MXCSR_MASK: std::ops::Range<usize> = 28..32;

/// General registers in the order of [`Cpu::regs`].
fn slots(g: &mut GeneralRegisters) -> [&mut u64; 16] {
    [
        &mut g.rax, &mut g.rcx, &mut g.rdx, &mut g.rbx, &mut g.rsp, &mut g.rbp, &mut g.rsi,
        &mut g.rdi, &mut g.r8, &mut g.r9, &mut g.r10, &mut g.r11, &mut g.r12, &mut g.r13,
        &mut g.r14, &mut g.r15,
    ]
}

fn save_segment(s: &Segment) -> SavedSegment {
    SavedSegment {
        selector: s.selector,
        base: s.base,
        limit: s.limit,
        attributes: s.attr & !attr::NULL,
        unusable: s.is_null(),
    }
}

fn load_segment(s: &SavedSegment) -> Segment {
    let null = if s.unusable { attr::NULL } else { 0 };
    Segment {
        selector: s.selector,
        base: s.base,
        limit: s.limit,
        attr: s.attributes & 0xf0ff | null,
    }
}

fn save_table(t: &DescTable) -> DescriptorTable {
    DescriptorTable {
        base: t.base,
        limit: t.limit,
    }
}

fn load_table(t: &DescriptorTable) -> DescTable {
    DescTable {
        base: t.base,
        limit: t.limit,
    }
}

/// An event whose delivery had begun when the state was loaded, as it is saved again: the exception, the
/// interrupt, whether it is an NMI.
fn save_injected(
    event: Option<Event>,
) -> (Option<PendingException>, Option<PendingInterrupt>, bool) {
    match event {
        None => (None, None, false),
        Some(Event::Exception(e)) => {
            let exception = PendingException {
                vector: e.vector,
                error_code: e.error,
                injected: true,
            };
            (Some(exception), None, false)
        }
        Some(Event::External(NMI)) => (None, None, true),
        Some(Event::External(vector) | Event::Soft(vector)) => {
            let soft = matches!(event, Some(Event::Soft(_)));
            (None, Some(PendingInterrupt { vector, soft }), false)
        }
    }
}

/// Reads everything.
pub(super) fn save(cpu: &mut Cpu, msrs: &MsrList) -> X86VcpuState {
    let mut general = GeneralRegisters {
        rip: cpu.rip,
        rflags: cpu.rflags(),
        ..GeneralRegisters::default()
    };
    for (slot, v) in slots(&mut general).into_iter().zip(cpu.regs) {
        *slot = v;
    }
    let mut ss = save_segment(&cpu.seg[SS]);
    // The privilege level is that of SS, also where it is null.
    ss.attributes = ss.attributes & !0x60 | u16::from(cpu.cpl) << 5;
    let system = SystemRegisters {
        cs: save_segment(&cpu.seg[CS]),
        ds: save_segment(&cpu.seg[DS]),
        es: save_segment(&cpu.seg[ES]),
        fs: save_segment(&cpu.seg[FS]),
        gs: save_segment(&cpu.seg[GS]),
        ss,
        tr: save_segment(&cpu.tr),
        ldt: save_segment(&cpu.ldtr),
        gdt: save_table(&cpu.gdtr),
        idt: save_table(&cpu.idtr),
        cr0: cpu.cr0,
        cr2: cpu.cr2,
        cr3: cpu.cr3,
        cr4: cpu.cr4,
        cr8: cpu.task_priority(),
        efer: cpu.efer,
        apic_base: cpu.msr.apic_base,
    };
    let mut image = [0; FXSAVE_BYTES];
    cpu.fp.fxsave(&mut image, FxLayout::FULL);
    // What the processor can do is no guest state.
    image[MXCSR_MASK].fill(0);
    let xsave = vec![
        XsaveComponent {
            index: 0,
            bytes: image[..XSAVE_X87_BYTES].to_vec(),
        },
        XsaveComponent {
            index: 1,
            bytes: image[XSAVE_X87_BYTES..XSAVE_X87_BYTES + XSAVE_SSE_BYTES].to_vec(),
        },
    ];
    let (exception, interrupt, nmi_injected) = save_injected(cpu.injected);
    let msrs = msrs
        .numbers()
        .iter()
        .filter_map(|n| cpu.read_msr(*n).map(|value| Msr { index: *n, value }))
        .collect();
    let mut lapic = Box::new([0; LAPIC_PAGE_BYTES]);
    cpu.save_local(&mut lapic);
    X86VcpuState {
        general,
        system,
        xcr0: cpu.xcr0,
        xsave,
        msrs,
        lapic,
        debug: DebugRegisters {
            addresses: [cpu.dr[0], cpu.dr[1], cpu.dr[2], cpu.dr[3]],
            dr6: cpu.dr[6],
            dr7: cpu.dr[7],
        },
        events: PendingEvents {
            exception,
            interrupt,
            shadow: InterruptShadow {
                sti: cpu.shadow && !cpu.debug.is_held(),
                mov_ss: cpu.debug.is_held(),
            },
            nmi_injected,
            nmi_pending: cpu.nmi_pending,
            nmi_masked: cpu.nmi_masked,
            sipi_vector: cpu.sipi_vector,
        },
        mp_state: cpu.mp_state,
    }
}

fn wrong(what: impl Into<String>) -> HypervisorError {
    HypervisorError::State { what: what.into() }
}

/// What no processor can be in.
fn check(s: &X86VcpuState) -> Result<(), HypervisorError> {
    let sys = &s.system;
    let paging = sys.cr0 & cr0::PG != 0;
    if paging && sys.cr0 & cr0::PE == 0 {
        return Err(wrong("CR0 has paging without protection"));
    }
    let lma = sys.efer & efer::LMA != 0;
    if lma != (paging && sys.efer & efer::LME != 0) {
        return Err(wrong("EFER.LMA does not follow EFER.LME and CR0.PG"));
    }
    if (s.debug.dr6 | s.debug.dr7) >> 32 != 0 {
        return Err(wrong("DR6 and DR7 have 32 bits"));
    }
    if s.xcr0 & !3 != 0 {
        return Err(wrong(format!(
            "XCR0 {:#x} has state that this CPU lacks",
            s.xcr0
        )));
    }
    Ok(())
}

fn image(s: &X86VcpuState) -> Result<[u8; FXSAVE_BYTES], HypervisorError> {
    let mut image = [0; FXSAVE_BYTES];
    for c in &s.xsave {
        let (at, len) = match c.index {
            0 => (0, XSAVE_X87_BYTES),
            1 => (XSAVE_X87_BYTES, XSAVE_SSE_BYTES),
            n => {
                return Err(wrong(format!(
                    "XSAVE component {n} is one that this CPU lacks"
                )));
            }
        };
        if c.bytes.len() != len {
            return Err(wrong(format!(
                "XSAVE component {} has {} bytes",
                c.index,
                c.bytes.len()
            )));
        }
        image[at..at + len].copy_from_slice(&c.bytes);
    }
    Ok(image)
}

/// Loads everything: system registers, extended state, MSRs with the TSC first, local APIC, general
/// registers, debug registers, events, run state.
pub(super) fn load(cpu: &mut Cpu, s: &X86VcpuState) -> Result<(), HypervisorError> {
    check(s)?;
    let image = image(s)?;
    cpu.reset();
    let sys = &s.system;
    cpu.seg[CS] = load_segment(&sys.cs);
    cpu.seg[DS] = load_segment(&sys.ds);
    cpu.seg[ES] = load_segment(&sys.es);
    cpu.seg[FS] = load_segment(&sys.fs);
    cpu.seg[GS] = load_segment(&sys.gs);
    cpu.seg[SS] = load_segment(&sys.ss);
    cpu.tr = load_segment(&sys.tr);
    cpu.ldtr = load_segment(&sys.ldt);
    cpu.gdtr = load_table(&sys.gdt);
    cpu.idtr = load_table(&sys.idt);
    (cpu.cr0, cpu.cr2, cpu.cr3, cpu.cr4) = (sys.cr0 & cr0::ALL, sys.cr2, sys.cr3, sys.cr4);
    cpu.efer = sys.efer;
    cpu.xcr0 = s.xcr0;
    cpu.cpl = if cpu.protected() { sys.ss.dpl() } else { 0 };
    cpu.fp
        .fxrstor(&image, FxLayout::FULL)
        .map_err(|e| wrong(e.to_string()))?;
    cpu.msr.apic_base = sys.apic_base;
    for m in &s.msrs {
        cpu.load_msr(m.index, m.value)
            .ok_or_else(|| wrong(format!("MSR {:#x} does not take {:#x}", m.index, m.value)))?;
    }
    cpu.load_local(&s.lapic);
    cpu.set_task_priority(sys.cr8);
    let mut general = s.general;
    let (rip, rflags) = (general.rip, general.rflags);
    for (i, slot) in slots(&mut general).into_iter().enumerate() {
        cpu.regs[i] = *slot;
    }
    cpu.rip = rip;
    cpu.set_rflags(rflags);
    cpu.dr[..4].copy_from_slice(&s.debug.addresses);
    cpu.dr[6] = dr6_of(s.debug.dr6);
    cpu.dr[7] = dr7_of(s.debug.dr7);
    cpu.restart_debugging();
    load_events(cpu, s)?;
    cpu.mp_state = s.mp_state;
    cpu.trap = Trap::None;
    cpu.flush_tlb();
    cpu.update_mode();
    debug_assert!(cpu.mode != Mode::Bits64 || cpu.long_mode());
    Ok(())
}

fn load_events(cpu: &mut Cpu, s: &X86VcpuState) -> Result<(), HypervisorError> {
    let e = &s.events;
    cpu.shadow = e.shadow.sti || e.shadow.mov_ss;
    cpu.debug.hold(e.shadow.mov_ss);
    cpu.nmi_pending = e.nmi_pending;
    cpu.nmi_masked = e.nmi_masked || e.nmi_injected;
    cpu.sipi_vector = e.sipi_vector;
    let exception = e.exception.map(|x| {
        Event::Exception(crate::cpu::Exception {
            vector: x.vector & 31,
            error: x.error_code,
        })
    });
    let interrupt = match e.interrupt {
        Some(i) if i.soft => {
            return Err(wrong("a software interrupt in the middle of its delivery"));
        }
        other => other.map(|i| Event::External(i.vector)),
    };
    let nmi = e.nmi_injected.then_some(Event::External(NMI));
    let mut begun = [exception, nmi, interrupt].into_iter().flatten();
    cpu.injected = begun.next();
    if begun.next().is_some() {
        return Err(wrong("more than one event in the middle of its delivery"));
    }
    Ok(())
}
