use std::sync::Arc;

use vmm_core::cpu_state::VcpuState;
use vmm_core::hypervisor::{Vcpu, VcpuBinder, VcpuKick, VcpuStop};
use vmm_core::x86::X86VcpuState;

use super::{Trace, Watchdog};

/// A vCPU bound to the calling thread, with the trace of its accesses.
pub struct TestVcpu {
    vcpu: Box<dyn Vcpu>,
    kicker: Arc<dyn VcpuKick>,
    /// What it asked of the machine.
    pub trace: Trace,
}

impl TestVcpu {
    /// Binds to the calling thread.
    pub fn bind(binder: Box<dyn VcpuBinder>) -> Self {
        let kicker = binder.kicker();
        let vcpu = binder.bind().expect("a vCPU binds to its thread");
        let trace = Trace::new(kicker.clone());
        Self {
            vcpu,
            kicker,
            trace,
        }
    }

    /// Makes it leave guest mode.
    pub fn kicker(&self) -> Arc<dyn VcpuKick> {
        self.kicker.clone()
    }

    /// Loads a complete state.
    pub fn load(&mut self, state: &X86VcpuState) {
        self.vcpu
            .load(&VcpuState::X86(Box::new(state.clone())))
            .expect("the state loads");
    }

    /// Finishes what is pending and reads the complete state.
    pub fn save(&mut self) -> X86VcpuState {
        self.vcpu
            .finish_pending_exit(&mut self.trace)
            .expect("a pending access completes");
        match self.vcpu.save().expect("the state is saved") {
            VcpuState::X86(state) => *state,
            other => panic!("an x86 vCPU has the state {other:?}"),
        }
    }

    /// The backend's vCPU itself.
    pub fn inner(&mut self) -> &mut dyn Vcpu {
        &mut *self.vcpu
    }

    /// Runs until the backend returns. A guest that hangs is a failure.
    pub fn run(&mut self) -> VcpuStop {
        let watchdog = Watchdog::new(self.kicker.clone());
        let stop = self.vcpu.run(&mut self.trace).expect("the vCPU runs");
        assert!(
            !watchdog.has_bitten(),
            "the guest hangs: {}",
            self.describe()
        );
        stop
    }

    /// Runs until the guest says that it is through; the values that it reported since the last call.
    pub fn run_until_done(&mut self) -> Vec<u32> {
        let stop = self.run();
        assert_eq!(stop, VcpuStop::Kicked, "{}", self.describe());
        assert!(
            self.trace.done,
            "kicked, but not by the guest: {}",
            self.describe()
        );
        self.trace.done = false;
        self.vcpu
            .finish_pending_exit(&mut self.trace)
            .expect("a pending access completes");
        std::mem::take(&mut self.trace.reports)
    }

    /// Where the guest is and what it did, for messages.
    fn describe(&mut self) -> String {
        let general = self.save().general;
        let Trace {
            reports, accesses, ..
        } = &self.trace;
        format!("reports {reports:x?}, accesses {accesses:x?}, {general:x?}")
    }
}
