//! Units of saved state.

use snapshot_format::{FieldError, StateRecord};
use thiserror::Error;

/// Why a unit's state could not be restored (or read).
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum UnitError {
    /// The record is another unit's or another kind's.
    #[error("state of {unit} ({kind}) does not belong to {expected}")]
    WrongUnit {
        /// The record's unit.
        unit: String,
        /// The record's kind.
        kind: String,
        /// The unit that was asked to take it.
        expected: String,
    },
    /// The record was written by a newer version.
    #[error("state of {unit} has version {version}, this version reads at most {supported}")]
    Version {
        /// The record's unit.
        unit: String,
        /// The record's version.
        version: u32,
        /// The newest version that can be read.
        supported: u32,
    },
    /// The record's bytes are not what the unit writes.
    #[error("state of {unit} is damaged")]
    Fields {
        /// The record's unit.
        unit: String,
        /// What is wrong.
        #[source]
        source: FieldError,
    },
    /// A value that the unit cannot have.
    #[error("state of {unit}: {what}")]
    Invalid {
        /// The record's unit.
        unit: String,
        /// Which value, and why not.
        what: String,
    },
    /// Two units of one name, a unit without its record, or a record without its unit.
    #[error("state of {unit} is {problem}")]
    Mismatch {
        /// The unit.
        unit: String,
        /// `missing`, `left over` or `there twice`.
        problem: &'static str,
    },
    /// The unit could not be brought to rest, or its host side failed.
    #[error("{unit}: {what}")]
    Host {
        /// The unit.
        unit: String,
        /// What failed.
        what: String,
        /// The host's answer.
        #[source]
        source: std::io::Error,
    },
}

/// A part of a machine that has state: every device is one.
///
/// `save` and `restore` are called while all vCPUs are stopped and the unit is quiesced.
pub trait StateUnit: Send + Sync {
    /// The unit's name, unique within the machine: `blk0`.
    fn unit(&self) -> String;

    /// Reads the unit's complete state.
    fn save(&self) -> Result<StateRecord, UnitError>;

    /// Puts the unit into a saved state. The record is untrusted and validated; after an error the
    /// machine is not run.
    fn restore(&self, record: &StateRecord) -> Result<(), UnitError>;
}

/// Checks that a record is of the given unit and kind and not newer than `supported`.
pub fn expect_record(
    record: &StateRecord,
    unit: &str,
    kind: &str,
    supported: u32,
) -> Result<(), UnitError> {
    if record.unit != unit || record.kind != kind {
        return Err(UnitError::WrongUnit {
            unit: record.unit.clone(),
            kind: record.kind.clone(),
            expected: format!("{unit} ({kind})"),
        });
    }
    if record.version > supported {
        return Err(UnitError::Version {
            unit: record.unit.clone(),
            version: record.version,
            supported,
        });
    }
    Ok(())
}
