//! The run loop: blocks, events, and what stops them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use vmm_core::Gpa;
use vmm_core::exit::ExitHandler;

use crate::block::{BlockId, CodeCache};
use crate::cpu::flags::{IF, RF, TF};
use crate::cpu::{Cpu, Exception, Flow, IoRequest, Step, Trap};
use crate::decode::op::Op;
use crate::exceptions::{Event, NMI, Undelivered};
use crate::jit::Left;

/// Why [`Engine::run`] came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The budget is used up.
    Budget,
    /// Somebody asked for attention.
    Attention,
    /// The guest waits for another vCPU.
    Yield,
    /// HLT; the instruction pointer is after it.
    Halted,
    /// The guest shut itself down.
    TripleFault,
    /// Memory that the guest needs cannot be had.
    MemoryLost,
}

/// One turn of a vCPU.
pub(crate) struct Engine<'a> {
    pub(crate) cpu: &'a mut Cpu,
    pub(crate) cache: &'a mut CodeCache,
    pub(crate) handler: &'a mut dyn ExitHandler,
    /// Set by other threads to end the turn.
    pub(crate) attention: &'a AtomicBool,
    /// How many vCPUs wait for their turn.
    pub(crate) waiting: &'a AtomicUsize,
}

/// How a run of blocks ended.
enum Outcome {
    /// Look at events, then go on.
    Check,
    /// An instruction trapped; `rip` is its address.
    Trap,
    Budget,
    Attention,
}

/// How one block, or a row of translated ones, ended.
enum Ran {
    To(Step),
    /// The next block is known.
    Before(BlockId),
}

