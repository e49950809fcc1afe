//! A file system that is full at each single block and at each single name: nothing is published, nothing is
//! lost, the error says where and what to do, and with room again everything works.

use std::ffi::CString;
use std::fs;
use std::path::PathBuf;

use rustix::mount::{MountFlags, UnmountFlags};
use smolvm_engine::MachineState;

use crate::bed::{Bed, Saved, long, machine, names};
use crate::full_disk::in_a_namespace;
use crate::phases::{check_machine, check_store};

/// A file system in memory whose limits a test moves.
struct Small {
    path: PathBuf,
}

/// Its limits at first.
const ENOUGH: &str = "size=4G,nr_inodes=100000";

/// How much more fits into it.
#[derive(Debug, Clone, Copy)]
enum Room {
    /// So many blocks of data.
    Blocks(u64),
    /// So many files, directories and links.
    Names(u64),
    /// Whatever is needed here.
    Enough,
}

impl Small {
    fn mount(path: PathBuf) -> Self {
        fs::create_dir_all(&path).expect("create");
        let options = CString::new(ENOUGH).expect("no zero in it");
        rustix::mount::mount("tmpfs", &path, "tmpfs", MountFlags::empty(), &*options)
            .expect("mount a tmpfs");
        Self { path }
    }

    /// A limit below what is used is refused, and a machine may write between the look and the limit: then
    /// again. The system call itself: the command would add options that a user namespace refuses.
    fn leave(&self, room: Room) {
        let set =
            || rustix::mount::mount_remount(&self.path, MountFlags::empty(), self.limits(room));
        let mut last = set();
        for _ in 1..20 {
            if last.is_ok() {
                break;
            }
            last = set();
        }
        last.unwrap_or_else(|error| panic!("{room:?}: {error}"));
    }

    fn limits(&self, room: Room) -> String {
        let stat = rustix::fs::statvfs(&self.path).expect("statvfs");
        let size = |blocks: u64| format!("size={}", blocks * stat.f_frsize);
        match room {
            // At least one block: zero would mean no limit.
            Room::Blocks(more) => size((stat.f_blocks - stat.f_bfree + more).max(1)),
            Room::Names(more) => format!("nr_inodes={}", stat.f_files - stat.f_ffree + more),
            Room::Enough => ENOUGH.to_owned(),
        }
    }

    fn used_blocks(&self) -> u64 {
        let stat = rustix::fs::statvfs(&self.path).expect("statvfs");
        stat.f_blocks - stat.f_bfree
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // It ends with the namespace at the latest.
        let _ = rustix::mount::unmount(&self.path, UnmountFlags::DETACH);
    }
}

/// The amounts of room that are tried, until there is enough: every single one at the beginning, where files
/// are made, then in growing steps.
fn amounts() -> impl Iterator<Item = u64> {
    let singles = if long() { 64 } else { 8 };
    std::iter::successors(Some(0_u64), move |last| {
        Some(if *last < singles {
            last + 1
        } else {
            last + last.div_ceil(if long() { 8 } else { 2 })
        })
    })
}

/// What every error of a full file system must say.
fn check_error(error: &str, small: &Small, context: &str) {
    assert!(
        error.contains("No space left on device"),
        "{context}: {error}"
    );
    let path = small.path.to_string_lossy();
    assert!(error.contains(&*path), "{context}: no path: {error}");
    assert!(error.contains("make room"), "{context}: no hint: {error}");
}

