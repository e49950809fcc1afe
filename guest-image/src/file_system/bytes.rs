//! Numbers at fixed offsets. What is asked for lies inside the bytes: callers give records of known length.

/// A 16-bit number.
pub(super) fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

/// A 32-bit number.
pub(super) fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

/// A 16-bit number as journals write it.
pub(super) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(bytes, at))
}

/// A 32-bit number as journals write it.
pub(super) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}

/// Bytes at an offset; zeros where there are none.
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.copied().unwrap_or([0; N])
}
