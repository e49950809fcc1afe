//! The VM generation id: 16 random bytes in guest memory that change whenever the machine is copied
//! or goes back in time ("Virtual Machine Generation ID", Microsoft, 2018).
//!
//! The ACPI tables name the address ([`crate::x86::layout`] reserves the page) and, after
//! [`VmGenId::renew`], the machine's owner signals the notification that they describe. A guest
//! kernel with the driver then reseeds its random pool; one without it is reseeded by the agent.

use std::sync::{Mutex, PoisonError};

use snapshot_format::StateRecord;
use snapshot_format::fields::{FieldReader, FieldWriter};
use thiserror::Error;
use vm_memory::Bytes;

use crate::Gpa;
use crate::ram::GuestRam;
use crate::unit::{StateUnit, UnitError, expect_record};

/// Length of the id in bytes.
pub const GENERATION_ID_BYTES: usize = 16;

const UNIT: &str = "vmgenid";
const KIND: &str = "vmgenid";
const VERSION: u32 = 1;

/// The id's place is not in guest memory.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[error("no room for a generation id at {gpa}")]
pub struct VmGenIdError {
    /// The place asked for.
    pub gpa: Gpa,
}

/// The generation id of one machine.
///
/// Its saved state is the id and its place. A restore takes both as they were; the owner then calls
/// [`renew`](Self::renew) with a new random id before vCPUs run.
pub struct VmGenId {
    ram: GuestRam,
    gpa: Gpa,
    id: Mutex<[u8; GENERATION_ID_BYTES]>,
}

impl VmGenId {
    /// Puts `id` at `gpa`.
    pub fn new(
        ram: GuestRam,
        gpa: Gpa,
        id: [u8; GENERATION_ID_BYTES],
    ) -> Result<Self, VmGenIdError> {
        let this = Self {
            ram,
            gpa,
            id: Mutex::new(id),
        };
        this.renew(id)?;
        Ok(this)
    }

    /// Where the id lies.
    pub fn gpa(&self) -> Gpa {
        self.gpa
    }

    /// Replaces the id.
    pub fn renew(&self, id: [u8; GENERATION_ID_BYTES]) -> Result<(), VmGenIdError> {
        let written = self.ram.write_slice(&id, self.gpa.into());
        written.map_err(|_| VmGenIdError { gpa: self.gpa })?;
        *self.id.lock().unwrap_or_else(PoisonError::into_inner) = id;
        Ok(())
    }
}

impl StateUnit for VmGenId {
    fn unit(&self) -> String {
        UNIT.to_owned()
    }

    fn save(&self) -> Result<StateRecord, UnitError> {
        let id = *self.id.lock().unwrap_or_else(PoisonError::into_inner);
        let mut writer = FieldWriter::new();
        writer.u64(1, self.gpa.0).bytes(2, &id);
        Ok(StateRecord::new(UNIT, KIND, VERSION, writer.finish()))
    }

    fn restore(&self, record: &StateRecord) -> Result<(), UnitError> {
        expect_record(record, UNIT, KIND, VERSION)?;
        let damaged = |source| UnitError::Fields {
            unit: UNIT.to_owned(),
            source,
        };
        let fields = FieldReader::parse(&record.bytes).map_err(damaged)?;
        let gpa = Gpa(fields.u64(1).map_err(damaged)?);
        let id = fields.array(2).map_err(damaged)?;
        let invalid = |what| UnitError::Invalid {
            unit: UNIT.to_owned(),
            what,
        };
        if gpa != self.gpa {
            return Err(invalid(format!("id at {gpa} instead of {}", self.gpa)));
        }
        self.renew(id).map_err(|error| invalid(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use vm_memory::GuestAddress;

    use super::*;
    use crate::testing::test_ram;

    #[test]
    fn the_id_lies_in_memory_and_its_changes_are_undone() {
        let ram = test_ram().unwrap();
        let device = VmGenId::new(ram.clone(), Gpa(0x1000), [1; 16]).unwrap();
        let saved = device.save().unwrap();
        device.renew([2; 16]).unwrap();
        assert_eq!(
            ram.read_obj::<[u8; 16]>(GuestAddress(0x1000)).unwrap(),
            [2; 16]
        );
        assert_ne!(device.save().unwrap(), saved, "the change must be seen");
        device.restore(&saved).unwrap();
        assert_eq!(device.save().unwrap(), saved);
        assert_eq!(
            ram.read_obj::<[u8; 16]>(GuestAddress(0x1000)).unwrap(),
            [1; 16]
        );
        let elsewhere = VmGenId::new(ram.clone(), Gpa(0x2000), [1; 16]).unwrap();
        assert!(elsewhere.restore(&saved).is_err());
        assert!(VmGenId::new(ram, Gpa(16 << 20), [1; 16]).is_err());
    }
}
