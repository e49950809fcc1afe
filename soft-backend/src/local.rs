//! What belongs to the processor but is not the core: local APIC, start-up, timers.

use std::time::Duration;

use vmm_core::exit::ExitHandler;
use vmm_core::x86::lapic::Effect;
use vmm_core::x86::{LAPIC_PAGE_BYTES, MpState};

use crate::cpu::flags::IF;
use crate::cpu::{Cpu, IoRequest};
use crate::mem::PAGE;
use crate::segments::{CS, Segment};

/// Global enable, in IA32_APIC_BASE.
const APIC_ENABLE: u64 = 1 << 11;
/// Longest sleep; a timer further away is looked at again.
const MAX_SLEEP: Duration = Duration::from_secs(3600);

impl Cpu {
    /// The TSC.
    pub(crate) fn tsc(&self) -> u64 {
        self.time.read(self.retired)
    }

    /// Follows another vCPU's TSC; the timer keeps the time that is left.
    pub(crate) fn adopt_time(&mut self, time: crate::time::Tsc) {
        let before = self.tsc();
        self.time = time;
        let by = self.tsc().wrapping_sub(before);
        self.lapic.timer.shift(by);
    }

    /// The TSC and the local timer count at another rate; what they show jumps.
    pub(crate) fn set_tsc_rate(&mut self, khz: u64) {
        self.time.set_khz(khz);
        self.lapic.timer.set_tsc_khz(khz);
    }

    /// Moves what others sent into the APIC's registers.
    fn collect(&mut self) {
        let Some(post) = self.router.inboxes[self.index].take() else {
            return;
        };
        for (vector, level) in post.vectors {
            self.lapic.request(vector, level);
        }
        self.nmi_pending |= post.nmi;
        if post.init {
            self.init();
        }
        if let Some(vector) = post.start_up
            && self.mp_state == MpState::InitReceived
        {
            self.sipi_vector = vector;
            self.mp_state = MpState::SipiReceived;
        }
    }

    /// Acts on time and on messages from others.
    pub(crate) fn look_around(&mut self) {
        self.collect();
        if self.lapic.timer.deadline().is_some() {
            let now = self.tsc();
            self.expire_timer(now);
        }
        if self.mp_state == MpState::SipiReceived {
            let segment = u16::from(self.sipi_vector) << 8;
            self.seg[CS] = Segment::real(segment, true);
            self.rip = 0;
            self.mp_state = MpState::Runnable;
            self.update_mode();
        }
    }

    /// A timer that ran out by now becomes its interrupt.
    fn expire_timer(&mut self, now: u64) {
        if self.lapic.timer.expire(now) {
            self.lapic.timer_fired();
        }
    }

    /// INIT: the boot processor would start at the reset vector, others wait.
    fn init(&mut self) {
        self.reset();
        let id = self.index as u8;
        let khz = self.time.khz();
        self.lapic = vmm_core::x86::lapic::Lapic::new(id);
        self.lapic.timer.set_tsc_khz(khz);
        self.publish_address();
        self.mp_state = MpState::InitReceived;
    }

    pub(crate) fn publish_address(&self) {
        self.router.inboxes[self.index].set_address(self.lapic.address());
    }

    /// The interrupt that may be delivered now, taken from its controller.
    #[inline]
    pub(crate) fn pending_interrupt(&mut self) -> Option<u8> {
        self.collect();
        if self.msr.apic_base & APIC_ENABLE == 0 {
            return None;
        }
        self.lapic.acknowledge()
    }

    /// Whether HLT ends.
    pub(crate) fn wakes_from_halt(&self) -> bool {
        self.nmi_pending && !self.nmi_masked
            || self.injected.is_some()
            || self.flag(IF) && self.lapic.deliverable().is_some()
    }

    /// Deterministic mode: the instruction count at which the local timer runs out.
    pub(crate) fn timer_count(&self) -> Option<u64> {
        let left = self.lapic.timer.deadline()?.wrapping_sub(self.tsc()) as i64;
        Some(self.retired + left.max(0) as u64)
    }

    /// Looks around; true if there is guest code to run.
    pub(crate) fn is_awake(&mut self) -> bool {
        self.look_around();
        if self.mp_state == MpState::Halted && self.wakes_from_halt() {
            self.mp_state = MpState::Runnable;
        }
        self.mp_state == MpState::Runnable
    }

    /// How long the local timer still runs.
    pub(crate) fn time_to_timer(&self) -> Option<Duration> {
        let left = self.lapic.timer.deadline()?.wrapping_sub(self.tsc()) as i64;
        let ns = u128::from(left.max(0) as u64) * 1_000_000 / u128::from(self.time.khz().max(1));
        Some(Duration::from_nanos(ns as u64).min(MAX_SLEEP))
    }

    /// Answers an access to the local APIC.
    pub(crate) fn local_device(
        &mut self,
        req: IoRequest,
        handler: &mut dyn ExitHandler,
    ) -> Option<u64> {
        if self.msr.apic_base & APIC_ENABLE == 0 {
            return None;
        }
        let base = self.msr.apic_base & !(PAGE - 1) & ((1 << self.phys_bits) - 1);
        let inside = |gpa: u64| gpa & !(PAGE - 1) == base;
        match req {
            IoRequest::MmioRead { gpa, .. } if inside(gpa) => {
                let now = self.tsc();
                self.collect();
                let v = self.lapic.read((gpa & 0xff0) as usize, now);
                Some(u64::from(v) >> (8 * (gpa & 15).min(4)))
            }
            IoRequest::MmioWrite { gpa, data, .. } if inside(gpa) => {
                if gpa & 15 == 0 {
                    self.write_apic((gpa & 0xff0) as usize, data as u32, handler);
                }
                Some(0)
            }
            _ => None,
        }
    }

    fn write_apic(&mut self, offset: usize, v: u32, handler: &mut dyn ExitHandler) {
        let now = self.tsc();
        match self.lapic.write(offset, v, now) {
            Effect::None => {}
            Effect::EndOfLevel(vector) => handler.ioapic_eoi(vector),
            Effect::Send(message, to) => self.router.send(message, to, Some(self.index)),
        }
        self.publish_address();
        // Something may be deliverable now.
        self.router.call();
    }

    /// CR8.
    pub(crate) fn task_priority(&self) -> u64 {
        u64::from(self.lapic.task_priority() >> 4)
    }

    pub(crate) fn set_task_priority(&mut self, v: u64) {
        self.lapic.set_task_priority((v as u8 & 15) << 4);
    }

    pub(crate) fn save_local(&mut self, page: &mut [u8; LAPIC_PAGE_BYTES]) {
        self.collect();
        let now = self.tsc();
        // One that ran out in the pause has no count left: saved so, it would never fire again.
        self.expire_timer(now);
        self.lapic.save(page, now);
    }

    pub(crate) fn load_local(&mut self, page: &[u8; LAPIC_PAGE_BYTES]) {
        // What was sent before belongs to another past.
        let _ = self.router.inboxes[self.index].take();
        let now = self.tsc();
        self.lapic.load(page, now);
        self.publish_address();
    }
}