/// Saves `source` with less and less room missing in `small`, until there is enough.
fn save_with_all_rooms(bed: &Bed, small: &Small, folder: &str, room: fn(u64) -> Room) {
    let mut failures = 0;
    for amount in amounts() {
        let context = format!("{:?}", room(amount));
        let value = format!("{folder} {context}");
        let noise =
            format!("echo '{value}' > /run/file; head -c 300000 /dev/urandom > /run/noise; sync");
        bed.sh("source", &noise);
        small.leave(room(amount));
        let store = format!("{folder}/store");
        let output = format!("{folder}/cut.checkpoint");
        let arguments = "machine checkpoint --name source --store";
        let arguments = arguments.split(' ').chain([&*store, "-o", &*output]);
        let result = bed.run(arguments);
        small.leave(Room::Enough);

        assert_eq!(bed.state("source"), MachineState::Running, "{context}");
        let output = bed.path(&output);
        let enough = result.is_ok();
        match result {
            Ok(_) => {
                Saved::open(&output).verify();
                fs::remove_dir_all(&output).expect("remove");
            }
            Err(error) => {
                failures += 1;
                check_error(&error, small, &context);
                assert!(!output.exists(), "{context}: something was published");
            }
        }
        let saved = bed.try_save("source", "x.checkpoint", |options| {
            options.store = Some(bed.path(&store));
            options.output = Some(bed.path(folder).join("next.checkpoint"));
        });
        saved.unwrap_or_else(|error| {
            panic!("{context}, the next: {}", smolvm_engine::chain(&error))
        });
        let next = bed.path(folder).join("next.checkpoint");
        Saved::open(&next).verify();
        let left = names(&bed.path(folder));
        assert_eq!(left.len(), 2, "{context}: {left:?}");
        check_store(&bed.path(&store), &context);
        check_machine(bed, "source", &context);
        if enough || failures % 8 == 1 {
            let file = format!("{folder}/next.checkpoint");
            bed.restore("restored", &file, None);
            assert_eq!(bed.sh("restored", "cat /run/file"), value, "{context}");
            bed.delete("restored");
        }
        fs::remove_dir_all(&next).expect("remove");
        if enough {
            break;
        }
    }
    assert!(failures > 2, "the file system was hardly ever full");
    assert_eq!(bed.complaints("source"), "");
}

/// A bed whose home and folder lie in a small file system.
fn small_bed(test: &str) -> Option<(Small, Bed)> {
    if !in_a_namespace("each_write", test) {
        return None;
    }
    let parent = std::env::temp_dir().join(format!("small-{}", std::process::id()));
    let small = Small::mount(parent);
    let bed = Bed::open_in(test, &small.path)?;
    Some((small, bed))
}

#[test]
fn each_write_of_store_and_output_may_fail() {
    let test = "each_write_of_store_and_output_may_fail";
    if !in_a_namespace("each_write", test) {
        return;
    }
    let Some(bed) = Bed::open(test) else { return };
    bed.boot("source", &["--mem", "256M"]);
    let small = Small::mount(bed.path("small"));
    save_with_all_rooms(&bed, &small, "small", Room::Names);
    save_with_all_rooms(&bed, &small, "small", Room::Blocks);
    bed.delete("source");
}

#[test]
fn each_write_of_a_checkpoint_in_the_home_may_fail() {
    let Some((small, bed)) = small_bed("each_write_of_a_checkpoint_in_the_home_may_fail") else {
        return;
    };
    bed.boot("source", &["--mem", "256M"]);
    // Store and outputs lie elsewhere: what fails is the machine's own directory.
    let other = Small::mount(bed.path("other"));
    save_with_all_rooms(&bed, &small, "other", Room::Names);
    save_with_all_rooms(&bed, &small, "other", Room::Blocks);
    bed.delete("source");
    drop((other, bed, small));
}

#[test]
fn each_write_of_a_new_machine_may_fail() {
    let Some((small, bed)) = small_bed("each_write_of_a_new_machine_may_fail") else {
        return;
    };
    let other = Small::mount(bed.path("other"));
    bed.boot("source", &["--mem", "256M"]);
    bed.sh("source", "echo memory > /run/file");
    let saved = bed.try_save("source", "x.checkpoint", |options| {
        options.store = Some(bed.path("other/store"));
        options.output = Some(bed.path("other/point.checkpoint"));
    });
    saved.expect("saved");
    bed.delete("source");
    let before = small.used_blocks();
    for room in [Room::Names as fn(u64) -> Room, Room::Blocks] {
        for from_point in [false, true] {
            create_with_all_rooms(&bed, &small, room, from_point);
            // Where there was room for that, the kernel is kept for the next machine; here that shall write it again.
            let kept = bed.home().join("cache/boot");
            if kept.exists() {
                fs::remove_dir_all(kept).expect("remove");
            }
            // The log of a deleted machine may lie between two blocks.
            let after = small.used_blocks();
            assert!(after <= before + 4, "{before} blocks before, {after} after");
        }
    }
    drop((other, bed, small));
}

