//! Power-off and reset: the sleep and reset registers of ACPI's hardware-reduced model.

use std::sync::Arc;

use crate::bus::BusDevice;

/// First I/O port of the register block.
pub const POWER_PORT: u64 = 0x600;
/// Number of registers.
pub const POWER_PORT_BYTES: u64 = 3;
/// Port of the sleep control register (`SLEEP_CONTROL_REG` of the FADT).
pub const SLEEP_CONTROL_PORT: u64 = POWER_PORT;
/// Port of the sleep status register (`SLEEP_STATUS_REG` of the FADT).
pub const SLEEP_STATUS_PORT: u64 = POWER_PORT + 1;
/// Port of the reset register (`RESET_REG` of the FADT).
pub const RESET_PORT: u64 = POWER_PORT + 2;
/// What resets the machine when written to [`RESET_PORT`] (`RESET_VALUE` of the FADT).
pub const RESET_VALUE: u8 = 1;
/// The sleep type of power-off: the `_S5` object's first element.
pub const SLEEP_TYPE_OFF: u8 = 5;

/// Sleep control: enter the sleep state now (ACPI 6.5, 4.8.3.7).
const SLEEP_ENABLE: u8 = 1 << 5;
/// Sleep control: position of the three-bit sleep type.
const SLEEP_TYPE_SHIFT: u32 = 2;

/// What a guest asked for, or what became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PowerEvent {
    /// The guest switched itself off.
    PowerOff,
    /// The guest asked to be reset.
    Reset,
    /// A vCPU shut down without being asked (triple fault).
    Crash,
}

/// The registers. They hold no state: a write takes effect at once.
pub struct PowerControl {
    on_event: Arc<dyn Fn(PowerEvent) + Send + Sync>,
}

impl PowerControl {
    /// Registers that report to `on_event`, on the thread of the vCPU that wrote; it must not wait
    /// for vCPUs to stop.
    pub fn new(on_event: Arc<dyn Fn(PowerEvent) + Send + Sync>) -> Self {
        Self { on_event }
    }
}

impl BusDevice for PowerControl {
    fn read(&self, _offset: u64, data: &mut [u8]) {
        // The wake status bit is never set: the machine does not sleep.
        data.fill(0);
    }

    fn write(&self, offset: u64, data: &[u8]) {
        let [value] = *data else {
            return;
        };
        match POWER_PORT + offset {
            SLEEP_CONTROL_PORT if value == SLEEP_ENABLE | SLEEP_TYPE_OFF << SLEEP_TYPE_SHIFT => {
                (self.on_event)(PowerEvent::PowerOff);
            }
            RESET_PORT if value == RESET_VALUE => (self.on_event)(PowerEvent::Reset),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn only_the_documented_writes_report() {
        let events = Arc::new(Mutex::new(Vec::new()));
        let sink = events.clone();
        let power = PowerControl::new(Arc::new(move |event| sink.lock().unwrap().push(event)));
        for value in (0..=u8::MAX).rev() {
            for offset in 0..4 {
                power.write(offset, &[value]);
            }
            power.write(0, &[value, 0]);
        }
        assert_eq!(
            *events.lock().unwrap(),
            [PowerEvent::PowerOff, PowerEvent::Reset],
            "off is 0x34 at +0, reset is 1 at +2"
        );
        let mut status = [0xaa];
        power.read(1, &mut status);
        assert_eq!(status, [0]);
    }
}
