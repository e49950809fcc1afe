//! A vCPU on its thread.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use vmm_core::VcpuIndex;
use vmm_core::cpu_state::VcpuState;
use vmm_core::exit::ExitHandler;
use vmm_core::hypervisor::{HypervisorError, Vcpu, VcpuBinder, VcpuKick, VcpuStop};
use vmm_core::x86::{MpState, msr};

use super::vm::{Machine, SoftVm};
use crate::run::{Engine, Stop};

/// Instructions that a vCPU runs before others that wait get their turn.
const TURN: u64 = 200_000;
/// Instructions between looks at the clock.
const SLICE: u64 = 20_000;

/// Binds one vCPU.
pub(super) struct SoftBinder {
    vm: Arc<SoftVm>,
    index: u8,
}

impl SoftBinder {
    pub(super) fn boxed(vm: Arc<SoftVm>, index: u8) -> Box<dyn VcpuBinder> {
        Box::new(SoftBinder { vm, index })
    }
}

struct Kick {
    vm: Arc<SoftVm>,
    index: usize,
}

impl VcpuKick for Kick {
    fn kick(&self) {
        self.vm.router.mail[self.index].kick();
        self.vm.router.call_from_anywhere();
    }
}

impl VcpuBinder for SoftBinder {
    fn index(&self) -> VcpuIndex {
        VcpuIndex(self.index)
    }

    fn kicker(&self) -> Arc<dyn VcpuKick> {
        Arc::new(Kick {
            vm: self.vm.clone(),
            index: self.index.into(),
        })
    }

    fn bind(self: Box<Self>) -> Result<Box<dyn Vcpu>, HypervisorError> {
        Ok(Box::new(SoftVcpu {
            vm: self.vm,
            index: self.index.into(),
        }))
    }
}

pub(super) struct SoftVcpu {
    pub(super) vm: Arc<SoftVm>,
    pub(super) index: usize,
}

/// What a vCPU does after its turn.
pub(super) enum After {
    Again,
    /// Deterministic mode: work of the machine's agenda is due at this count.
    Due(u64),
    Wait {
        seen: u64,
        limit: Option<Duration>,
    },
    Return(VcpuStop),
}

impl SoftVcpu {
    /// One turn with the baton.
    fn turn(&self, handler: &mut dyn ExitHandler) -> After {
        let router = &*self.vm.router;
        let mail = &router.mail[self.index];
        let waiting = || self.vm.baton.waiting().load(Ordering::SeqCst) > 0;
        let mut held = self.vm.baton.take();
        held.moment = None;
        let Machine { cache, cpus, .. } = &mut *held;
        let cpu = &mut cpus[self.index];
        cache.catch_up(cpu);
        let turn_ends = cpu.retired + TURN;
        loop {
            // Taken before the state is looked at: a ring after this is not missed.
            let seen = mail.rings();
            router.attention.store(false, Ordering::SeqCst);
            if mail.take_kick() {
                return After::Return(VcpuStop::Kicked);
            }
            if !cpu.is_awake() {
                return After::Wait {
                    seen,
                    limit: cpu.time_to_timer(),
                };
            }
            let attention = &router.attention;
            let waiting_now = self.vm.baton.waiting();
            let mut engine = Engine {
                cpu,
                cache,
                handler,
                attention,
                waiting: waiting_now,
            };
            match engine.run(SLICE) {
                Stop::Budget if cpu.retired >= turn_ends && waiting() => return After::Again,
                Stop::Yield if waiting() => return After::Again,
                Stop::Attention if self.vm.baton.urgent() => return After::Again,
                Stop::Budget | Stop::Attention | Stop::Yield => {}
                Stop::Halted => cpu.mp_state = MpState::Halted,
                Stop::TripleFault => return After::Return(VcpuStop::TripleFault),
                Stop::MemoryLost => return After::Return(VcpuStop::MemoryLost),
            }
        }
    }
}

impl Vcpu for SoftVcpu {
    fn run(&mut self, handler: &mut dyn ExitHandler) -> Result<VcpuStop, HypervisorError> {
        loop {
            let after = match &self.vm.order {
                None => self.turn(handler),
                Some(order) => self.turn_in_order(order, handler),
            };
            match after {
                After::Again => {}
                After::Due(count) => self.vm.carry_out(count),
                After::Wait { seen, limit } => self.vm.router.mail[self.index].wait(seen, limit),
                After::Return(stop) => return Ok(stop),
            }
        }
    }

    /// Accesses are answered inside the instruction, so nothing is ever pending.
    fn finish_pending_exit(&mut self, _: &mut dyn ExitHandler) -> Result<(), HypervisorError> {
        Ok(())
    }

    fn notify_stopped(&mut self) -> Result<(), HypervisorError> {
        let mut held = self.vm.baton.take_now();
        held.count_up(&self.vm);
        held.cpus[self.index].clock_was_stopped();
        Ok(())
    }

    fn save(&mut self) -> Result<VcpuState, HypervisorError> {
        let mut held = self.vm.baton.take_now();
        held.count_up(&self.vm);
        let state = super::state::save(&mut held.cpus[self.index], &self.vm.msrs);
        held.moment = state.msr(msr::TSC);
        Ok(VcpuState::X86(Box::new(state)))
    }

    fn set_tsc_rate(&mut self, khz: u32) -> Result<(), HypervisorError> {
        self.vm.baton.take_now().cpus[self.index].set_tsc_rate(khz.into());
        Ok(())
    }

    fn load(&mut self, state: &VcpuState) -> Result<(), HypervisorError> {
        let VcpuState::X86(state) = state else {
            return Err(HypervisorError::Architecture {
                backend: "soft",
                architecture: "arm64",
            });
        };
        let mut held = self.vm.baton.take_now();
        held.count_up(&self.vm);
        if self.index == 0 {
            held.moment = state.msr(msr::TSC);
        }
        let Machine { cache, cpus, .. } = &mut *held;
        super::state::load(&mut cpus[self.index], state)?;
        // All vCPUs have one TSC; that of the first counts.
        let time = cpus[0].time;
        for cpu in cpus.iter_mut() {
            cpu.adopt_time(time);
        }
        // What was decoded from memory that is another one now is stale. The rest is found again by its address.
        cache.drop_stale(&mut cpus[self.index]);
        Ok(())
    }
}
