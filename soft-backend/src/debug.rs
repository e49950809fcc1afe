//! Hardware breakpoints and watchpoints (Intel SDM volume 3, 18.2 and 18.3).
//!
//! Nothing here is on the way of a vCPU that has none enabled, and little on that of one that has:
//!
//! - **Data.** The TLB never holds the page of a watched address for the kind of access that is watched, so
//!   that each of these takes the slow way ([`Cpu::watch`]). What meets a watchpoint stops there with
//!   [`Trap::Watched`]; the run loop runs that one instruction again, with what it meets noted, and
//!   delivers the trap after it. Ports are watched in the same way.
//! - **Code.** The block cache asks before it gives out or remembers a block ([`Cpu::code_breakpoint`]). Where a
//!   breakpoint lies in the bytes that a block could cover, it gives blocks of one instruction that nobody
//!   remembers, so that each way to the breakpoint leads through the question.
//!
//!   Its page has no execute tag, and no link inside a page is followed while any is enabled.
//!
//! A change of what is enabled drops all translations.
//!
//! Only enabled breakpoints are reported in DR6. As on KVM, a debug exception clears B0 to B3 of earlier
//! ones and leaves the other bits. What the delivery of a debug exception itself meets is not reported: it
//! could not end.

use crate::cpu::flags::{RF, TF};
use crate::cpu::state::cr4;
use crate::cpu::{Cpu, Exception, R, Trap, Trapped};
use crate::mem::PAGE;
use crate::mmu::Access;

/// DR6: the breakpoint conditions that were met.
const B0_TO_B3: u64 = 0xf;
/// DR6: an access to debug registers while DR7.GD was set.
pub(crate) const BD: u64 = 1 << 13;
/// DR6: a single step.
pub(crate) const BS: u64 = 1 << 14;
/// DR6: BT as well may be written, all other bits are 1 but for bit 12.
const DR6_WRITABLE: u64 = 0xe00f;
const DR6_FIXED: u64 = 0xffff_0ff0;
/// DR7: all but bits 10 (1), 11, 12, 14 and 15 (0).
const DR7_WRITABLE: u64 = 0xffff_23ff;
pub(crate) const DR7_FIXED: u64 = 0x400;
/// DR7: general detect.
const GD: u64 = 1 << 13;
/// MOV SS or POP SS was executed: no debug exception before the next instruction has run.
const HELD: u64 = 1 << 32;
/// Bytes from a block's first instruction in which its last one begins at the latest.
const BLOCK_REACH: u64 = crate::block::WINDOW as u64;

/// What DR6 becomes when `v` is written.
pub(crate) fn dr6_of(v: u64) -> u64 {
    v & DR6_WRITABLE | DR6_FIXED
}

/// What DR7 becomes when `v` is written.
pub(crate) fn dr7_of(v: u64) -> u64 {
    v & DR7_WRITABLE | DR7_FIXED
}

/// What a breakpoint waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Execution,
    Write,
    ReadOrWrite,
    Port,
}

/// An enabled breakpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Breakpoint {
    kind: Kind,
    /// Aligned to `bytes`.
    start: u64,
    bytes: u64,
}

impl Breakpoint {
    /// Breakpoint `n` of the debug registers, if it is enabled and can be met.
    fn of(dr: &[u64; 8], n: usize, debug_extensions: bool) -> Option<Self> {
        let control = dr[7];
        if control >> (2 * n) & 3 == 0 {
            return None;
        }
        let bytes = match control >> (18 + 4 * n) & 3 {
            0 => 1,
            1 => 2,
            2 => 8,
            _ => 4,
        };
        let kind = match control >> (16 + 4 * n) & 3 {
            // Other lengths are undefined.
            0 if bytes > 1 => return None,
            0 => Kind::Execution,
            1 => Kind::Write,
            2 if !debug_extensions => return None,
            2 => Kind::Port,
            _ => Kind::ReadOrWrite,
        };
        Some(Breakpoint {
            kind,
            start: dr[n] & !(bytes - 1),
            bytes,
        })
    }

    fn is_data(&self, write: bool) -> bool {
        self.kind == Kind::ReadOrWrite || write && self.kind == Kind::Write
    }

