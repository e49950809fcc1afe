//! The x86-64 guest: machine model 1, its register state and CPU profiles.

pub mod acpi;
pub mod boot;
mod clock_state;
mod cpuid_table;
mod feature;
mod ioapic;
pub mod lapic;
pub mod lapic_register;
pub mod layout;
mod msr_list;
mod profile;
pub mod pvclock;
mod reset_state;
mod vcpu_codec;
mod vcpu_state;

pub use clock_state::ClockState;
pub use cpuid_table::{CpuidEntry, CpuidTable, MAX_CPUID_ENTRIES};
pub use ioapic::{IOAPIC_PINS, Ioapic};
pub use layout::{IOAPIC_BASE, LAPIC_BASE, MAX_VCPUS, ram_layout};
pub use msr_list::{MsrList, msr};
pub use profile::{CpuProfile, ProfileError, build as build_profile, check as check_profile};
pub use reset_state::{XSAVE_SSE_BYTES, XSAVE_X87_BYTES};
pub use vcpu_state::{
    DebugRegisters, DescriptorTable, GeneralRegisters, InterruptShadow, LAPIC_PAGE_BYTES, MpState,
    Msr, PendingEvents, PendingException, PendingInterrupt, Segment, SystemRegisters, X86VcpuState,
    XsaveComponent,
};
