//! Names, histories, copies and crowds of restores.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use smolvm_engine::{PointSource, chain};

use crate::bed::{Bed, Saved, copy_bytes, long, machine};

#[test]
fn nothing_is_saved_onto_or_into_what_exists() {
    let Some(bed) = Bed::open("nothing_is_saved_onto_or_into_what_exists") else {
        return;
    };
    bed.boot("source", &[]);
    bed.save("source", "first.checkpoint");
    bed.restore("restored", "first.checkpoint", None);
    let record = fs::read(bed.path("first.checkpoint/point.record")).expect("record");
    for (output, says) in [
        ("first.checkpoint", "exists already"),
        ("first.checkpoint/in.checkpoint", "is a checkpoint"),
        ("first.checkpoint/packs/in.checkpoint", "is a checkpoint"),
        ("store/packs/in.checkpoint", "lies in the store"),
        ("missing/new.checkpoint", "does not exist"),
        ("new", "must end with .checkpoint"),
        (".checkpoint", "must end with .checkpoint"),
    ] {
        let error = bed.try_save("restored", output, |_| {}).expect_err(output);
        assert!(chain(&error).contains(says), "{output}: {}", chain(&error));
    }
    assert_eq!(
        fs::read(bed.path("first.checkpoint/point.record")).expect("record"),
        record
    );
    let long_name = "a".repeat(64);
    for name in [
        "../x",
        "a/b",
        "",
        "-a",
        "A",
        long_name.as_str(),
        "a".repeat(300).as_str(),
    ] {
        let output = bed.run(["machine", "create", "--name", name]);
        assert!(output.is_err(), "the name {name:?} was accepted");
    }
    bed.save("restored", "free.checkpoint");
}

#[test]
fn every_subset_of_points_may_go() {
    let Some(bed) = Bed::open("every_subset_of_points_may_go") else {
        return;
    };
    let files = ["1.checkpoint", "2.checkpoint", "3.checkpoint"];
    bed.boot("source", &[]);
    for file in files {
        bed.sh(
            "source",
            &format!("echo {file} > /root/disk; echo {file} > /run/memory"),
        );
        bed.save("source", file);
    }
    bed.delete("source");
    let store = bed.path("store");
    let kept = bed.path("kept");
    fs::create_dir(&kept).expect("create");
    for name in files.iter().chain(&["store"]) {
        fs::rename(bed.path(name), kept.join(name)).expect("move");
    }
    // Bit n: point n is deleted; the highest one: the store too.
    for subset in 0..16_u32 {
        let gone = |bit: usize| subset >> bit & 1 == 1;
        for (bit, name) in files.iter().chain(&["store"]).enumerate() {
            let from = kept.join(name);
            let copied = std::process::Command::new("cp")
                .arg("-al")
                .arg(from)
                .arg(bed.path(name))
                .status();
            assert!(copied.expect("cp runs").success());
            if gone(bit) {
                fs::remove_dir_all(bed.path(name)).expect("remove");
            }
        }
        for (bit, file) in files.iter().enumerate().filter(|(bit, _)| !gone(*bit)) {
            Saved::open(&bed.path(file)).verify();
            // Each subset restores one point; all of them in the long run.
            let chosen = !gone(bit) && (0..bit).all(gone);
            if long() || chosen && subset % 3 == 0 {
                bed.restore("restored", file, None);
                let found = bed.sh("restored", "cat /root/disk /run/memory");
                assert_eq!(found, format!("{file}\n{file}"));
                bed.delete("restored");
            }
        }
        for name in files.iter().chain(&["store"]) {
            let path = bed.path(name);
            if path.exists() {
                fs::remove_dir_all(path).expect("remove");
            }
        }
    }
    assert!(!store.exists());
}

#[test]
fn a_copied_checkpoint_restores_elsewhere() {
    let Some(bed) = Bed::open("a_copied_checkpoint_restores_elsewhere") else {
        return;
    };
    bed.boot("source", &[]);
    for number in 1..=2 {
        bed.sh("source", &format!("echo {number} > /run/memory"));
        bed.save("source", &format!("{number}.checkpoint"));
    }
    bed.delete("source");
    fs::create_dir(bed.path("elsewhere")).expect("create");
    copy_bytes(
        &bed.path("2.checkpoint"),
        &bed.path("elsewhere/copied.checkpoint"),
    );
    for name in ["1.checkpoint", "2.checkpoint", "store"] {
        fs::remove_dir_all(bed.path(name)).expect("remove");
    }
    for (at, expected) in [("~0", "2"), ("~1", "1")] {
        bed.restore("restored", "elsewhere/copied.checkpoint", Some(at));
        assert_eq!(bed.sh("restored", "cat /run/memory"), expected);
        bed.delete("restored");
    }
}

