//! CPU, memory and disk of a point belong to one instant.

use std::process::Command;

use crate::bed::{Bed, Saved, long};

/// 32 writes with O_DIRECT under way at a time, and one through the page cache.
const WRITERS: &str = "33";

/// Stops the writers of a machine; they check what memory, disk and database hold.
fn check(bed: &Bed, name: &str) -> Vec<u64> {
    let script = "touch /run/stop; while pgrep -f '[p]rogram.py' > /dev/null; do sleep 0.1; done; cat /run/output";
    let output = bed.sh(name, script);
    let counts = output
        .strip_prefix("ok ")
        .unwrap_or_else(|| panic!("{name}: {output}"));
    let complaints = bed.complaints(name);
    assert_eq!(complaints, "", "{name} complains");
    let parse = |count: &str| count.parse().expect("a count");
    counts.split_whitespace().map(parse).collect()
}

#[test]
fn no_restore_of_ten_points_disagrees_with_its_disk() {
    let Some(bed) = Bed::open("no_restore_of_ten_points_disagrees_with_its_disk") else {
        return;
    };
    bed.boot("source", &[]);
    bed.python("source", include_str!("guest/counter.py"), WRITERS);
    for number in 0..10 {
        bed.save("source", &format!("{number}.checkpoint"));
    }
    let last = check(&bed, "source");
    bed.delete("source");
    let step = if long() { 1 } else { 3 };
    for number in (0..10).step_by(step) {
        let file = format!("{number}.checkpoint");
        let saved = Saved::open(&bed.path(&file));
        saved.verify();
        fsck(&bed, &saved);
        bed.restore("restored", &file, None);
        let counts = check(&bed, "restored");
        bed.delete("restored");
        assert_eq!(counts.len(), last.len());
    }
}

/// The journal is replayed on a copy; then nothing may be wrong.
pub(crate) fn fsck(bed: &Bed, saved: &Saved) {
    let disk = bed.path("disk.img");
    saved.write_disk(&disk);
    let e2fsck = |arguments: &[&str]| {
        let mut command = Command::new("e2fsck");
        command.args(arguments).arg(&disk);
        command
            .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
            .output()
    };
    // Replays the journal and does what mounting does; anything that needs a decision is an error.
    let Ok(replay) = e2fsck(&["-fp"]) else {
        return conformance::skip::because("fsck of restored disks", "e2fsck is not installed");
    };
    let code = replay.status.code();
    assert!(matches!(code, Some(0 | 1)), "after the journal: {replay:?}");
    let clean = e2fsck(&["-fn"]).expect("e2fsck runs");
    assert_eq!(clean.status.code(), Some(0), "{clean:?}");
    std::fs::remove_file(&disk).expect("remove the disk");
}
