//! The software CPU behind `vmm-core`'s traits.

mod baton;
mod hypervisor;
mod in_order;
mod state;
mod vcpu;
mod vm;

pub use hypervisor::{SoftHypervisor, SoftOptions, open, probe, translates};
