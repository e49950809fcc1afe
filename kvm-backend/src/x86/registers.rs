//! General, system and debug registers, to and from KVM's structures.

use kvm_bindings::{kvm_debugregs, kvm_dtable, kvm_regs, kvm_segment, kvm_sregs, kvm_xcrs};
use vmm_core::x86::{DebugRegisters, DescriptorTable, GeneralRegisters, Segment, SystemRegisters};

macro_rules! same_fields {
    ($from:expr, $to:ident { $($field:ident),* }) => {
        $to { $($field: $from.$field),* }
    };
}

pub(super) fn general_from_kvm(regs: &kvm_regs) -> GeneralRegisters {
    same_fields!(
        regs,
        GeneralRegisters {
            rax,
            rbx,
            rcx,
            rdx,
            rsi,
            rdi,
            rsp,
            rbp,
            r8,
            r9,
            r10,
            r11,
            r12,
            r13,
            r14,
            r15,
            rip,
            rflags
        }
    )
}

pub(super) fn general_to_kvm(regs: &GeneralRegisters) -> kvm_regs {
    same_fields!(
        regs,
        kvm_regs {
            rax,
            rbx,
            rcx,
            rdx,
            rsi,
            rdi,
            rsp,
            rbp,
            r8,
            r9,
            r10,
            r11,
            r12,
            r13,
            r14,
            r15,
            rip,
            rflags
        }
    )
}

pub(super) fn system_from_kvm(sregs: &kvm_sregs) -> SystemRegisters {
    let table = |table: &kvm_dtable| DescriptorTable {
        base: table.base,
        limit: table.limit,
    };
    SystemRegisters {
        cs: segment_from_kvm(&sregs.cs),
        ds: segment_from_kvm(&sregs.ds),
        es: segment_from_kvm(&sregs.es),
        fs: segment_from_kvm(&sregs.fs),
        gs: segment_from_kvm(&sregs.gs),
        ss: segment_from_kvm(&sregs.ss),
        tr: segment_from_kvm(&sregs.tr),
        ldt: segment_from_kvm(&sregs.ldt),
        gdt: table(&sregs.gdt),
        idt: table(&sregs.idt),
        cr0: sregs.cr0,
        cr2: sregs.cr2,
        cr3: sregs.cr3,
        cr4: sregs.cr4,
        cr8: sregs.cr8,
        efer: sregs.efer,
        apic_base: sregs.apic_base,
    }
}

/// Interrupts on their way are part of the events, not of these registers.
pub(super) fn system_to_kvm(system: &SystemRegisters) -> kvm_sregs {
    let table = |table: &DescriptorTable| kvm_dtable {
        base: table.base,
        limit: table.limit,
        ..kvm_dtable::default()
    };
    kvm_sregs {
        cs: segment_to_kvm(&system.cs),
        ds: segment_to_kvm(&system.ds),
        es: segment_to_kvm(&system.es),
        fs: segment_to_kvm(&system.fs),
        gs: segment_to_kvm(&system.gs),
        ss: segment_to_kvm(&system.ss),
        tr: segment_to_kvm(&system.tr),
        ldt: segment_to_kvm(&system.ldt),
        gdt: table(&system.gdt),
        idt: table(&system.idt),
        cr0: system.cr0,
        cr2: system.cr2,
        cr3: system.cr3,
        cr4: system.cr4,
        cr8: system.cr8,
        efer: system.efer,
        apic_base: system.apic_base,
        interrupt_bitmap: [0; 4],
    }
}

fn segment_from_kvm(segment: &kvm_segment) -> Segment {
    let bit = |value: u8, at: u32| u16::from(value & 1) << at;
    let attributes = u16::from(segment.type_ & 0xf)
        | bit(segment.s, 4)
        | u16::from(segment.dpl & 3) << 5
        | bit(segment.present, 7)
        | bit(segment.avl, 12)
        | bit(segment.l, 13)
        | bit(segment.db, 14)
        | bit(segment.g, 15);
    Segment {
        selector: segment.selector,
        base: segment.base,
        limit: segment.limit,
        attributes,
        unusable: segment.unusable != 0,
    }
}

fn segment_to_kvm(segment: &Segment) -> kvm_segment {
    kvm_segment {
        base: segment.base,
        limit: segment.limit,
        selector: segment.selector,
        type_: segment.kind(),
        present: segment.present().into(),
        dpl: segment.dpl(),
        db: segment.big().into(),
        s: segment.is_code_or_data().into(),
        l: segment.long().into(),
        g: segment.granular().into(),
        avl: segment.available().into(),
        unusable: segment.unusable.into(),
        padding: 0,
    }
}

pub(super) fn debug_from_kvm(debug: &kvm_debugregs) -> DebugRegisters {
    DebugRegisters {
        addresses: debug.db,
        dr6: debug.dr6,
        dr7: debug.dr7,
    }
}

pub(super) fn debug_to_kvm(debug: &DebugRegisters) -> kvm_debugregs {
    kvm_debugregs {
        db: debug.addresses,
        dr6: debug.dr6,
        dr7: debug.dr7,
        ..kvm_debugregs::default()
    }
}

/// XCR0, or 0 where KVM has none.
pub(super) fn xcr0_of(xcrs: &kvm_xcrs) -> u64 {
    let used = xcrs.xcrs.iter().take(xcrs.nr_xcrs as usize);
    used.filter(|xcr| xcr.xcr == 0)
        .map(|xcr| xcr.value)
        .next()
        .unwrap_or(0)
}

pub(super) fn xcr0_to_kvm(value: u64) -> kvm_xcrs {
    let mut xcrs = kvm_xcrs {
        nr_xcrs: 1,
        ..kvm_xcrs::default()
    };
    xcrs.xcrs[0].value = value;
    xcrs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_survive_the_round_trip() {
        let segment = Segment {
            selector: 0x33,
            base: 0x7fff_0000_1234,
            limit: 0xffff_ffff,
            attributes: 0xf0fb,
            unusable: true,
        };
        let system = SystemRegisters {
            cs: segment,
            cr3: 5,
            efer: 0xd01,
            ..Default::default()
        };
        assert_eq!(system_from_kvm(&system_to_kvm(&system)), system);
        let general = GeneralRegisters {
            rax: 1,
            r15: 15,
            rip: 7,
            rflags: 2,
            ..Default::default()
        };
        assert_eq!(general_from_kvm(&general_to_kvm(&general)), general);
        let debug = DebugRegisters {
            addresses: [1, 2, 3, 4],
            dr6: 6,
            dr7: 7,
        };
        assert_eq!(debug_from_kvm(&debug_to_kvm(&debug)), debug);
        assert_eq!(xcr0_of(&xcr0_to_kvm(7)), 7);
    }
}
