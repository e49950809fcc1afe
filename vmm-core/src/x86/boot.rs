//! Booting an ELF kernel by PVH (Xen's `docs/misc/pvh.pandoc`, `xen/arch-x86/hvm/start_info.h`).
//!
//! The kernel is entered in 32-bit protected mode without paging at the address in its
//! `XEN_ELFNOTE_PHYS32_ENTRY` note, with the address of a start info structure in EBX.

use object::elf::FileHeader64;
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, elf};
use thiserror::Error;
use vm_memory::{Bytes, GuestMemoryError};

use super::acpi::AcpiTables;
use super::layout;
use super::vcpu_state::{Segment, X86VcpuState};
use crate::Gpa;
use crate::ram::GuestRam;

const START_INFO_MAGIC: u32 = 0x336e_c578;
const START_INFO_BYTES: u64 = 56;
const MODULE_ENTRY_BYTES: u64 = 32;
const XEN_NOTE_PHYS32_ENTRY: u32 = 18;
const PAGE: u64 = 4096;
/// Type of a memory map entry: usable RAM.
const MEMORY_RAM: u32 = 1;
/// Type of a memory map entry: not usable.
const MEMORY_RESERVED: u32 = 2;

/// What a machine boots.
#[derive(Debug, Clone, Copy)]
pub struct BootImage<'a> {
    /// An uncompressed ELF kernel with a PVH entry.
    pub kernel: &'a [u8],
    /// The initramfs, if any.
    pub initramfs: Option<&'a [u8]>,
    /// The kernel's command line.
    pub command_line: &'a str,
}