    fn meets(&self, start: u64, bytes: u64) -> bool {
        start.wrapping_sub(self.start) < self.bytes || self.start.wrapping_sub(start) < bytes
    }
}

/// The enabled breakpoints of a vCPU and what they have met.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Debug {
    enabled: [Option<Breakpoint>; 4],
    /// Some of them wait for data, code, ports.
    data: bool,
    code: bool,
    ports: bool,
    /// B0 to B3 of what was met and is not reported yet, and [`HELD`].
    pub(crate) pending: u64,
    /// What is met is noted; else it stops the instruction.
    pub(crate) noting: bool,
    /// The next instruction runs although its address has a breakpoint.
    resuming: bool,
    /// The instruction that was stepped has said itself whether a trap follows.
    step_decided: bool,
}

impl Debug {
    /// Bits of the breakpoints for which `f` holds.
    fn bits(&self, f: impl Fn(&Breakpoint) -> bool) -> u64 {
        let each = self.enabled.iter().enumerate();
        each.filter(|(_, b)| b.as_ref().is_some_and(&f))
            .fold(0, |bits, (n, _)| bits | 1 << n)
    }

    /// Whether the TLB must not hold a page for this kind of access.
    #[inline]
    pub(crate) fn watches_page(&self, va: u64, kind: Access) -> bool {
        (self.data || self.code) && self.watches_this_page(va, kind)
    }

    /// Whether any breakpoint waits for code.
    #[inline(always)]
    pub(crate) fn watches_code(&self) -> bool {
        self.code
    }

    #[cold]
    fn watches_this_page(&self, va: u64, kind: Access) -> bool {
        let same = |b: &Breakpoint| (b.start ^ va) & !(PAGE - 1) == 0;
        let waits = |b: &Breakpoint| match kind {
            Access::Exec => b.kind == Kind::Execution,
            Access::Read | Access::Write => b.is_data(kind == Access::Write),
        };
        self.bits(|b| waits(b) && same(b)) != 0
    }

    /// What DR6 reports of a step: BS, unless the stepped instruction has decided otherwise.
    pub(crate) fn take_step(&mut self, trap_flag: bool) -> u64 {
        let decided = std::mem::take(&mut self.step_decided);
        if trap_flag && !decided { BS } else { 0 }
    }

    /// Whether debug exceptions wait for one instruction to run.
    pub(crate) fn is_held(&self) -> bool {
        self.pending & HELD != 0
    }

    /// Says whether they wait.
    pub(crate) fn hold(&mut self, held: bool) {
        self.pending = self.pending & !HELD | if held { HELD } else { 0 };
    }
}

impl Cpu {
    /// Follows a change of debug registers or CR4.
    pub(crate) fn update_breakpoints(&mut self) {
        let extensions = self.cr4 & cr4::DE != 0;
        let enabled = [0, 1, 2, 3].map(|n| Breakpoint::of(&self.dr, n, extensions));
        if enabled == self.debug.enabled {
            return;
        }
        self.debug.enabled = enabled;
        self.debug.data = self.debug.bits(|b| b.is_data(true)) != 0;
        self.debug.code = self.debug.bits(|b| b.kind == Kind::Execution) != 0;
        self.debug.ports = self.debug.bits(|b| b.kind == Kind::Port) != 0;
        self.flush_tlb();
    }

    /// Forgets what was met: after a reset, and when state is loaded.
    pub(crate) fn restart_debugging(&mut self) {
        self.debug.pending = 0;
        self.debug.resuming = false;
        self.debug.step_decided = false;
        self.update_breakpoints();
    }

    /// Before an access to data on the slow way: notes, or stops at, the watchpoints it meets.
    #[inline]
    pub(crate) fn watch(&mut self, va: u64, bytes: u64, kind: Access) -> R<()> {
        if self.debug.data {
            self.watch_data(va, bytes, kind == Access::Write)
        } else {
            Ok(())
        }
    }

    #[cold]
    fn watch_data(&mut self, va: u64, bytes: u64, write: bool) -> R<()> {
        let bits = self.debug.bits(|b| b.is_data(write) && b.meets(va, bytes));
        self.note_or_stop(bits)
    }

