//! The register stack, exception delivery and conversions between registers and numbers.

use super::{C1, DE, ES, IE, PE, SF, ZE};
use crate::fpu::X87;
use crate::fpu::f80::F80;
use crate::fpu::num::Num;
use crate::fpu::round::{Format, Policy, Rounded, Rounding, round};

/// Exponent adjustment when overflow or underflow is unmasked.
const WRAP: i32 = 24576;

/// Result of an operation, before it is delivered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer {
    pub(super) value: F80,
    pub(super) flags: u16,
    pub(super) up: bool,
}

impl Answer {
    /// A result without rounding.
    pub(super) fn exact(value: F80, flags: u16) -> Self {
        Self {
            value,
            flags,
            up: false,
        }
    }

    /// The masked answer to an invalid operation.
    pub(super) fn invalid() -> Self {
        Self::exact(F80::INDEFINITE, IE)
    }
}

/// Number behind a finite, non-zero register value.
#[inline]
pub(super) fn unpack(value: F80) -> Num {
    let exponent = i32::from(value.exponent().max(1)) - 16383 - 63;
    Num::new(value.negative(), exponent, u128::from(value.sig))
}

/// Register value of a rounded number.
#[inline]
pub(super) fn pack(negative: bool, r: Rounded) -> F80 {
    let exponent = if r.infinite {
        0x7fff
    } else if r.significand >> 63 != 0 {
        (r.exponent + 16383) as u16
    } else {
        0
    };
    F80 {
        sig: r.significand,
        se: exponent | u16::from(negative) << 15,
    }
}

impl X87 {
    #[inline]
    fn physical(&self, i: u8) -> usize {
        usize::from((self.top.wrapping_add(i)) & 7)
    }

    /// Whether ST(i) is empty.
    #[inline]
    pub(super) fn is_empty(&self, i: u8) -> bool {
        self.in_use >> self.physical(i) & 1 == 0
    }

    /// Content of ST(i), whether in use or not.
    #[inline]
    pub(super) fn get(&self, i: u8) -> F80 {
        self.regs[self.physical(i)]
    }

    /// Writes ST(i) and marks it as in use.
    #[inline]
    pub(super) fn put(&mut self, i: u8, value: F80) {
        let at = self.physical(i);
        self.regs[at] = value;
        self.in_use |= 1 << at;
    }

    /// Marks ST(i) as empty.
    #[inline]
    pub(super) fn free(&mut self, i: u8) {
        self.in_use &= !(1 << self.physical(i));
    }

    /// Empties ST(0) and moves the stack pointer.
    #[inline]
    pub(super) fn pop(&mut self) {
        self.free(0);
        self.top = (self.top + 1) & 7;
    }

    /// Pushes without looking whether the register is free.
    #[inline]
    pub(super) fn push(&mut self, value: F80) {
        self.top = self.top.wrapping_sub(1) & 7;
        self.put(0, value);
    }

    #[inline]
    pub(super) fn clear_c1(&mut self) {
        self.fsw &= !C1;
    }

    #[inline]
    pub(super) fn set_condition(&mut self, mask: u16, value: u16) {
        self.fsw = (self.fsw & !mask) | value;
    }

    #[inline]
    pub(super) fn rounding(&self) -> Rounding {
        Rounding::from_bits(u32::from(self.fcw >> 10))
    }

    /// Significand bits selected by the precision control.
    #[inline]
    pub(super) fn precision(&self) -> u32 {
        match self.fcw >> 8 & 3 {
            0 => 24,
            2 => 53,
            _ => 64,
        }
    }

    #[inline]
    pub(super) fn policy(&self) -> Policy {
        Policy {
            rounding: self.rounding(),
            unmasked: !self.fcw & 0x3f,
            wrap: WRAP,
            flush_to_zero: false,
        }
    }

    /// Rounds to a register with the given number of significant bits.
    #[inline]
    pub(super) fn rounded(&self, n: Num, precision: u32, flags: u16) -> Answer {
        let r = round(n, Format::extended(precision), self.policy());
        Answer {
            value: pack(n.negative, r),
            flags: flags | r.flags,
            up: r.up,
        }
    }

    /// Sets status flags. False if an unmasked invalid, denormal or zero-divide exception forbids
    /// the result (then later flags are not set either).
    #[inline]
    pub(super) fn raise(&mut self, flags: u16) -> bool {
        if flags == 0 {
            return true;
        }
        let before = flags & (IE | DE | ZE);
        let blocked = before & !self.fcw != 0;
        self.fsw |= if blocked { before } else { flags };
        if self.fsw & !self.fcw & 0x3f != 0 {
            self.fsw |= ES | super::BUSY;
        }
        !blocked
    }

    /// Stack underflow (C1 = 0) or overflow (C1 = 1). True if masked.
    pub(super) fn stack_fault(&mut self, overflow: bool) -> bool {
        self.set_condition(C1, if overflow { C1 } else { 0 });
        self.fsw |= SF;
        self.raise(IE)
    }

    /// Whether ST(0) is there and one more value has room. If not, that is an underflow or an overflow,
    /// and where it is masked both values become indefinite.
    pub(super) fn has_one_and_room(&mut self) -> bool {
        let empty = self.is_empty(0);
        if !empty && self.is_empty(7) {
            return true;
        }
        if self.stack_fault(!empty) {
            self.put(0, F80::INDEFINITE);
            self.push(F80::INDEFINITE);
        }
        false
    }

    /// Delivers flags and C1 of an answer. True if it is to be written.
    #[inline]
    pub(super) fn deliver(&mut self, answer: &Answer) -> bool {
        let ok = self.raise(answer.flags);
        if ok && answer.up && answer.flags & PE != 0 {
            self.fsw |= C1;
        }
        ok
    }

    /// Pushes a loaded operand: an unmasked denormal exception does not forbid it.
    pub(super) fn push_loaded(&mut self, answer: &Answer) {
        if answer.flags == DE && self.is_empty(7) {
            self.clear_c1();
            self.raise(DE);
            self.push(answer.value);
        } else {
            self.push_answer(answer);
        }
    }

    /// Pushes an answer, minding stack overflow and unmasked exceptions.
    pub(super) fn push_answer(&mut self, answer: &Answer) {
        if self.is_empty(7) {
            self.clear_c1();
            if self.deliver(answer) {
                self.push(answer.value);
            }
        } else if self.stack_fault(true) {
            self.push(F80::INDEFINITE);
        }
    }
}
