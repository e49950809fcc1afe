//! The first start of a machine goes on where the first of its kind had booted, and is no different from a boot to anybody.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use smolvm_engine::phase::Phase;
use smolvm_engine::progress::Silent;
use smolvm_engine::{
    BranchOptions, EngineError, MachineState, StartOptions, StopOptions, UndoOptions,
};
use snapshot_format::Point;

use crate::bed::{Bed, Saved, machine, names};

/// How often a test looks whether a booted point was made.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Where booted points are.
fn cache(bed: &Bed) -> PathBuf {
    bed.home().join("cache/booted")
}

/// The names of all that is in the cache.
fn entries(bed: &Bed) -> BTreeSet<String> {
    let cache = cache(bed);
    if cache.exists() {
        names(&cache)
    } else {
        BTreeSet::new()
    }
}

/// Boots a machine and waits until the booted point of its kind is made; returns its directory.
fn boot_first(bed: &Bed, name: &str, arguments: &[&str]) -> PathBuf {
    bed.boot(name, arguments);
    assert!(!began_at_point(bed, name), "{name} boots");
    wait_made(bed, name)
}

fn wait_made(bed: &Bed, name: &str) -> PathBuf {
    let log = bed
        .home()
        .join("machines")
        .join(name)
        .join("supervisor.log");
    loop {
        let said = fs::read_to_string(&log).expect("the log of its supervisor");
        assert!(!said.contains("no booted point is made"), "{said}");
        let made = entries(bed);
        if let Some(entry) = made.iter().find(|entry| !entry.starts_with('.')) {
            return cache(bed).join(entry);
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Whether the machine's first start went on at a booted point.
fn began_at_point(bed: &Bed, name: &str) -> bool {
    let file = bed.home().join("machines").join(name).join("machine.json");
    let file = fs::read_to_string(file).expect("its file");
    file.contains("\"booted\"")
}

/// What the guest's kernel said while it booted, with the time of each line: no two boots say the same.
const BOOT: &str = "dmesg | head -n 60 | sha256sum";

/// All that tells a machine from others.
const IDENTITY: &str = "hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id /run/smolvm/restore-id; \
                        head -c 16 /dev/urandom | od -An -tx1; cat /etc/ssh/*.pub 2> /dev/null || :";

#[test]
fn a_second_machine_goes_on_where_the_first_had_booted_and_is_itself() {
    let Some(bed) = Bed::open_with_booted_points(
        "a_second_machine_goes_on_where_the_first_had_booted_and_is_itself",
    ) else {
        return;
    };
    let entry = boot_first(
        &bed,
        "first",
        &["-e", "SECRET=of-the-first", "--label", "a=b"],
    );
    bed.sh("first", "echo first > /root/file; echo first > /run/file");
    let record = fs::read(entry.join("point.record")).expect("its record");
    let point = Point::decode(&record).expect("a sound record");
    let spec = &point.record().spec;
    assert_eq!(point.record().machine, "booted");
    assert!(spec.environment.is_empty() && spec.labels.is_empty());
    assert!(!point.record().boot.command_line.contains("hostname"));

    bed.boot("second", &["-e", "OWN=value", "-w", "/tmp"]);
    bed.boot("third", &[]);
    for name in ["second", "third"] {
        assert!(began_at_point(&bed, name), "{name}");
        assert_eq!(bed.sh(name, BOOT), bed.sh("first", BOOT), "the same boot");
        let nothing = bed.sh(name, "ls /root/file /run/file 2> /dev/null || echo nothing");
        assert_eq!(nothing, "nothing");
        assert_eq!(
            bed.sh(name, "hostname; cat /etc/hostname"),
            format!("{name}\n{name}")
        );
        assert!(!bed.sh(name, "dmesg; cat /proc/cmdline").contains("first"));
        assert_eq!(bed.complaints(name), "");
    }
    assert_eq!(bed.sh("second", "echo $OWN; pwd"), "value\n/tmp");
    assert_eq!(bed.sh("third", "echo ${OWN-none}; pwd"), "none\n/root");
    let [first, second, third] = ["first", "second", "third"].map(|name| bed.sh(name, IDENTITY));
    for (one, other) in [(&first, &second), (&first, &third), (&second, &third)] {
        let one: BTreeSet<&str> = one.lines().collect();
        for line in other.lines() {
            assert!(!one.contains(line), "{line} is in two machines");
        }
    }
    // The disk of another size is another kind: it is grown by a boot of its own.
    bed.boot("larger", &["--disk", "12G"]);
    assert!(!began_at_point(&bed, "larger"));
    let gib = "df -k / | awk 'NR == 2 { print int($2 / 1048576 + 0.5) }'";
    assert_eq!(bed.sh("larger", gib), "12");
    assert_eq!(bed.sh("second", gib), bed.sh("first", gib));
}

#[test]
fn a_machine_from_a_booted_point_needs_nothing_but_itself() {
    let Some(bed) =
        Bed::open_with_booted_points("a_machine_from_a_booted_point_needs_nothing_but_itself")
    else {
        return;
    };
    let entry = boot_first(&bed, "first", &["--mem", "256M"]);
    bed.delete("first");
    bed.boot("second", &["--mem", "256M"]);
    assert!(began_at_point(&bed, "second"));
    let booted = fs::read(entry.join("point.record")).expect("its record");
    let booted = Point::decode(&booted)
        .expect("a sound record")
        .id()
        .to_string();
    for part in ["cache", "images", "kernels"] {
        fs::remove_dir_all(bed.home().join(part)).expect("remove");
    }
    // It is nobody's point.
    let name = machine("second");
    let info = bed.engine.machine(&name).expect("status");
    assert_eq!(info.head, None);
    let back = |to: Option<&str>| {
        let mut options = UndoOptions::default();
        options.to = to.map(str::to_owned);
        options.discard = true;
        bed.engine.undo(&name, &options, &Silent)
    };
    assert!(matches!(back(None), Err(EngineError::NoPoint { .. })));

    bed.sh(
        "second",
        "echo disk > /root/file; echo memory > /run/file; sync",
    );
    bed.save("second", "point.checkpoint");
    let saved = Saved::open(&bed.path("point.checkpoint"));
    saved.verify();
    assert_eq!(saved.point.record().parent, None);
    assert_eq!(saved.point.record().machine, "second");
    assert!(matches!(
        back(Some(&booted)),
        Err(EngineError::NoSuchPoint { .. })
    ));

    bed.sh("second", "echo changed > /root/file; rm /run/file");
    back(None).expect("undo");
    let files = "cat /root/file /run/file";
    assert_eq!(bed.sh("second", files), "disk\nmemory");
    let children = BranchOptions::new(vec![machine("child")]);
    let branched = bed
        .engine
        .branch(&name, &children, &Silent)
        .expect("branch");
    assert!(branched.failed.is_empty());
    assert_eq!(bed.sh("child", files), "disk\nmemory");
    bed.save("child", "child.checkpoint");
    Saved::open(&bed.path("child.checkpoint")).verify();

    // Without any point, too: a machine whose only data are those that it links.
    bed.engine
        .stop(&name, StopOptions::default())
        .expect("stop");
    bed.start("second").expect("start");
    let found = bed.sh("second", "cat /root/file; test -e /run/file || echo booted");
    assert_eq!(found, "disk\nbooted");
    bed.delete("second");
    bed.restore("again", "point.checkpoint", None);
    assert_eq!(bed.sh("again", files), "disk\nmemory");
}

#[test]
fn a_machine_that_was_never_saved_gives_the_booted_memory_up_when_it_boots() {
    let Some(bed) = Bed::open_with_booted_points(
        "a_machine_that_was_never_saved_gives_the_booted_memory_up_when_it_boots",
    ) else {
        return;
    };
    let entry = boot_first(&bed, "first", &["--mem", "256M"]);
    bed.boot("second", &["--mem", "256M"]);
    assert!(began_at_point(&bed, "second"));
    bed.sh("second", "echo disk > /root/file; sync");
    let packs = bed.home().join("machines/second/packs");
    let [before, came] = [names(&packs), names(&entry.join("packs"))];
    assert!(came.is_subset(&before));
    fs::remove_dir_all(bed.home().join("cache")).expect("remove");
    let name = machine("second");
    bed.engine
        .stop(&name, StopOptions::default())
        .expect("stop");
    bed.start("second").expect("start");
    assert!(!began_at_point(&bed, "second"));
    assert_ne!(
        bed.sh("second", BOOT),
        bed.sh("first", BOOT),
        "another boot"
    );
    assert_eq!(bed.sh("second", "cat /root/file"), "disk");
    assert!(names(&packs).len() < before.len(), "memory is kept");
    assert!(names(&bed.home().join("machines/second/records")).is_empty());
    bed.save("second", "point.checkpoint");
    Saved::open(&bed.path("point.checkpoint")).verify();
}

#[test]
fn cold_boots_run_does_not_and_off_leaves_nothing() {
    let Some(bed) = Bed::open_with_booted_points("cold_boots_run_does_not_and_off_leaves_nothing")
    else {
        return;
    };
    boot_first(&bed, "first", &[]);
    let first = bed.sh("first", BOOT);
    let run = bed.run(["machine", "run", "--", "sh", "-c", BOOT]);
    assert_eq!(run.expect("run").trim_end(), first);
    bed.run(["machine", "create", "--name", "cold"])
        .expect("create");
    let mut options = StartOptions::default();
    options.cold = true;
    bed.engine.start(&machine("cold"), options).expect("start");
    assert!(!began_at_point(&bed, "cold"));
    assert_ne!(bed.sh("cold", BOOT), first);

    let Some(off) = Bed::open("cold_boots_run_does_not_and_off_leaves_nothing") else {
        return;
    };
    let _ = fs::remove_dir_all(off.home().join("cache/booted"));
    off.boot("one", &[]);
    off.run(["machine", "run", "--", "true"]).expect("run");
    assert!(!cache(&off).exists());
}

/// Overwrites part of each pack of an entry, from this fraction of it on.
fn damage_packs(entry: &Path, from: f64, bytes: u64) {
    for name in names(&entry.join("packs")) {
        let path = entry.join("packs").join(name);
        let writable = fs::Permissions::from_mode(0o600);
        fs::set_permissions(&path, writable).expect("make it writable");
        let file = fs::File::options().write(true).open(&path).expect("open");
        let length = file.metadata().expect("its length").len();
        let at = (length as f64 * from) as u64;
        let rubbish = vec![0xa5; usize::try_from(bytes.min(length - at)).expect("a size")];
        file.write_all_at(&rubbish, at).expect("damage");
    }
}

#[test]
fn what_is_damaged_in_the_cache_fails_no_start() {
    let Some(bed) = Bed::open_with_booted_points("what_is_damaged_in_the_cache_fails_no_start")
    else {
        return;
    };
    let small = ["--mem", "256M"];
    let mut entry = boot_first(&bed, "first", &small);
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 4] = [
        ("record", |entry| {
            fs::write(entry.join("point.record"), b"rubbish").expect("damage");
        }),
        ("packs", |entry| {
            fs::remove_dir_all(entry.join("packs")).expect("remove");
        }),
        // Indexes and nodes of maps, which are read before the guest runs.
        ("end", |entry| damage_packs(entry, 0.0, u64::MAX)),
        // Memory that is read only when the guest uses it.
        ("middle", |entry| damage_packs(entry, 0.05, 24 << 20)),
    ];
    for (number, (what, damage)) in damages.into_iter().enumerate() {
        damage(&entry);
        let name = format!("machine-{number}");
        bed.boot(&name, &small);
        assert!(!began_at_point(&bed, &name), "damaged {what}");
        assert_eq!(bed.state(&name), MachineState::Running, "damaged {what}");
        assert_eq!(bed.sh(&name, "hostname"), name);
        // It left another one behind, and has nothing of the damaged one.
        entry = wait_made(&bed, &name);
        bed.save(&name, &format!("{name}.checkpoint"));
        Saved::open(&bed.path(&format!("{name}.checkpoint"))).verify();
        bed.delete(&name);
    }
    bed.boot("last", &small);
    assert!(began_at_point(&bed, "last"));
}

#[test]
fn first_starts_at_once_and_ends_in_between_leave_one_point_and_nothing_else() {
    let Some(bed) = Bed::open_with_booted_points(
        "first_starts_at_once_and_ends_in_between_leave_one_point_and_nothing_else",
    ) else {
        return;
    };
    // Deleted as soon as it runs: whatever became of the point, it is whole or not there.
    bed.boot("short", &["--mem", "128M"]);
    bed.delete("short");
    let left = entries(&bed);
    assert!(!left.iter().any(|name| name.starts_with('.')), "{left:?}");

    // Killed while the point is put together.
    let hold = Phase::BootedDiskStored.hold_file(&bed.holds());
    let held = Phase::BootedDiskStored.held_file(&bed.holds());
    fs::write(&hold, "").expect("hold");
    bed.run([
        "machine", "start", "--name", "killed", "--create", "--mem", "256M",
    ])
    .expect("start");
    while !held.exists() {
        std::thread::sleep(LOOK_AGAIN);
    }
    assert!(entries(&bed).iter().any(|name| name.starts_with('.')));
    assert_eq!(bed.sh("killed", "echo works"), "works");
    bed.supervisors("killed")
        .into_iter()
        .for_each(crate::bed::kill);
    for path in [&hold, &held] {
        fs::remove_file(path).expect("let go");
    }

    let all = ["one", "two"];
    std::thread::scope(|scope| {
        for name in all {
            let bed = &bed;
            scope.spawn(move || bed.boot(name, &["--mem", "256M"]));
        }
    });
    for name in all {
        assert_eq!(bed.sh(name, "hostname"), name);
        wait_made(&bed, name);
    }
    bed.boot("three", &["--mem", "256M"]);
    assert!(began_at_point(&bed, "three"));
    for name in all {
        bed.delete(name);
    }
    let left = entries(&bed);
    assert!(!left.iter().any(|name| name.starts_with('.')), "{left:?}");
    // The disk of the killed one is whole.
    bed.start("killed").expect("start");
    assert_eq!(bed.sh("killed", "hostname"), "killed");
}

/// Nobody who starts a machine waits for a save of it, and what is set up beside that stays.
#[test]
fn a_first_start_does_not_wait_for_a_save() {
    let Some(bed) = Bed::open_with_booted_points("a_first_start_does_not_wait_for_a_save") else {
        return;
    };
    bed.run(["machine", "create", "--name", "first", "--mem", "256M"])
        .expect("create");
    let phase = Phase::Registered;
    let (hold, held) = (phase.hold_file(&bed.holds()), phase.held_file(&bed.holds()));
    fs::write(&hold, "").expect("hold");
    let begin = |arguments: &str| {
        let mut command = bed.command(arguments.split(' '));
        let command = command
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null());
        command.spawn().expect("smolvm starts")
    };
    let mut start = begin("machine start --name first");
    // As early as it can be.
    let mut save = loop {
        let mut save = begin("machine checkpoint --name first -o early.checkpoint");
        while save.try_wait().expect("try to wait").is_none() && !held.exists() {
            std::thread::sleep(LOOK_AGAIN);
        }
        if held.exists() {
            break save;
        }
    };
    assert!(start.wait().expect("it ends").success());
    let id = bed.sh("first", "cat /etc/machine-id");
    fs::remove_file(&hold).expect("let go");
    assert!(save.wait().expect("it ends").success());
    fs::remove_file(&held).expect("remove");
    bed.run(["machine", "stop", "--name", "first"])
        .expect("stop");
    bed.run(["machine", "start", "--name", "first", "--cold"])
        .expect("start");
    assert_eq!(bed.sh("first", "cat /etc/machine-id"), id);
}

/// Whatever somebody does in a machine as soon as it lets him in, none of it is in the machines that begin at its booted point.
#[test]
fn nobody_works_in_a_machine_before_its_booted_point_is_taken() {
    let Some(bed) =
        Bed::open_with_booted_points("nobody_works_in_a_machine_before_its_booted_point_is_taken")
    else {
        return;
    };
    bed.run(["machine", "create", "--name", "first", "--mem", "256M"])
        .expect("create");
    let start = ["machine", "start", "--name", "first"];
    let mut start = bed.command(start).spawn().expect("smolvm starts");
    let script = "echo secret > /root/secret; echo secret > /run/secret; sync";
    // As early as it can be; it is made to wait.
    while bed.try_exec("first", &["sh", "-c", script]).is_err() {
        std::thread::sleep(LOOK_AGAIN);
    }
    assert!(start.wait().expect("it ends").success());
    wait_made(&bed, "first");
    bed.boot("second", &["--mem", "256M"]);
    assert!(began_at_point(&bed, "second"));
    let found = bed.sh("second", "cat /root/secret /run/secret 2> /dev/null || :");
    assert_eq!(found, "", "it is in another machine");
    assert_eq!(bed.sh("first", "cat /root/secret"), "secret");
}
