//! Delivery of exceptions and interrupts through the IVT or IDT (Intel SDM volume 3, chapter 6).

use crate::cpu::flags::{AC, IF, NT, RF, TF};
use crate::cpu::state::{RSP, canonical};
use crate::cpu::{Cpu, Exception, R, Trap, Trapped};
use crate::segments::{CS, SS, Segment, attr};

/// What is being delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Raised by the processor.
    Exception(Exception),
    /// INT n, INT3, INTO: gate privilege is checked.
    Soft(u8),
    /// From an interrupt controller, or NMI.
    External(u8),
}

/// Vector of the non-maskable interrupt.
pub(crate) const NMI: u8 = 2;

/// Why an event was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undelivered {
    /// The vCPU could not even deliver a double fault.
    TripleFault,
    /// Memory that is needed on the way cannot be had.
    MemoryLost,
    /// A store on the way met decoded code: deliver again once its blocks are dropped.
    CodeWrite { gpa: u64, event: Event },
}

const DOUBLE_FAULT: Exception = Exception {
    vector: 8,
    error: Some(0),
};

/// Exceptions that make another one a double fault.
fn contributory(v: u8) -> bool {
    matches!(v, 0 | 10..=13)
}

impl Cpu {
    /// Delivers an event; `rip` is the address to return to, `cause` that of the instruction that
    /// caused it. Faults on the way are delivered instead, up to the double fault.
    pub(crate) fn deliver(&mut self, event: Event, cause: u64) -> Result<(), Undelivered> {
        let mut event = event;
        loop {
            let (rip, seg, cpl, regs_sp) = (self.rip, self.seg, self.cpl, self.regs[RSP]);
            let flags = (self.lazy, self.sysflags);
            if self.deliver_once(event).is_ok() {
                return Ok(());
            }
            self.restore_for_retry(rip, seg, cpl, regs_sp, flags);
            let second = match self.trap {
                Trap::Exception(second) => second,
                Trap::CodeWrite { gpa } => return Err(Undelivered::CodeWrite { gpa, event }),
                Trap::MemoryLost => return Err(Undelivered::MemoryLost),
                // A device where a stack or a table should be.
                _ => return Err(Undelivered::TripleFault),
            };
            if let Event::Soft(_) = event {
                self.rip = cause;
            }
            event = match event {
                Event::Exception(Exception { vector: 8, .. }) => {
                    return Err(Undelivered::TripleFault);
                }
                Event::Exception(first)
                    if contributory(first.vector) && contributory(second.vector)
                        || first.vector == 14
                            && (second.vector == 14 || contributory(second.vector)) =>
                {
                    Event::Exception(DOUBLE_FAULT)
                }
                _ => Event::Exception(second),
            };
        }
    }

    fn restore_for_retry(
        &mut self,
        rip: u64,
        seg: [Segment; 6],
        cpl: u8,
        sp: u64,
        flags: (crate::cpu::flags::LazyFlags, u64),
    ) {
        self.rip = rip;
        self.seg = seg;
        self.cpl = cpl;
        self.regs[RSP] = sp;
        (self.lazy, self.sysflags) = flags;
        self.update_mode();
    }

    fn deliver_once(&mut self, event: Event) -> R<()> {
        let (vector, error) = match event {
            Event::Exception(e) => (e.vector, e.error),
            Event::Soft(v) | Event::External(v) => (v, None),
        };
        if !self.protected() {
            return self.deliver_real(vector);
        }
        let external = !matches!(event, Event::Soft(_));
        if self.long_mode() {
            self.deliver_long(vector, error, event)
        } else {
            self.deliver_legacy(vector, error, event)
        }
        .inspect_err(|_| {
            // The EXT bit of an error code raised on the way.
            if external
                && let Trap::Exception(Exception {
                    vector: 10..=13,
                    error: Some(code),
                }) = &mut self.trap
            {
                *code |= 1;
            }
        })
    }

