use std::time::Duration;

use kvm_bindings::kvm_clock_data;
use vmm_core::hypervisor::{HypervisorError, X86Clock};
use vmm_core::x86::ClockState;

use super::host_error;
use super::moment::{closely, set_closely};
use super::vm::KvmVm;

impl X86Clock for KvmVm {
    fn save(&self) -> Result<ClockState, HypervisorError> {
        let read = || self.fd().get_clock().map_err(host_error("KVM_GET_CLOCK"));
        let (clock, at) = closely(read)?;
        // As it was when the TSCs were read.
        let since = self
            .moment()
            .take()
            .map_or(0, |moment| nanoseconds(at - moment));
        Ok(ClockState {
            guest_nanoseconds: clock.clock.saturating_sub(since),
        })
    }

    fn load(&self, state: &ClockState) -> Result<(), HypervisorError> {
        let moment = self.moment().take();
        set_closely(|now| {
            // What the TSCs have counted since they were loaded, the clock has counted too.
            let since = moment.map_or(0, |moment| nanoseconds(now - moment));
            // No KVM_CLOCK_REALTIME: the clock goes on from the saved value, not from "now".
            let clock = kvm_clock_data {
                clock: state.guest_nanoseconds.saturating_add(since),
                ..kvm_clock_data::default()
            };
            self.fd()
                .set_clock(&clock)
                .map_err(host_error("KVM_SET_CLOCK"))
        })
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
