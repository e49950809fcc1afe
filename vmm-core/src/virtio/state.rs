//! Saved state of the transport, with the device's own inside.

use std::sync::atomic::Ordering;

use snapshot_format::fields::{FieldReader, FieldWriter};
use snapshot_format::{FieldError, StateRecord};
use virtio_queue::{Queue, QueueState};

use super::device::DeviceError;
use super::mmio::{Registers, TRANSPORT_FEATURES, VirtioMmio, lock};
use crate::unit::{StateUnit, UnitError, expect_record};

/// Version of the records written here.
const VERSION: u32 = 1;
/// Greatest queue size that a record may ask for.
const MAX_QUEUE_SIZE: u16 = 1024;
/// The device status bits there are.
const STATUS_BITS: u32 = 0xcf;
/// The interrupt status bits there are.
const INTERRUPT_BITS: u32 = 3;

/// Numbers of the record's fields.
mod field {
    pub(super) const SLOT: u16 = 1;
    pub(super) const OFFERED: u16 = 2;
    pub(super) const ACCEPTED: u16 = 3;
    pub(super) const STATUS: u16 = 4;
    pub(super) const INTERRUPT_STATUS: u16 = 5;
    pub(super) const CONFIG_GENERATION: u16 = 6;
    pub(super) const DEVICE_FEATURES_SEL: u16 = 7;
    pub(super) const DRIVER_FEATURES_SEL: u16 = 8;
    pub(super) const QUEUE_SEL: u16 = 9;
    /// Once per queue, in order.
    pub(super) const QUEUE: u16 = 10;
    pub(super) const DEVICE: u16 = 11;
}

/// Numbers of a queue's fields.
mod queue_field {
    pub(super) const MAX_SIZE: u16 = 1;
    pub(super) const SIZE: u16 = 2;
    pub(super) const READY: u16 = 3;
    pub(super) const EVENT_IDX: u16 = 4;
    pub(super) const DESC_TABLE: u16 = 5;
    pub(super) const AVAIL_RING: u16 = 6;
    pub(super) const USED_RING: u16 = 7;
    pub(super) const NEXT_AVAIL: u16 = 8;
    pub(super) const NEXT_USED: u16 = 9;
}

impl StateUnit for VirtioMmio {
    fn unit(&self) -> String {
        self.unit.clone()
    }

    fn save(&self) -> Result<StateRecord, UnitError> {
        let registers = *lock(&self.registers);
        let mut writer = FieldWriter::new();
        writer
            .u32(field::SLOT, self.slot.into())
            .u64(field::OFFERED, registers.offered_features)
            .u64(field::ACCEPTED, self.io.accepted_features())
            .u32(field::STATUS, self.io.status.load(Ordering::Acquire))
            .u32(
                field::INTERRUPT_STATUS,
                self.io.interrupt_status.load(Ordering::Acquire),
            )
            .u32(
                field::CONFIG_GENERATION,
                self.io.config_generation.load(Ordering::Acquire),
            )
            .u32(field::DEVICE_FEATURES_SEL, registers.device_features_sel)
            .u32(field::DRIVER_FEATURES_SEL, registers.driver_features_sel)
            .u32(field::QUEUE_SEL, registers.queue_sel);
        for queue in &self.io.queues {
            let state = lock(queue).state();
            writer.nested(field::QUEUE, |inner| write_queue(inner, &state));
        }
        writer.nested(field::DEVICE, |inner| self.device.save(inner));
        Ok(StateRecord::new(
            &self.unit,
            self.device.kind(),
            VERSION,
            writer.finish(),
        ))
    }

    fn restore(&self, record: &StateRecord) -> Result<(), UnitError> {
        expect_record(record, &self.unit, self.device.kind(), VERSION)?;
        self.io.gate.pause();
        let restored = self.restore_fields(&record.bytes);
        self.io.gate.resume();
        restored.map_err(|error| self.unit_error(error))
    }
}

impl VirtioMmio {
    fn restore_fields(&self, bytes: &[u8]) -> Result<(), DeviceError> {
        let fields = FieldReader::parse(bytes)?;
        let transport = self.parse_transport(&fields)?;
        self.device.restore(&fields.nested(field::DEVICE)?)?;
        *lock(&self.registers) = transport.registers;
        self.io.set_accepted_features(transport.accepted);
        self.io.status.store(transport.status, Ordering::Release);
        self.io
            .interrupt_status
            .store(transport.interrupt_status, Ordering::Release);
        self.io
            .config_generation
            .store(transport.config_generation, Ordering::Release);
        for (mine, restored) in self.io.queues.iter().zip(transport.queues) {
            *lock(mine) = restored;
        }
        self.device.restored(&self.io);
        Ok(())
    }

