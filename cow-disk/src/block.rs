//! The interface of a block device.

use crate::error::DiskError;

/// A disk, as a virtual block device sees it.
///
/// Requests may be of any offset and length inside the disk, aligned or not; the implementor
/// validates them and answers [`DiskError::OutOfBounds`] otherwise. All methods may be called from
/// several threads at a time; what overlapping requests in flight at the same time leave is one of
/// their results for each sector.
///
/// A request that returned `Ok` outlives the process. It outlives a power loss once a
/// [`flush`](Self::flush) that began after it has returned `Ok`.
pub trait BlockDevice: Send + Sync {
    /// The size of the disk.
    fn size_bytes(&self) -> u64;

    /// The unit in which requests are cheapest: smaller or unaligned writes may have to read
    /// first, and a discard works on whole blocks.
    fn block_size_bytes(&self) -> u64;

    /// Fills `buf` from the disk.
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), DiskError>;

    /// Writes `data` to the disk.
    fn write_at(&self, offset_bytes: u64, data: &[u8]) -> Result<(), DiskError>;

    /// Makes every request that was answered before durable.
    fn flush(&self) -> Result<(), DiskError>;

    /// Gives blocks back. Those that lie wholly in the range read as zero afterwards; the parts
    /// of blocks at its ends keep their content.
    fn discard(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), DiskError>;

    /// Makes exactly the range read as zero, taking as little space as possible.
    fn write_zeroes(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), DiskError>;
}

/// Refuses a request that reaches beyond the disk.
pub(crate) fn check_range(
    offset_bytes: u64,
    len_bytes: u64,
    size_bytes: u64,
) -> Result<(), DiskError> {
    match offset_bytes.checked_add(len_bytes) {
        Some(end) if end <= size_bytes => Ok(()),
        _ => Err(DiskError::OutOfBounds {
            offset_bytes,
            len_bytes,
            size_bytes,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked_without_overflow() {
        assert!(check_range(0, 8192, 8192).is_ok());
        assert!(check_range(8192, 0, 8192).is_ok());
        assert!(check_range(1, 8192, 8192).is_err());
        assert!(check_range(u64::MAX, 2, 8192).is_err());
    }
}
