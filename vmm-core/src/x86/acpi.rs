//! ACPI tables of machine model 1: hardware-reduced, built with `acpi_tables`.

use acpi_tables::aml::{
    self, Arg, Device, EISAName, Equal, IO, If, Interrupt, Memory32Fixed, Method, Name, Notify,
    Package, Path, ResourceTemplate,
};
use acpi_tables::fadt::{FADTBuilder, Flags, PmProfile};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::madt::{
    EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic,
};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
use acpi_tables::{Aml, AmlSink};

use super::layout;
use crate::{Gpa, power};

const OEM_ID: [u8; 6] = *b"SMOLVM";
const OEM_TABLE_ID: [u8; 8] = *b"SMOLVM01";
const OEM_REVISION: u32 = 1;
/// Alignment in bytes of each table.
const TABLE_ALIGNMENT: usize = 64;
/// Length in bytes of the header that every system description table begins with.
const SDT_HEADER_BYTES: u32 = 36;

const GENERATION_DEVICE: &str = "\\_SB_.VGEN";
/// What a generation id's device is notified of: that the id changed.
const GENERATION_CHANGED: u8 = 0x80;

/// A virtio-over-MMIO window that the DSDT announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MmioWindow {
    /// Position in the machine; becomes the ACPI `_UID`.
    pub slot: u8,
    /// First address of the registers.
    pub base: u32,
    /// Length in bytes.
    pub bytes: u32,
    /// Its interrupt, edge-triggered.
    pub gsi: u32,
}

/// The tables, to be placed in guest memory as one block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcpiTables {
    /// Where the block belongs.
    pub base: Gpa,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Where in guest memory the RSDP lies.
    pub rsdp: Gpa,
}

/// Builds all tables for `vcpus` processors and these virtio windows.
pub fn tables(vcpus: u8, windows: &[MmioWindow]) -> AcpiTables {
    let mut block = Block {
        base: layout::ACPI_BASE,
        bytes: Vec::new(),
    };
    // The RSDP comes first, where a BIOS-style scan finds it too; it is filled in last.
    let rsdp_at = block.append(&vec![0; Rsdp::len()]);
    let dsdt_at = block.append(dsdt(windows).as_slice());
    let fadt_at = block.append(&to_bytes(&fadt(dsdt_at)));
    let madt_at = block.append(&to_bytes(&madt(vcpus)));
    let mut xsdt = XSDT::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    xsdt.add_entry(fadt_at.0);
    xsdt.add_entry(madt_at.0);
    let xsdt_at = block.append(&to_bytes(&xsdt));
    let rsdp = to_bytes(&Rsdp::new(OEM_ID, xsdt_at.0));
    block.bytes[..rsdp.len()].copy_from_slice(&rsdp);
    AcpiTables {
        base: block.base,
        bytes: block.bytes,
        rsdp: rsdp_at,
    }
}

struct Block {
    base: Gpa,
    bytes: Vec<u8>,
}

impl Block {
    fn append(&mut self, table: &[u8]) -> Gpa {
        self.bytes
            .resize(self.bytes.len().next_multiple_of(TABLE_ALIGNMENT), 0);
        let at = Gpa(self.base.0 + self.bytes.len() as u64);
        self.bytes.extend_from_slice(table);
        at
    }
}

fn port(address: u64) -> GAS {
    GAS::new(
        AddressSpace::SystemIo,
        8,
        0,
        AccessSize::ByteAccess,
        address,
    )
}

fn fadt(dsdt: Gpa) -> acpi_tables::fadt::FADT {
    let mut builder = FADTBuilder::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION)
        .dsdt_64(dsdt.0)
        .preferred_pm_profile(PmProfile::EnterpriseServer)
        .flag(Flags::HwReducedAcpi)
        .flag(Flags::ResetRegSup)
        .flag(Flags::Wbinvd)
        .flag(Flags::PwrButton)
        .flag(Flags::SlpButton);
    // No VGA, no keyboard controller, no CMOS clock (ACPI 6.4, 5.2.9.3).
    builder.iapc_boot_arch = (1 << 2 | 1 << 5).into();
    builder.sleep_control_reg = port(power::SLEEP_CONTROL_PORT);
    builder.sleep_status_reg = port(power::SLEEP_STATUS_PORT);
    builder.reset_reg = port(power::RESET_PORT);
    builder.reset_value = power::RESET_VALUE;
    builder.hypervisor_vendor_identity = u64::from_le_bytes(*b"smolvm\0\0").into();
    builder.finalize()
}

fn madt(vcpus: u8) -> MADT {
    let lapic = LocalInterruptController::Address(layout::LAPIC_BASE.0 as u32);
    let mut madt = MADT::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION, lapic);
    for vcpu in 0..vcpus {
        madt.add_structure(ProcessorLocalApic::new(vcpu, vcpu, EnabledStatus::Enabled));
    }
    madt.add_structure(IoApic::new(0, layout::IOAPIC_BASE.0 as u32, 0));
    madt
}

fn dsdt(windows: &[MmioWindow]) -> Sdt {
    let mut code = Vec::new();
    for window in windows {
        virtio_device(window, &mut code);
    }
    serial_device(&mut code);
    generation_device(&mut code);
    event_device(&mut code);
    Name::new(
        Path::new("_S5_"),
        &Package::new(vec![
            &power::SLEEP_TYPE_OFF,
            &aml::ZERO,
            &aml::ZERO,
            &aml::ZERO,
        ]),
    )
    .to_aml_bytes(&mut code);
    let mut dsdt = Sdt::new(
        *b"DSDT",
        SDT_HEADER_BYTES,
        2,
        OEM_ID,
        OEM_TABLE_ID,
        OEM_REVISION,
    );
    dsdt.append_slice(&code);
    dsdt
}