    fn parse_transport(&self, fields: &FieldReader<'_>) -> Result<Transport, DeviceError> {
        let slot = fields.u8(field::SLOT)?;
        if slot != self.slot {
            return Err(invalid(format!("slot {slot} instead of {}", self.slot)));
        }
        let offered = fields.u64(field::OFFERED)?;
        let accepted = fields.u64(field::ACCEPTED)?;
        let unknown = offered & !(self.device.features() | TRANSPORT_FEATURES);
        if unknown != 0 {
            return Err(invalid(format!(
                "features {unknown:#x} are not supported here"
            )));
        }
        let status = fields.u32(field::STATUS)?;
        let interrupt_status = fields.u32(field::INTERRUPT_STATUS)?;
        if status & !STATUS_BITS != 0 || interrupt_status & !INTERRUPT_BITS != 0 {
            return Err(invalid(format!(
                "status {status:#x}, interrupt status {interrupt_status:#x}"
            )));
        }
        // Until the driver settles them (FEATURES_OK) it may have written anything.
        if status & 8 != 0 && accepted & !offered != 0 {
            return Err(invalid(format!(
                "accepted features {accepted:#x} of {offered:#x}"
            )));
        }
        Ok(Transport {
            registers: Registers {
                offered_features: offered,
                device_features_sel: fields.u32(field::DEVICE_FEATURES_SEL)?,
                driver_features_sel: fields.u32(field::DRIVER_FEATURES_SEL)?,
                queue_sel: fields.u32(field::QUEUE_SEL)?,
            },
            accepted,
            status,
            interrupt_status,
            config_generation: fields.u32(field::CONFIG_GENERATION)?,
            queues: self.parse_queues(fields)?,
        })
    }

    fn parse_queues(&self, fields: &FieldReader<'_>) -> Result<Vec<Queue>, DeviceError> {
        let count = fields.all(field::QUEUE).count();
        if count != self.io.queues.len() {
            return Err(invalid(format!(
                "{count} queues instead of {}",
                self.io.queues.len()
            )));
        }
        let queues = fields.all(field::QUEUE);
        queues.map(read_queue).collect()
    }

    fn unit_error(&self, error: DeviceError) -> UnitError {
        let unit = self.unit.clone();
        match error {
            DeviceError::Fields(source) => UnitError::Fields { unit, source },
            DeviceError::Invalid(what) => UnitError::Invalid { unit, what },
            DeviceError::Host { what, source } => UnitError::Host {
                unit,
                what: what.to_owned(),
                source,
            },
        }
    }
}

struct Transport {
    registers: Registers,
    accepted: u64,
    status: u32,
    interrupt_status: u32,
    config_generation: u32,
    queues: Vec<Queue>,
}

fn invalid(what: String) -> DeviceError {
    DeviceError::Invalid(what)
}

fn write_queue(writer: &mut FieldWriter, state: &QueueState) {
    writer
        .u32(queue_field::MAX_SIZE, state.max_size.into())
        .u32(queue_field::SIZE, state.size.into())
        .bool(queue_field::READY, state.ready)
        .bool(queue_field::EVENT_IDX, state.event_idx_enabled)
        .u64(queue_field::DESC_TABLE, state.desc_table)
        .u64(queue_field::AVAIL_RING, state.avail_ring)
        .u64(queue_field::USED_RING, state.used_ring)
        .u32(queue_field::NEXT_AVAIL, state.next_avail.into())
        .u32(queue_field::NEXT_USED, state.next_used.into());
}

fn read_queue(bytes: &[u8]) -> Result<Queue, DeviceError> {
    let fields = FieldReader::parse(bytes)?;
    let state = QueueState {
        max_size: fields.u16(queue_field::MAX_SIZE)?,
        size: fields.u16(queue_field::SIZE)?,
        ready: fields.bool(queue_field::READY)?,
        event_idx_enabled: fields.bool(queue_field::EVENT_IDX)?,
        desc_table: fields.u64(queue_field::DESC_TABLE)?,
        avail_ring: fields.u64(queue_field::AVAIL_RING)?,
        used_ring: fields.u64(queue_field::USED_RING)?,
        next_avail: fields.u16(queue_field::NEXT_AVAIL)?,
        next_used: fields.u16(queue_field::NEXT_USED)?,
    };
    if state.max_size > MAX_QUEUE_SIZE {
        return Err(FieldError::Invalid {
            number: queue_field::MAX_SIZE,
            value: state.max_size.into(),
        }
        .into());
    }
    Queue::try_from(state).map_err(|error| invalid(format!("queue: {error}")))
}
