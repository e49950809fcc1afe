//! The local APIC of machine model 1: xAPIC registers in memory, no x2APIC, no TSC deadline (Intel
//! SDM volume 3, chapter 11).
//!
//! A pure model for backends whose hypervisor brings none: it holds no lock and knows no clock. Times are
//! given to it, in ticks of the guest's TSC; what it wants done outside is returned as an [`Effect`].

mod message;
mod timer;

pub use message::{Destination, Message};
pub use timer::Timer;

use super::LAPIC_PAGE_BYTES;
use super::lapic_register as reg;

/// Software enable, in the spurious vector register.
const ENABLED: u32 = 1 << 8;
/// Masked, in a local vector table entry.
const MASKED: u32 = 1 << 16;
/// Version 0x14, six local vectors.
const VERSION: u32 = 0x0005_0014;

/// 256 bits, one per vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Vectors([u32; 8]);

impl Vectors {
    fn set(&mut self, v: u8) {
        self.0[usize::from(v >> 5)] |= 1 << (v & 31);
    }
    fn clear(&mut self, v: u8) {
        self.0[usize::from(v >> 5)] &= !(1 << (v & 31));
    }
    fn has(&self, v: u8) -> bool {
        self.0[usize::from(v >> 5)] >> (v & 31) & 1 != 0
    }
    #[inline]
    fn highest(&self) -> Option<u8> {
        (0..8u8).rev().find_map(|i| {
            let w = self.0[usize::from(i)];
            (w != 0).then(|| i * 32 + 31 - w.leading_zeros() as u8)
        })
    }
}

/// The registers of one local APIC.
#[derive(Clone, Debug)]
pub struct Lapic {
    id: u8,
    tpr: u8,
    ldr: u32,
    dfr: u32,
    spurious: u32,
    error: u32,
    icr: [u32; 2],
    /// Timer, thermal, performance, LINT0, LINT1, error.
    lvt: [u32; 6],
    /// Its timer.
    pub timer: Timer,
    isr: Vectors,
    irr: Vectors,
    tmr: Vectors,
}

/// What a register write asks of the outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// A level-triggered interrupt ended.
    EndOfLevel(u8),
    /// An interprocessor interrupt is to be sent.
    Send(Message, Destination),
}

impl Lapic {
    /// The APIC of this id after a reset: disabled.
    pub fn new(id: u8) -> Self {
        Lapic {
            id,
            tpr: 0,
            ldr: 0,
            dfr: u32::MAX,
            spurious: 0xff,
            error: 0,
            icr: [0; 2],
            lvt: [MASKED; 6],
            timer: Timer::default(),
            isr: Vectors::default(),
            irr: Vectors::default(),
            tmr: Vectors::default(),
        }
    }

    /// How interrupts find this APIC: id, logical id, flat model.
    pub fn address(&self) -> (u8, u8, bool) {
        (self.id, (self.ldr >> 24) as u8, self.dfr >> 28 == 0xf)
    }

    /// The task priority register.
    pub fn task_priority(&self) -> u8 {
        self.tpr
    }

    /// Sets the task priority register, as writes of CR8 do.
    pub fn set_task_priority(&mut self, v: u8) {
        self.tpr = v;
    }

    #[inline]
    fn processor_priority(&self) -> u8 {
        let service = self.isr.highest().unwrap_or(0) & 0xf0;
        if self.tpr & 0xf0 >= service {
            self.tpr
        } else {
            service
        }
    }

    /// Requests an interrupt.
    pub fn request(&mut self, vector: u8, level: bool) {
        if self.spurious & ENABLED == 0 || vector < 16 {
            return;
        }
        self.irr.set(vector);
        if level {
            self.tmr.set(vector);
        } else {
            self.tmr.clear(vector);
        }
    }

    /// The interrupt that would be delivered now.
    #[inline]
    pub fn deliverable(&self) -> Option<u8> {
        let v = self.irr.highest()?;
        (v & 0xf0 > self.processor_priority() & 0xf0).then_some(v)
    }

    /// Takes the interrupt for delivery.
    pub fn acknowledge(&mut self) -> Option<u8> {
        let v = self.deliverable()?;
        self.irr.clear(v);
        self.isr.set(v);
        Some(v)
    }

    /// The timer ran out: requests its interrupt unless masked.
    pub fn timer_fired(&mut self) {
        let entry = self.lvt[0];
        if entry & MASKED == 0 {
            self.request(entry as u8, false);
        }
    }