#[test]
fn ten_restores_of_one_point_at_once_are_ten_machines() {
    let Some(bed) = Bed::open("ten_restores_of_one_point_at_once_are_ten_machines") else {
        return;
    };
    let count = if long() { 10 } else { 4 };
    bed.boot("source", &["--mem", "256M"]);
    bed.sh("source", "echo alive > /run/memory");
    bed.save("source", "point.checkpoint");
    let identity = "cat /etc/machine-id /etc/hostname /etc/ssh/ssh_host_ed25519_key.pub; \
                    head -c 32 /dev/urandom | base64; cat /proc/sys/kernel/random/boot_id /run/memory";
    let restored = |number: usize| {
        let name = format!("restored-{number}");
        bed.restore(&name, "point.checkpoint", None);
        bed.sh(&name, identity)
    };
    let mut found: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|number| scope.spawn(move || restored(number)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("restored"))
            .collect()
    });
    found.push(bed.sh("source", identity));
    for line in 0..5 {
        let values: BTreeSet<_> = found.iter().map(|text| text.lines().nth(line)).collect();
        assert_eq!(values.len(), count + 1, "line {line}: {values:?}");
    }
    assert!(
        found.iter().all(|text| text.ends_with("alive")),
        "{found:?}"
    );
}

#[test]
fn the_history_is_limited_and_the_log_remembers() {
    let Some(bed) = Bed::open("the_history_is_limited_and_the_log_remembers") else {
        return;
    };
    bed.boot("source", &["--mem", "256M"]);
    let mut ids = Vec::new();
    for (number, limit) in [(0, 32), (1, 32), (2, 32), (3, 2), (4, 0)] {
        let file = format!("{number}.checkpoint");
        let saved = bed.try_save("source", &file, |options| options.history = limit);
        ids.push(saved.expect("saved").id);
        let log = bed
            .engine
            .checkpoint_log(&PointSource::Directory(bed.path(&file)))
            .expect("log");
        let logged: Vec<_> = log.iter().map(|entry| entry.id.clone()).collect();
        let earlier = number.min(limit);
        let expected: Vec<_> = ids.iter().rev().take(earlier + 1).cloned().collect();
        assert_eq!(logged, expected, "{file}");
        assert_eq!(
            log[0].parent,
            number.checked_sub(1).map(|before| ids[before].clone())
        );
        let beyond = format!("~{}", earlier + 1);
        let error = bed
            .create_from("beyond", &file, Some(&beyond))
            .expect_err("beyond");
        assert!(chain(&error).contains(&beyond), "{}", chain(&error));
    }
    let store = bed.path("store");
    let log = |name: Option<&str>| {
        let name = name.map(machine);
        bed.engine
            .store_log(Some(&store), name.as_ref())
            .expect("log")
    };
    fs::remove_dir_all(bed.path("1.checkpoint")).expect("remove");
    let all = log(None);
    let logged: Vec<_> = all.iter().map(|entry| entry.id.clone()).collect();
    assert_eq!(logged, ids, "oldest first");
    let gone: Vec<_> = all.iter().map(|entry| entry.gone).collect();
    assert_eq!(gone, [false, true, false, false, false]);
    assert_eq!(log(Some("source")).len(), 5);
    assert!(log(Some("other")).is_empty());
}

#[test]
fn the_thirtieth_pause_is_like_the_first() {
    let Some(bed) = Bed::open("the_thirtieth_pause_is_like_the_first") else {
        return;
    };
    bed.boot("source", &["--mem", "256M"]);
    let pauses: Vec<Duration> = (0..30)
        .map(|number| bed.save("source", &format!("{number}.checkpoint")).paused)
        .collect();
    let median = |pauses: &[Duration]| {
        let mut sorted = pauses.to_vec();
        sorted.sort_unstable();
        sorted[sorted.len() / 2]
    };
    let (first, last) = (median(&pauses[..9]), median(&pauses[21..]));
    assert!(
        last <= first * 2,
        "{first:?} at first, {last:?} at last: {pauses:?}"
    );
    // And the thirtieth still is whole.
    let saved = Saved::open(&bed.path("29.checkpoint"));
    saved.verify();
    bed.restore("restored", "29.checkpoint", Some("~29"));
}
