//! The probe gives a verdict with a reason, and the same one each time.

#[test]
fn the_probe_says_yes_or_why_not() {
    let first = kvm_backend::probe();
    if let Err(error) = &first {
        assert!(
            error.to_string().starts_with("kvm is not usable here: "),
            "{error}"
        );
    }
    if std::env::var_os("SMOLVM_REQUIRE_KVM").is_some() {
        first.expect("KVM is required");
    }
}
