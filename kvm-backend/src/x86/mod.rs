mod clock;
mod dirty_log;
mod events;
mod extended_state;
mod hypervisor;
mod irq;
mod kick;
mod moment;
mod probe;
mod raw;
mod registers;
mod vcpu;
mod vm;

pub(crate) use hypervisor::Kvm;
pub(crate) use probe::probe;

use vmm_core::hypervisor::HypervisorError;

/// Wraps a failed ioctl.
fn host_error(operation: &'static str) -> impl Fn(kvm_ioctls::Error) -> HypervisorError {
    move |error| HypervisorError::Host {
        operation,
        source: std::io::Error::from_raw_os_error(error.errno()),
    }
}
