//! Machines that go back: killed at each phase of it, and what a machine that went back holds.

use smolvm_engine::UndoOptions;
use smolvm_engine::phase::Phase;
use smolvm_engine::progress::Silent;
use smolvm_engine::{EngineError, MachineState, chain};

use crate::bed::{Bed, machine, names};
use crate::killed::{Victim, wait_end};
use crate::phases::{held_at, kill_at, start};

/// The phases that an undo of a running machine reaches before it answers, in order.
const IN_PLACE: [Phase; 8] = [
    Phase::TargetHeld,
    Phase::Paused,
    Phase::UndoReady,
    Phase::UndoDecided,
    Phase::UndoMemoryBack,
    Phase::UndoneInPlace,
    Phase::MemoryStored,
    Phase::UndoSetUp,
];

/// What is in the guest's file, and in its memory.
fn found(bed: &Bed) -> String {
    bed.sh(
        "m",
        "cat /root/disk; cat /run/memory 2> /dev/null || echo none",
    )
    .replace('\n', " ")
}

fn set(bed: &Bed, value: u32) {
    bed.sh(
        "m",
        &format!("echo {value} > /root/disk; echo {value} > /run/memory; sync"),
    );
}

fn position(phase: Phase) -> usize {
    IN_PLACE
        .iter()
        .position(|other| *other == phase)
        .expect("a phase of an undo")
}

/// What a machine may hold that was at 2, had its point at 1, and whose undo was cut off.
fn expected(phase: Phase, victim: Victim) -> &'static str {
    let is_before = |other| position(phase) < position(other);
    match victim {
        // Who waits for it is gone: it is given up, until it is decided.
        Victim::Command if is_before(Phase::UndoReady) => "2 2",
        Victim::Command => "1 1",
        _ if is_before(Phase::UndoDecided) => "2 none",
        _ if is_before(Phase::MemoryStored) => "1 1",
        // It was there and running: its memory went as that of any machine that is killed.
        _ => "1 none",
    }
}

#[test]
fn an_undo_that_is_killed_at_any_phase_is_done_or_not() {
    let Some(bed) = Bed::open("an_undo_that_is_killed_at_any_phase_is_done_or_not") else {
        return;
    };
    bed.run(["machine", "create", "--name", "m", "--mem", "256M"])
        .expect("create");
    start(&bed, "m", "first");
    set(&bed, 1);
    bed.save("m", "one.checkpoint");
    for phase in IN_PLACE {
        for victim in Victim::ALL {
            // The command is not in these.
            let is_elsewhere = phase == Phase::TargetHeld && victim != Victim::Command;
            if !is_elsewhere {
                cut_undo(&bed, phase, victim);
            }
        }
    }
    let disk = names(&bed.home().join("machines/m/disk"));
    assert_eq!(disk.len(), 2, "a base and a layer: {disk:?}");
    assert!(!bed.home().join("machines/m/target").exists());
}

