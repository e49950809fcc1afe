//! States in which guest code begins.
//!
//! | guest physical | what |
//! |---|---|
//! | 0x1000 | code |
//! | 0x8000 | data |
//! | 0x2_0000 – 0x3_0000 | handlers of interrupts and exceptions |
//! | 0x7_0000 | top of the stack |
//! | 0x10_0000 – 0x10_a000 | page tables, descriptor tables |
//! | 0xd000_0000 | no memory: accesses go to the machine |

use vmm_core::x86::{DescriptorTable, GeneralRegisters, Segment, X86VcpuState};

use super::{interrupt_table, paging};

/// Where code begins.
pub const CODE: u64 = 0x1000;
/// A page for the guest's data.
pub const DATA: u64 = 0x8000;
/// The stack grows down from here.
pub const STACK: u64 = 0x7_0000;
/// Addresses from here are not memory.
pub const MMIO: u64 = 0xd000_0000;

/// 64-bit code of the kernel.
pub const KERNEL_CODE: u16 = 0x08;
/// Data of the kernel.
pub const KERNEL_DATA: u16 = 0x10;
/// Data of user code (with its privilege level).
pub const USER_DATA: u16 = 0x1b;
/// 64-bit user code (with its privilege level).
pub const USER_CODE: u16 = 0x23;
/// 32-bit code of the kernel.
pub const KERNEL_CODE_32: u16 = 0x28;
/// A segment that is not present.
pub const ABSENT: u16 = 0x30;
/// The task state segment of 64-bit guests; takes two entries.
pub const TASK: u16 = 0x38;

/// The global descriptor table: base, limit and attributes of each selector above (Intel SDM volume
/// 3, 3.4.5).
const DESCRIPTORS: [u64; 9] = [
    0,
    0x00af_9b00_0000_ffff, // 0x08: 64-bit code
    0x00cf_9300_0000_ffff, // 0x10: data
    0x00cf_f300_0000_ffff, // 0x18: user data
    0x00af_fb00_0000_ffff, // 0x20: 64-bit user code
    0x00cf_9b00_0000_ffff, // 0x28: 32-bit code
    0x00cf_1300_0000_ffff, // 0x30: data, not present
    0x0000_8b10_a000_0067, // 0x38: busy task state segment at 0x10_a000
    0,
];
/// Where the global descriptor table lies.
pub const DESCRIPTOR_TABLE: u64 = 0x10_9000;
/// Where the task state segment lies.
pub const TASK_STATE: u64 = 0x10_a000;
/// The stack for interrupts of user code.
pub const KERNEL_STACK: u64 = 0x6_0000;

/// The bytes of the global descriptor table.
pub fn descriptor_table() -> Vec<u8> {
    DESCRIPTORS
        .iter()
        .flat_map(|entry| entry.to_le_bytes())
        .collect()
}

/// The hidden part of a segment register that was loaded from the global descriptor table.
pub fn segment(selector: u16) -> Segment {
    let descriptor = DESCRIPTORS[usize::from(selector >> 3)];
    let attributes = (descriptor >> 40 & 0xf0ff) as u16;
    let limit = (descriptor & 0xffff | descriptor >> 32 & 0xf_0000) as u32;
    let granular = attributes & 0x8000 != 0;
    Segment {
        selector,
        base: descriptor >> 16 & 0xff_ffff | descriptor >> 32 & 0xff00_0000,
        limit: if granular { limit << 12 | 0xfff } else { limit },
        attributes,
        unusable: false,
    }
}

/// Real mode with all segments at 0.
pub fn real_mode() -> X86VcpuState {
    let mut state = X86VcpuState::reset(0);
    state.system.cs.base = 0;
    state.system.cs.selector = 0;
    state.general = begin();
    state.general.rsp = 0x7000;
    // Compatible with what real mode leaves in the hidden parts.
    state
}

/// 32-bit protected mode without paging, flat segments, no interrupt table.
pub fn protected_mode() -> X86VcpuState {
    let mut state = with_segments(KERNEL_CODE_32);
    state.system.cr0 = 0x11;
    state
}

/// 64-bit mode under the page tables of [`paging`], with the interrupt table of [`interrupt_table`].
pub fn long_mode() -> X86VcpuState {
    let mut state = with_segments(KERNEL_CODE);
    let system = &mut state.system;
    system.cr3 = paging::ROOT;
    // Physical address extension, FXSAVE and SSE exceptions.
    system.cr4 = 0x620;
    // Paging, write protection, numeric errors, coprocessor, protection.
    system.cr0 = 0x8001_0033;
    // Long mode active and enabled, no-execute, SYSCALL.
    system.efer = 0xd01;
    system.idt = DescriptorTable {
        base: interrupt_table::TABLE,
        limit: 0xfff,
    };
    system.tr = segment(TASK);
    state
}

/// [`long_mode`] for another vCPU than the first; runs at once, as if it had been started.
pub fn long_mode_of(apic_id: u8) -> X86VcpuState {
    let mut state = long_mode();
    let own = X86VcpuState::reset(apic_id);
    state.system.apic_base = own.system.apic_base;
    state.lapic = own.lapic;
    state.general.rsp -= 0x1000 * u64::from(apic_id);
    state
}

fn with_segments(code: u16) -> X86VcpuState {
    let mut state = X86VcpuState::reset(0);
    let system = &mut state.system;
    system.cs = segment(code);
    for register in [
        &mut system.ds,
        &mut system.es,
        &mut system.fs,
        &mut system.gs,
        &mut system.ss,
    ] {
        *register = segment(KERNEL_DATA);
    }
    system.gdt = DescriptorTable {
        base: DESCRIPTOR_TABLE,
        limit: (DESCRIPTORS.len() * 8 - 1) as u16,
    };
    state.general = begin();
    state
}

fn begin() -> GeneralRegisters {
    GeneralRegisters {
        rip: CODE,
        rsp: STACK,
        rflags: 2,
        ..GeneralRegisters::default()
    }
}
