//! The little of ELF that is needed: how a kernel is entered, and what a
//! module says about itself. Spec: System V ABI, gABI chapters 4 and 5.

use super::error::ImageFormatError;

const EM_X86_64: u16 = 62;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
/// `XEN_ELFNOTE_PHYS32_ENTRY`: the 32-bit PVH entry point.
const NOTE_PVH_ENTRY: u32 = 18;
/// Most program or section headers looked at.
const MAX_HEADERS: usize = 4096;

/// How a kernel can be entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Entry {
    /// By PVH (and, as any ELF kernel, by the 64-bit protocol).
    Pvh,
    /// By the 64-bit Linux boot protocol only.
    Elf64,
}

/// Whether these are the first bytes of an ELF file.
pub(super) fn is_elf(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\x7fELF")
}

/// Checks that `bytes` is an x86-64 kernel and says how it is entered.
pub(super) fn kernel_entry(bytes: &[u8]) -> Result<Entry, ImageFormatError> {
    check_header(bytes).ok_or(ImageFormatError::NotX86)?;
    let headers = program_headers(bytes).ok_or(ImageFormatError::Truncated)?;
    let mut loadable = false;
    for header in headers {
        match le32(header, 0) {
            Some(PT_LOAD) => {
                range(bytes, header, 8, 32).ok_or(ImageFormatError::Truncated)?;
                loadable = true;
            }
            Some(PT_NOTE) => {
                let notes = range(bytes, header, 8, 32).ok_or(ImageFormatError::Truncated)?;
                if has_pvh_note(notes) {
                    return Ok(Entry::Pvh);
                }
            }
            _ => {}
        }
    }
    let entry = le64(bytes, 24).unwrap_or(0);
    if loadable && entry != 0 {
        Ok(Entry::Elf64)
    } else {
        Err(ImageFormatError::NoEntry)
    }
}

/// The strings of a module's `.modinfo` section, each `key=value`.
pub(super) fn module_info(bytes: &[u8]) -> Option<Vec<&[u8]>> {
    check_header(bytes)?;
    let sections = table(bytes, le64(bytes, 40)?, le16(bytes, 58)?, le16(bytes, 60)?)?;
    let names_at = usize::from(le16(bytes, 62)?);
    let names = range(bytes, sections.get(names_at)?, 24, 32)?;
    for section in sections {
        let name = names.get(usize::try_from(le32(section, 0)?).ok()?..)?;
        if name.starts_with(b".modinfo\0") {
            let info = range(bytes, section, 24, 32)?;
            return Some(info.split(|b| *b == 0).filter(|s| !s.is_empty()).collect());
        }
    }
    None
}

/// 64 bits, little-endian, x86-64.
fn check_header(bytes: &[u8]) -> Option<()> {
    let ident = bytes.get(..6)?;
    (is_elf(ident) && ident[4..] == [2, 1] && le16(bytes, 18)? == EM_X86_64).then_some(())
}

fn program_headers(bytes: &[u8]) -> Option<Vec<&[u8]>> {
    table(bytes, le64(bytes, 32)?, le16(bytes, 54)?, le16(bytes, 56)?)
}

/// Splits a header table into its entries.
fn table(bytes: &[u8], at: u64, entry_bytes: u16, count: u16) -> Option<Vec<&[u8]>> {
    let at = usize::try_from(at).ok()?;
    let (entry_bytes, count) = (usize::from(entry_bytes), usize::from(count));
    if entry_bytes < 56 || count > MAX_HEADERS {
        return None;
    }
    Some(
        bytes
            .get(at..)?
            .get(..entry_bytes * count)?
            .chunks_exact(entry_bytes)
            .collect(),
    )
}

/// The bytes of the file that a header's offset and size fields name.
fn range<'a>(bytes: &'a [u8], header: &[u8], offset: usize, size: usize) -> Option<&'a [u8]> {
    let at = usize::try_from(le64(header, offset)?).ok()?;
    let len = usize::try_from(le64(header, size)?).ok()?;
    bytes.get(at..)?.get(..len)
}

fn has_pvh_note(mut notes: &[u8]) -> bool {
    while let (Some(name), Some(desc), Some(kind)) =
        (le32(notes, 0), le32(notes, 4), le32(notes, 8))
    {
        let name_end = 12 + name as usize;
        let next = name_end.next_multiple_of(4) + (desc as usize).next_multiple_of(4);
        if kind == NOTE_PVH_ENTRY && notes.get(12..name_end) == Some(b"Xen\0") && desc >= 4 {
            return true;
        }
        let Some(rest) = notes.get(next..) else {
            return false;
        };
        notes = rest;
    }
    false
}

fn le16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn le32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn le64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
