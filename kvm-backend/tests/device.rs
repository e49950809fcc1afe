//! `/dev/kvm` itself: that it is there for an ordinary user and has what the backend builds on.

use conformance::skip;
use kvm_bindings::KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2;
use kvm_ioctls::{Cap, Kvm};

/// KVM, or `None` after saying that the test is skipped.
fn kvm(test: &str) -> Option<Kvm> {
    Kvm::new()
        .map_err(|error| skip::without_kvm(test, &format!("cannot open /dev/kvm: {error}")))
        .ok()
}

#[test]
fn has_the_capabilities_of_machine_model_1() {
    let Some(kvm) = kvm("has_the_capabilities_of_machine_model_1") else {
        return;
    };
    assert_eq!(kvm.get_api_version(), 12);
    let vm = kvm.create_vm().expect("a VM");
    for capability in [
        Cap::UserMemory,
        Cap::SplitIrqchip,
        Cap::SetTssAddr,
        Cap::AdjustClock,
        Cap::Irqfd,
        Cap::Ioeventfd,
        Cap::ImmediateExit,
    ] {
        assert!(vm.check_extension(capability), "no {capability:?}");
    }
    assert!(vm.check_extension_raw(KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2.into()) & 1 != 0);
}

#[test]
fn the_emulated_host_has_amd_virtualization() {
    if !std::path::Path::new("/sys/module/kvm_amd").exists() {
        let test = "the_emulated_host_has_amd_virtualization";
        return skip::because(test, "kvm_amd is not loaded");
    }
    let nested_paging = std::fs::read_to_string("/sys/module/kvm_amd/parameters/npt").unwrap();
    assert!(
        ["Y", "1"].contains(&nested_paging.trim()),
        "{nested_paging}"
    );
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    assert!(cpu.split_whitespace().any(|flag| flag == "svm"));
}
