use kvm_bindings::kvm_clock_data;
use vmm_core::hypervisor::{HypervisorError, X86Clock};
use vmm_core::x86::ClockState;

use super::host_error;
use super::vm::KvmVm;

impl X86Clock for KvmVm {
    fn save(&self) -> Result<ClockState, HypervisorError> {
        let clock = self.fd().get_clock().map_err(host_error("KVM_GET_CLOCK"))?;
        Ok(ClockState {
            guest_nanoseconds: clock.clock,
        })
    }

    fn load(&self, state: &ClockState) -> Result<(), HypervisorError> {
        // No KVM_CLOCK_REALTIME: the clock goes on from the saved value, not from "now".
        let clock = kvm_clock_data {
            clock: state.guest_nanoseconds,
            ..kvm_clock_data::default()
        };
        self.fd()
            .set_clock(&clock)
            .map_err(host_error("KVM_SET_CLOCK"))
    }
}
