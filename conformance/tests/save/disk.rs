//! The disk under 32 writes at a time while its top is frozen ten times and its layers are merged: it holds
//! what a model says, and its file system is sound.

use std::fs;
use std::process::Command;

use smolvm_engine::phase::Phase;

use crate::bed::{Bed, Saved, long, names};
use crate::instant::fsck;
use crate::killed::Victim;
use crate::phases::{kill_at, start};

const BLOCK_BYTES: usize = 4096;

/// Stops the writers; what their file must hold.
fn model(bed: &Bed, name: &str) -> Vec<u8> {
    let script = "touch /run/stop; while pgrep -f '[p]rogram.py' > /dev/null; do sleep 0.1; done; cat /run/output";
    let output = bed.sh(name, script);
    let versions = output
        .strip_prefix("ok ")
        .unwrap_or_else(|| panic!("{name}: {output}"));
    let versions: Vec<u64> = versions
        .split(' ')
        .map(|version| version.parse().expect("a number"))
        .collect();
    assert!(
        versions.iter().any(|version| *version > 1),
        "nothing was written"
    );
    let block = |(block, version): (usize, &u64)| {
        let word = (block as u64) << 32 | version;
        word.to_le_bytes().repeat(BLOCK_BYTES / 8)
    };
    versions.iter().enumerate().flat_map(block).collect()
}

/// What the disk holds, read past the guest's page cache.
fn content(bed: &Bed, name: &str) -> Vec<u8> {
    bed.sh(name, "sync; echo 3 > /proc/sys/vm/drop_caches");
    let arguments = [
        "machine",
        "exec",
        "--name",
        name,
        "--",
        "cat",
        "/root/queue",
    ];
    let output = bed.command(arguments).output().expect("exec runs");
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

fn check(bed: &Bed, name: &str, expected: &[u8], context: &str) {
    let found = content(bed, name);
    assert_eq!(found.len(), expected.len(), "{context}");
    let blocks = found.chunks(BLOCK_BYTES).zip(expected.chunks(BLOCK_BYTES));
    let wrong: Vec<_> = blocks
        .enumerate()
        .filter(|(_, (found, expected))| found != expected)
        .map(|(block, _)| block)
        .collect();
    assert!(wrong.is_empty(), "{context}: blocks {wrong:?}");
    assert_eq!(bed.complaints(name), "", "{context}");
}

/// The file as it lies on the disk of a point, whose file system must be sound.
fn check_point(bed: &Bed, file: &str, expected: &[u8]) {
    let saved = Saved::open(&bed.path(file));
    saved.verify();
    fsck(bed, &saved);
    let (disk, out) = (bed.path("disk.img"), bed.path("queue"));
    saved.write_disk(&disk);
    let mut debugfs = Command::new("debugfs");
    debugfs
        .arg("-R")
        .arg(format!("dump /root/queue {}", out.display()));
    debugfs
        .arg(&disk)
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
    match debugfs.output() {
        Ok(output) => {
            let found = fs::read(&out).unwrap_or_else(|error| panic!("{error}: {output:?}"));
            assert!(found == expected, "the exported disk differs");
        }
        Err(_) => conformance::skip::because("a file of an exported disk", "no debugfs"),
    }
    fs::remove_file(&disk).expect("remove");
}

/// How many layers the machine's disk has.
fn layers(bed: &Bed, name: &str) -> usize {
    let disk = names(&bed.home().join("machines").join(name).join("disk"));
    disk.iter()
        .filter(|name| name.starts_with("layer-"))
        .count()
}

fn write(bed: &Bed, name: &str) {
    bed.python(name, include_str!("guest/queue.py"), "");
}

#[test]
fn ten_points_under_32_writes_at_a_time_hold_what_was_written() {
    let Some(bed) = Bed::open("ten_points_under_32_writes_at_a_time_hold_what_was_written") else {
        return;
    };
    bed.boot("source", &[]);
    write(&bed, "source");
    for number in 0..10 {
        bed.save("source", &format!("{number}.checkpoint"));
    }
    let expected = model(&bed, "source");
    check(&bed, "source", &expected, "after ten points");
    bed.save("source", "end.checkpoint");
    check_point(&bed, "end.checkpoint", &expected);
    bed.delete("source");
    for number in (0..10).step_by(if long() { 1 } else { 4 }) {
        let file = format!("{number}.checkpoint");
        let saved = Saved::open(&bed.path(&file));
        saved.verify();
        fsck(&bed, &saved);
        bed.restore("restored", &file, None);
        let expected = model(&bed, "restored");
        check(&bed, "restored", &expected, &file);
        bed.delete("restored");
    }
}

#[test]
fn layers_of_captures_that_failed_are_merged_at_the_next_start() {
    let test = "layers_of_captures_that_failed_are_merged_at_the_next_start";
    let Some(bed) = Bed::open(test) else {
        return;
    };
    bed.run(["machine", "create", "--name", "source"])
        .expect("create");
    start(&bed, "source", "first");
    write(&bed, "source");
    let checkpoint: Vec<&str> = "machine checkpoint --name source --store store -o cut.checkpoint"
        .split(' ')
        .collect();
    // The next one would merge them while the machine runs.
    for number in 1..=9 {
        // Whoever asked is gone after the disk was frozen: the capture fails, the layer stays.
        kill_at(&bed, Phase::Resumed, Victim::Command, "source", &checkpoint);
        bed.sh("source", "sync");
        assert!(!bed.path("cut.checkpoint").exists(), "{number}");
        assert_eq!(layers(&bed, "source"), number + 1);
    }
    let expected = model(&bed, "source");
    check(&bed, "source", &expected, "ten layers");
    bed.run(["machine", "stop", "--name", "source"])
        .expect("stop");
    start(&bed, "source", "merged");
    assert_eq!(layers(&bed, "source"), 2, "not merged");
    check(&bed, "source", &expected, "merged");
    bed.sh("source", "rm -f /run/stop");
    write(&bed, "source");
    bed.save("source", "end.checkpoint");
    let expected = model(&bed, "source");
    check(&bed, "source", &expected, "merged and written");
    bed.save("source", "last.checkpoint");
    check_point(&bed, "last.checkpoint", &expected);
    bed.restore("restored", "end.checkpoint", None);
    let expected = model(&bed, "restored");
    check(&bed, "restored", &expected, "restored");
    bed.delete("restored");
    bed.delete("source");
}
