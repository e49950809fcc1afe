//! A record's file: header, body, checksum; and a record together with its id.

use std::io::{self, Read, Write};

use thiserror::Error;

use crate::codec;
use crate::fields::{FieldError, FieldWriter};
use crate::id::CheckpointId;
use crate::limits::{self, LimitError, MAX_RECORD_BYTES};
use crate::record::PointRecord;

/// First bytes of every record.
pub const MAGIC: [u8; 8] = *b"SMOLPREC";
/// Version of the record format that is written, and the newest that is read.
pub const FORMAT_VERSION: u32 = 1;
/// Bytes before the body: magic, version, flags, length of the body.
pub(crate) const HEADER_BYTES: usize = 24;
/// Bytes after the body: CRC-32C of all bytes before.
pub(crate) const CHECKSUM_BYTES: usize = 4;

/// Why bytes are not a record.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecodeError {
    /// The first bytes are not [`MAGIC`].
    #[error("not a point record: it does not begin with {:?}", String::from_utf8_lossy(&MAGIC))]
    NotARecord,
    /// Written by a later version that this one cannot read.
    #[error("point record has format version {found}, this program reads up to {FORMAT_VERSION}")]
    UnsupportedVersion {
        /// The version found.
        found: u32,
    },
    /// Flags that this version does not know.
    #[error("point record has unknown flags {flags:#x}")]
    UnknownFlags {
        /// All flags found.
        flags: u32,
    },
    /// Longer than [`MAX_RECORD_BYTES`].
    #[error("point record has {length} bytes, at most {MAX_RECORD_BYTES} are read")]
    TooLong {
        /// Its length, or the least it can be.
        length: u64,
    },
    /// The length differs from what the header says: truncated, or followed by something.
    #[error("point record has {length} bytes instead of {expected}")]
    WrongLength {
        /// Bytes there are.
        length: u64,
        /// Bytes there should be.
        expected: u64,
    },
    /// The checksum does not fit the bytes.
    #[error("point record is damaged: checksum {computed:#010x} instead of {stored:#010x}")]
    Checksum {
        /// Of the bytes.
        computed: u32,
        /// In the record.
        stored: u32,
    },
    /// A field is malformed.
    #[error("point record has a malformed {part}")]
    Fields {
        /// Where.
        part: &'static str,
        /// How.
        source: FieldError,
    },
    /// A value beyond its limit.
    #[error("point record exceeds a limit")]
    Limit(#[from] LimitError),
}

/// Why a record was not read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The reader failed.
    #[error("cannot read the point record")]
    Io(#[from] io::Error),
    /// What it gave is no record.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

/// Why a record was not written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The record cannot be encoded.
    #[error("point cannot be saved")]
    Limit(#[from] LimitError),
    /// The writer failed; what it took is useless.
    #[error("cannot write the point record")]
    Io(#[from] io::Error),
}

impl PointRecord {
    /// The record's bytes: equal records have equal bytes.
    ///
    /// # Errors
    /// Something exceeds a limit of [`limits`](crate::limits).
    pub fn encode(&self) -> Result<Vec<u8>, LimitError> {
        limits::check(self)?;
        let mut writer = FieldWriter::after(header(0).to_vec());
        codec::encode(self, &mut writer);
        let mut bytes = writer.finish();
        check_length((bytes.len() + CHECKSUM_BYTES) as u64)?;
        let body_bytes = (bytes.len() - HEADER_BYTES) as u64;
        bytes[..HEADER_BYTES].copy_from_slice(&header(body_bytes));
        let checksum = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        Ok(bytes)
    }

    /// Reads what [`encode`](Self::encode) wrote. Fields of later writers are skipped and lost, so the id of a stored
    /// record is that of its bytes, not of a second encoding: see [`Point`].
    ///
    /// # Errors
    /// The bytes are not one whole record, or exceed a limit. Memory taken is in proportion to `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let record = codec::decode(open(bytes)?)?;
        limits::check(&record)?;
        Ok(record)
    }

    /// Writes the record's bytes and gives their id. Nothing is synced.
    ///
    /// # Errors
    /// Something exceeds a limit, before anything is written; or the writer fails.
    pub fn write_to(&self, mut writer: impl Write) -> Result<CheckpointId, WriteError> {
        let bytes = self.encode()?;
        writer.write_all(&bytes)?;
        Ok(CheckpointId::of_bytes(&bytes))
    }
}

/// A record and the id of the bytes that it was stored as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Point {
    id: CheckpointId,
    record: PointRecord,
}