    fn lvt_index(offset: usize) -> Option<usize> {
        match offset {
            reg::LVT_TIMER => Some(0),
            reg::LVT_THERMAL => Some(1),
            reg::LVT_PERFORMANCE => Some(2),
            reg::LVT_LINT0 => Some(3),
            reg::LVT_LINT1 => Some(4),
            reg::LVT_ERROR => Some(5),
            _ => None,
        }
    }

    /// Reads a register; `now` is the time in ticks of the TSC.
    pub fn read(&self, offset: usize, now: u64) -> u32 {
        if let Some(i) = Self::lvt_index(offset) {
            return self.lvt[i];
        }
        let bank = |v: &Vectors, base: usize| v.0[(offset - base) / 16];
        match offset {
            reg::ID => u32::from(self.id) << 24,
            reg::VERSION => VERSION,
            reg::TASK_PRIORITY => self.tpr.into(),
            reg::PROCESSOR_PRIORITY | reg::ARBITRATION_PRIORITY => self.processor_priority().into(),
            reg::LOGICAL_DESTINATION => self.ldr,
            reg::DESTINATION_FORMAT => self.dfr,
            reg::SPURIOUS => self.spurious,
            0x100..0x180 => bank(&self.isr, reg::IN_SERVICE),
            0x180..0x200 => bank(&self.tmr, reg::TRIGGER_MODE),
            0x200..0x280 => bank(&self.irr, reg::INTERRUPT_REQUEST),
            reg::ERROR_STATUS => self.error,
            reg::INTERRUPT_COMMAND_LOW => self.icr[0],
            reg::INTERRUPT_COMMAND_HIGH => self.icr[1],
            reg::TIMER_INITIAL_COUNT => self.timer.initial(),
            reg::TIMER_CURRENT_COUNT => self.timer.current(now),
            reg::TIMER_DIVIDE => self.timer.divide(),
            _ => 0,
        }
    }

    /// Writes a register; `now` is the time in ticks of the TSC.
    pub fn write(&mut self, offset: usize, v: u32, now: u64) -> Effect {
        if let Some(i) = Self::lvt_index(offset) {
            self.write_lvt(i, v);
            if i == 0 {
                self.timer.set_mode(v >> 17 & 1 != 0, now);
            }
            return Effect::None;
        }
        match offset {
            reg::TASK_PRIORITY => self.tpr = v as u8,
            reg::END_OF_INTERRUPT => return self.end_of_interrupt(),
            reg::LOGICAL_DESTINATION => self.ldr = v & 0xff00_0000,
            reg::DESTINATION_FORMAT => self.dfr = v | 0x0fff_ffff,
            reg::SPURIOUS => {
                self.spurious = v & 0x1ff;
                if v & ENABLED == 0 {
                    for e in &mut self.lvt {
                        *e |= MASKED;
                    }
                }
            }
            reg::ERROR_STATUS => self.error = 0,
            reg::INTERRUPT_COMMAND_HIGH => self.icr[1] = v & 0xff00_0000,
            reg::INTERRUPT_COMMAND_LOW => {
                // Sent at once: delivery status is never pending.
                self.icr[0] = v & !(1 << 12);
                return self.command();
            }
            reg::TIMER_INITIAL_COUNT => self.timer.start(v, now),
            reg::TIMER_DIVIDE => self.timer.set_divide(v, now),
            _ => {}
        }
        Effect::None
    }

    fn write_lvt(&mut self, i: usize, v: u32) {
        // Vector, delivery mode, polarity, trigger, mask; the timer has a mode instead.
        let bits = match i {
            0 => 0x3_00ff,
            3 | 4 => 0x1_a7ff,
            _ => 0x1_07ff,
        };
        let forced = if self.spurious & ENABLED == 0 {
            MASKED
        } else {
            0
        };
        self.lvt[i] = v & bits | forced;
    }

    fn end_of_interrupt(&mut self) -> Effect {
        let Some(v) = self.isr.highest() else {
            return Effect::None;
        };
        self.isr.clear(v);
        if self.tmr.has(v) {
            return Effect::EndOfLevel(v);
        }
        Effect::None
    }

    fn command(&self) -> Effect {
        let low = self.icr[0];
        let Some(message) = Message::new((low >> 8 & 7) as u8, low as u8, low >> 15 & 1 != 0)
        else {
            return Effect::None;
        };
        // INIT level de-assert does nothing on current processors.
        if message == Message::Init && low >> 14 & 1 == 0 {
            return Effect::None;
        }
        let to = match low >> 18 & 3 {
            0 => Destination::Of {
                id: (self.icr[1] >> 24) as u8,
                logical: low >> 11 & 1 != 0,
            },
            1 => Destination::Itself,
            2 => Destination::All,
            _ => Destination::Others,
        };
        Effect::Send(message, to)
    }