/// Why a kernel could not be placed in guest memory.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BootError {
    /// Not an ELF file of this architecture.
    #[error("the kernel is not an x86-64 ELF file")]
    NotElf(#[source] object::Error),
    /// No PVH entry.
    #[error("the kernel has no PVH entry point (built without CONFIG_PVH?)")]
    NoPvhEntry,
    /// A part lies outside the file or the guest's memory.
    #[error("the {part} does not fit into guest memory: {bytes} bytes at {gpa}")]
    DoesNotFit {
        /// Which part.
        part: &'static str,
        /// Where it belongs.
        gpa: Gpa,
        /// Its length in bytes.
        bytes: u64,
    },
    /// The command line is too long or holds a zero byte.
    #[error("the kernel command line has {bytes} bytes, at most {limit} fit, and no zero byte")]
    CommandLine {
        /// Its length in bytes.
        bytes: usize,
        /// The most that fit.
        limit: usize,
    },
    /// Guest memory refused a write.
    #[error("guest memory cannot be written")]
    Memory(#[from] GuestMemoryError),
}

/// Places kernel, initramfs, command line, ACPI tables and start info in guest memory.
///
/// Returns the state in which the first vCPU starts.
pub fn load(
    ram: &GuestRam,
    image: &BootImage<'_>,
    acpi: &AcpiTables,
) -> Result<X86VcpuState, BootError> {
    let kernel = load_kernel(ram, image.kernel)?;
    let initramfs = image
        .initramfs
        .map(|bytes| load_initramfs(ram, bytes, kernel.end))
        .transpose()?;
    load_command_line(ram, image.command_line)?;
    ram.write_slice(&acpi.bytes, acpi.base.into())?;
    write_start_info(ram, initramfs, acpi.rsdp)?;
    Ok(entry_state(kernel.entry))
}

struct LoadedKernel {
    entry: u32,
    end: Gpa,
}

struct LoadedModule {
    start: Gpa,
    bytes: u64,
}

fn load_kernel(ram: &GuestRam, file: &[u8]) -> Result<LoadedKernel, BootError> {
    let header = FileHeader64::<Endianness>::parse(file).map_err(BootError::NotElf)?;
    let endian = header.endian().map_err(BootError::NotElf)?;
    let segments = header
        .program_headers(endian, file)
        .map_err(BootError::NotElf)?;
    let mut entry = None;
    let mut end = Gpa(0);
    for segment in segments {
        if let Ok(Some(mut notes)) = segment.notes(endian, file) {
            while let Ok(Some(note)) = notes.next() {
                if note.name() == b"Xen" && note.n_type(endian) == XEN_NOTE_PHYS32_ENTRY {
                    entry = note.desc().get(..4).and_then(|raw| raw.try_into().ok());
                }
            }
        }
        if segment.p_type(endian) == elf::PT_LOAD {
            end = end.max(load_segment(ram, segment, endian, file)?);
        }
    }
    let entry = entry.map(u32::from_le_bytes).ok_or(BootError::NoPvhEntry)?;
    Ok(LoadedKernel { entry, end })
}

fn load_segment(
    ram: &GuestRam,
    segment: &elf::ProgramHeader64<Endianness>,
    endian: Endianness,
    file: &[u8],
) -> Result<Gpa, BootError> {
    let gpa = Gpa(segment.p_paddr(endian));
    let bytes = segment.p_memsz(endian);
    let does_not_fit = || BootError::DoesNotFit {
        part: "kernel",
        gpa,
        bytes,
    };
    let data = segment.data(endian, file).map_err(|()| does_not_fit())?;
    let end = gpa
        .checked_add(bytes.max(data.len() as u64))
        .ok_or_else(does_not_fit)?;
    if gpa < layout::ONE_MIB || end > low_ram_end(ram) {
        return Err(does_not_fit());
    }
    ram.write_slice(data, gpa.into())?;
    Ok(end)
}

fn low_ram_end(ram: &GuestRam) -> Gpa {
    ram.layout().regions()[0].end()
}

fn load_initramfs(
    ram: &GuestRam,
    initramfs: &[u8],
    kernel_end: Gpa,
) -> Result<LoadedModule, BootError> {
    let bytes = initramfs.len() as u64;
    let start = low_ram_end(ram)
        .0
        .checked_sub(bytes)
        .map(|start| Gpa(start & !(PAGE - 1)));
    let start = start
        .filter(|start| *start >= kernel_end)
        .ok_or(BootError::DoesNotFit {
            part: "initramfs",
            gpa: kernel_end,
            bytes,
        })?;
    ram.write_slice(initramfs, start.into())?;
    Ok(LoadedModule { start, bytes })
}

fn load_command_line(ram: &GuestRam, command_line: &str) -> Result<(), BootError> {
    let limit = layout::COMMAND_LINE_BYTES - 1;
    if command_line.len() > limit || command_line.contains('\0') {
        return Err(BootError::CommandLine {
            bytes: command_line.len(),
            limit,
        });
    }
    let mut bytes = command_line.as_bytes().to_vec();
    bytes.push(0);
    Ok(ram.write_slice(&bytes, layout::COMMAND_LINE.into())?)
}

fn write_start_info(
    ram: &GuestRam,
    module: Option<LoadedModule>,
    rsdp: Gpa,
) -> Result<(), BootError> {
    let module_list = Gpa(layout::START_INFO.0 + START_INFO_BYTES.next_multiple_of(64));
    let memory_map = Gpa(module_list.0 + MODULE_ENTRY_BYTES.next_multiple_of(64));
    let ranges = memory_ranges(ram);

    let mut info = Vec::new();
    for word in [START_INFO_MAGIC, 1, 0, u32::from(module.is_some())] {
        info.extend_from_slice(&word.to_le_bytes());
    }
    let modules_at = if module.is_some() { module_list.0 } else { 0 };
    for address in [modules_at, layout::COMMAND_LINE.0, rsdp.0, memory_map.0] {
        info.extend_from_slice(&address.to_le_bytes());
    }
    info.extend_from_slice(&(ranges.len() as u32).to_le_bytes());
    info.extend_from_slice(&0_u32.to_le_bytes());
    debug_assert_eq!(info.len() as u64, START_INFO_BYTES);
    ram.write_slice(&info, layout::START_INFO.into())?;

    if let Some(module) = module {
        let mut entry = Vec::new();
        for word in [module.start.0, module.bytes, 0, 0] {
            entry.extend_from_slice(&word.to_le_bytes());
        }
        ram.write_slice(&entry, module_list.into())?;
    }

    let mut map = Vec::new();
    for (start, bytes, kind) in ranges {
        map.extend_from_slice(&start.0.to_le_bytes());
        map.extend_from_slice(&bytes.to_le_bytes());
        map.extend_from_slice(&kind.to_le_bytes());
        map.extend_from_slice(&0_u32.to_le_bytes());
    }
    Ok(ram.write_slice(&map, memory_map.into())?)
}

/// The memory map: start, length in bytes, type.
fn memory_ranges(ram: &GuestRam) -> Vec<(Gpa, u64, u32)> {
    let reserved = layout::ONE_MIB.0 - layout::LOW_RAM_END.0;
    let mut ranges = vec![
        (Gpa(0), layout::LOW_RAM_END.0, MEMORY_RAM),
        (layout::LOW_RAM_END, reserved, MEMORY_RESERVED),
        (
            layout::ONE_MIB,
            low_ram_end(ram).0 - layout::ONE_MIB.0,
            MEMORY_RAM,
        ),
    ];
    let high = ram.layout().regions().iter().skip(1);
    ranges.extend(high.map(|region| (region.start, region.bytes, MEMORY_RAM)));
    ranges
}

/// The state that the PVH protocol asks for.
fn entry_state(entry: u32) -> X86VcpuState {
    let mut state = X86VcpuState::reset(0);
    let flat = |selector, attributes| Segment {
        selector,
        limit: 0xffff_ffff,
        attributes,
        ..Segment::default()
    };
    let system = &mut state.system;
    // 32-bit code, readable, accessed; 32-bit data, writable, accessed; both 4 GiB.
    system.cs = flat(0x8, 0xc09b);
    for segment in [
        &mut system.ds,
        &mut system.es,
        &mut system.fs,
        &mut system.gs,
        &mut system.ss,
    ] {
        *segment = flat(0x10, 0xc093);
    }
    // A busy 32-bit TSS.
    system.tr = Segment {
        selector: 0x18,
        limit: 0x67,
        attributes: 0x8b,
        ..Segment::default()
    };
    // Protected mode, x87 present as a part of the CPU.
    system.cr0 = 0x11;
    state.general.rip = entry.into();
    state.general.rflags = 2;
    state.general.rbx = layout::START_INFO.0;
    state
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ram::RamBacking;
    use crate::testing::pvh_kernel;
    use crate::x86::acpi;

    /// A kernel of 16 bytes, with the PVH note or without.
    fn kernel(paddr: u64, note: bool) -> Vec<u8> {
        pvh_kernel(paddr as u32, &[0x90; 16], note.then_some(0x0100_0040))
    }

    fn ram() -> GuestRam {
        GuestRam::new(
            layout::ram_layout(64 << 20).unwrap(),
            &RamBacking::Anonymous,
        )
        .unwrap()
    }

    fn image<'a>(kernel: &'a [u8], initramfs: &'a [u8]) -> BootImage<'a> {
        BootImage {
            kernel,
            initramfs: Some(initramfs),
            command_line: "console=ttyS0",
        }
    }

    #[test]
    fn everything_is_where_the_start_info_says() {
        let ram = ram();
        let kernel = kernel(16 << 20, true);
        let state = load(&ram, &image(&kernel, b"cpio"), &acpi::tables(1, &[])).unwrap();
        assert_eq!(state.general.rip, 0x0100_0040);
        let u64_at = |gpa| ram.read_obj::<u64>(vm_memory::GuestAddress(gpa)).unwrap();
        let info = state.general.rbx;
        assert_eq!(u64_at(info) as u32, START_INFO_MAGIC);
        let modules = u64_at(info + 16);
        assert_eq!(u64_at(u64_at(modules)) as u32, u32::from_le_bytes(*b"cpio"));
        assert_eq!(u64_at(modules + 8), 4);
        assert_eq!(u64_at(u64_at(info + 24)), u64::from_le_bytes(*b"console="));
        assert_eq!(u64_at(u64_at(info + 32)), u64::from_le_bytes(*b"RSD PTR "));
        let map = u64_at(info + 40);
        assert_eq!(
            (u64_at(map), u64_at(map + 8), u64_at(map + 16)),
            (0, 0x9_fc00, 1)
        );
        assert_eq!(u64_at(info + 48), 3);
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        let acpi = acpi::tables(1, &[]);
        let high = kernel(64 << 20, true);
        let error = load(&ram(), &image(&high, b""), &acpi).unwrap_err();
        assert!(matches!(
            error,
            BootError::DoesNotFit { part: "kernel", .. }
        ));
        let fits = kernel(16 << 20, true);
        let error = load(&ram(), &image(&fits, &vec![0; 60 << 20]), &acpi).unwrap_err();
        assert!(matches!(
            error,
            BootError::DoesNotFit {
                part: "initramfs",
                ..
            }
        ));
        let error = load(&ram(), &image(&kernel(16 << 20, false), b""), &acpi).unwrap_err();
        assert!(matches!(error, BootError::NoPvhEntry));
        assert!(matches!(
            load(&ram(), &image(b"#!", b""), &acpi),
            Err(BootError::NotElf(_))
        ));
        let mut long = image(&fits, b"");
        let text = "x".repeat(4096);
        long.command_line = &text;
        assert!(matches!(
            load(&ram(), &long, &acpi),
            Err(BootError::CommandLine { .. })
        ));
    }

    #[test]
    fn a_damaged_kernel_never_panics() {
        let good = kernel(16 << 20, true);
        let acpi = acpi::tables(1, &[]);
        let ram = ram();
        for at in 0..good.len() {
            for value in [0, 0x7f, 0xff] {
                let mut bad = good.clone();
                bad[at] = value;
                let _ = load(&ram, &image(&bad, b""), &acpi);
            }
            let _ = load(&ram, &image(&good[..at], b""), &acpi);
        }
    }
}
