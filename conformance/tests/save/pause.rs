//! Machines that are paused: nothing of them runs, and they go on where they were, whatever is killed when.

use std::fs;
use std::time::{Duration, Instant};

use smolvm_engine::phase::{Operation, Phase};
use smolvm_engine::progress::Silent;
use smolvm_engine::{
    BranchOptions, EngineError, MachineState, StartOptions, StopOptions, UndoOptions, chain,
};

use crate::bed::{Bed, machine, names};
use crate::killed::{Victim, wait_end};
use crate::phases::{check_machine, kill_at, start};

/// The phases that a pause reaches, in order.
const PAUSE: [Phase; 11] = [
    Phase::CaptureBegun,
    Phase::LayerAdded,
    Phase::PreCopied,
    Phase::Paused,
    Phase::DiskSwitched,
    Phase::MemoryStored,
    Phase::DiskStored,
    Phase::PacksSealed,
    Phase::Pinned,
    Phase::PauseDecided,
    Phase::PauseEnded,
];

/// Writes memory all the time, and looks whether it is what it wrote.
const CHECKER: &str = include_str!("guest/checker.py");

fn position(phase: Phase) -> usize {
    PAUSE
        .iter()
        .position(|other| *other == phase)
        .expect("a phase of a pause")
}

fn pause(bed: &Bed, context: &str) {
    let paused = bed.engine.pause(&machine("m"), &Silent);
    let paused = paused.unwrap_or_else(|error| panic!("{context}: pause: {}", chain(&error)));
    assert!(
        paused.data_bytes > 16 << 20,
        "{context}: {} bytes",
        paused.data_bytes
    );
    assert_eq!(bed.state("m"), MachineState::Paused, "{context}");
    // It has let the machine go; its own end takes a moment.
    for _ in 0..1000 {
        if bed.supervisors("m").is_empty() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("{context}: a process is left");
}

fn resume(bed: &Bed, context: &str) {
    let resumed = bed.engine.resume(&machine("m"));
    let resumed = resumed.unwrap_or_else(|error| panic!("{context}: resume: {}", chain(&error)));
    assert!(resumed.was_paused, "{context}");
    assert_eq!(bed.state("m"), MachineState::Running, "{context}");
}

fn set(bed: &Bed, value: u32) {
    bed.sh(
        "m",
        &format!("echo {value} > /root/disk; sync; echo {value} > /run/memory"),
    );
}

/// What is in the guest's file, and in its memory.
fn found(bed: &Bed) -> String {
    bed.sh(
        "m",
        "cat /root/disk; cat /run/memory 2> /dev/null || echo none",
    )
    .replace('\n', " ")
}

fn head(bed: &Bed) -> Option<String> {
    bed.engine.machine(&machine("m")).expect("status").head
}

/// Rounds that the checker has made; it ends with the first fault.
fn rounds(bed: &Bed) -> u64 {
    let said = bed.sh(
        "m",
        "pgrep -f '[p]rogram.py' > /dev/null || { cat /run/output; exit 1; }; cat /run/rounds",
    );
    said.parse().expect("a number")
}

#[test]
fn a_paused_machine_goes_on_where_it_was_ten_times_in_a_row() {
    let Some(bed) = Bed::open("a_paused_machine_goes_on_where_it_was_ten_times_in_a_row") else {
        return;
    };
    bed.boot("m", &["--mem", "256M"]);
    bed.sh("m", "dmesg --clear");
    bed.python("m", CHECKER, "");
    bed.sh(
        "m",
        "(sleep 6; date +%s.%N > /run/slept) < /dev/null > /dev/null 2>&1 &",
    );
    let identity = bed.sh(
        "m",
        "hostname; cat /etc/machine-id; cat /proc/sys/kernel/random/boot_id",
    );
    // A machine needs neither its image nor its kernel.
    for part in ["images", "kernels"] {
        fs::remove_dir_all(bed.home().join(part)).expect("remove");
    }
    let directory = bed.home().join("machines/m");
    let mut before = rounds(&bed);
    for round in 1..=10 {
        let context = format!("round {round}");
        set(&bed, round);
        let seeds = bed.sh("m", "od -An -N16 -tx1 /dev/urandom");
        pause(&bed, &context);
        assert!(!directory.join("pausing").exists(), "{context}");
        assert_eq!(names(&directory.join("disk")).len(), 2, "{context}");
        assert_eq!(names(&directory.join("records")).len(), 1, "{context}");
        resume(&bed, &context);
        assert_eq!(found(&bed), format!("{round} {round}"), "{context}");
        assert_ne!(
            bed.sh("m", "od -An -N16 -tx1 /dev/urandom"),
            seeds,
            "{context}"
        );
        let after = rounds(&bed);
        assert!(
            after >= before,
            "{context}: {after} rounds, {before} before"
        );
        before = after;
    }
    let now = "hostname; cat /etc/machine-id; cat /proc/sys/kernel/random/boot_id";
    assert_eq!(bed.sh("m", now), identity);
    assert_eq!(head(&bed), None);
    // The time that it lay paused is not slept.
    bed.sh("m", "until test -e /run/slept; do sleep 0.1; done");
    bed.sh(
        "m",
        "n=$(cat /run/rounds); until test $(cat /run/rounds) -gt $n; do sleep 0.1; done",
    );
    rounds(&bed);
    assert_eq!(bed.complaints("m"), "");
}

#[test]
fn a_sleep_goes_on_with_what_remained() {
    let Some(bed) = Bed::open("a_sleep_goes_on_with_what_remained") else {
        return;
    };
    bed.boot("m", &["--mem", "256M"]);
    let clock = "cut -d' ' -f1 /proc/uptime";
    let seconds = |text: String| text.parse::<f64>().expect("a time");
    bed.sh(
        "m",
        &format!(
            "({clock} > /run/began; sleep 20; {clock} > /run/slept) < /dev/null > /dev/null 2>&1 &"
        ),
    );
    bed.sh("m", "until test -s /run/began; do sleep 0.05; done");
    pause(&bed, "sleep");
    let lay = Duration::from_secs(8);
    std::thread::sleep(lay);
    let wall = bed
        .run(["machine", "resume", "--name", "m"])
        .expect("resume");
    assert!(wall.contains("Resumed 'm'"), "{wall}");
    bed.sh("m", "until test -s /run/slept; do sleep 0.05; done");
    let slept = seconds(bed.sh("m", "cat /run/slept")) - seconds(bed.sh("m", "cat /run/began"));
    // By its own clock it slept its time; with the time that it lay it would have slept longer.
    assert!(
        (20.0..20.0 + lay.as_secs_f64() / 2.0).contains(&slept),
        "{slept}"
    );
    let guest: f64 = seconds(bed.exec("m", &["date", "+%s.%N"]));
    let host = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let host = host.expect("after 1970").as_secs_f64();
    assert!((guest - host).abs() < 5.0, "{guest}, the host {host}");
}

#[test]
fn a_machine_that_was_paused_is_saved_undone_and_branched() {
    let Some(bed) = Bed::open("a_machine_that_was_paused_is_saved_undone_and_branched") else {
        return;
    };
    bed.boot("m", &["--mem", "256M"]);
    set(&bed, 1);
    let one = bed.save("m", "one.checkpoint");
    set(&bed, 2);
    pause(&bed, "first");
    assert_eq!(head(&bed).as_deref(), Some(&*one.id), "a pause is no point");
    fs::remove_dir_all(bed.path("store")).expect("the store is removed");
    fs::remove_dir_all(bed.path("one.checkpoint")).expect("the checkpoint is removed");
    resume(&bed, "first");
    // A child, before anything is saved again; its first save is as complete.
    let options = BranchOptions::new(vec![machine("child")]);
    let branched = bed.engine.branch(&machine("m"), &options, &Silent);
    branched.unwrap_or_else(|error| panic!("branch: {}", chain(&error)));
    assert_eq!(bed.sh("child", "cat /root/disk /run/memory"), "2\n2");
    bed.save("child", "child.checkpoint");
    check_machine(&bed, "child", "child");
    bed.delete("child");
    bed.restore("child", "child.checkpoint", None);
    assert_eq!(bed.sh("child", "cat /root/disk /run/memory"), "2\n2");
    bed.delete("child");
    // The next point holds what changed since the head, and the pause is used up.
    set(&bed, 3);
    let two = bed.save("m", "two.checkpoint");
    assert!(
        two.written_bytes < two.data_bytes,
        "{} of {} bytes written",
        two.written_bytes,
        two.data_bytes
    );
    check_machine(&bed, "m", "saved");
    bed.restore("copy", "two.checkpoint", None);
    assert_eq!(bed.sh("copy", "cat /root/disk /run/memory"), "3\n3");
    bed.delete("copy");
    // In place, right after a resume, to what it was at its head.
    set(&bed, 4);
    pause(&bed, "second");
    resume(&bed, "second");
    let undone = bed
        .engine
        .undo(&machine("m"), &UndoOptions::default(), &Silent)
        .unwrap_or_else(|error| panic!("undo: {}", chain(&error)));
    assert!(undone.in_place);
    assert_eq!(undone.id, two.id);
    assert_eq!(found(&bed), "3 3");
    assert_eq!(bed.complaints("m"), "");
}

#[test]
fn a_paused_machine_can_be_undone_and_that_state_is_kept() {
    let Some(bed) = Bed::open("a_paused_machine_can_be_undone_and_that_state_is_kept") else {
        return;
    };
    bed.boot("m", &["--mem", "256M"]);
    set(&bed, 1);
    let one = bed.save("m", "one.checkpoint");
    set(&bed, 2);
    pause(&bed, "pause");
    let undo = |to: Option<&str>| {
        let mut options = UndoOptions::default();
        options.to = to.map(str::to_owned);
        let undone = bed.engine.undo(&machine("m"), &options, &Silent);
        undone.unwrap_or_else(|error| panic!("undo: {}", chain(&error)))
    };
    let undone = undo(None);
    assert_eq!(undone.id, one.id);
    assert_eq!(undone.lost, None);
    assert_eq!(found(&bed), "1 1");
    let kept = undone.kept.expect("the state that was left");
    undo(Some(&kept.short_id));
    assert_eq!(found(&bed), "2 2");
    bed.save("m", "two.checkpoint");
    check_machine(&bed, "m", "saved");
}

#[test]
fn what_a_paused_machine_allows() {
    let Some(bed) = Bed::open("what_a_paused_machine_allows") else {
        return;
    };
    bed.run(["machine", "create", "--name", "m", "--mem", "256M"])
        .expect("create");
    let refused = |arguments: &[&str], state: &str, hint: &str| {
        let error = bed
            .run(arguments.iter().copied())
            .expect_err("it is refused");
        assert!(error.contains(state), "{arguments:?}: {error}");
        assert!(error.contains(hint), "{arguments:?}: {error}");
    };
    let begin = "smolvm machine start --name m";
    refused(&["machine", "pause", "--name", "m"], "created", begin);
    refused(&["machine", "resume", "--name", "m"], "created", begin);
    bed.start("m").expect("start");
    let already = bed
        .run(["machine", "resume", "--name", "m"])
        .expect("resume");
    assert!(already.contains("runs already"), "{already}");
    set(&bed, 1);
    bed.save("m", "one.checkpoint");
    let mut cut = bed.spawn("m", &["sh", "-c", "echo begun > /run/begun; sleep 600"]);
    bed.sh("m", "until test -e /run/begun; do sleep 0.05; done");
    pause(&bed, "pause");
    assert_eq!(cut.wait().expect("exec ends").code(), Some(125));
    let list = bed.run(["machine", "ls"]).expect("ls");
    assert!(list.contains("paused"), "{list}");
    let next = "smolvm machine resume --name m";
    for arguments in [
        &["machine", "pause", "--name", "m"][..],
        &["machine", "exec", "--name", "m", "--", "true"],
        &["machine", "checkpoint", "--name", "m"],
        &["machine", "branch", "--from", "m", "--name", "c"],
        &["machine", "stop", "--name", "m"],
        &["machine", "restart", "--name", "m"],
    ] {
        refused(arguments, "paused", next);
    }
    assert_eq!(bed.state("m"), MachineState::Paused);
    bed.run(["machine", "rename", "m", "other"])
        .expect("rename");
    bed.run(["machine", "rename", "other", "m"])
        .expect("and back");
    // A start is as a resume, and what ran in it goes on.
    let started = bed.run(["machine", "start", "--name", "m"]).expect("start");
    assert!(started.contains("Resumed 'm'"), "{started}");
    bed.sh("m", "pgrep -f 'sleep 600'");
    set(&bed, 2);
    pause(&bed, "again");
    bed.run(["machine", "stop", "--name", "m", "--discard"])
        .expect("stop");
    assert_eq!(bed.state("m"), MachineState::Stopped);
    let records = names(&bed.home().join("machines/m/records"));
    assert!(
        records.iter().all(|name| name.ends_with(".record")),
        "{records:?}"
    );
    // What is on its disk now is no point.
    let undone = bed
        .engine
        .undo(&machine("m"), &UndoOptions::default(), &Silent);
    assert!(
        matches!(undone, Err(EngineError::DiskNotKept { .. })),
        "{undone:?}"
    );
    bed.start("m").expect("start");
    assert_eq!(found(&bed), "2 none");
    assert_eq!(bed.complaints("m"), "");
    // A cold start gives the memory up as well.
    set(&bed, 3);
    pause(&bed, "before a cold start");
    let cold = StartOptions::default().with_cold(true);
    let started = bed.engine.start(&machine("m"), cold).expect("start");
    assert!(!started.was_paused);
    assert_eq!(found(&bed), "3 none");
    pause(&bed, "before its end");
    bed.engine.delete(&machine("m"), false).expect("delete");
    assert!(names(&bed.home().join("machines")).is_empty());
    let stop = bed.engine.stop(&machine("m"), StopOptions::default());
    assert!(matches!(stop, Err(EngineError::NoMachine { .. })));
}

#[test]
fn a_kill_at_any_phase_of_a_pause_leaves_a_machine_that_is_one_or_the_other() {
    let test = "a_kill_at_any_phase_of_a_pause_leaves_a_machine_that_is_one_or_the_other";
    let Some(bed) = Bed::open(test) else {
        return;
    };
    bed.run(["machine", "create", "--name", "m", "--mem", "256M"])
        .expect("create");
    start(&bed, "m", "first");
    let mut value = 0;
    for phase in PAUSE {
        for victim in Victim::ALL {
            if phase == Phase::PauseEnded && victim == Victim::Vmm {
                continue; // it is gone
            }
            value += 1;
            cut_pause(&bed, phase, victim, value);
        }
    }
    bed.save("m", "last.checkpoint");
    check_machine(&bed, "m", "last");
}

fn cut_pause(bed: &Bed, phase: Phase, victim: Victim, value: u32) {
    let context = format!("{phase:?}, {victim:?}");
    let is_before = |other| position(phase) < position(other);
    set(bed, value);
    let said = kill_at(
        bed,
        phase,
        victim,
        "m",
        &["machine", "pause", "--name", "m"],
    );
    let state = match victim {
        Victim::Command => settled(bed, &context),
        _ => {
            wait_end(bed, "m");
            bed.state("m")
        }
    };
    let is_paused = state == MachineState::Paused;
    assert!(!said || is_paused, "{context}: said, not done: {state:?}");
    match victim {
        Victim::Command => {
            let may_run = state == MachineState::Running && is_before(Phase::PauseDecided);
            assert!(is_paused || may_run, "{context}: {state:?}");
        }
        Victim::Supervisor => assert_eq!(
            is_paused,
            !is_before(Phase::PauseDecided),
            "{context}: {state:?}"
        ),
        // With the instant the VMM's work is done.
        Victim::Vmm => assert_eq!(
            is_paused,
            !is_before(Phase::MemoryStored),
            "{context}: {state:?}"
        ),
    }
    if !is_paused && victim != Victim::Command {
        assert!(
            matches!(state, MachineState::Failed { .. }),
            "{context}: {state:?}"
        );
    }
    start(bed, "m", &context);
    let expected = match (is_paused, victim) {
        (false, Victim::Supervisor | Victim::Vmm) => format!("{value} none"),
        _ => format!("{value} {value}"),
    };
    assert_eq!(found(bed), expected, "{context}");
    assert_eq!(bed.complaints("m"), "", "{context}");
    assert!(!bed.home().join("machines/m/pausing").exists(), "{context}");
}

/// The state of a machine whose pause goes on without its command, or is given up, once it is over.
fn settled(bed: &Bed, context: &str) -> MachineState {
    let begin = Instant::now();
    loop {
        let state = bed.state("m");
        // An operation that waits for the capture to be over.
        let is_over = match state {
            MachineState::Running => bed
                .try_exec("m", &["true"])
                .is_ok_and(|_| !bed.home().join("machines/m/pausing").exists()),
            _ => bed.supervisors("m").is_empty(),
        };
        if is_over {
            return bed.state("m");
        }
        assert!(
            begin.elapsed() < Duration::from_secs(120),
            "{context}: {state:?}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_kill_at_any_phase_of_a_resume_leaves_a_machine_that_is_one_or_the_other() {
    let test = "a_kill_at_any_phase_of_a_resume_leaves_a_machine_that_is_one_or_the_other";
    let Some(bed) = Bed::open(test) else {
        return;
    };
    bed.run(["machine", "create", "--name", "m", "--mem", "256M"])
        .expect("create");
    start(&bed, "m", "first");
    let of_restore: Vec<Phase> = Phase::ALL
        .iter()
        .copied()
        // Its identity is its own already.
        .filter(|phase| phase.operation() == Operation::Restore && *phase != Phase::IdentityGiven)
        .collect();
    let place = |wanted| of_restore.iter().position(|phase| *phase == wanted);
    let mut value = 0;
    for phase in &of_restore {
        for victim in Victim::ALL {
            if victim == Victim::Vmm && place(*phase) < place(Phase::MemoryFilled) {
                continue; // there is none yet
            }
            let context = format!("{phase:?}, {victim:?}");
            value += 1;
            set(&bed, value);
            // By the command: whoever starts the machine hands down where it is to be held.
            bed.run(["machine", "pause", "--name", "m"])
                .unwrap_or_else(|error| panic!("{context}: {error}"));
            kill_at(
                &bed,
                *phase,
                victim,
                "m",
                &["machine", "resume", "--name", "m"],
            );
            let is_kept = victim == Victim::Command || place(*phase) < place(Phase::RunRecorded);
            if victim != Victim::Command {
                wait_end(&bed, "m");
                let state = bed.state("m");
                match is_kept {
                    true => assert_eq!(state, MachineState::Paused, "{context}"),
                    false => assert!(
                        matches!(state, MachineState::Failed { .. }),
                        "{context}: {state:?}"
                    ),
                }
            }
            start(&bed, "m", &context);
            let expected = match is_kept {
                true => format!("{value} {value}"),
                false => format!("{value} none"),
            };
            assert_eq!(found(&bed), expected, "{context}");
            assert_eq!(bed.complaints("m"), "", "{context}");
        }
    }
}