    /// Writes the registers to their places in the page.
    pub fn save(&self, page: &mut [u8; LAPIC_PAGE_BYTES], now: u64) {
        for offset in (0..LAPIC_PAGE_BYTES).step_by(16) {
            let v = self.read(offset, now);
            page[offset..offset + 4].copy_from_slice(&v.to_le_bytes());
        }
    }

    /// Reads the registers from a page. Every value is one that a guest could have written.
    pub fn load(&mut self, page: &[u8; LAPIC_PAGE_BYTES], now: u64) {
        let get = |offset: usize| {
            let mut b = [0; 4];
            b.copy_from_slice(&page[offset..offset + 4]);
            u32::from_le_bytes(b)
        };
        let bank = |base: usize| Vectors(std::array::from_fn(|i| get(base + 16 * i)));
        self.tpr = get(reg::TASK_PRIORITY) as u8;
        self.ldr = get(reg::LOGICAL_DESTINATION) & 0xff00_0000;
        self.dfr = get(reg::DESTINATION_FORMAT) | 0x0fff_ffff;
        self.spurious = get(reg::SPURIOUS) & 0x1ff;
        self.error = get(reg::ERROR_STATUS);
        self.icr = [
            get(reg::INTERRUPT_COMMAND_LOW) & !(1 << 12),
            get(reg::INTERRUPT_COMMAND_HIGH) & 0xff00_0000,
        ];
        for (i, offset) in reg::LOCAL_VECTORS.into_iter().enumerate() {
            self.write_lvt(i, get(offset));
        }
        self.isr = bank(reg::IN_SERVICE);
        self.tmr = bank(reg::TRIGGER_MODE);
        self.irr = bank(reg::INTERRUPT_REQUEST);
        self.timer.load(
            self.lvt[0] >> 17 & 1 != 0,
            get(reg::TIMER_DIVIDE),
            get(reg::TIMER_INITIAL_COUNT),
            get(reg::TIMER_CURRENT_COUNT),
            now,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enabled() -> Lapic {
        let mut l = Lapic::new(3);
        l.write(reg::SPURIOUS, 0x1ff, 0);
        l
    }

    #[test]
    fn priorities_nest() {
        let mut l = enabled();
        l.request(0x31, false);
        l.request(0x52, true);
        assert_eq!(l.acknowledge(), Some(0x52));
        assert_eq!(l.acknowledge(), None, "0x31 waits for the end of 0x52");
        assert_eq!(
            l.write(reg::END_OF_INTERRUPT, 0, 0),
            Effect::EndOfLevel(0x52)
        );
        assert_eq!(l.acknowledge(), Some(0x31));
        assert_eq!(l.write(reg::END_OF_INTERRUPT, 0, 0), Effect::None);
        l.set_task_priority(0x60);
        l.request(0x61, false);
        assert_eq!(l.deliverable(), None);
        l.set_task_priority(0x50);
        assert_eq!(l.deliverable(), Some(0x61));
    }

    #[test]
    fn a_disabled_apic_takes_nothing() {
        let mut l = Lapic::new(0);
        l.request(0x80, false);
        assert_eq!(l.deliverable(), None);
        l.write(reg::LVT_TIMER, 0x40, 0);
        assert_eq!(l.read(reg::LVT_TIMER, 0), 0x40 | MASKED);
    }

    #[test]
    fn saved_registers_come_back() {
        let mut l = enabled();
        l.write(reg::LVT_TIMER, 0x2_00ec, 10);
        l.write(reg::TIMER_DIVIDE, 0b1011, 10);
        l.write(reg::TIMER_INITIAL_COUNT, 1000, 10);
        l.request(0x44, false);
        l.acknowledge();
        l.request(0x33, true);
        let mut page = [0; LAPIC_PAGE_BYTES];
        l.save(&mut page, 110);
        let mut m = Lapic::new(3);
        m.load(&page, 5000);
        let mut again = [0; LAPIC_PAGE_BYTES];
        m.save(&mut again, 5000);
        assert!(page == again);
        assert_eq!(m.deliverable(), None);
        assert_eq!(m.timer.deadline(), Some(5900));
    }
}
