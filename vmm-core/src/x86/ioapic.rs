//! A 24-pin IOAPIC (Intel 82093AA; Intel ICH datasheets for the EOI register's absence).
//!
//! It turns device lines into message-signalled interrupts. A write of a redirection entry that
//! unmasks a level-triggered line which is still asserted delivers it again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use snapshot_format::StateRecord;
use snapshot_format::fields::{FieldReader, FieldWriter};

use crate::bus::BusDevice;
use crate::hypervisor::{HypervisorError, Vm};
use crate::irq::{Gsi, IrqLine, MsiMessage};
use crate::unit::{StateUnit, UnitError, expect_record};
use crate::warn_limit::WarnLimit;

/// Number of inputs.
pub const IOAPIC_PINS: usize = 24;

const REGISTER_SELECT: u64 = 0x00;
const REGISTER_WINDOW: u64 = 0x10;
const INDEX_ID: u8 = 0x00;
const INDEX_VERSION: u8 = 0x01;
const INDEX_ARBITRATION: u8 = 0x02;
const INDEX_REDIRECTION: u8 = 0x10;

/// Version 0x11, 24 redirection entries.
const VERSION: u32 = 0x11 | (IOAPIC_PINS as u32 - 1) << 16;

const ENTRY_MASKED: u64 = 1 << 16;
const ENTRY_LEVEL: u64 = 1 << 15;
const ENTRY_REMOTE_IRR: u64 = 1 << 14;
const ENTRY_DELIVERY_STATUS: u64 = 1 << 12;
const ENTRY_READ_ONLY: u64 = ENTRY_REMOTE_IRR | ENTRY_DELIVERY_STATUS;

const KIND: &str = "ioapic";
const STATE_VERSION: u32 = 1;

/// The machine's IOAPIC.
pub struct Ioapic {
    vm: Arc<dyn Vm>,
    registers: Mutex<Registers>,
    warnings: WarnLimit,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Registers {
    id: u32,
    select: u8,
    redirection: [u64; IOAPIC_PINS],
    /// Lines that are asserted, one bit per pin.
    asserted: u32,
}

impl Ioapic {
    /// An IOAPIC after reset, delivering into `vm`.
    pub fn new(vm: Arc<dyn Vm>) -> Arc<Self> {
        let registers = Registers {
            id: 0,
            select: 0,
            redirection: [ENTRY_MASKED; IOAPIC_PINS],
            asserted: 0,
        };
        Arc::new(Self {
            vm,
            registers: Mutex::new(registers),
            warnings: WarnLimit::default(),
        })
    }

    /// The line of one input; `None` where there is no such input.
    pub fn line(self: &Arc<Self>, gsi: Gsi) -> Option<Arc<dyn IrqLine>> {
        let pin = usize::try_from(gsi.0)
            .ok()
            .filter(|pin| *pin < IOAPIC_PINS)?;
        Some(Arc::new(Pin {
            ioapic: self.clone(),
            pin,
        }))
    }

    /// Sets a line's level.
    pub fn set_level(&self, pin: usize, asserted: bool) {
        let mut registers = self.lock();
        let bit = 1_u32 << pin;
        let was_asserted = registers.asserted & bit != 0;
        if asserted {
            registers.asserted |= bit;
        } else {
            registers.asserted &= !bit;
        }
        if asserted && !was_asserted {
            self.service(&mut registers, pin);
        }
    }

    /// Signals one edge of a line. Up and down are one step: a pulse of another thread while the
    /// line is up would be no edge, and its interrupt lost.
    fn pulse(&self, pin: usize) {
        let mut registers = self.lock();
        self.service(&mut registers, pin);
    }

