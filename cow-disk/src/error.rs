//! Errors, one enum per family of operations.

use std::io;

use crate::layer::LayerId;

/// Why a request to a disk failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// The request reaches beyond the end of the disk. Nothing was done.
    #[error("{len_bytes} bytes at offset {offset_bytes} reach beyond a disk of {size_bytes} bytes")]
    OutOfBounds {
        /// First byte of the request.
        offset_bytes: u64,
        /// Length of the request.
        len_bytes: u64,
        /// Size of the disk.
        size_bytes: u64,
    },
    /// The base could not be read.
    #[error("cannot read the base of the disk at offset {offset_bytes}")]
    Base {
        /// First byte, on the disk.
        offset_bytes: u64,
        /// What the base said.
        #[source]
        source: io::Error,
    },
    /// An overlay's data could not be read.
    #[error("cannot read the overlay at disk offset {offset_bytes}")]
    Read {
        /// First byte, on the disk.
        offset_bytes: u64,
        /// What the file said.
        #[source]
        source: io::Error,
    },
    /// An overlay's data or map could not be written: of each byte of the request, the old or
    /// the new value is on the disk.
    #[error("cannot write the overlay at disk offset {offset_bytes}")]
    Write {
        /// First byte, on the disk.
        offset_bytes: u64,
        /// What the file said; `ErrorKind::StorageFull` is a full file system.
        #[source]
        source: io::Error,
    },
    /// The overlay could not be made durable. The layer is poisoned from now on.
    #[error("cannot make the overlay durable")]
    Sync {
        /// What the file said.
        #[source]
        source: io::Error,
    },
    /// An earlier sync or repair failed, so that nothing written may be called durable.
    #[error("the overlay refuses writes since an earlier write or sync of it failed")]
    Poisoned,
    /// The overlay is sealed and takes no writes.
    #[error("the overlay is sealed")]
    Sealed,
}

/// Why an overlay file could not be created or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OverlayError {
    /// The file could not be read, written or synced.
    #[error("cannot {action} the overlay file")]
    Io {
        /// What was tried.
        action: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A new overlay needs an empty file.
    #[error("the file for a new overlay holds {size_bytes} bytes, it must be empty")]
    NotEmpty {
        /// Size of the file.
        size_bytes: u64,
    },
    /// Not the magic of an overlay.
    #[error("not an overlay file")]
    Magic,
    /// Made by a later version of the format.
    #[error("overlay format version {found} is not supported")]
    Version {
        /// The version in the header.
        found: u32,
    },
    /// The header's checksum does not hold.
    #[error(
        "the overlay's header is damaged: checksum {stored:#010x} stored, {computed:#010x} computed"
    )]
    Checksum {
        /// In the header.
        stored: u32,
        /// Over the header.
        computed: u32,
    },
    /// A header field has a value that this version never writes.
    #[error("the overlay's header has {field} {value}")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// A disk size that is zero, no multiple of [`GRANULE_BYTES`](crate::GRANULE_BYTES), or
    /// larger than [`MAX_DISK_BYTES`](crate::MAX_DISK_BYTES).
    #[error("a disk of {size_bytes} bytes is not possible: a multiple of 4096 up to 8 TiB is")]
    DiskSize {
        /// The size.
        size_bytes: u64,
    },
    /// The file is shorter than its header says.
    #[error("the overlay file has {size_bytes} bytes, its header asks for {needed_bytes}")]
    Truncated {
        /// Size of the file.
        size_bytes: u64,
        /// Size by the header.
        needed_bytes: u64,
    },
}

/// Why the layers of a disk could not be put together or changed. The disk is as before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayerError {
    /// A layer could not be read, written or synced.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A layer's file could not be created or opened.
    #[error("cannot open layer {index} of the disk")]
    Open {
        /// Counted from the lowest sealed layer; the top comes last.
        index: usize,
        /// Why.
        #[source]
        source: OverlayError,
    },
    /// The overlay is for a disk of another size.
    #[error("the overlay is for a disk of {overlay_bytes} bytes, this disk has {disk_bytes}")]
    Size {
        /// Size the overlay was made for.
        overlay_bytes: u64,
        /// Size of the disk.
        disk_bytes: u64,
    },
    /// The base is larger than the disk; a disk only grows.
    #[error("the base has {base_bytes} bytes, more than the disk's {disk_bytes}")]
    BaseTooLarge {
        /// Size of the base.
        base_bytes: u64,
        /// Size of the disk.
        disk_bytes: u64,
    },
    /// The overlay that should take writes is sealed or poisoned.
    #[error("the new top overlay takes no writes")]
    TopNotWritable,
    /// The overlay that should be filled has content already.
    #[error("the new overlay is not empty")]
    NotEmpty,
    /// More layers than [`MAX_LAYERS`](crate::MAX_LAYERS).
    #[error("a disk has at most {limit} layers; flatten first")]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// No sealed layer of the disk has this id.
    #[error("the disk has no sealed layer {id}")]
    Unknown {
        /// The id.
        id: LayerId,
    },
    /// While layers were merged, another operation took some of them away.
    #[error("the layers were changed while they were merged")]
    Changed,
    /// The caller's progress function asked to stop.
    #[error("interrupted")]
    Interrupted,
}
