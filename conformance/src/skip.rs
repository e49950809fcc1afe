//! Saying that a test cannot run here.
//!
//! Rust's harness knows no skipped tests: the test returns, so it counts as passed, and a line
//! that begins with `skipped: ` goes past the harness's capture to standard error. The project's
//! test runner counts those lines and reports the tests as skipped.

use std::io::{self, Write};

/// Set to `1` where KVM must work: what would be skipped for want of it then fails.
pub const REQUIRE_KVM: &str = "SMOLVM_REQUIRE_KVM";

/// Whether this host's processor is QEMU's emulator.
#[cfg(target_arch = "x86_64")]
pub fn host_is_qemu() -> bool {
    let leaf = std::arch::x86_64::__cpuid(0x4000_0000);
    leaf.ebx.to_le_bytes() == *b"TCGT"
}

/// Whether it is a release of that emulator which hides XSETBV from KVM and mixes up the breakpoints of guests: 7.2
/// does, 10.0 does not.
#[cfg(target_arch = "x86_64")]
pub fn host_is_old_qemu() -> bool {
    // The machine type carries the release: pc-i440fx-7.2.
    let version = std::fs::read_to_string("/sys/class/dmi/id/product_version");
    let major: Option<u32> = version.ok().and_then(|version| {
        let release = version.strip_prefix("pc-i440fx-")?;
        release.split('.').next()?.parse().ok()
    });
    host_is_qemu() && major.is_none_or(|major| major < 10)
}

/// Says that `test` is skipped and why.
///
/// ```
/// # fn feature_is_there() -> bool { false }
/// if !feature_is_there() {
///     return conformance::skip::because("my_test", "this host lacks the feature");
/// }
/// ```
pub fn because(test: &str, reason: &str) {
    let line = format!("\nskipped: {test}: {reason}\n");
    // Nobody reads standard error if this fails.
    let _unread = io::stderr().write_all(line.as_bytes());
}

/// As [`because`], for a test that needs KVM.
///
/// # Panics
///
/// With [`REQUIRE_KVM`] set to `1`, so that a test bed without KVM is noticed.
pub fn without_kvm(test: &str, reason: &str) {
    let required = std::env::var(REQUIRE_KVM).is_ok_and(|value| value == "1");
    assert!(!required, "{test} needs KVM: {reason}");
    because(test, reason);
}
