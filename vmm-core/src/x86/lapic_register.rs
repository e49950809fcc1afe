//! Offsets of the local APIC's registers in its page (Intel SDM volume 3, table 10-1).

#![allow(missing_docs)] // the registers' own names

pub const ID: usize = 0x20;
pub const VERSION: usize = 0x30;
pub const TASK_PRIORITY: usize = 0x80;
pub const ARBITRATION_PRIORITY: usize = 0x90;
pub const PROCESSOR_PRIORITY: usize = 0xa0;
pub const END_OF_INTERRUPT: usize = 0xb0;
pub const LOGICAL_DESTINATION: usize = 0xd0;
pub const DESTINATION_FORMAT: usize = 0xe0;
pub const SPURIOUS: usize = 0xf0;
/// First of eight in-service registers, 16 bytes apart.
pub const IN_SERVICE: usize = 0x100;
/// First of eight trigger mode registers, 16 bytes apart.
pub const TRIGGER_MODE: usize = 0x180;
/// First of eight interrupt request registers, 16 bytes apart.
pub const INTERRUPT_REQUEST: usize = 0x200;
pub const ERROR_STATUS: usize = 0x280;
pub const INTERRUPT_COMMAND_LOW: usize = 0x300;
pub const INTERRUPT_COMMAND_HIGH: usize = 0x310;
pub const LVT_TIMER: usize = 0x320;
pub const LVT_THERMAL: usize = 0x330;
pub const LVT_PERFORMANCE: usize = 0x340;
pub const LVT_LINT0: usize = 0x350;
pub const LVT_LINT1: usize = 0x360;
pub const LVT_ERROR: usize = 0x370;
pub const TIMER_INITIAL_COUNT: usize = 0x380;
pub const TIMER_CURRENT_COUNT: usize = 0x390;
pub const TIMER_DIVIDE: usize = 0x3e0;

/// The local vector table.
pub const LOCAL_VECTORS: [usize; 6] = [
    LVT_TIMER,
    LVT_THERMAL,
    LVT_PERFORMANCE,
    LVT_LINT0,
    LVT_LINT1,
    LVT_ERROR,
];
