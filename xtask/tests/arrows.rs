//! Which crate may depend on which: the arrows of ARCHITECTURE.md, read from `cargo metadata`.

use std::collections::BTreeMap;

use xtask::cargo::Workspace;

/// A crate and what it may depend on; `None` is anything.
const ARROWS: &[(&str, Option<&[&str]>)] = &[
    ("smolvm-cli", Some(&["smolvm-engine"])),
    (
        "smolvm-engine",
        Some(&[
            "vmm-core",
            "kvm-backend",
            "soft-backend",
            "hvf-backend",
            "cas-store",
            "durable-files",
            "cow-disk",
            "guest-image",
            "snapshot-format",
            "agent-protocol",
        ]),
    ),
    ("kvm-backend", Some(&["vmm-core"])),
    ("soft-backend", Some(&["vmm-core"])),
    ("hvf-backend", Some(&["vmm-core"])),
    // Only for `StateRecord` and its codec; cow-disk only with the feature of that name.
    ("vmm-core", Some(&["snapshot-format", "cow-disk"])),
    ("guest-image", Some(&["cas-store", "durable-files"])),
    ("guest-agent", Some(&["agent-protocol"])),
    ("cas-store", Some(&["durable-files"])),
    ("durable-files", Some(&[])),
    ("cow-disk", Some(&[])),
    ("snapshot-format", Some(&[])),
    ("agent-protocol", Some(&[])),
    ("conformance", None),
    ("examples", None),
    ("benches", None),
    ("xtask", None),
];

/// The one crate that every crate's tests may use.
const TEST_SUITES: &str = "conformance";

#[test]
fn every_dependency_follows_an_arrow() {
    let workspace = Workspace::read().expect("cargo metadata");
    let allowed: BTreeMap<&str, Option<&[&str]>> = ARROWS.iter().copied().collect();
    let ours = |name: &str| {
        workspace
            .packages
            .iter()
            .any(|package| package.name == name)
    };
    let mut followed = 0;
    for package in &workspace.packages {
        let name = package.name.as_str();
        let targets = allowed
            .get(name)
            .unwrap_or_else(|| panic!("{name} is not in the list of arrows"));
        let Some(targets) = targets else { continue };
        for dependency in package.dependencies.iter().filter(|one| ours(&one.name)) {
            let found = dependency.name.as_str();
            // A crate's tests may also turn on more of the crate itself.
            let test_only = dependency.kind.as_deref() == Some("dev")
                && (found == TEST_SUITES || found == name);
            assert!(
                test_only || targets.contains(&found),
                "{name} -> {found} is not an arrow of ARCHITECTURE.md"
            );
            followed += 1;
        }
    }
    assert!(followed > 5, "only {followed} dependencies were seen");
}

#[test]
fn the_list_names_only_crates_that_exist() {
    let workspace = Workspace::read().expect("cargo metadata");
    for (name, targets) in ARROWS {
        for name in targets.unwrap_or_default().iter().chain([name]) {
            let known = workspace
                .packages
                .iter()
                .any(|package| package.name == *name);
            assert!(known, "there is no crate {name}");
        }
    }
}