fn create_with_all_rooms(bed: &Bed, small: &Small, room: fn(u64) -> Room, from_point: bool) {
    let machines = bed.home().join("machines");
    let mut failures = 0;
    for amount in amounts() {
        let context = format!("{:?}, from a point: {from_point}", room(amount));
        let mut create = vec!["machine", "create", "--name", "new"];
        if from_point {
            create.extend(["--from", "other/point.checkpoint"]);
        } else {
            create.extend(["--mem", "256M"]);
        }
        small.leave(room(amount));
        let result = bed.run(create.iter().copied());
        small.leave(Room::Enough);
        match result {
            Ok(_) => break,
            Err(error) => {
                failures += 1;
                check_error(&error, small, &context);
                let left: Vec<_> = bed.engine.machines().expect("list");
                assert!(left.is_empty(), "{context}: {left:?}");
                let left = names(&machines);
                assert!(left.is_empty(), "{context}: {left:?}");
            }
        }
    }
    assert!(failures > 2, "the file system was hardly ever full");
    start_with_few_names(bed, small);
    if from_point {
        assert_eq!(bed.sh("new", "cat /run/file"), "memory");
    }
    bed.delete("new");
}

/// Starts the machine with too little room for its files; it must say so and start with room.
fn start_with_few_names(bed: &Bed, small: &Small) {
    for amount in 0.. {
        let context = format!("start with {amount} names");
        small.leave(Room::Names(amount));
        let result = bed.run(["machine", "start", "--name", "new"]);
        small.leave(Room::Enough);
        match result {
            Ok(_) => break,
            Err(error) => check_error(&error, small, &context),
        }
        assert_ne!(bed.state("new"), MachineState::Running, "{context}");
    }
}

#[test]
fn a_full_home_is_an_error_of_input_and_output_in_the_guest() {
    let test = "a_full_home_is_an_error_of_input_and_output_in_the_guest";
    let Some((small, bed)) = small_bed(test) else {
        return;
    };
    bed.boot("source", &["--mem", "256M"]);
    bed.sh(
        "source",
        "head -c 3000000 /dev/urandom > /root/old; sha256sum < /root/old > /root/sum; sync; \
         cp /root/old /run/old; cp /root/sum /run/sum",
    );
    small.leave(Room::Blocks(64));
    // Far more than fits: it may not end well.
    let write = "head -c 20000000 /dev/urandom > /root/new && sync /root/new";
    let error = bed
        .try_exec("source", &["sh", "-c", write])
        .expect_err("a full disk was written");
    assert!(
        error.contains("Input/output error") || error.contains("Read-only file system"),
        "{error}"
    );
    assert_eq!(bed.state("source"), MachineState::Running);
    let same = "sha256sum < /run/old | cmp - /run/sum";
    bed.sh("source", same);
    let complaints = bed.sh("source", "dmesg");
    assert!(complaints.contains("I/O error"), "the kernel was not told");
    let info = bed.engine.machine(&machine("source")).expect("status");
    assert!(info.host_full.is_some_and(|full| full.failed_writes > 0));
    small.leave(Room::Enough);
    // What was durable before is there after a cold start.
    let stop = bed.run(["machine", "stop", "--name", "source"]);
    stop.expect("stop");
    bed.start("source").expect("start");
    bed.sh("source", "sha256sum < /root/old | cmp - /root/sum");
    bed.sh(
        "source",
        "echo new > /root/new; sync; test \"$(cat /root/new)\" = new",
    );
    bed.delete("source");
    drop((bed, small));
}