    /// A local APIC ended interrupt `vector`.
    pub fn end_of_interrupt(&self, vector: u8) {
        let mut registers = self.lock();
        for pin in 0..IOAPIC_PINS {
            let entry = registers.redirection[pin];
            if entry & 0xff == u64::from(vector) && entry & ENTRY_LEVEL != 0 {
                registers.redirection[pin] &= !ENTRY_REMOTE_IRR;
                if registers.asserted >> pin & 1 == 1 {
                    self.service(&mut registers, pin);
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Registers> {
        self.registers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn service(&self, registers: &mut Registers, pin: usize) {
        let entry = &mut registers.redirection[pin];
        if *entry & (ENTRY_MASKED | ENTRY_REMOTE_IRR) != 0 {
            return;
        }
        if *entry & ENTRY_LEVEL != 0 {
            *entry |= ENTRY_REMOTE_IRR;
        }
        let message = message_of(*entry);
        if let Some(msi) = self.vm.msi()
            && let Err(error) = msi.deliver(message)
        {
            self.warn(&error, "interrupt not delivered");
        }
    }

    /// The guest writes the entries, so it may cause what is told here at any rate.
    fn warn(&self, error: &HypervisorError, what: &'static str) {
        if let Some(left_out) = self.warnings.admit() {
            tracing::warn!(%error, left_out, "{what}");
        }
    }

    fn write_entry(&self, registers: &mut Registers, index: u8, value: u32) {
        let pin = usize::from(index - INDEX_REDIRECTION) / 2;
        let entry = &mut registers.redirection[pin];
        let shift = 32 * u64::from(index & 1);
        let kept = *entry & ENTRY_READ_ONLY;
        *entry = *entry & !(0xffff_ffff << shift) | u64::from(value) << shift;
        *entry = *entry & !ENTRY_READ_ONLY | kept;
        if *entry & ENTRY_LEVEL == 0 {
            *entry &= !ENTRY_REMOTE_IRR;
        }
        let level = *entry & ENTRY_LEVEL != 0;
        self.announce_level_messages(registers);
        if level && registers.asserted >> pin & 1 == 1 {
            self.service(registers, pin);
        }
    }

    fn announce_level_messages(&self, registers: &Registers) {
        let messages = registers.redirection.map(|entry| {
            (entry & ENTRY_LEVEL != 0 && entry & ENTRY_MASKED == 0).then(|| message_of(entry))
        });
        if let Some(msi) = self.vm.msi()
            && let Err(error) = msi.watch_level_messages(&messages)
        {
            self.warn(
                &error,
                "ends of level-triggered interrupts are not reported",
            );
        }
    }

    fn read_register(registers: &Registers) -> u32 {
        match registers.select {
            INDEX_ID | INDEX_ARBITRATION => registers.id,
            INDEX_VERSION => VERSION,
            index => redirection_pin(index).map_or(0, |pin| {
                (registers.redirection[pin] >> (32 * u64::from(index & 1))) as u32
            }),
        }
    }
}

fn redirection_pin(index: u8) -> Option<usize> {
    let pin = usize::from(index.checked_sub(INDEX_REDIRECTION)?) / 2;
    (pin < IOAPIC_PINS).then_some(pin)
}

/// The message that a redirection entry stands for: destination, mode, vector and trigger are where
/// an MSI has them (Intel SDM volume 3, 10.11).
fn message_of(entry: u64) -> MsiMessage {
    let destination = entry >> 56;
    let logical = entry >> 11 & 1;
    let delivery_and_vector = entry & 0x7ff;
    let level = if entry & ENTRY_LEVEL != 0 {
        1 << 15 | 1 << 14
    } else {
        0
    };
    MsiMessage {
        address: 0xfee0_0000 | destination << 12 | logical << 2,
        data: (delivery_and_vector | level) as u32,
    }
}

impl BusDevice for Ioapic {
    fn read(&self, offset: u64, data: &mut [u8]) {
        let registers = self.lock();
        let value = match offset {
            REGISTER_SELECT => u32::from(registers.select),
            REGISTER_WINDOW => Self::read_register(&registers),
            _ => 0,
        };
        data.fill(0);
        let bytes = value.to_le_bytes();
        let length = data.len().min(bytes.len());
        data[..length].copy_from_slice(&bytes[..length]);
    }

    fn write(&self, offset: u64, data: &[u8]) {
        let mut raw = [0; 4];
        let length = data.len().min(raw.len());
        raw[..length].copy_from_slice(&data[..length]);
        let value = u32::from_le_bytes(raw);
        let mut registers = self.lock();
        match offset {
            REGISTER_SELECT => registers.select = raw[0],
            REGISTER_WINDOW => match registers.select {
                INDEX_ID => registers.id = value & 0x0f00_0000,
                index if redirection_pin(index).is_some() => {
                    self.write_entry(&mut registers, index, value);
                }
                _ => {}
            },
            _ => {}
        }
    }
}

impl StateUnit for Ioapic {
    fn unit(&self) -> String {
        "ioapic".to_owned()
    }

    fn save(&self) -> Result<StateRecord, UnitError> {
        let registers = self.lock();
        let mut writer = FieldWriter::new();
        writer
            .u32(1, registers.id)
            .u32(2, registers.select.into())
            .u32(3, registers.asserted);
        for entry in registers.redirection {
            writer.bytes(4, &entry.to_le_bytes());
        }
        Ok(StateRecord::new(
            &self.unit(),
            KIND,
            STATE_VERSION,
            writer.finish(),
        ))
    }

    fn restore(&self, record: &StateRecord) -> Result<(), UnitError> {
        expect_record(record, &self.unit(), KIND, STATE_VERSION)?;
        let decoded = decode(&record.bytes)
            .map_err(|source| UnitError::Fields {
                unit: self.unit(),
                source,
            })?
            .ok_or_else(|| UnitError::Invalid {
                unit: self.unit(),
                what: format!("not {IOAPIC_PINS} redirection entries"),
            })?;
        let mut registers = self.lock();
        *registers = decoded;
        self.announce_level_messages(&registers);
        Ok(())
    }
}

fn decode(bytes: &[u8]) -> Result<Option<Registers>, snapshot_format::FieldError> {
    let fields = FieldReader::parse(bytes)?;
    let entries: Vec<u64> = fields
        .all(4)
        .filter_map(|entry| entry.try_into().ok())
        .map(u64::from_le_bytes)
        .collect();
    let Ok(redirection) = entries.try_into() else {
        return Ok(None);
    };
    let asserted = fields.u32(3)? & ((1 << IOAPIC_PINS) - 1);
    Ok(Some(Registers {
        id: fields.u32(1)?,
        select: fields.u8(2)?,
        redirection,
        asserted,
    }))
}

struct Pin {
    ioapic: Arc<Ioapic>,
    pin: usize,
}

impl IrqLine for Pin {
    fn pulse(&self) {
        self.ioapic.pulse(self.pin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::irq::MsiSink;
    use crate::warn_limit::testing::assert_limited;

    #[derive(Default)]
    struct Sink(Mutex<Vec<MsiMessage>>);

    impl MsiSink for Sink {
        fn deliver(&self, message: MsiMessage) -> Result<(), HypervisorError> {
            self.0.lock().unwrap().push(message);
            Ok(())
        }

        fn watch_level_messages(&self, _: &[Option<MsiMessage>]) -> Result<(), HypervisorError> {
            Ok(())
        }
    }

    impl Vm for Sink {
        fn msi(&self) -> Option<&dyn MsiSink> {
            Some(self)
        }
    }

    fn write(ioapic: &Ioapic, index: u8, value: u32) {
        ioapic.write(REGISTER_SELECT, &[index]);
        ioapic.write(REGISTER_WINDOW, &value.to_le_bytes());
    }

    fn ioapic() -> (Arc<Sink>, Arc<Ioapic>) {
        let sink = Arc::new(Sink::default());
        (sink.clone(), Ioapic::new(sink))
    }

    #[test]
    fn an_edge_becomes_one_message_with_vector_and_destination() {
        let (sink, ioapic) = ioapic();
        let line = ioapic.line(Gsi(5)).unwrap();
        line.pulse();
        assert!(sink.0.lock().unwrap().is_empty(), "masked after reset");
        write(&ioapic, 0x10 + 11, 2 << 24);
        write(&ioapic, 0x10 + 10, 0x31);
        line.pulse();
        line.pulse();
        let message = MsiMessage {
            address: 0xfee0_2000,
            data: 0x31,
        };
        assert_eq!(*sink.0.lock().unwrap(), [message, message]);
        assert!(ioapic.line(Gsi(24)).is_none());
    }

    struct Broken;

    impl MsiSink for Broken {
        fn deliver(&self, _: MsiMessage) -> Result<(), HypervisorError> {
            Err(broken())
        }

        fn watch_level_messages(&self, _: &[Option<MsiMessage>]) -> Result<(), HypervisorError> {
            Err(broken())
        }
    }

    impl Vm for Broken {
        fn msi(&self) -> Option<&dyn MsiSink> {
            Some(self)
        }
    }

    fn broken() -> HypervisorError {
        HypervisorError::Host {
            operation: "delivering an interrupt",
            source: std::io::Error::other("no such destination"),
        }
    }

    #[test]
    fn a_guest_whose_interrupts_fail_does_not_fill_the_log() {
        let ioapic = Ioapic::new(Arc::new(Broken));
        let line = ioapic.line(Gsi(5)).unwrap();
        assert_limited(|| {
            write(&ioapic, 0x10 + 10, 0x31);
            line.pulse();
        });
    }

    #[test]
    fn every_pulse_of_parallel_workers_becomes_a_message() {
        const PULSES: usize = 5_000;
        let (sink, ioapic) = ioapic();
        write(&ioapic, 0x10 + 10, 0x31);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let line = ioapic.line(Gsi(5)).unwrap();
                scope.spawn(move || (0..PULSES).for_each(|_| line.pulse()));
            }
        });
        assert_eq!(sink.0.lock().unwrap().len(), 4 * PULSES);
    }

    #[test]
    fn a_level_interrupt_repeats_after_its_end_while_the_line_is_up() {
        let (sink, ioapic) = ioapic();
        write(&ioapic, 0x10 + 18, 0x8041);
        ioapic.set_level(9, true);
        ioapic.set_level(9, false);
        ioapic.set_level(9, true);
        assert_eq!(
            sink.0.lock().unwrap().len(),
            1,
            "held back until the end of interrupt"
        );
        ioapic.end_of_interrupt(0x41);
        assert_eq!(sink.0.lock().unwrap().len(), 2);
        ioapic.set_level(9, false);
        ioapic.end_of_interrupt(0x41);
        assert_eq!(sink.0.lock().unwrap().len(), 2);
    }

    #[test]
    fn state_comes_back() {
        let (_, ioapic) = ioapic();
        write(&ioapic, 0x10 + 10, 0x31);
        let saved = ioapic.save().unwrap();
        write(&ioapic, 0x10 + 10, 0x77);
        write(&ioapic, INDEX_ID, 0x0300_0000);
        let changed = ioapic.save().unwrap();
        assert_ne!(saved, changed);
        ioapic.restore(&saved).unwrap();
        assert_eq!(ioapic.save().unwrap(), saved);
        let short = StateRecord::new("ioapic", KIND, 1, vec![]);
        assert!(matches!(
            ioapic.restore(&short),
            Err(UnitError::Invalid { .. })
        ));
    }
}
