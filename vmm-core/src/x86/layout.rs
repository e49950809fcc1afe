//! Machine model 1: what lies where.
//!
//! | guest physical | what |
//! |---|---|
//! | 0 – 0x9_fc00 | RAM: start info, command line |
//! | 0xe_0000 – 0xf_f000 | ACPI tables |
//! | 0xf_f000 – 0x10_0000 | VM generation id |
//! | 0x10_0000 – 3 GiB | RAM: kernel from 16 MiB, initramfs at the top |
//! | from 0xd000_0000 | virtio windows ([`crate::virtio`] slots) |
//! | 0xfec0_0000 | IOAPIC |
//! | 0xfee0_0000 | local APICs |
//! | from 4 GiB | RAM beyond 3 GiB |

use crate::Gpa;
use crate::ram::{MemoryRegion, RAM_UNIT_BYTES, RamLayout, RamLayoutError};

/// RAM below the hole ends here at the latest.
pub const HOLE_START: Gpa = Gpa(3 << 30);
/// RAM beyond the hole begins here.
pub const HIGH_RAM_START: Gpa = Gpa(1 << 32);
/// Most vCPUs of a machine.
pub const MAX_VCPUS: u8 = 16;
/// Registers of the IOAPIC.
pub const IOAPIC_BASE: Gpa = Gpa(0xfec0_0000);
/// Length in bytes of the IOAPIC's window.
pub const IOAPIC_BYTES: u64 = 0x1000;
/// Registers of the local APICs.
pub const LAPIC_BASE: Gpa = Gpa(0xfee0_0000);
/// First port of the serial line.
pub const SERIAL_PORT: u16 = 0x3f8;
/// Number of ports of the serial line.
pub const SERIAL_PORTS: u16 = 8;
/// IOAPIC input of the serial line.
pub const SERIAL_GSI: u32 = 4;
/// PVH start info, its module list and memory map.
pub(crate) const START_INFO: Gpa = Gpa(0x6000);
/// The kernel's command line.
pub(crate) const COMMAND_LINE: Gpa = Gpa(0x2_0000);
/// Longest command line in bytes, with its final zero (x86 Linux `COMMAND_LINE_SIZE`).
pub const COMMAND_LINE_BYTES: usize = 2048;
/// End of the RAM below the first MiB that is reported as usable.
pub(crate) const LOW_RAM_END: Gpa = Gpa(0x9_fc00);
/// ACPI tables.
pub(crate) const ACPI_BASE: Gpa = Gpa(0xe_0000);
/// Where the VM generation id lies ([`crate::vmgenid`]): a reserved page behind the ACPI tables.
pub const GENERATION_ID: Gpa = Gpa(0xf_f000);
/// IOAPIC input by which a change of the VM generation id is told: behind those of the virtio slots.
pub const GENERATION_GSI: u32 = 15;
/// Behind the ACPI tables: RAM that is reported as usable goes on.
pub(crate) const ONE_MIB: Gpa = Gpa(0x10_0000);

/// Lays out `bytes` of RAM, rounded up to 2 MiB, on both sides of the hole below 4 GiB.
pub fn ram_layout(bytes: u64) -> Result<RamLayout, RamLayoutError> {
    let bytes = bytes
        .checked_next_multiple_of(RAM_UNIT_BYTES)
        .unwrap_or(bytes);
    let low = bytes.min(HOLE_START.0);
    let mut regions = vec![MemoryRegion {
        start: Gpa(0),
        bytes: low,
    }];
    if bytes > low {
        regions.push(MemoryRegion {
            start: HIGH_RAM_START,
            bytes: bytes - low,
        });
    }
    RamLayout::new(regions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ram_lies_on_both_sides_of_the_hole() {
        let small = ram_layout(100 << 20).unwrap();
        assert_eq!(small.regions().len(), 1);
        let big = ram_layout(4 << 30).unwrap();
        assert_eq!(big.total_bytes(), 4 << 30);
        assert_eq!(big.regions()[0].end(), HOLE_START);
        assert_eq!(big.regions()[1].start, HIGH_RAM_START);
        assert_eq!(ram_layout(1).unwrap().total_bytes(), RAM_UNIT_BYTES);
        assert!(ram_layout(0).is_err());
        assert!(ram_layout(u64::MAX).is_err());
    }
}
