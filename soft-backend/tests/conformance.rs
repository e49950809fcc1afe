//! The software CPU behaves as every backend must.

use vmm_core::hypervisor::Hypervisor;

/// Always there.
fn open(_: &str) -> Option<Box<dyn Hypervisor>> {
    let soft = soft_backend::open(soft_backend::SoftOptions::default());
    Some(Box::new(soft.expect("the software CPU runs everywhere")))
}

conformance::hypervisor_suite!(open);
