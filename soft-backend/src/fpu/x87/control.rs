//! Control and status words, stack pointer, tags.

use super::{BUSY, ES};
use crate::fpu::{FpState, X87};

/// Control-word bits that exist; bit 6 always reads as one.
const FCW_BITS: u16 = 0x1f7f;
/// All six exception masks.
const MASKS: u16 = 0x3f;

impl X87 {
    /// Recomputes ES and BUSY from the flags and masks.
    pub(super) fn update_summary(&mut self) {
        let pending = self.fsw & !self.fcw & MASKS != 0;
        self.fsw = (self.fsw & !(ES | BUSY)) | if pending { ES | BUSY } else { 0 };
    }

    /// Loads the control word, reserved bits dropped.
    pub(in crate::fpu) fn set_control(&mut self, value: u16) {
        self.fcw = (value & FCW_BITS) | 0x40;
        self.update_summary();
    }

    /// Loads the status word, TOP included.
    pub(in crate::fpu) fn set_status(&mut self, value: u16) {
        self.top = ((value >> 11) & 7) as u8;
        self.fsw = value & !(7 << 11);
        self.update_summary();
    }
}

impl FpState {
    /// Status word with TOP, as FNSTSW stores it.
    #[inline]
    #[must_use]
    pub fn status_word(&self) -> u16 {
        self.x87.fsw | (u16::from(self.x87.top & 7) << 11)
    }

    /// FNINIT: control word 037Fh, everything else cleared, registers empty but unchanged.
    pub fn fninit(&mut self) {
        self.x87 = X87 {
            regs: self.x87.regs,
            ..X87::default()
        };
    }

    /// Masks all x87 exceptions, as FNSTENV does after storing.
    pub fn mask_all(&mut self) {
        self.x87.fcw |= MASKS;
        self.x87.update_summary();
    }
}

pub(super) fn nop(_: &mut FpState, _: u8) {}

pub(super) fn fninit(s: &mut FpState, _: u8) {
    s.fninit();
}

pub(super) fn fnclex(s: &mut FpState, _: u8) {
    s.x87.fsw &= !(0xff | BUSY);
}

pub(super) fn fldcw(s: &mut FpState, value: u128) {
    s.x87.set_control(value as u16);
}

pub(super) fn fnstcw(s: &mut FpState) -> Option<u128> {
    Some(u128::from(s.x87.fcw))
}

pub(super) fn fnstsw(s: &mut FpState) -> Option<u128> {
    Some(u128::from(s.status_word()))
}