    fn deliver_real(&mut self, vector: u8) -> R<()> {
        let at = self.idtr.base + u64::from(vector) * 4;
        if u64::from(vector) * 4 + 3 > u64::from(self.idtr.limit) {
            return Err(self.raise(13, Some(0)));
        }
        let ip = self.read_system::<u16>(at)?;
        let cs = self.read_system::<u16>(at + 2)?;
        let (flags, old_cs, old_ip) =
            (self.rflags() as u16, self.seg[CS].selector, self.rip as u16);
        self.push(flags)?;
        self.push(old_cs)?;
        self.push(old_ip)?;
        self.sysflags &= !(IF | TF | AC | RF);
        self.seg[CS] = Segment {
            limit: self.seg[CS].limit,
            ..Segment::real(cs, true)
        };
        self.rip = u64::from(ip);
        self.update_mode();
        Ok(())
    }

    /// The RFLAGS image to push: faults set RF.
    fn flags_to_push(&self, event: Event) -> u64 {
        let fault = matches!(event, Event::Exception(e) if !matches!(e.vector, 1 | 3 | 4 | 8));
        self.rflags() | if fault { RF } else { 0 }
    }

    fn gate_error(&mut self, vector: u8, kind: u8) -> Trapped {
        self.raise(kind, Some(u32::from(vector) << 3 | 2))
    }

    /// Checks the target code segment of a gate; gives it and the new privilege level.
    fn gate_code(&mut self, selector: u16, long: bool) -> R<(Segment, u64, u8)> {
        if selector & !3 == 0 {
            return Err(self.gp(0));
        }
        let code = Some(u32::from(selector & !3));
        let (cs, raw) = self.code_segment(selector)?;
        if !cs.is_code() || cs.dpl() > self.cpl {
            return Err(self.raise(13, code));
        }
        if !cs.present() {
            return Err(self.raise(11, code));
        }
        let l = cs.attr & attr::L != 0;
        if long && (!l || cs.big()) {
            return Err(self.raise(13, code));
        }
        let cpl = if cs.attr & attr::CONFORMING != 0 {
            self.cpl
        } else {
            cs.dpl()
        };
        Ok((cs, raw, cpl))
    }

    fn deliver_long(&mut self, vector: u8, error: Option<u32>, event: Event) -> R<()> {
        let off = u64::from(vector) * 16;
        if off + 15 > u64::from(self.idtr.limit) {
            return Err(self.gate_error(vector, 13));
        }
        let low = self.read_system::<u64>(self.idtr.base.wrapping_add(off))?;
        let high = self.read_system::<u64>(self.idtr.base.wrapping_add(off + 8))?;
        let kind = low >> 40 & 0x1f;
        let dpl = (low >> 45 & 3) as u8;
        if !matches!(kind, 14 | 15) {
            return Err(self.gate_error(vector, 13));
        }
        if matches!(event, Event::Soft(_)) && dpl < self.cpl {
            return Err(self.gate_error(vector, 13));
        }
        if low >> 47 & 1 == 0 {
            return Err(self.gate_error(vector, 11));
        }
        let target = low & 0xffff | low >> 32 & 0xffff_0000 | high << 32;
        let ist = low >> 32 & 7;
        let (cs, raw, cpl) = self.gate_code((low >> 16) as u16, true)?;
        if !canonical(target) {
            return Err(self.gp(0));
        }
        let inner = cpl < self.cpl;
        let sp = if ist != 0 {
            self.task_stack64(0x24 + (ist - 1) * 8)?
        } else if inner {
            self.task_stack64(4 + u64::from(cpl) * 8)?
        } else {
            self.regs[RSP]
        };
        let frame = [
            u64::from(self.seg[SS].selector),
            self.regs[RSP],
            self.flags_to_push(event),
            u64::from(self.seg[CS].selector),
            self.rip,
        ];
        let mut at = sp & !15;
        let old_cpl = self.cpl;
        // The frame is pushed with the new privilege.
        self.cpl = cpl;
        self.update_context();
        let pushed = self.push_frame64(&mut at, &frame, error);
        if let Err(t) = pushed {
            self.cpl = old_cpl;
            self.update_context();
            return Err(t);
        }
        self.touch_descriptor(cs.selector, raw)?;
        if inner {
            self.seg[SS] = Segment::null(u16::from(cpl));
        }
        self.regs[RSP] = at;
        self.enter_handler(cs, cpl, target, kind == 14);
        Ok(())
    }