fn virtio_device(window: &MmioWindow, code: &mut Vec<u8>) {
    let name = format!("_SB_.VM{:02X}", window.slot);
    Device::new(
        Path::new(&name),
        vec![
            &Name::new(Path::new("_HID"), &"LNRO0005"),
            &Name::new(Path::new("_UID"), &window.slot),
            &Name::new(Path::new("_CCA"), &aml::ONE),
            &Name::new(
                Path::new("_CRS"),
                &ResourceTemplate::new(vec![
                    &Memory32Fixed::new(true, window.base, window.bytes),
                    &Interrupt::new(true, true, false, false, window.gsi),
                ]),
            ),
        ],
    )
    .to_aml_bytes(code);
}

fn serial_device(code: &mut Vec<u8>) {
    let first = layout::SERIAL_PORT;
    Device::new(
        Path::new("_SB_.COM1"),
        vec![
            &Name::new(Path::new("_HID"), &EISAName::new("PNP0501")),
            &Name::new(Path::new("_UID"), &aml::ZERO),
            &Name::new(
                Path::new("_CRS"),
                &ResourceTemplate::new(vec![
                    &Interrupt::new(true, true, false, false, layout::SERIAL_GSI),
                    &IO::new(first, first, 0, layout::SERIAL_PORTS as u8),
                ]),
            ),
        ],
    )
    .to_aml_bytes(code);
}

/// Where the generation id lies ("Virtual Machine Generation ID", Microsoft, 2018).
fn generation_device(code: &mut Vec<u8>) {
    let gpa = layout::GENERATION_ID.0;
    Device::new(
        Path::new(GENERATION_DEVICE),
        vec![
            &Name::new(Path::new("_HID"), &"SMOL0001"),
            &Name::new(Path::new("_CID"), &"VM_Gen_Counter"),
            &Name::new(Path::new("_DDN"), &"VM_Gen_Counter"),
            &Name::new(
                Path::new("ADDR"),
                &Package::new(vec![&(gpa as u32), &((gpa >> 32) as u32)]),
            ),
        ],
    )
    .to_aml_bytes(code);
}

/// The generic event device (ACPI 6.5, 5.6.9): its interrupt says that the generation id changed.
fn event_device(code: &mut Vec<u8>) {
    let gsi = layout::GENERATION_GSI;
    Device::new(
        Path::new("_SB_.GED_"),
        vec![
            &Name::new(Path::new("_HID"), &"ACPI0013"),
            &Name::new(Path::new("_UID"), &aml::ZERO),
            &Name::new(
                Path::new("_CRS"),
                &ResourceTemplate::new(vec![&Interrupt::new(true, true, false, false, gsi)]),
            ),
            &Method::new(
                Path::new("_EVT"),
                1,
                true,
                vec![&If::new(
                    &Equal::new(&Arg(0), &gsi),
                    vec![&Notify::new(
                        &Path::new(GENERATION_DEVICE),
                        &GENERATION_CHANGED,
                    )],
                )],
            ),
        ],
    )
    .to_aml_bytes(code);
}

fn to_bytes(table: &dyn Aml) -> Vec<u8> {
    let mut bytes = Bytes(Vec::new());
    table.to_aml_bytes(&mut bytes);
    bytes.0
}

struct Bytes(Vec<u8>);

impl AmlSink for Bytes {
    fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checksum(bytes: &[u8]) -> u8 {
        bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
    }

    fn table(tables: &AcpiTables, address: u64) -> &[u8] {
        let at = (address - tables.base.0) as usize;
        let length = u32::from_le_bytes(tables.bytes[at + 4..at + 8].try_into().unwrap()) as usize;
        &tables.bytes[at..at + length]
    }

    #[test]
    fn every_table_is_reached_from_the_rsdp_and_sums_to_zero() {
        let window = MmioWindow {
            slot: 0,
            base: 0xd000_0000,
            bytes: 0x1000,
            gsi: 5,
        };
        let tables = tables(16, &[window]);
        assert!(tables.bytes.len() as u64 <= layout::GENERATION_ID.0 - layout::ACPI_BASE.0);
        let rsdp = &tables.bytes[..36];
        assert_eq!(&rsdp[..8], b"RSD PTR ");
        assert_eq!(checksum(rsdp), 0);
        let xsdt = table(
            &tables,
            u64::from_le_bytes(rsdp[24..32].try_into().unwrap()),
        );
        assert_eq!((&xsdt[..4], checksum(xsdt)), (&b"XSDT"[..], 0));
        let entries: Vec<u64> = xsdt[36..]
            .chunks(8)
            .map(|entry| u64::from_le_bytes(entry.try_into().unwrap()))
            .collect();
        let fadt = table(&tables, entries[0]);
        assert_eq!((&fadt[..4], checksum(fadt)), (&b"FACP"[..], 0));
        let dsdt = table(
            &tables,
            u64::from_le_bytes(fadt[140..148].try_into().unwrap()),
        );
        assert_eq!((&dsdt[..4], checksum(dsdt)), (&b"DSDT"[..], 0));
        let madt = table(&tables, entries[1]);
        assert_eq!((&madt[..4], checksum(madt)), (&b"APIC"[..], 0));
        assert_eq!(madt.len(), 44 + 16 * 8 + 12);
    }
}
