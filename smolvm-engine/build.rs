//! Builds the guest agent as a static program and embeds it.
//!
//! The agent has a target folder of its own, so that its flags do not disturb the workspace's, and no
//! Cargo dependency leads from the engine to it. All profiles share the folder: the agent is built once.
//! `SMOLVM_GUEST_AGENT` names a finished agent instead, for hosts that cannot build one.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=SMOLVM_GUEST_AGENT");
    let manifest = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let workspace = manifest.parent().expect("the crate lies in a workspace");
    for watched in [
        "guest-agent/src",
        "guest-agent/Cargo.toml",
        "agent-protocol/src",
    ] {
        println!(
            "cargo::rerun-if-changed={}",
            workspace.join(watched).display()
        );
    }
    let agent = match env::var_os("SMOLVM_GUEST_AGENT") {
        Some(path) => PathBuf::from(path),
        None => build(workspace),
    };
    println!(
        "cargo::rustc-env=SMOLVM_GUEST_AGENT_FILE={}",
        agent.display()
    );
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("Cargo sets {name}"))
}

/// Builds the agent for the guests that this host runs.
fn build(workspace: &Path) -> PathBuf {
    let target = match variable("CARGO_CFG_TARGET_ARCH").as_str() {
        "aarch64" => "aarch64-unknown-linux-gnu",
        _ => "x86_64-unknown-linux-gnu",
    };
    let out = PathBuf::from(variable("OUT_DIR"));
    // `TARGET/PROFILE/build/PACKAGE/out`. Were it deeper, the folder would only be shared by fewer.
    let target_folder = out.ancestors().nth(4).unwrap_or(&out);
    let folder = target_folder.join("guest-agent");
    let status = Command::new(variable("CARGO"))
        .current_dir(workspace)
        .args([
            "build",
            "--quiet",
            "--package",
            "guest-agent",
            "--bin",
            "guest-agent",
        ])
        .args(["--profile", "agent", "--target", target, "--target-dir"])
        .arg(&folder)
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        // Clippy's; with it the agent would be built once more.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .status()
        .expect("cargo can be started");
    assert!(status.success(), "the guest agent did not build");
    let built = folder.join(target).join("agent/guest-agent");
    // What is embedded shall not change while it is read.
    let kept = out.join("guest-agent");
    fs::copy(&built, &kept).expect("the agent can be copied");
    kept
}