impl Engine<'_> {
    /// Runs until something is to be done, at most about `budget` instructions.
    pub(crate) fn run(&mut self, budget: u64) -> Stop {
        let end = self.cpu.retired + budget;
        loop {
            if std::mem::take(&mut self.cpu.paused) && self.waiting.load(Ordering::Relaxed) > 0 {
                return Stop::Yield;
            }
            if let Some(event) = self.cpu.injected.take()
                && let Some(stop) = self.finish_delivery(event)
            {
                return stop;
            }
            if !self.cpu.shadow
                && let Some(stop) = self.events()
            {
                return stop;
            }
            let mut alone = false;
            if self.cpu.debug.pending != 0 || self.cpu.flag(RF) {
                alone = match self.before_special() {
                    Ok(alone) => alone,
                    Err(stop) => return stop,
                };
            }
            let trap_flag = self.cpu.flag(TF);
            let single = trap_flag || self.cpu.shadow || alone;
            self.cpu.shadow = false;
            let outcome = self.blocks(single, end);
            let stop = match outcome {
                Outcome::Check => self.debug_trap(trap_flag),
                Outcome::Trap => self.trap(trap_flag),
                Outcome::Budget => Some(Stop::Budget),
                Outcome::Attention => Some(Stop::Attention),
            };
            if let Some(stop) = stop.or_else(|| self.limit(end)) {
                return stop;
            }
        }
    }

    /// Guest code that comes by here with every instruction must not run for ever.
    #[inline]
    fn limit(&self, end: u64) -> Option<Stop> {
        let stop = if self.cpu.retired >= end {
            Stop::Budget
        } else if self.attention.load(Ordering::Relaxed) {
            Stop::Attention
        } else {
            return None;
        };
        // What was met is no part of saved state: it is delivered first.
        let may_stop = !self.cpu.shadow && self.cpu.debug.pending == 0;
        may_stop.then_some(stop)
    }

    /// Before an instruction that RF is set for, that follows MOV SS, or where a delivery met a watchpoint.
    /// True if it has to run in a block of its own.
    #[cold]
    fn before_special(&mut self) -> Result<bool, Stop> {
        match self.debug_trap(false) {
            Some(stop) => Err(stop),
            None => Ok(self.cpu.take_resume_flag()),
        }
    }

    /// Delivers an event whose delivery had begun where the state was saved; nothing holds it back.
    #[cold]
    fn finish_delivery(&mut self, event: Event) -> Option<Stop> {
        self.cpu.shadow = false;
        self.cpu.debug.hold(false);
        self.deliver(event)
    }

    /// Delivers what may be delivered now.
    fn events(&mut self) -> Option<Stop> {
        if self.cpu.nmi_pending && !self.cpu.nmi_masked {
            self.cpu.nmi_pending = false;
            self.cpu.nmi_masked = true;
            return self.deliver(Event::External(NMI));
        }
        if self.cpu.flag(IF)
            && let Some(vector) = self.cpu.pending_interrupt()
        {
            return self.deliver(Event::External(vector));
        }
        None
    }

    fn deliver(&mut self, event: Event) -> Option<Stop> {
        let ip = self.cpu.rip;
        self.deliver_from(event, ip)
    }

    /// Delivers; `ip` is the address of the instruction that is the cause.
    fn deliver_from(&mut self, mut event: Event, ip: u64) -> Option<Stop> {
        let pending = self.cpu.debug.pending;
        self.cpu.debug.noting = true;
        let stop = loop {
            match self.cpu.deliver(event, ip) {
                Ok(()) => break None,
                Err(Undelivered::TripleFault) => break Some(Stop::TripleFault),
                Err(Undelivered::MemoryLost) => break Some(Stop::MemoryLost),
                Err(Undelivered::CodeWrite { gpa, event: again }) => {
                    self.cache.invalidate(self.cpu, gpa >> 12);
                    event = again;
                }
            }
        };
        self.cpu.debug.noting = false;
        if let Event::Exception(Exception { vector: 1, .. }) = event {
            self.cpu.debug.pending = pending;
        }
        stop
    }

    /// The debug exception after an instruction: of the breakpoints it met, and of TF.
    #[inline]
    fn debug_trap(&mut self, trap_flag: bool) -> Option<Stop> {
        if !trap_flag && self.cpu.debug.pending == 0 {
            return None;
        }
        self.deliver_debug_trap(trap_flag)
    }

    #[cold]
    fn deliver_debug_trap(&mut self, trap_flag: bool) -> Option<Stop> {
        if self.cpu.debug.is_held() {
            return None;
        }
        let step = self.cpu.debug.take_step(trap_flag);
        let reasons = std::mem::take(&mut self.cpu.debug.pending) | step;
        if reasons == 0 {
            return None;
        }
        let exception = self.cpu.debug_exception(reasons);
        self.deliver(Event::Exception(exception))
    }

    fn trap(&mut self, trap_flag: bool) -> Option<Stop> {
        match std::mem::replace(&mut self.cpu.trap, Trap::None) {
            Trap::Exception(e) => {
                // Handlers that never get to an instruction of their own use up the budget, too.
                self.cpu.retired += 1;
                self.deliver(Event::Exception(e))
            }
            Trap::SoftInt { vector, next } => {
                let ip = std::mem::replace(&mut self.cpu.rip, next);
                self.deliver_from(Event::Soft(vector), ip)
            }
            Trap::CodeWrite { gpa } => {
                self.cache.invalidate(self.cpu, gpa >> 12);
                self.once(trap_flag)
            }
            Trap::Watched => self.once(trap_flag),
            Trap::MemoryLost => Some(Stop::MemoryLost),
            Trap::Halt { next } => {
                self.cpu.rip = next;
                Some(Stop::Halted)
            }
            // Answered where they happen.
            Trap::Io(_) | Trap::None => None,
        }
    }

    /// Runs one instruction that stores to decoded code or meets a watchpoint, without keeping it
    /// decoded.
    fn once(&mut self, trap_flag: bool) -> Option<Stop> {
        let before = std::mem::take(&mut self.cpu.debug.pending);
        self.cpu.debug.noting = true;
        let done = match self.cache.decode_once(self.cpu) {
            Ok(op) => {
                self.cpu.regs[16] = self.cpu.rip;
                self.cpu.retired += 1;
                match self.execute(&op) {
                    Ok(Flow::Next) => {
                        self.cpu.rip = self.cpu.next_ip(&op);
                        true
                    }
                    Ok(_) => true,
                    Err(_) => {
                        self.cpu.blame_stack_segment(&op);
                        false
                    }
                }
            }
            Err(_) => {
                self.cpu.forget_replay();
                false
            }
        };
        self.cpu.debug.noting = false;
        if done {
            self.cpu.debug.pending |= before;
            self.debug_trap(trap_flag)
        } else {
            // What an instruction met that did not complete does not count.
            self.cpu.debug.pending = before;
            self.trap(trap_flag)
        }
    }

    /// Runs blocks until something else is to be done.
    #[inline(always)]
    fn blocks(&mut self, single: bool, end: u64) -> Outcome {
        if self.cpu.ram.ram.take_code_is_stale() {
            self.cache.drop_stale(self.cpu);
        }
        let mut id = match self.cache.find(self.cpu, single) {
            Ok(id) => id,
            Err(_) => return Outcome::Trap,
        };
        let translated = !single && self.cache.translates(self.cpu);
        loop {
            self.cpu.regs[16] = self.cpu.rip;
            let ran = if translated && self.cache.is_translated(self.cpu, id, end) {
                self.native(&mut id, end)
            } else {
                Ran::To(self.block(id, 0))
            };
            if self.cpu.ram.ram.take_code_is_stale() {
                self.cache.drop_stale(self.cpu);
                return match ran {
                    Ran::To(Err(_)) => Outcome::Trap,
                    _ => Outcome::Check,
                };
            }
            let next = match ran {
                Ran::To(Err(_)) => return Outcome::Trap,
                Ran::To(Ok(Flow::Check)) => return Outcome::Check,
                _ if single => return Outcome::Check,
                Ran::To(Ok(Flow::Link0)) => self.cache.follow(self.cpu, id, 0),
                Ran::To(Ok(Flow::Link1)) => self.cache.follow(self.cpu, id, 1),
                Ran::To(Ok(_)) => self.cache.find(self.cpu, false),
                Ran::Before(next) => Ok(next),
            };
            id = match next {
                Ok(id) => id,
                Err(_) => return Outcome::Trap,
            };
            if self.cpu.retired >= end {
                return Outcome::Budget;
            }
            if self.attention.load(Ordering::Relaxed) {
                return Outcome::Attention;
            }
        }
    }

    /// Runs a translated block and what follows it; `id` becomes the block that ran last.
    fn native(&mut self, id: &mut BlockId, end: u64) -> Ran {
        match self.cache.run_translated(self.cpu, *id, end) {
            Left::Before(next) => Ran::Before(next),
            Left::Lost => Ran::To(Ok(Flow::Jump)),
            Left::Op { block, index, step } => {
                *id = block;
                Ran::To(
                    self.ended(block, index, step)
                        .unwrap_or_else(|| self.block(block, index + 1)),
                )
            }
        }
    }

    /// Runs one block from an operation on to its end or to a trap; `rip` is right afterwards.
    #[inline(always)]
    fn block(&mut self, id: BlockId, first: usize) -> Step {
        let mut next = first;
        while let Some(op) = self.cache.blocks[id as usize].ops.get(next) {
            let step = (op.run)(self.cpu, op);
            if step != Ok(Flow::Next)
                && let Some(end) = self.ended(id, next, step)
            {
                return end;
            }
            next += 1;
        }
        // The closing operation never falls through.
        Ok(Flow::Check)
    }

    /// An operation of a block gave something else than the next one. `None` if that follows after all.
    #[inline(always)]
    fn ended(&mut self, id: BlockId, i: usize, step: Step) -> Option<Step> {
        let block = &self.cache.blocks[id as usize];
        let op = &block.ops[i];
        let step = match step {
            Err(_) if matches!(self.cpu.trap, Trap::Io(_)) => answer(self.cpu, self.handler, op),
            other => other,
        };
        match step {
            Ok(Flow::Next) => None,
            Ok(flow) => {
                self.cpu.retired += block.instructions_to(i);
                Some(Ok(if block.checks { Flow::Check } else { flow }))
            }
            Err(t) => {
                self.cpu.retired += block.instructions_before(i);
                self.cpu.rip = self.cpu.ip(op);
                self.cpu.blame_stack_segment(op);
                Some(Err(t))
            }
        }
    }

    /// Runs one operation, device accesses answered.
    fn execute(&mut self, op: &Op) -> Step {
        let r = (op.run)(self.cpu, op);
        if r.is_err() && matches!(self.cpu.trap, Trap::Io(_)) {
            return answer(self.cpu, self.handler, op);
        }
        end_replay(self.cpu, r.is_ok());
        r
    }
}

