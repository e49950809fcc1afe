//! The x86-64 guest: machine model 1, its register state and CPU profiles.

mod clock_state;
mod cpuid_table;
mod msr_list;
mod vcpu_codec;
mod vcpu_state;

pub use clock_state::ClockState;
pub use cpuid_table::{CpuidEntry, CpuidTable, MAX_CPUID_ENTRIES};
pub use msr_list::{MsrList, msr};
pub use vcpu_state::{
    DebugRegisters, DescriptorTable, GeneralRegisters, InterruptShadow, LAPIC_PAGE_BYTES, MpState,
    Msr, PendingEvents, PendingException, PendingInterrupt, Segment, SystemRegisters, X86VcpuState,
    XsaveComponent,
};