impl Point {
    /// Names a new record: the point, and the bytes to store.
    ///
    /// # Errors
    /// Something exceeds a limit of [`limits`](crate::limits).
    pub fn seal(record: PointRecord) -> Result<(Self, Vec<u8>), LimitError> {
        let bytes = record.encode()?;
        let id = CheckpointId::of_bytes(&bytes);
        Ok((Self { id, record }, bytes))
    }

    /// Reads a stored record. The caller compares the id with the one it expected.
    ///
    /// # Errors
    /// As [`PointRecord::decode`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let record = PointRecord::decode(bytes)?;
        Ok(Self {
            id: CheckpointId::of_bytes(bytes),
            record,
        })
    }

    /// Reads a stored record to the end of `reader`; no more than [`MAX_RECORD_BYTES`] are taken.
    ///
    /// # Errors
    /// The reader fails, or as [`PointRecord::decode`].
    pub fn read_from(reader: impl Read) -> Result<Self, ReadError> {
        let mut bytes = Vec::new();
        reader.take(MAX_RECORD_BYTES + 1).read_to_end(&mut bytes)?;
        Ok(Self::decode(&bytes)?)
    }

    /// The point's id.
    #[must_use]
    pub fn id(&self) -> CheckpointId {
        self.id
    }

    /// What the point holds.
    #[must_use]
    pub fn record(&self) -> &PointRecord {
        &self.record
    }

    /// What the point holds, without its id.
    #[must_use]
    pub fn into_record(self) -> PointRecord {
        self.record
    }
}

fn header(body_bytes: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    header[16..24].copy_from_slice(&body_bytes.to_le_bytes());
    header
}

fn check_length(length: u64) -> Result<(), LimitError> {
    limits::at_most(
        "the length of the record in bytes",
        length,
        MAX_RECORD_BYTES,
    )
}

/// Checks what surrounds the body and returns the body.
fn open(bytes: &[u8]) -> Result<&[u8], DecodeError> {
    let length = bytes.len() as u64;
    if !bytes.starts_with(&MAGIC) {
        return Err(DecodeError::NotARecord);
    }
    if length > MAX_RECORD_BYTES {
        return Err(DecodeError::TooLong { length });
    }
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        let expected = (HEADER_BYTES + CHECKSUM_BYTES) as u64;
        return Err(DecodeError::WrongLength { length, expected });
    };
    let [
        ..,
        v0,
        v1,
        v2,
        v3,
        f0,
        f1,
        f2,
        f3,
        b0,
        b1,
        b2,
        b3,
        b4,
        b5,
        b6,
        b7,
    ] = *header;
    let found = u32::from_le_bytes([v0, v1, v2, v3]);
    if found != FORMAT_VERSION {
        return Err(DecodeError::UnsupportedVersion { found });
    }
    let flags = u32::from_le_bytes([f0, f1, f2, f3]);
    if flags != 0 {
        return Err(DecodeError::UnknownFlags { flags });
    }
    let body_bytes = u64::from_le_bytes([b0, b1, b2, b3, b4, b5, b6, b7]);
    let expected = body_bytes.saturating_add((HEADER_BYTES + CHECKSUM_BYTES) as u64);
    let body = rest.split_last_chunk::<CHECKSUM_BYTES>();
    let Some((body, stored)) = body.filter(|_| length == expected) else {
        return Err(DecodeError::WrongLength { length, expected });
    };
    let computed = crc32c::crc32c(&bytes[..HEADER_BYTES + body.len()]);
    let stored = u32::from_le_bytes(*stored);
    if computed != stored {
        return Err(DecodeError::Checksum { computed, stored });
    }
    Ok(body)
}
