//! KVM behaves as every backend must.
//!
//! On a host without hardware virtualization a KVM that runs guests in its instruction emulator is
//! enough for nearly all of it.

use conformance::skip;
use vmm_core::hypervisor::Hypervisor;

/// What such an emulator does not do, and why.
const NOT_EMULATED: &[(&str, &str)] = &[
    (
        "clock::the_tsc_goes_on_from_its_saved_value",
        "the TSC is the host's",
    ),
    (
        "clock::tsc_and_kvm_clock_keep_step",
        "the TSC is the host's",
    ),
    ("avx::registers_go_on_elsewhere", "no AVX"),
    ("breakpoints::breakpoints_come_back", "no breakpoints"),
    (
        "breakpoints::code_and_data_stop_the_guest",
        "no breakpoints",
    ),
    ("cpuid::is_what_the_table_says", "CPUID is the host's"),
    ("exceptions::a_breakpoint", "no INT3"),
    ("exceptions::a_software_interrupt", "no INT"),
    ("exceptions::an_undefined_instruction", "no UD2"),
    ("exceptions::faults_in_delivery_become_others", "no UD2"),
    (
        "user_mode::system_calls_come_and_go",
        "selectors are the host's",
    ),
];

/// What KVM does not do because the host's own processor, emulated by QEMU, gets it wrong.
const WRONG_IN_QEMU: &[(&str, &str)] = &[
    (
        "exceptions::a_stack_out_of_range",
        "QEMU raises #GP instead of #SS",
    ),
    (
        "exceptions::faults_in_delivery_become_others",
        "QEMU miscounts the error code",
    ),
];

/// The same for [old releases](skip::host_is_old_qemu).
const WRONG_IN_OLD_QEMU: &[(&str, &str)] = &[
    (
        "avx::registers_go_on_elsewhere",
        "QEMU hides XSETBV from KVM",
    ),
    (
        "breakpoints::breakpoints_come_back",
        "QEMU enters a guest without its breakpoints",
    ),
];

/// What cannot be had where the host's own kernel has given up the TSC: KVM then stops a guest's TSC
/// while its vCPU does not run, and lets it catch up at the next entry.
const UNSTABLE_TSC: &[(&str, &str)] = &[(
    "clock::tsc_and_kvm_clock_keep_step",
    "the host's TSC is unstable",
)];

/// Whether this host's kernel has given up the TSC.
fn tsc_is_unstable() -> bool {
    let path = "/sys/devices/system/clocksource/clocksource0/available_clocksource";
    std::fs::read_to_string(path)
        .is_ok_and(|list| !list.split_whitespace().any(|name| name == "tsc"))
}

/// Why this host cannot run a test that other hosts with KVM can.
fn obstacle(test: &str) -> Option<&'static str> {
    let find = |list: &[(&str, &'static str)]| {
        let found = list.iter().find(|(name, _)| *name == test);
        found.map(|(_, reason)| *reason)
    };
    find(WRONG_IN_QEMU)
        .filter(|_| skip::host_is_qemu())
        .or_else(|| find(WRONG_IN_OLD_QEMU).filter(|_| skip::host_is_old_qemu()))
        .or_else(|| find(UNSTABLE_TSC).filter(|_| tsc_is_unstable()))
        .or_else(|| find(NOT_EMULATED).filter(|_| kvm_backend::probe().is_err()))
}

/// KVM, or `None` after saying that the test is skipped.
fn open(test: &str) -> Option<Box<dyn Hypervisor>> {
    if let Some(reason) = obstacle(test) {
        skip::because(test, reason);
        return None;
    }
    kvm_backend::open()
        .map_err(|error| skip::without_kvm(test, &error.to_string()))
        .ok()
}

conformance::hypervisor_suite!(open);
