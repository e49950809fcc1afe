//! The serial port: a 16550A at port 0x3f8, GSI 4.

mod output;

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use snapshot_format::StateRecord;
use snapshot_format::fields::{FieldError, FieldReader, FieldWriter};

use self::output::{Output, Overflow};
use crate::bus::BusDevice;
use crate::irq::{Gsi, IrqLine};
use crate::unit::{StateUnit, UnitError, expect_record};

/// First I/O port of the register block.
pub const SERIAL_PORT: u64 = 0x3f8;
/// Number of registers.
pub const SERIAL_PORT_BYTES: u64 = 8;
/// The interrupt.
pub const SERIAL_GSI: Gsi = Gsi(4);
/// Most input bytes that wait for the guest; what comes in addition is refused.
pub const SERIAL_INPUT_BYTES: usize = 1024;

/// Name of the saved state, and its kind.
const UNIT: &str = "serial0";
const KIND: &str = "uart16550";
/// Version of the records written here.
const VERSION: u32 = 1;

/// Interrupt enable: received data.
const IER_RECEIVED: u8 = 0x01;
/// Interrupt enable: transmitter empty.
const IER_TRANSMIT: u8 = 0x02;
/// Interrupt enable: the bits that exist.
const IER_BITS: u8 = 0x0f;
/// Interrupt identification: nothing pending.
const IIR_NONE: u8 = 0x01;
/// Interrupt identification: transmitter empty.
const IIR_TRANSMIT: u8 = 0x02;
/// Interrupt identification: received data.
const IIR_RECEIVED: u8 = 0x04;
/// Interrupt identification: FIFOs are on.
const IIR_FIFO: u8 = 0xc0;
/// FIFO control: FIFOs on.
const FCR_ENABLE: u8 = 0x01;
/// FIFO control: drop what was received.
const FCR_CLEAR_RECEIVED: u8 = 0x02;
/// Line control: the first two registers are the divisor.
const LCR_DIVISOR: u8 = 0x80;
/// Line status: data received.
const LSR_RECEIVED: u8 = 0x01;
/// Line status: transmitter empty and idle, always.
const LSR_TRANSMIT_EMPTY: u8 = 0x60;
/// Modem control: output 2, which gates the interrupt on a PC.
const MCR_OUT2: u8 = 0x08;
/// Modem control: loop back.
const MCR_LOOP: u8 = 0x10;
/// Modem control: the bits that exist.
const MCR_BITS: u8 = 0x1f;
/// Modem status without loop-back: carrier, data set ready, clear to send.
const MSR_CONNECTED: u8 = 0xb0;

/// A 16550A serial port.
///
/// Output goes to a thread that writes it to the owner's sink; a sink that does not keep up loses
/// output (the loss is noted in it) rather than hold a vCPU up. Output under way is not state of the
/// guest and not saved; [`flush`](Self::flush) waits for it.
pub struct Serial {
    registers: Mutex<Registers>,
    irq: Arc<dyn IrqLine>,
    output: Output,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Registers {
    interrupt_enable: u8,
    fifo_on: bool,
    line_control: u8,
    modem_control: u8,
    scratch: u8,
    divisor: u16,
    /// The transmitter became empty and the driver was not told yet.
    transmit_pending: bool,
    received: VecDeque<u8>,
    /// Level of the interrupt output, to find its rising edges.
    line: bool,
}

impl Serial {
    /// A serial port that writes to `sink`.
    pub fn new(sink: Box<dyn Write + Send>, irq: Arc<dyn IrqLine>) -> io::Result<Self> {
        Self::with_overflow(sink, irq, Overflow::Lost)
    }

    /// A serial port that loses nothing: the vCPU waits for a sink that does not keep up. For
    /// machines in which waiting is not seen by the guest.
    pub fn lossless(sink: Box<dyn Write + Send>, irq: Arc<dyn IrqLine>) -> io::Result<Self> {
        Self::with_overflow(sink, irq, Overflow::Waits)
    }

    fn with_overflow(
        sink: Box<dyn Write + Send>,
        irq: Arc<dyn IrqLine>,
        overflow: Overflow,
    ) -> io::Result<Self> {
        Ok(Self {
            registers: Mutex::new(Registers {
                // 9600 baud, as after a reset by firmware.
                divisor: 12,
                ..Registers::default()
            }),
            irq,
            output: Output::new(sink, overflow)?,
        })
    }

    /// Gives input to the guest; returns how many bytes were taken.
    pub fn inject(&self, data: &[u8]) -> usize {
        let mut registers = self.lock();
        let taken = data
            .len()
            .min(SERIAL_INPUT_BYTES.saturating_sub(registers.received.len()));
        registers.received.extend(&data[..taken]);
        self.update_line(&mut registers);
        taken
    }

    /// Waits until all output so far was given to the sink.
    pub fn flush(&self) {
        self.output.flush();
    }

    fn lock(&self) -> MutexGuard<'_, Registers> {
        self.registers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Signals a rising edge of the interrupt output.
    fn update_line(&self, registers: &mut Registers) {
        let enabled = registers.modem_control & (MCR_OUT2 | MCR_LOOP) == MCR_OUT2;
        let line = enabled && registers.pending() != IIR_NONE;
        if line && !registers.line {
            self.irq.pulse();
        }
        registers.line = line;
    }

