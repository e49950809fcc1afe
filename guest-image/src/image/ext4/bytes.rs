//! Little-endian fields at fixed offsets.

/// Sets a 16-bit field.
pub(super) fn put16(out: &mut [u8], at: usize, value: u16) {
    out[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

/// Sets a 32-bit field.
pub(super) fn put32(out: &mut [u8], at: usize, value: u32) {
    out[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// The low 16 bits.
pub(super) fn low16(value: u32) -> u16 {
    (value & 0xffff) as u16
}

/// The high 16 bits.
pub(super) fn high16(value: u32) -> u16 {
    (value >> 16) as u16
}

/// The low 32 bits.
pub(super) fn low32(value: u64) -> u32 {
    (value & 0xffff_ffff) as u32
}

/// The high 32 bits.
pub(super) fn high32(value: u64) -> u32 {
    (value >> 32) as u32
}
