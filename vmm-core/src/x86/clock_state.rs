use snapshot_format::StateRecord;
use snapshot_format::fields::{FieldReader, FieldWriter};

use crate::unit::{UnitError, expect_record};

/// kvm-clock of a VM at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClockState {
    /// Nanoseconds that the guest has seen pass since it was started; does not advance while the
    /// guest is saved.
    pub guest_nanoseconds: u64,
}

impl ClockState {
    /// The unit that the clock is saved as.
    pub const UNIT: &'static str = "clock";
    const KIND: &'static str = "kvm-clock";
    const VERSION: u32 = 1;

    /// The record of unit `clock`.
    pub fn to_record(&self) -> StateRecord {
        let mut writer = FieldWriter::new();
        writer.u64(1, self.guest_nanoseconds);
        StateRecord::new(Self::UNIT, Self::KIND, Self::VERSION, writer.finish())
    }

    /// Reads what [`to_record`](Self::to_record) wrote.
    pub fn from_record(record: &StateRecord) -> Result<Self, UnitError> {
        expect_record(record, Self::UNIT, Self::KIND, Self::VERSION)?;
        let guest_nanoseconds = FieldReader::parse(&record.bytes)
            .and_then(|fields| fields.u64(1))
            .map_err(|source| UnitError::Fields {
                unit: Self::UNIT.to_owned(),
                source,
            })?;
        Ok(Self { guest_nanoseconds })
    }
}