/// Answers the device accesses of an instruction and runs it again until it is through.
#[cold]
#[inline(never)]
fn answer(cpu: &mut Cpu, handler: &mut dyn ExitHandler, op: &Op) -> Step {
    loop {
        let Trap::Io(req) = cpu.trap else {
            return Err(crate::cpu::Trapped);
        };
        cpu.trap = Trap::None;
        cpu.router.publish_count(cpu.retired);
        let v = cpu
            .local_device(req, handler)
            .unwrap_or_else(|| ask(handler, req));
        cpu.replay.push(v);
        cpu.replay_pos = 0;
        let r = (op.run)(cpu, op);
        let again = r.is_err() && matches!(cpu.trap, Trap::Io(_));
        if !again {
            end_replay(cpu, r.is_ok());
            return r;
        }
    }
}

/// After an attempt to run an instruction: answered accesses are kept if it is to be run again.
#[inline]
fn end_replay(cpu: &mut Cpu, done: bool) {
    if !done && matches!(cpu.trap, Trap::CodeWrite { .. } | Trap::Watched) {
        cpu.replay_pos = 0;
    } else {
        cpu.forget_replay();
    }
}

/// Asks the machine.
fn ask(handler: &mut dyn ExitHandler, req: IoRequest) -> u64 {
    let mut bytes = [0; 8];
    match req {
        IoRequest::MmioRead { gpa, size } => {
            handler.mmio_read(Gpa(gpa), &mut bytes[..size as usize]);
        }
        IoRequest::MmioWrite { gpa, size, data } => {
            handler.mmio_write(Gpa(gpa), &data.to_le_bytes()[..size as usize]);
        }
        IoRequest::PortIn { port, size } => handler.pio_read(port, &mut bytes[..size as usize]),
        IoRequest::PortOut { port, size, data } => {
            handler.pio_write(port, &data.to_le_bytes()[..size as usize]);
        }
    }
    u64::from_le_bytes(bytes)
}