    fn push_frame64(&mut self, at: &mut u64, frame: &[u64], error: Option<u32>) -> R<()> {
        let error = error.map(u64::from);
        for v in frame.iter().chain(error.as_ref()) {
            *at = at.wrapping_sub(8);
            if !canonical(*at) {
                return Err(self.ss_fault(0));
            }
            self.write_system(*at, *v)?;
        }
        Ok(())
    }

    /// A 64-bit stack pointer out of the TSS.
    fn task_stack64(&mut self, off: u64) -> R<u64> {
        if off + 7 > u64::from(self.tr.limit) {
            let code = u32::from(self.tr.selector & !3);
            return Err(self.raise(10, Some(code)));
        }
        let sp = self.read_system::<u64>(self.tr.base.wrapping_add(off))?;
        if canonical(sp) {
            Ok(sp)
        } else {
            Err(self.ss_fault(0))
        }
    }

    fn enter_handler(&mut self, cs: Segment, cpl: u8, target: u64, interrupt_gate: bool) {
        self.sysflags &= !(TF | NT | RF);
        if interrupt_gate {
            self.sysflags &= !IF;
        }
        self.rip = target;
        self.set_cs(cs, cpl);
    }

    fn deliver_legacy(&mut self, vector: u8, error: Option<u32>, event: Event) -> R<()> {
        let off = u64::from(vector) * 8;
        if off + 7 > u64::from(self.idtr.limit) {
            return Err(self.gate_error(vector, 13));
        }
        let gate = self.read_system::<u64>(self.idtr.base.wrapping_add(off))?;
        let kind = gate >> 40 & 0x1f;
        let dpl = (gate >> 45 & 3) as u8;
        // Task gates are not part of the machine: #GP, as for any other wrong type.
        if !matches!(kind, 6 | 7 | 14 | 15) {
            return Err(self.gate_error(vector, 13));
        }
        if matches!(event, Event::Soft(_)) && dpl < self.cpl {
            return Err(self.gate_error(vector, 13));
        }
        if gate >> 47 & 1 == 0 {
            return Err(self.gate_error(vector, 11));
        }
        let wide = kind >= 14;
        let target = gate & 0xffff | if wide { gate >> 32 & 0xffff_0000 } else { 0 };
        let (cs, raw, cpl) = self.gate_code((gate >> 16) as u16, false)?;
        self.check_ip(&cs, target)?;
        let flags = self.flags_to_push(event);
        let (old_cs, old_ip) = (self.seg[CS].selector, self.rip);
        let (old_ss, old_sp) = (self.seg[SS].selector, self.regs[RSP]);
        let inner = cpl < self.cpl;
        if inner {
            let (ss, sp) = self.task_stack_legacy(cpl)?;
            self.cpl = cpl;
            self.load_segment(SS, ss)?;
            self.set_sp(u64::from(sp));
            self.push_sized(wide, u64::from(old_ss))?;
            self.push_sized(wide, old_sp)?;
        }
        self.push_sized(wide, flags)?;
        self.push_sized(wide, u64::from(old_cs))?;
        self.push_sized(wide, old_ip)?;
        if let Some(e) = error {
            self.push_sized(wide, u64::from(e))?;
        }
        self.touch_descriptor(cs.selector, raw)?;
        self.enter_handler(cs, cpl, target, kind & 1 == 0);
        Ok(())
    }

    fn push_sized(&mut self, wide: bool, v: u64) -> R<()> {
        if wide {
            self.push(v as u32)
        } else {
            self.push(v as u16)
        }
    }

    /// SS and ESP for a privilege level, out of a 32-bit or 16-bit TSS.
    pub(crate) fn task_stack_legacy(&mut self, cpl: u8) -> R<(u16, u32)> {
        let wide = self.tr.attr & 8 != 0;
        let (size, off) = if wide {
            (8, 4 + u64::from(cpl) * 8)
        } else {
            (4, 2 + u64::from(cpl) * 4)
        };
        if off + size - 1 > u64::from(self.tr.limit) {
            let code = u32::from(self.tr.selector & !3);
            return Err(self.raise(10, Some(code)));
        }
        let at = self.tr.base.wrapping_add(off);
        if wide {
            Ok((
                self.read_system::<u16>(at + 4)?,
                self.read_system::<u32>(at)?,
            ))
        } else {
            Ok((
                self.read_system::<u16>(at + 2)?,
                u32::from(self.read_system::<u16>(at)?),
            ))
        }
    }
}
