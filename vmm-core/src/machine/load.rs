//! Putting a machine into a saved state: a new one, or one that has run and stands.

use std::sync::Arc;

use snapshot_format::StateRecord;

use super::builder::{BuiltMachine, MachineError, random_id};
use super::running::{PausedMachine, RunningMachine, match_units};
use super::x86_record::X86MachineRecord;
use crate::VcpuIndex;
use crate::cpu_state::VcpuState;
use crate::host_side::BlockBackend;
use crate::unit::{StateUnit, UnitError};
use crate::vmgenid::GENERATION_ID_BYTES;
use crate::x86::ClockState;

impl BuiltMachine {
    /// Puts every unit into its saved state, in the order: vCPUs (each with its TSC), clock, interrupt
    /// controller and devices, and gives the machine the generation id `generation`.
    pub(super) fn load_units(
        &self,
        records: &[StateRecord],
        generation: [u8; GENERATION_ID_BYTES],
    ) -> Result<(), MachineError> {
        match_units(records, &self.expected_units())?;
        let find = |unit: &str| {
            records
                .iter()
                .find(|record| record.unit == unit)
                .ok_or_else(|| UnitError::Mismatch {
                    unit: unit.to_owned(),
                    problem: "missing",
                })
        };
        for (index, thread) in (0..).zip(&self.vcpus) {
            let index = VcpuIndex(index);
            thread.load(VcpuState::from_record(find(&index.to_string())?, index)?)?;
        }
        if let Some(clock) = self.vm.x86_clock() {
            clock.load(&ClockState::from_record(find(ClockState::UNIT)?)?)?;
        }
        for unit in self.units() {
            unit.restore(find(&unit.unit())?)?;
        }
        // Behind the interrupt controller, which takes the interrupt that this raises.
        self.generation.renew(generation)?;
        for slot in &self.slots {
            // What was asked for before the point is in the queues.
            slot.serve_now();
        }
        for thread in &self.vcpus {
            thread.notify_stopped()?;
        }
        Ok(())
    }

    /// All units but the vCPUs, in the order of saving and restoring.
    pub(super) fn units(&self) -> Vec<&dyn StateUnit> {
        let mut units: Vec<&dyn StateUnit> = vec![&*self.ioapic, &*self.serial, &self.generation];
        units.extend(self.slots.iter().map(|slot| &**slot as &dyn StateUnit));
        units
    }

    fn expected_units(&self) -> Vec<String> {
        let mut expected = vec!["machine".to_owned()];
        if self.vm.x86_clock().is_some() {
            expected.push(ClockState::UNIT.to_owned());
        }
        expected.extend((0..self.vcpus.len() as u8).map(|index| VcpuIndex(index).to_string()));
        expected.extend(self.units().iter().map(|unit| unit.unit()));
        expected
    }
}

impl RunningMachine {
    /// Whether these are records that [`PausedMachine::load`] can put this machine into: its units, on the same CPU model. The
    /// rate of the TSC may be another.
    ///
    /// # Errors
    /// What does not match.
    pub fn check(&self, records: &[StateRecord]) -> Result<(), MachineError> {
        let (record, mine) = (X86MachineRecord::find(records)?, &self.built.record);
        if (&record.cpuid, &record.msrs) != (&mine.cpuid, &mine.msrs) {
            return Err(UnitError::Invalid {
                unit: "machine".to_owned(),
                what: "not this machine's CPU".to_owned(),
            }
            .into());
        }
        Ok(match_units(records, &self.built.expected_units())?)
    }
}

impl PausedMachine<'_> {
    /// Puts the machine into a saved state of its own kind: vCPUs, clock, interrupt controller and every device become what
    /// they were, whatever became of the guest since; also one that had ended runs again afterwards. Everything that was under way is
    /// dropped: requests that no device has answered, interrupts, events, connections (the guest is told by a
    /// transport reset), what a software CPU has translated. The machine gets a new generation id, as after any return to the past.
    ///
    /// Memory is the caller's: it is made what it was ([`GuestRam::begin_fill`](crate::ram::GuestRam::begin_fill), or by
    /// writing) before, and what counts as written is set by
    /// [`DirtyTracker::reset_to`](crate::tracker::DirtyTracker::reset_to) between that and this. The page of the generation id is
    /// written here, and counts.
    ///
    /// # Errors
    /// The records are not those of such a machine, or the backend does not take a state. The machine is then between two
    /// states and does not run again, unless a later `load` puts it into one.
    pub fn load(&mut self, records: &[StateRecord]) -> Result<(), MachineError> {
        self.machine.ended = true;
        self.machine.check(records)?;
        let built = &mut self.machine.built;
        let tsc_khz = X86MachineRecord::find(records)?.tsc_khz;
        if tsc_khz != built.record.tsc_khz {
            for thread in &built.vcpus {
                thread.set_tsc_rate(tsc_khz)?;
            }
            built.record.tsc_khz = tsc_khz;
        }
        let generation = random_id(&mut *super::running::lock(&built.later_generations))?;
        built.load_units(records, generation)?;
        self.machine.forget_events();
        self.machine.ended = false;
        Ok(())
    }

    /// Puts another disk of the same size under the machine's root disk; the one before is returned. Flushes that
    /// were under way are repeated on the new one.
    ///
    /// # Errors
    /// The disk has another size, or is read-only where the other is not.
    pub fn exchange_root_disk(
        &self,
        disk: Arc<dyn BlockBackend>,
    ) -> Result<Arc<dyn BlockBackend>, MachineError> {
        Ok(self.machine.built.root_disk.exchange(disk)?)
    }
}
