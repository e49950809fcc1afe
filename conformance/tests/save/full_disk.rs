//! A file system that is full at any point of a capture: nothing is published, the machine runs on, and
//! the next capture is whole.

use std::fs;
use std::path::Path;
use std::process::Command;

use smolvm_engine::{MachineState, chain};

use crate::bed::{Bed, Saved, long};

/// Set where this program was started again as the root of a user namespace.
const INSIDE: &str = "SMOLVM_TEST_NAMESPACE";

/// Whether this program runs where a file system can be mounted. If not, the test of this module is run
/// again in such a place, or skipped, and there is nothing left to do here.
pub(crate) fn in_a_namespace(module: &str, test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    if std::env::var_os("SMOLVM").is_none() {
        conformance::skip::because(test, "$SMOLVM and $SMOLVM_HOME are not set");
    } else {
        again_in_a_namespace(module, test);
    }
    false
}

fn again_in_a_namespace(module: &str, test: &str) {
    let program = std::env::current_exe().expect("this program");
    let works = Command::new("unshare").args(["-rm", "true"]).output();
    if !works.is_ok_and(|output| output.status.success()) {
        return conformance::skip::because(test, "no user namespace to mount a file system in");
    }
    let inner = format!("{module}::{test}");
    // Its output is a harness's of its own, which is not to be counted twice.
    let output = Command::new("unshare")
        .arg("-rm")
        .arg(program)
        .args(["--exact", &inner, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .expect("unshare runs");
    assert!(
        output.status.success(),
        "inside the namespace: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

fn free_bytes(path: &Path) -> u64 {
    let stat = rustix::fs::statvfs(path).expect("statvfs");
    stat.f_bavail * stat.f_frsize
}

/// Leaves so many bytes free.
fn fill(folder: &Path, leave: u64) {
    let file = fs::File::create(folder.join("filler")).expect("filler");
    let length = free_bytes(folder).saturating_sub(leave);
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, length.max(1))
        .expect("fill");
}

#[test]
fn a_full_disk_publishes_nothing_and_loses_nothing() {
    let test = "a_full_disk_publishes_nothing_and_loses_nothing";
    if !in_a_namespace("full_disk", test) {
        return;
    }
    let Some(bed) = Bed::open(test) else {
        return;
    };
    let small = bed.path("small");
    fs::create_dir(&small).expect("create");
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1G", "tmpfs"])
        .arg(&small)
        .status();
    assert!(mount.expect("mount runs").success());
    bed.boot("source", &["--mem", "256M"]);
    let save = |file: &str| {
        let output = small.join(file);
        let result = bed.try_save("source", "x.checkpoint", |options| {
            options.store = Some(small.join("store"));
            options.output = Some(output.clone());
        });
        (result, output)
    };
    let before = free_bytes(&small);
    save("first.checkpoint").0.expect("the first");
    let need = before - free_bytes(&small);
    let steps = if long() { 40 } else { 6 };
    let mut failed = 0;
    for step in 0..steps {
        let value = format!("step {step}");
        bed.sh(
            "source",
            &format!(
                "echo '{value}' > /run/file; echo '{value}' > /root/file; \
             head -c 4000000 /dev/urandom > /run/noise"
            ),
        );
        fill(&small, need * step / steps / 8);
        let (result, output) = save("cut.checkpoint");
        fs::remove_file(small.join("filler")).expect("remove");
        match result {
            Ok(_) => Saved::open(&output).verify(),
            Err(error) => {
                failed += 1;
                assert!(
                    chain(&error).contains("No space left"),
                    "step {step}: {}",
                    chain(&error)
                );
                assert!(!output.exists(), "step {step}: something was published");
            }
        }
        assert_eq!(bed.state("source"), MachineState::Running, "step {step}");
        let (result, next) = save("next.checkpoint");
        result.unwrap_or_else(|error| panic!("step {step}, the next: {}", chain(&error)));
        Saved::open(&next).verify();
        let hidden = fs::read_dir(&small).expect("list").any(|entry| {
            entry
                .expect("entry")
                .file_name()
                .to_string_lossy()
                .starts_with('.')
        });
        assert!(!hidden, "step {step}: a staging is left");
        bed.restore("restored", "small/next.checkpoint", None);
        assert_eq!(
            bed.sh("restored", "cat /run/file /root/file"),
            format!("{value}\n{value}")
        );
        bed.delete("restored");
        for path in [&output, &next] {
            if path.exists() {
                fs::remove_dir_all(path).expect("remove");
            }
        }
    }
    assert!(failed > 0, "the file system was never full");
    bed.delete("source");
    let umount = Command::new("umount").arg("-l").arg(&small).status();
    assert!(umount.expect("umount runs").success());
}
