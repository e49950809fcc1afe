//! The decoder of overlay files, fed with anything.

use std::sync::Arc;

use super::MemoryFile;
use crate::extent::{Extent, ExtentKind};
use crate::file::OverlayFile;
use crate::granule::GRANULE_BYTES;
use crate::layer::Layer;

/// Disks larger than this are opened but not walked, to keep each run short.
const MAX_WALKED_BYTES: u64 = 64 << 20;

/// Opens `input` as an overlay file, its missing end filled up with zeroes.
///
/// # Panics
///
/// If what the crate finds in it differs from a reading of the format by the letter.
pub fn fuzz_overlay(input: &[u8]) {
    let file = MemoryFile::new(input);
    let disk_bytes = disk_bytes_by_the_letter(input);
    let file_bytes = disk_bytes.map(|disk_bytes| data_offset(disk_bytes) + disk_bytes);
    if let Some(file_bytes) = file_bytes.filter(|bytes| *bytes > input.len() as u64) {
        let opened = Layer::open_shared(Arc::new(MemoryFile::new(input)));
        assert!(opened.is_err(), "a truncated file was opened");
        if file.set_size_bytes(file_bytes).is_err() {
            return;
        }
    }
    if disk_bytes.is_some_and(|disk_bytes| disk_bytes > MAX_WALKED_BYTES) {
        return;
    }
    match (Layer::open_shared(Arc::new(file)), disk_bytes) {
        (Ok(layer), Some(disk_bytes)) => {
            assert_eq!(layer.disk_bytes(), disk_bytes);
            let expected = extents_by_the_letter(input, disk_bytes);
            assert_eq!(layer.changed_extents(), expected);
        }
        (Err(_), None) => {}
        (opened, expected) => panic!("opened {opened:?}, by the letter {expected:?}"),
    }
}

/// The disk size in a valid header.
fn disk_bytes_by_the_letter(input: &[u8]) -> Option<u64> {
    let field = |at: usize| {
        let bytes = input.get(at..at + 8)?.try_into().ok()?;
        Some(u64::from_le_bytes(bytes))
    };
    let disk_bytes = field(24)?;
    let checksum = u32::from_le_bytes(input.get(56..60)?.try_into().ok()?);
    let valid = input.get(..8)? == b"smolvmOV"
        && field(8)? == 1
        && field(16)? == 4096
        && disk_bytes > 0
        && disk_bytes <= 8 << 40
        && disk_bytes % 4096 == 0
        && field(32)? == 4096
        && field(40)? == disk_bytes.div_ceil(4 * 4096 * 4096) * 4096
        && field(48)? == data_offset(disk_bytes)
        && checksum == crc32c::crc32c(&input[..56]);
    valid.then_some(disk_bytes)
}

fn data_offset(disk_bytes: u64) -> u64 {
    (4096 + disk_bytes.div_ceil(4 * 4096 * 4096) * 4096).div_ceil(65536) * 65536
}

fn extents_by_the_letter(input: &[u8], disk_bytes: u64) -> Vec<Extent> {
    let mut extents: Vec<Extent> = Vec::new();
    for granule in 0..disk_bytes / GRANULE_BYTES {
        let byte = input.get(4096 + granule as usize / 4).copied().unwrap_or(0);
        let kind = match byte >> (granule % 4 * 2) & 3 {
            0 => continue,
            1 => ExtentKind::Zeroed,
            _ => ExtentKind::Data,
        };
        let offset_bytes = granule * GRANULE_BYTES;
        match extents.last_mut() {
            Some(last) if last.kind == kind && last.end_bytes() == offset_bytes => {
                last.len_bytes += GRANULE_BYTES;
            }
            _ => extents.push(Extent {
                offset_bytes,
                len_bytes: GRANULE_BYTES,
                kind,
            }),
        }
    }
    extents
}