fn cut_undo(bed: &Bed, phase: Phase, victim: Victim) {
    let context = format!("{phase:?}, {victim:?}");
    set(bed, 2);
    let done = kill_at(bed, phase, victim, "m", &["machine", "undo", "--name", "m"]);
    // It was ready in place, which may have been said before its end was seen.
    let was_back = matches!(phase, Phase::MemoryStored | Phase::UndoSetUp) && victim == Victim::Vmm;
    if done && victim != Victim::Command && !was_back {
        // A new process has taken the place of the one that was killed.
        assert_eq!(found(bed), "1 1", "{context}");
        return;
    }
    if victim == Victim::Command {
        let expected = expected(phase, victim);
        // What was decided goes on without the command.
        let mut looks = 0;
        while bed.try_exec("m", &["cat", "/run/memory"]).as_deref() != Ok(&expected[2..]) {
            looks += 1;
            assert!(looks < 300, "{context}: it does not become {expected}");
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    } else {
        wait_end(bed, "m");
        let state = bed.state("m");
        assert!(
            matches!(state, MachineState::Failed { .. } | MachineState::Stopped),
            "{context}: {state:?}"
        );
        start(bed, "m", &context);
    }
    assert_eq!(found(bed), expected(phase, victim), "{context}");
    undo(bed, &context);
    assert_eq!(found(bed), "1 1", "{context}, then an undo");
}

fn undo(bed: &Bed, context: &str) {
    // By the command: whoever starts the machine hands down where it is to be held.
    bed.run(["machine", "undo", "--name", "m", "--discard"])
        .unwrap_or_else(|error| panic!("{context}: {error}"));
}

#[test]
fn an_undo_of_a_stopped_machine_that_is_killed_is_done_or_not() {
    let Some(bed) = Bed::open("an_undo_of_a_stopped_machine_that_is_killed_is_done_or_not") else {
        return;
    };
    bed.run(["machine", "create", "--name", "m", "--mem", "256M"])
        .expect("create");
    start(&bed, "m", "first");
    set(&bed, 1);
    bed.save("m", "one.checkpoint");
    for (phase, expected) in [
        (Phase::TargetHeld, "2 none"),
        (Phase::TargetPinned, "2 none"),
        (Phase::PutBack, "1 1"),
    ] {
        let context = format!("{phase:?}");
        set(&bed, 2);
        bed.run(["machine", "stop", "--name", "m"]).expect("stop");
        let arguments = ["machine", "undo", "--name", "m", "--discard"];
        kill_at(&bed, phase, Victim::Command, "m", &arguments);
        assert_eq!(bed.state("m"), MachineState::Stopped, "{context}");
        start(&bed, "m", &context);
        assert_eq!(found(&bed), expected, "{context}");
        undo(&bed, &context);
        assert_eq!(found(&bed), "1 1", "{context}, then an undo");
    }
}

#[test]
fn a_machine_goes_back_to_points_of_its_stores() {
    let Some(bed) = Bed::open("a_machine_goes_back_to_points_of_its_stores") else {
        return;
    };
    bed.boot("m", &["--mem", "256M"]);
    set(&bed, 1);
    let one = bed.save("m", "one.checkpoint");
    set(&bed, 2);
    let go = |to: Option<&str>, discard: bool| {
        let mut options = UndoOptions::default();
        options.to = to.map(str::to_owned);
        options.discard = discard;
        bed.engine.undo(&machine("m"), &options, &Silent)
    };
    let undone = go(None, false).expect("undo");
    assert_eq!(
        (undone.id.as_str(), undone.in_place),
        (one.id.as_str(), true)
    );
    assert_eq!(found(&bed), "1 1");
    let kept = undone.kept.expect("the state that was left");
    // The machine does not pin it: it comes out of the store, and is the machine's own then.
    go(Some(&kept.short_id), true).unwrap_or_else(|error| panic!("redo: {}", chain(&error)));
    assert_eq!(found(&bed), "2 2");
    std::fs::remove_dir_all(bed.path("store")).expect("the store is removed");
    let error = go(Some("deadbeef"), true).expect_err("a point that is nowhere");
    assert!(
        matches!(error, EngineError::NoSuchPoint { .. }),
        "{error:?}"
    );
    bed.sh("m", "echo 3 > /root/disk");
    go(None, true).expect("its head is its own");
    assert_eq!(found(&bed), "2 2");
    // And its parent too.
    go(Some("~1"), true).expect("it pins its history");
    assert_eq!(found(&bed), "1 1");
}

/// A machine is itself whatever it is called, and a point is never taken for another that lies in its place.
#[test]
fn a_renamed_machine_goes_back_as_itself_and_a_replaced_point_is_not_another() {
    let Some(bed) =
        Bed::open("a_renamed_machine_goes_back_as_itself_and_a_replaced_point_is_not_another")
    else {
        return;
    };
    let run = |arguments: &str| {
        bed.run(arguments.split(' '))
            .unwrap_or_else(|error| panic!("{arguments}: {error}"))
    };
    run("machine create --name m --mem 256M");
    run("machine start --name m");
    let id = bed.sh("m", "cat /etc/machine-id; cat /etc/ssh/ssh_host_*_key.pub");
    run("machine checkpoint --name m -o place.checkpoint");
    let first = head(&bed, "m");
    std::fs::remove_dir_all(bed.path("place.checkpoint")).expect("remove");
    run("machine checkpoint --name m -o place.checkpoint --history 0");
    let second = head(&bed, "m");
    assert_ne!(first, second);
    run("machine stop --name m");
    run("machine rename m renamed");
    run("machine start --name renamed");
    run("machine undo --name renamed --discard");
    let after = bed.sh(
        "renamed",
        "cat /etc/machine-id; cat /etc/ssh/ssh_host_*_key.pub",
    );
    assert_eq!(after, id, "the identity is another one");

    // Who keeps the point for itself is asked first.
    bed.delete("renamed");
    let error = bed
        .run(["machine", "create", "--name", "other", "--from", &first])
        .expect_err("it is gone");
    assert!(error.contains("holds another one now"), "{error}");
    run(&format!("machine create --name other --from {second}"));
    bed.delete("other");
}

/// The full id of a machine's head.
fn head(bed: &Bed, name: &str) -> String {
    let info = bed.engine.machine(&crate::bed::machine(name));
    info.expect("the machine").head.expect("a head")
}

/// A save that ends while an undo waits for it gives up points that the machine does not keep any more, but not the undo's target.
#[test]
fn a_save_that_gives_the_target_up_takes_nothing_from_an_undo() {
    let Some(bed) = Bed::open("a_save_that_gives_the_target_up_takes_nothing_from_an_undo") else {
        return;
    };
    bed.run(["machine", "create", "--name", "m", "--mem", "256M"])
        .expect("create");
    start(&bed, "m", "first");
    set(&bed, 1);
    bed.save("m", "one.checkpoint");
    set(&bed, 2);
    // After its moment, before the head moves on.
    let save = "machine checkpoint --name m --store store --history 0";
    let save: Vec<&str> = save.split(' ').collect();
    let save = held_at(&bed, Phase::Registered, &save);
    let mut undo = bed
        .command(["machine", "undo", "--name", "m", "--discard"])
        .spawn()
        .expect("smolvm starts");
    // Its target is held, and it waits.
    while !bed.home().join("machines/m/target/records").exists() {
        assert!(
            undo.try_wait().expect("try to wait").is_none(),
            "it did not wait"
        );
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(save.finish().status.success());
    assert!(undo.wait().expect("it ends").success());
    assert_eq!(found(&bed), "1 1");
    bed.run(["machine", "stop", "--name", "m"]).expect("stop");
    undo_of_stopped(&bed);
    assert_eq!(found(&bed), "1 1", "and again");
}

fn undo_of_stopped(bed: &Bed) {
    bed.run(["machine", "undo", "--name", "m", "--discard"])
        .expect("undo");
}

/// What is saved of a copy before it has an identity of its own has its source's; the copy never comes to have that.
#[test]
fn a_copy_never_goes_back_to_its_sources_identity() {
    let Some(bed) = Bed::open("a_copy_never_goes_back_to_its_sources_identity") else {
        return;
    };
    bed.run(["machine", "create", "--name", "source", "--mem", "256M"])
        .expect("create");
    start(&bed, "source", "source");
    let id = |name| bed.sh(name, "cat /etc/machine-id; hostname");
    let of_source = id("source");
    bed.save("source", "source.checkpoint");
    let create = "machine create --name copy --from source.checkpoint";
    bed.run(create.split(' ')).expect("create");
    let starting = held_at(
        &bed,
        Phase::AgentAnswers,
        &["machine", "start", "--name", "copy"],
    );
    bed.save("copy", "early.checkpoint");
    assert!(starting.finish().status.success());
    let of_copy = id("copy");
    assert_ne!(of_copy, of_source);
    let undo = "machine undo --name copy --discard";
    bed.run(undo.split(' ')).expect("undo");
    assert_ne!(id("copy"), of_source, "it has its source's identity");
    assert_eq!(bed.sh("copy", "hostname"), "copy");
    // Its own points keep the identity.
    let own = id("copy");
    bed.save("copy", "late.checkpoint");
    bed.run(undo.split(' ')).expect("undo");
    assert_eq!(id("copy"), own);
}

/// A machine that booted anew is another process, whose clock is measured anew; a point of the time before is one of it all the same.
#[test]
fn a_machine_that_was_started_anew_goes_back_in_place() {
    let Some(bed) = Bed::open("a_machine_that_was_started_anew_goes_back_in_place") else {
        return;
    };
    bed.boot("m", &["--mem", "256M"]);
    set(&bed, 1);
    bed.save("m", "one.checkpoint");
    for round in 0..3 {
        bed.run(["machine", "stop", "--name", "m"]).expect("stop");
        bed.start("m").expect("start");
        set(&bed, 2);
        let before = bed.vmms("m");
        let mut options = UndoOptions::default();
        options.discard = true;
        let undone = bed.engine.undo(&machine("m"), &options, &Silent);
        let undone = undone.unwrap_or_else(|error| panic!("{round}: {}", chain(&error)));
        assert!(undone.in_place, "{round}");
        assert_eq!(bed.vmms("m"), before, "{round}");
        assert_eq!(found(&bed), "1 1", "{round}");
        assert_eq!(bed.complaints("m"), "", "{round}");
    }
}

/// A point that cannot be read is found out before the present state is given up for it.
#[test]
fn an_undo_to_a_damaged_point_leaves_the_machine_as_it_is() {
    let Some(bed) = Bed::open("an_undo_to_a_damaged_point_leaves_the_machine_as_it_is") else {
        return;
    };
    bed.boot("m", &["--mem", "256M"]);
    bed.save("m", "first.checkpoint");
    let former = names(&bed.home().join("machines/m/packs"));
    // All of it in a pack of its own.
    bed.sh("m", "head -c 8M /dev/urandom > /run/random");
    set(&bed, 1);
    bed.save("m", "one.checkpoint");
    let new = &names(&bed.home().join("machines/m/packs")) - &former;
    for pack in &new {
        for directory in [
            bed.home().join("machines/m/packs"),
            bed.path("one.checkpoint/packs"),
            bed.path("store/packs"),
        ] {
            spoil(&directory.join(pack));
        }
    }
    bed.sh("m", "head -c 8M /dev/urandom > /run/random");
    set(&bed, 2);
    let before = (bed.vmms("m"), names(&bed.home().join("machines/m/disk")));
    let mut options = UndoOptions::default();
    options.discard = true;
    let error = bed.engine.undo(&machine("m"), &options, &Silent);
    let error = error.expect_err("it is damaged");
    assert!(matches!(error, EngineError::NotUndone { .. }), "{error:?}");
    assert_eq!(found(&bed), "2 2");
    let after = (bed.vmms("m"), names(&bed.home().join("machines/m/disk")));
    assert_eq!(after, before, "the process, and the files of the disk");
    // What was taken for it is free again.
    bed.save("m", "two.checkpoint");
    bed.save("m", "three.checkpoint");
    set(&bed, 3);
    let undone = bed.engine.undo(&machine("m"), &options, &Silent);
    undone.unwrap_or_else(|error| panic!("to a sound one: {}", chain(&error)));
    assert_eq!(found(&bed), "2 2");
}

/// Changes bodies of a large pack, if it is there; its index stays.
fn spoil(path: &std::path::Path) {
    use std::os::unix::fs::{FileExt, PermissionsExt};
    if !std::fs::metadata(path).is_ok_and(|metadata| metadata.len() > 4 << 20) {
        return;
    }
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).expect("permissions");
    let file = std::fs::File::options().write(true).open(path);
    let file = file.expect("the pack");
    for at in (2 << 20..4 << 20).step_by(16 << 10) {
        file.write_all_at(b"spoilt", at).expect("it is written");
    }
    // One that can be written is copied, and verified by that.
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o400)).expect("permissions");
}

/// At the point the guest had the clock, the random numbers, perhaps the identity of then: whoever comes is made to wait until it has
/// its own.
#[test]
fn nobody_works_in_a_machine_that_went_back_before_it_is_set_up() {
    let Some(bed) = Bed::open("nobody_works_in_a_machine_that_went_back_before_it_is_set_up")
    else {
        return;
    };
    bed.run(["machine", "create", "--name", "m", "--mem", "256M"])
        .expect("create");
    start(&bed, "m", "first");
    bed.save("m", "one.checkpoint");
    // The guest runs, nobody has called its agent yet.
    let undo = ["machine", "undo", "--name", "m", "--discard"];
    let undo = held_at(&bed, Phase::UndoneInPlace, &undo);
    let mut exec = bed
        .command(["machine", "exec", "--name", "m", "--", "true"])
        .spawn()
        .expect("smolvm starts");
    std::thread::sleep(std::time::Duration::from_secs(1));
    let early = exec.try_wait().expect("try to wait");
    assert!(early.is_none(), "it was let in: {early:?}");
    assert!(undo.finish().status.success());
    assert!(exec.wait().expect("it ends").success());
}