    fn transmit(&self, registers: &mut Registers, byte: u8) {
        if registers.modem_control & MCR_LOOP != 0 {
            if registers.received.len() < SERIAL_INPUT_BYTES {
                registers.received.push_back(byte);
            }
        } else {
            self.output.push(byte);
        }
        // Full for no time at all: the interrupt goes down and up again.
        registers.transmit_pending = false;
        self.update_line(registers);
        registers.transmit_pending = true;
    }
}

impl Registers {
    /// The interrupt with the highest priority, as the identification register shows it.
    fn pending(&self) -> u8 {
        if self.interrupt_enable & IER_RECEIVED != 0 && !self.received.is_empty() {
            IIR_RECEIVED
        } else if self.interrupt_enable & IER_TRANSMIT != 0 && self.transmit_pending {
            IIR_TRANSMIT
        } else {
            IIR_NONE
        }
    }

    fn divisor_selected(&self) -> bool {
        self.line_control & LCR_DIVISOR != 0
    }

    fn read(&mut self, offset: u64) -> u8 {
        match offset {
            0 if self.divisor_selected() => self.divisor as u8,
            0 => self.received.pop_front().unwrap_or(0),
            1 if self.divisor_selected() => (self.divisor >> 8) as u8,
            1 => self.interrupt_enable,
            2 => self.read_identification(),
            3 => self.line_control,
            4 => self.modem_control,
            5 => LSR_TRANSMIT_EMPTY | (u8::from(!self.received.is_empty()) * LSR_RECEIVED),
            6 => self.modem_status(),
            7 => self.scratch,
            _ => 0xff,
        }
    }

    fn read_identification(&mut self) -> u8 {
        let pending = self.pending();
        if pending == IIR_TRANSMIT {
            // Reading acknowledges it.
            self.transmit_pending = false;
        }
        pending | if self.fifo_on { IIR_FIFO } else { 0 }
    }

    /// In loop-back mode the modem outputs are wired to the modem inputs.
    fn modem_status(&self) -> u8 {
        if self.modem_control & MCR_LOOP == 0 {
            return MSR_CONNECTED;
        }
        let out = self.modem_control;
        // DTR -> DSR, RTS -> CTS, OUT1 -> RI, OUT2 -> DCD
        (out & 1) << 5 | (out & 2) << 3 | (out & 4) << 4 | (out & 8) << 4
    }

    fn write(&mut self, offset: u64, value: u8) {
        match offset {
            0 => self.divisor = self.divisor & 0xff00 | u16::from(value),
            1 if self.divisor_selected() => {
                self.divisor = self.divisor & 0x00ff | u16::from(value) << 8;
            }
            1 => {
                let enabled = value & IER_BITS & !self.interrupt_enable;
                self.interrupt_enable = value & IER_BITS;
                // The transmitter is empty at any time: switching its interrupt on raises it.
                self.transmit_pending |= enabled & IER_TRANSMIT != 0;
            }
            2 => {
                self.fifo_on = value & FCR_ENABLE != 0;
                if value & FCR_CLEAR_RECEIVED != 0 {
                    self.received.clear();
                }
            }
            3 => self.line_control = value,
            4 => self.modem_control = value & MCR_BITS,
            7 => self.scratch = value,
            _ => {}
        }
    }

    fn restore(fields: &FieldReader<'_>) -> Result<Self, FieldError> {
        let received = fields.bytes(8, SERIAL_INPUT_BYTES)?;
        Ok(Self {
            interrupt_enable: masked(fields, 1, IER_BITS)?,
            fifo_on: fields.bool(2)?,
            line_control: fields.u8(3)?,
            modem_control: masked(fields, 4, MCR_BITS)?,
            scratch: fields.u8(5)?,
            divisor: fields.u16(6)?,
            transmit_pending: fields.bool(7)?,
            received: received.iter().copied().collect(),
            line: fields.bool(9)?,
        })
    }
}

fn masked(fields: &FieldReader<'_>, number: u16, bits: u8) -> Result<u8, FieldError> {
    let value = fields.u8(number)?;
    if value & !bits != 0 {
        return Err(FieldError::Invalid {
            number,
            value: value.into(),
        });
    }
    Ok(value)
}

impl BusDevice for Serial {
    fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0xff);
        let mut registers = self.lock();
        if let [value] = data {
            *value = registers.read(offset);
        }
        self.update_line(&mut registers);
    }

    fn write(&self, offset: u64, data: &[u8]) {
        let [value] = *data else {
            return;
        };
        let mut registers = self.lock();
        if offset == 0 && !registers.divisor_selected() {
            self.transmit(&mut registers, value);
        } else {
            registers.write(offset, value);
        }
        self.update_line(&mut registers);
    }
}

impl StateUnit for Serial {
    fn unit(&self) -> String {
        UNIT.to_owned()
    }

    fn save(&self) -> Result<StateRecord, UnitError> {
        let registers = self.lock();
        let received: Vec<u8> = registers.received.iter().copied().collect();
        let mut writer = FieldWriter::new();
        writer
            .u32(1, registers.interrupt_enable.into())
            .bool(2, registers.fifo_on)
            .u32(3, registers.line_control.into())
            .u32(4, registers.modem_control.into())
            .u32(5, registers.scratch.into())
            .u32(6, registers.divisor.into())
            .bool(7, registers.transmit_pending)
            .bytes(8, &received)
            .bool(9, registers.line);
        Ok(StateRecord::new(UNIT, KIND, VERSION, writer.finish()))
    }

    fn restore(&self, record: &StateRecord) -> Result<(), UnitError> {
        expect_record(record, UNIT, KIND, VERSION)?;
        let restored = FieldReader::parse(&record.bytes)
            .and_then(|fields| Registers::restore(&fields))
            .map_err(|source| UnitError::Fields {
                unit: UNIT.to_owned(),
                source,
            })?;
        *self.lock() = restored;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
