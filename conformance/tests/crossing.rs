//! Saved states cross from one backend to another.

use conformance::hypervisor::{breakpoints, crossing};
use conformance::skip;
use vmm_core::hypervisor::Hypervisor;

fn soft() -> soft_backend::SoftHypervisor {
    soft_backend::open(soft_backend::SoftOptions::default()).expect("it runs everywhere")
}

/// KVM, or `None` after saying that the test is skipped.
fn kvm(test: &str) -> Option<Box<dyn Hypervisor>> {
    kvm_backend::open()
        .map_err(|error| skip::without_kvm(test, &error.to_string()))
        .ok()
}

#[test]
fn a_program_of_kvm_goes_on_on_the_software_cpu() {
    if let Some(kvm) = kvm("a_program_of_kvm_goes_on_on_the_software_cpu") {
        crossing::between_backends(&*kvm, &soft(), &*kvm);
    }
}

#[test]
fn a_program_of_the_software_cpu_goes_on_on_kvm() {
    if let Some(kvm) = kvm("a_program_of_the_software_cpu_goes_on_on_kvm") {
        crossing::between_backends(&soft(), &*kvm, &*kvm);
    }
}

#[test]
fn every_register_survives_the_crossing() {
    if let Some(kvm) = kvm("every_register_survives_the_crossing") {
        crossing::state_is_kept(&*kvm, &soft(), &*kvm);
        crossing::state_is_kept(&soft(), &*kvm, &*kvm);
    }
}

/// Why breakpoints cannot be met on this host's KVM.
fn no_breakpoints() -> Option<&'static str> {
    if skip::host_is_old_qemu() {
        return Some("QEMU enters a guest without its breakpoints");
    }
    let emulated = kvm_backend::probe().is_err();
    emulated.then_some("no breakpoints where KVM emulates instructions")
}

#[test]
fn breakpoints_of_kvm_are_met_on_the_software_cpu() {
    const TEST: &str = "breakpoints_of_kvm_are_met_on_the_software_cpu";
    if skip::host_is_old_qemu() {
        return skip::because(TEST, "QEMU keeps a guest's breakpoints for the next one");
    }
    if let Some(kvm) = kvm(TEST) {
        breakpoints::go_on_elsewhere(&*kvm, &soft(), &*kvm);
    }
}

#[test]
fn breakpoints_of_the_software_cpu_are_met_on_kvm() {
    const TEST: &str = "breakpoints_of_the_software_cpu_are_met_on_kvm";
    if let Some(reason) = no_breakpoints() {
        return skip::because(TEST, reason);
    }
    if let Some(kvm) = kvm(TEST) {
        breakpoints::go_on_elsewhere(&soft(), &*kvm, &*kvm);
    }
}
