//! What the log says about a point, also after the point is gone.

use thiserror::Error;

use crate::codec::decode_mark;
use crate::fields::{FieldError, FieldReader, FieldWriter};
use crate::id::{CheckpointId, to_hex, unhex};
use crate::limits::{MAX_MACHINE_NAME_BYTES, MAX_MESSAGE_BYTES};
use crate::point::Point;
use crate::time::WallTime;

/// Longest line in bytes that [`LineageEntry::to_line`] makes: name and message at their limits, in hexadecimal.
pub const MAX_LINE_BYTES: usize = 2 * (MAX_MACHINE_NAME_BYTES + MAX_MESSAGE_BYTES + 128);

/// How a line begins; the number is its version.
const LINE_PREFIX: &str = "point1 ";

/// One line of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineageEntry {
    /// The point.
    pub id: CheckpointId,
    /// Its parent.
    pub parent: Option<CheckpointId>,
    /// When it was taken.
    pub taken: WallTime,
    /// The machine's name then.
    pub machine: String,
    /// The user's message; empty if there is none.
    pub message: String,
    /// Bytes of memory and disks that are not zero.
    pub data_bytes: u64,
    /// It was saved on a schedule.
    pub autosave: bool,
}

/// Why a text is not an entry's line.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LineError {
    /// It begins with another word, or is too long.
    #[error("not a line about a point")]
    NotALine,
    /// It is not hexadecimal after the first word.
    #[error("line about a point is not hexadecimal")]
    NotHex,
    /// A field is malformed.
    #[error("line about a point has a malformed field")]
    Fields(#[from] FieldError),
}

impl From<&Point> for LineageEntry {
    fn from(point: &Point) -> Self {
        let record = point.record();
        Self {
            id: point.id(),
            parent: record.parent,
            taken: record.taken,
            machine: record.machine.clone(),
            message: record.message.clone(),
            data_bytes: record.data_bytes,
            autosave: record.autosave,
        }
    }
}

impl LineageEntry {
    /// The entry without its id as one line of printable ASCII: for a store's log, where it stays when the record goes.
    /// Name and message beyond their limits are cut.
    #[must_use]
    pub fn to_line(&self) -> String {
        let mut writer = FieldWriter::new();
        if let Some(parent) = &self.parent {
            writer.bytes(1, &parent.0);
        }
        writer
            .u64(2, self.taken.seconds)
            .u32(3, self.taken.nanos)
            .text(4, cut(&self.machine, MAX_MACHINE_NAME_BYTES))
            .text(5, cut(&self.message, MAX_MESSAGE_BYTES))
            .u64(6, self.data_bytes);
        if self.autosave {
            writer.bool(7, true);
        }
        format!("{LINE_PREFIX}{}", to_hex(&writer.finish()))
    }

    /// Reads what [`to_line`](Self::to_line) wrote about `id`.
    ///
    /// # Errors
    /// The text is something else, or damaged.
    pub fn from_line(id: CheckpointId, line: &str) -> Result<Self, LineError> {
        let digits = line.strip_prefix(LINE_PREFIX).ok_or(LineError::NotALine)?;
        if line.len() > MAX_LINE_BYTES {
            return Err(LineError::NotALine);
        }
        let bytes = unhex(digits).ok_or(LineError::NotHex)?;
        let fields = FieldReader::parse(&bytes)?;
        let parent = fields.get(1).map(|_| fields.array(1).map(CheckpointId));
        let (seconds, nanos) = (fields.u64(2)?, fields.u32(3)?);
        let invalid = FieldError::Invalid {
            number: 2,
            value: seconds,
        };
        Ok(Self {
            id,
            parent: parent.transpose()?,
            taken: WallTime::new(seconds, nanos).ok_or(invalid)?,
            machine: fields.text(4, MAX_MACHINE_NAME_BYTES)?.to_owned(),
            message: fields.text(5, MAX_MESSAGE_BYTES)?.to_owned(),
            data_bytes: fields.u64(6)?,
            autosave: decode_mark(&fields, 7)?,
        })
    }
}

/// The beginning of `text`, at most `limit` bytes, whole characters.
fn cut(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}
