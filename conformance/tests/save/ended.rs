//! Guests that end while they are saved: it settles by itself, with the right state, and nothing is lost.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use smolvm_engine::MachineState;
use smolvm_engine::phase::{Actor, Operation, Phase};

use crate::bed::{Bed, Saved, long};
use crate::phases::{check_machine, check_store, start};

/// How often a test looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// How a guest ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    PowerOff,
    Reboot,
    Panic,
}

impl End {
    const ALL: [Self; 3] = [Self::PowerOff, Self::Reboot, Self::Panic];

    /// What sysrq does it by, and the kernel's last words.
    fn how(self) -> (char, &'static str) {
        match self {
            Self::PowerOff => ('o', "Power down"),
            Self::Reboot => ('b', "Resetting"),
            Self::Panic => ('c', "Kernel panic"),
        }
    }

    fn fits(self, state: &MachineState) -> bool {
        match self {
            Self::PowerOff => *state == MachineState::Stopped,
            Self::Reboot => *state == MachineState::Running,
            Self::Panic => state
                .reason()
                .is_some_and(|reason| reason.contains("kernel panic")),
        }
    }
}

#[test]
fn a_guest_that_ends_at_any_phase_of_a_checkpoint_settles() {
    let Some(bed) = Bed::open("a_guest_that_ends_at_any_phase_of_a_checkpoint_settles") else {
        return;
    };
    bed.run(["machine", "create", "--name", "source", "--mem", "256M"])
        .expect("create");
    start(&bed, "source", "first");
    bed.sh(
        "source",
        "echo 1 > /proc/sys/kernel/sysrq; echo kept > /root/kept; sync",
    );
    // In these the guest stands still.
    let paused = [Phase::Paused, Phase::DiskSwitched];
    let phases = Phase::ALL
        .iter()
        .copied()
        .filter(|phase| phase.operation() == Operation::Checkpoint && !paused.contains(phase));
    for (number, phase) in phases.enumerate() {
        for (other, end) in End::ALL.into_iter().enumerate() {
            if long() || number % 3 == other {
                end_at(&bed, phase, end);
            }
        }
    }
}

fn end_at(bed: &Bed, phase: Phase, end: End) {
    let context = format!("{end:?} at {phase:?}");
    let (hold, held) = (phase.hold_file(&bed.holds()), phase.held_file(&bed.holds()));
    fs::write(&hold, "").expect("hold");
    let checkpoint = "machine checkpoint --name source --store store -o cut.checkpoint";
    let mut command = bed.command(checkpoint.split(' '));
    let mut command = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("smolvm starts");
    while !held.exists() {
        let ended = command.try_wait().expect("try to wait");
        assert!(ended.is_none(), "{context}: the command ended before");
        std::thread::sleep(LOOK_AGAIN);
    }
    let (key, words) = end.how();
    let said = || count(bed, words);
    let before = said();
    let boots = || count(bed, "smolvm-agent: ready");
    let booted = boots();
    let script = format!("sleep 0.5; echo {key} > /proc/sysrq-trigger");
    let detached = [
        "machine", "exec", "--name", "source", "-d", "--", "sh", "-c",
    ];
    bed.run(detached.into_iter().chain([&*script]))
        .unwrap_or_else(|error| panic!("{context}: {error}"));
    while said() == before {
        std::thread::sleep(LOOK_AGAIN);
    }
    if phase.actor() == Actor::Supervisor && end != End::Reboot {
        // Known at once, whatever the save does.
        while bed.state("source") == MachineState::Running {
            std::thread::sleep(LOOK_AGAIN);
        }
    }
    fs::remove_file(&hold).expect("let go");
    let saved = command.wait().expect("it ends").success();
    fs::remove_file(&held).expect("remove");
    while !end.fits(&bed.state("source")) {
        std::thread::sleep(LOOK_AGAIN);
    }
    // It runs on, and boots.
    while end == End::Reboot && boots() == booted {
        std::thread::sleep(LOOK_AGAIN);
    }

    let output = bed.path("cut.checkpoint");
    assert_eq!(saved, output.exists(), "{context}");
    start(bed, "source", &context);
    assert_eq!(bed.sh("source", "cat /root/kept"), "kept", "{context}");
    // The setting of each boot.
    bed.sh("source", "echo 1 > /proc/sys/kernel/sysrq");
    bed.save("source", "next.checkpoint");
    check_machine(bed, "source", &context);
    check_store(&bed.path("store"), &context);
    for name in ["cut.checkpoint", "next.checkpoint"] {
        if bed.path(name).exists() {
            Saved::open(&bed.path(name)).verify();
            fs::remove_dir_all(bed.path(name)).expect("remove");
        }
    }
}

/// How often the machine's console said these words.
fn count(bed: &Bed, words: &str) -> usize {
    let log = bed.home().join("machines/source/console.log");
    let log = fs::read(log).unwrap_or_default();
    String::from_utf8_lossy(&log).matches(words).count()
}

/// Saves that fail after their instant each leave a layer of the disk; these are merged, and nothing is lost.
#[test]
fn saves_that_fail_late_do_not_fill_the_disk_with_layers() {
    let Some(bed) = Bed::open("saves_that_fail_late_do_not_fill_the_disk_with_layers") else {
        return;
    };
    bed.run(["machine", "create", "--name", "source", "--mem", "256M"])
        .expect("create");
    start(&bed, "source", "first");
    let directory = bed.home().join("machines/source/disk");
    let (hold, held) = (
        Phase::Staged.hold_file(&bed.holds()),
        Phase::Staged.held_file(&bed.holds()),
    );
    for number in 0..14 {
        bed.sh("source", &format!("echo {number} > /root/{number}; sync"));
        fs::write(&hold, "").expect("hold");
        let checkpoint = "machine checkpoint --name source --store store -o taken.checkpoint";
        let mut command = bed.command(checkpoint.split(' '));
        let mut command = command
            .stderr(Stdio::null())
            .spawn()
            .expect("smolvm starts");
        while !held.exists() {
            std::thread::sleep(LOOK_AGAIN);
        }
        // Somebody takes the name before it is published.
        fs::create_dir(bed.path("taken.checkpoint")).expect("taken");
        fs::remove_file(&hold).expect("let go");
        assert!(!command.wait().expect("it ends").success());
        fs::remove_file(&held).expect("remove");
        fs::remove_dir(bed.path("taken.checkpoint")).expect("free");
        let layers = fs::read_dir(&directory).expect("its disk").count();
        // Base, those that may come together, the merged one, the top.
        assert!(layers <= 12, "{layers} files after {number}");
    }
    let all = || bed.sh("source", "cat $(seq -f /root/%g 0 13) | tr '\\n' ' '");
    let expected: Vec<String> = (0..14).map(|number| number.to_string()).collect();
    assert_eq!(all(), expected.join(" "));
    bed.save("source", "good.checkpoint");
    check_machine(&bed, "source", "after many that failed");
    bed.run(["machine", "stop", "--name", "source"])
        .expect("stop");
    start(&bed, "source", "again");
    assert_eq!(all(), expected.join(" "));
}
