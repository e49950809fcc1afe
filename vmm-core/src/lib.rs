//! Hypervisor abstraction and machine model.
//!
//! This crate holds everything of a machine that does not depend on what runs its vCPUs: guest
//! memory, buses, interrupt controllers, devices, boot protocols, saved state and dirty tracking. The
//! backends (`kvm-backend`, `soft-backend`, `hvf-backend`) implement [`hypervisor`]'s traits; the
//! machine's owner implements [`host_side`]'s.
//!
//! # Trust
//!
//! Everything that a guest writes and everything in a [`snapshot_format::StateRecord`] is untrusted:
//! it is validated where it is used, and may not panic, loop or allocate without bound.

pub mod arm64;
pub mod bus;
pub mod cpu_state;
pub mod entropy;
pub mod exit;
pub mod freeze;
mod gpa;
pub mod host_side;
pub mod hypervisor;
pub mod irq;
pub mod machine;
pub mod power;
pub mod ram;
pub mod schedule;
pub mod serial;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod tracker;
pub mod unit;
pub mod virtio;
pub mod vmgenid;
mod warn_limit;
pub mod x86;

pub use gpa::{Gpa, VcpuIndex};
