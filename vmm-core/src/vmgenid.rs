//! The VM generation id: 16 random bytes in guest memory that change whenever the machine is copied
//! or goes back in time ("Virtual Machine Generation ID", Microsoft, 2018).
//!
//! The ACPI tables name the address ([`crate::x86::layout`] reserves the page) and the interrupt that
//! [`VmGenId::renew`] raises. A guest kernel with the driver then reseeds its random pool; one without
//! it is reseeded by the agent.

use std::sync::{Arc, Mutex, PoisonError};

use snapshot_format::StateRecord;
use snapshot_format::fields::{FieldReader, FieldWriter};
use thiserror::Error;
use vm_memory::Bytes;

use crate::Gpa;
use crate::irq::IrqLine;
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
/// Its saved state is the id and its place. A restore takes both as they were; the machine then calls
/// [`renew`](Self::renew) with a new random id before vCPUs run.
pub struct VmGenId {
    ram: GuestRam,
    gpa: Gpa,
    line: Arc<dyn IrqLine>,
    id: Mutex<[u8; GENERATION_ID_BYTES]>,
}

impl VmGenId {
    /// Puts `id` at `gpa`; its changes are told by `line`.
    pub fn new(
        ram: GuestRam,
        gpa: Gpa,
        line: Arc<dyn IrqLine>,
        id: [u8; GENERATION_ID_BYTES],
    ) -> Result<Self, VmGenIdError> {
        let this = Self {
            ram,
            gpa,
            line,
            id: Mutex::new(id),
        };
        this.place(id)?;
        Ok(this)
    }

    /// Where the id lies.
    pub fn gpa(&self) -> Gpa {
        self.gpa
    }

    /// Replaces the id and tells the guest.
    pub fn renew(&self, id: [u8; GENERATION_ID_BYTES]) -> Result<(), VmGenIdError> {
        self.place(id)?;
        self.line.pulse();
        Ok(())
    }

    fn place(&self, id: [u8; GENERATION_ID_BYTES]) -> Result<(), VmGenIdError> {
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
        self.place(id).map_err(|error| invalid(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use vm_memory::GuestAddress;

    use super::*;
    use crate::testing::test_ram;

    #[derive(Default)]
    struct Pulses(AtomicU32);

    impl IrqLine for Pulses {
        fn pulse(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_id_lies_in_memory_and_its_changes_are_undone() {
        let ram = test_ram().unwrap();
        let line = Arc::new(Pulses::default());
        let place = |gpa| VmGenId::new(ram.clone(), gpa, line.clone(), [1; 16]);
        let in_memory = || ram.read_obj::<[u8; 16]>(GuestAddress(0x1000)).unwrap();
        let device = place(Gpa(0x1000)).unwrap();
        let saved = device.save().unwrap();
        device.renew([2; 16]).unwrap();
        assert_eq!(in_memory(), [2; 16]);
        assert_ne!(device.save().unwrap(), saved, "the change must be seen");
        device.restore(&saved).unwrap();
        assert_eq!(device.save().unwrap(), saved);
        assert_eq!(in_memory(), [1; 16]);
        assert_eq!(line.0.load(Ordering::Relaxed), 1, "only the new id is told");
        assert!(place(Gpa(0x2000)).unwrap().restore(&saved).is_err());
        assert!(place(Gpa(16 << 20)).is_err());
    }
}
