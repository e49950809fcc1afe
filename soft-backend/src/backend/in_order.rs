//! Deterministic mode: vCPUs take turns in a fixed order and for a fixed number of instructions, and
//! the number of instructions is the time.
//!
//! The state of the order lies with the machine, not with the threads: a thread whose vCPU has not the
//! turn waits. A piece of guest code ends only where the guest itself makes it end: at the end of its
//! turn, at its timer, where work of the agenda is due, at HLT and PAUSE, and after an access that may
//! have changed one of these. A kick or a request of another thread is seen at these
//! ends only, and what goes on after it goes on as if it had not been.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, Weak};

use vmm_core::exit::ExitHandler;
use vmm_core::hypervisor::VcpuStop;
use vmm_core::schedule::{Agenda, InstructionClock};
use vmm_core::x86::MpState;

use super::vcpu::{After, SoftVcpu};
use super::vm::{Machine, SoftVm};
use crate::cpu::Cpu;
use crate::run::{Engine, Stop};

/// Instructions of a turn.
const TURN: u64 = 50_000;

/// Whose turn it is, and what time.
#[derive(Debug, Default)]
pub(super) struct Rota {
    turn: usize,
    /// The count at which the turn ends.
    turn_ends: u64,
    /// Instructions of all vCPUs, and idle time that was jumped over.
    pub(super) count: u64,
}

impl Rota {
    /// Gives the turn to the next vCPU behind the current one that has something to run, at last to
    /// the current one itself. False: all wait.
    fn pass(&mut self, cpus: &mut [Cpu]) -> bool {
        let (last, all) = (self.turn, cpus.len());
        for next in (1..=all).map(|n| (last + n) % all) {
            cpus[next].retired = self.count;
            if cpus[next].is_awake() {
                self.turn = next;
                self.turn_ends = self.count + TURN;
                return true;
            }
        }
        false
    }

    /// All vCPUs wait: time jumps to the first timer, or to `agenda`. False if there is neither.
    fn skip(&mut self, cpus: &[Cpu], agenda: Option<u64>) -> bool {
        let timers = cpus.iter().filter_map(Cpu::timer_count);
        let Some(next) = timers.chain(agenda).min() else {
            return false;
        };
        self.count = self.count.max(next);
        true
    }
}

/// What a deterministic VM has in addition.
pub(super) struct InOrder {
    per_second: u64,
    agenda: Mutex<Option<Weak<dyn Agenda>>>,
}

impl InOrder {
    pub(super) fn new(tsc_khz: u64) -> Self {
        InOrder {
            per_second: tsc_khz * 1000,
            agenda: Mutex::default(),
        }
    }

    fn agenda(&self) -> Option<std::sync::Arc<dyn Agenda>> {
        let agenda = self.agenda.lock().unwrap_or_else(PoisonError::into_inner);
        agenda.as_ref().and_then(Weak::upgrade)
    }

    fn next_work(&self) -> Option<u64> {
        self.agenda()?.next()
    }
}

impl SoftVm {
    /// Carries out what is due; the baton is free.
    pub(super) fn carry_out(&self, count: u64) {
        if let Some(agenda) = self.order.as_ref().and_then(InOrder::agenda) {
            agenda.carry_out(count);
        }
    }
}

impl InstructionClock for SoftVm {
    fn count(&self) -> u64 {
        let order = self.router.order.as_ref();
        order.map_or(0, |order| order.count.load(Ordering::SeqCst))
    }

    fn per_second(&self) -> u64 {
        self.order.as_ref().map_or(1, |order| order.per_second)
    }

    fn follow(&self, agenda: Weak<dyn Agenda>) {
        if let Some(order) = &self.order {
            *order.agenda.lock().unwrap_or_else(PoisonError::into_inner) = Some(agenda);
        }
    }

    fn agenda_changed(&self) {
        self.router.call();
    }
}

impl SoftVcpu {
    /// One stay with the baton; guest code runs only while the turn is this vCPU's.
    pub(super) fn turn_in_order(&self, order: &InOrder, handler: &mut dyn ExitHandler) -> After {
        let router = &*self.vm.router;
        let mail = &router.mail[self.index];
        // Taken before the state is looked at: a ring after this is not missed.
        let seen = mail.rings();
        let mut held = self.vm.baton.take();
        let Machine {
            cache, cpus, rota, ..
        } = &mut *held;
        cache.catch_up(&mut cpus[self.index]);
        self.enter(rota);
        loop {
            if mail.take_kick() {
                return After::Return(VcpuStop::Kicked);
            }
            if rota.turn != self.index {
                return After::Wait { seen, limit: None };
            }
            if self.vm.baton.urgent() {
                return After::Again;
            }
            router.attention.store(false, Ordering::SeqCst);
            router.publish_count(rota.count);
            let work = order.next_work();
            if work.is_some_and(|at| at <= rota.count) {
                return After::Due(rota.count);
            }
            let others = self.others_awake(cpus, rota.count);
            let cpu = &mut cpus[self.index];
            cpu.retired = rota.count;
            if !cpu.is_awake() || rota.count >= rota.turn_ends {
                if rota.pass(cpus) {
                    self.hand_over(rota);
                } else if !rota.skip(cpus, work) {
                    return After::Wait { seen, limit: None };
                }
                continue;
            }
            let timer = cpu.timer_count().into_iter();
            let end = timer.chain(work).fold(rota.turn_ends, u64::min);
            let mut engine = Engine {
                cpu,
                cache,
                handler,
                attention: &router.attention,
                waiting: &AtomicUsize::new(others),
            };
            let stop = engine.run(end - rota.count);
            rota.count = cpu.retired;
            match stop {
                Stop::Budget | Stop::Attention => {}
                Stop::Yield => rota.turn_ends = rota.count,
                Stop::Halted => cpu.mp_state = MpState::Halted,
                Stop::TripleFault => return After::Return(VcpuStop::TripleFault),
                Stop::MemoryLost => return After::Return(VcpuStop::MemoryLost),
            }
        }
    }

    /// Notes who runs the vCPU whose turn it is.
    fn enter(&self, rota: &Rota) {
        if let (Some(order), true) = (&self.vm.router.order, rota.turn == self.index) {
            let mut thread = order.thread.lock().unwrap_or_else(PoisonError::into_inner);
            *thread = Some(std::thread::current().id());
        }
    }

    /// How many other vCPUs have something to run.
    fn others_awake(&self, cpus: &mut [Cpu], count: u64) -> usize {
        let others = cpus.iter_mut().enumerate();
        let others = others.filter(|(index, _)| *index != self.index);
        others
            .filter_map(|(_, cpu)| {
                cpu.retired = count;
                cpu.is_awake().then_some(())
            })
            .count()
    }

    /// Tells the thread whose turn it is now.
    fn hand_over(&self, rota: &Rota) {
        if let Some(order) = &self.vm.router.order {
            order.turn.store(rota.turn, Ordering::SeqCst);
        }
        if rota.turn != self.index {
            self.vm.router.mail[rota.turn].ring();
        }
    }
}