    /// As [`Cpu::watch`] for a write that may not come: stops, but notes nothing.
    pub(crate) fn watch_probe(&mut self, va: u64, bytes: u64) -> R<()> {
        if self.debug.noting {
            return Ok(());
        }
        self.watch(va, bytes, Access::Write)
    }

    /// Before an access to a port.
    #[inline]
    pub(crate) fn watch_port(&mut self, port: u16, bytes: u64) -> R<()> {
        if self.debug.ports {
            self.watch_this_port(port.into(), bytes)
        } else {
            Ok(())
        }
    }

    #[cold]
    fn watch_this_port(&mut self, port: u64, bytes: u64) -> R<()> {
        let met = |b: &Breakpoint| b.kind == Kind::Port && b.meets(port, bytes);
        let bits = self.debug.bits(met);
        self.note_or_stop(bits)
    }

    fn note_or_stop(&mut self, bits: u64) -> R<()> {
        if bits != 0 && !self.debug.noting {
            self.trap = Trap::Watched;
            return Err(Trapped);
        }
        self.debug.pending |= bits;
        Ok(())
    }

    /// Before a block at a linear address: the exception of a breakpoint there. True if one lies in
    /// what a block from there may cover.
    #[inline]
    pub(crate) fn code_breakpoint(&mut self, at: u64) -> R<bool> {
        if self.debug.code {
            self.code_breakpoint_from(at)
        } else {
            Ok(false)
        }
    }

    #[cold]
    fn code_breakpoint_from(&mut self, at: u64) -> R<bool> {
        let code = |b: &Breakpoint| b.kind == Kind::Execution;
        let here = self.debug.bits(|b| code(b) && b.start == at);
        let resuming = std::mem::take(&mut self.debug.resuming);
        if here != 0 && !resuming {
            let e = self.debug_exception(here);
            return Err(self.raise(e.vector, e.error));
        }
        let reach = |b: &Breakpoint| b.start.wrapping_sub(at) < BLOCK_REACH;
        Ok(self.debug.bits(|b| code(b) && reach(b)) != 0)
    }

    /// RF goes with the instruction that it is set for: before that runs. To follow MOV SS or POP SS has
    /// the same effect. True if the instruction has to run in a block of its own.
    pub(crate) fn take_resume_flag(&mut self) -> bool {
        let resuming = self.debug.is_held() || self.flag(RF);
        self.debug.hold(false);
        self.sysflags &= !RF;
        self.debug.resuming = resuming && self.debug.code;
        self.debug.resuming
    }

    /// A repeated instruction stops after an iteration that is not its last. True if whoever looks at
    /// events has to come now: a debug exception follows, or a breakpoint must not stop the rest of
    /// it.
    pub(crate) fn leaves_repetition(&mut self, stepping: bool) -> bool {
        let told = stepping || self.debug.pending != 0 || self.debug.code;
        if told {
            self.sysflags |= RF;
        }
        told
    }

    /// SYSCALL and SYSRET load TF. They step by the value that they load, where other instructions step by the
    /// one that they begin with: a kernel that masks TF takes no trap at its entry, and its SYSRET takes
    /// the one that the SYSCALL would have taken.
    pub(crate) fn step_by_loaded_flag(&mut self, stepped: bool) {
        self.debug.step_decided = stepped;
        if self.flag(TF) {
            self.debug.pending |= BS;
        }
    }

    /// Registers the reasons of a debug exception in DR6.
    pub(crate) fn debug_exception(&mut self, reasons: u64) -> Exception {
        self.dr[6] = self.dr[6] & !B0_TO_B3 | reasons;
        self.dr[7] &= !GD;
        Exception {
            vector: 1,
            error: None,
        }
    }

    /// The exception of any access to debug registers while DR7.GD is set.
    pub(crate) fn general_detect(&mut self) -> R<()> {
        if self.dr[7] & GD == 0 {
            return Ok(());
        }
        let e = self.debug_exception(BD);
        Err(self.raise(e.vector, e.error))
    }
}
