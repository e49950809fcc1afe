//! Processes of a guest that wait for a branch, and machines whose branch was cut off.

use std::time::Duration;

use smolvm_engine::phase::Phase;
use smolvm_engine::progress::Silent;
use smolvm_engine::{
    BranchOptions, CheckpointOptions, EngineError, MachineState, UndoOptions, chain,
};

use crate::bed::{Bed, kill, machine, names};
use crate::killed::Victim;
use crate::phases::{held_at, kill_at};

/// How often a test looks whether something is so.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

fn branch(bed: &Bed, from: &str, options: &BranchOptions) {
    let branched = bed.engine.branch(&machine(from), options, &Silent);
    let branched = branched.unwrap_or_else(|error| panic!("branch of {from}: {}", chain(&error)));
    if let Some((name, error)) = branched.failed.first() {
        panic!("{name} did not come up: {}", chain(error));
    }
}

fn children(names: &[&str]) -> BranchOptions {
    BranchOptions::new(names.iter().map(|name| machine(name)).collect())
}

/// Processes that wait in the machine, and those that will.
fn waiting(bed: &Bed, name: &str) -> (u32, usize) {
    let agent = bed.engine.connect_agent(&machine(name));
    let status = agent.expect("an agent").status().expect("its status");
    (status.waiting, status.announced.len())
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..2400 {
        if holds() {
            return;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    panic!("waited two minutes for {what}");
}

fn wait_for_callers(bed: &Bed, name: &str, count: u32) {
    wait_until("callers", || waiting(bed, name).0 == count);
}

/// Starts a process that lives on.
fn start(bed: &Bed, name: &str, command: &str) {
    bed.sh(
        name,
        &format!("setsid {command} < /dev/null > /run/log 2>&1 &"),
    );
}

/// What the guest wrote into a file, once it has.
fn found(bed: &Bed, name: &str, file: &str) -> String {
    let mut text = String::new();
    wait_until(file, || {
        text = bed.sh(name, &format!("cat {file} 2> /dev/null || :"));
        !text.is_empty()
    });
    text
}

fn release(bed: &Bed, name: &str) -> u32 {
    let released = bed.engine.branch_release(&machine(name));
    released
        .unwrap_or_else(|error| panic!("{}", chain(&error)))
        .count
}

/// A workload that tells where it goes on, and one of another user.
const CALLERS: [&str; 2] = [
    "smolvm-branch-ready sh -c 'echo $SMOLVM_BRANCH_INDEX $SMOLVM_BRANCH_NAME $(hostname) > /run/went'",
    "setpriv --reuid 65534 --clear-groups sh -c 'eval \"$(/run/smolvm/bin/smolvm-branch-ready)\"; \
     echo $SMOLVM_BRANCH_INDEX $SMOLVM_BRANCH_NAME > /tmp/went'",
];

#[test]
fn what_waits_goes_on_in_each_branch_and_never_in_the_source() {
    let Some(bed) = Bed::open("what_waits_goes_on_in_each_branch_and_never_in_the_source") else {
        return;
    };
    bed.boot("m", &["--mem", "256M"]);
    CALLERS.iter().for_each(|caller| start(&bed, "m", caller));
    wait_for_callers(&bed, "m", 2);
    branch(&bed, "m", &children(&["a", "b"]));
    for (index, name) in ["a", "b"].into_iter().enumerate() {
        assert_eq!(
            found(&bed, name, "/run/went"),
            format!("{index} {name} {name}")
        );
        assert_eq!(found(&bed, name, "/tmp/went"), format!("{index} {name}"));
        assert_eq!(waiting(&bed, name), (0, 0));
    }
    // The same processes wait on, also in a point, and whoever is killed waits no more.
    assert_eq!(waiting(&bed, "m").0, 2);
    bed.save("m", "waits.checkpoint");
    bed.restore("again", "waits.checkpoint", None);
    assert_eq!(waiting(&bed, "again").0, 2);
    let refused = bed.engine.branch_release(&machine("again"));
    let refused = refused.expect_err("no branch");
    assert!(
        matches!(refused, EngineError::NotABranch { .. }),
        "{refused}"
    );
    branch(&bed, "again", &children(&["c"]));
    assert_eq!(found(&bed, "c", "/run/went"), "0 c c");
    bed.sh("again", "pkill -u 65534; pkill -f '[s]molvm-branch-ready'");
    wait_for_callers(&bed, "again", 0);
    bed.delete("again");
    bed.delete("c");

    // Held back, until somebody says so.
    let mut held = children(&["held"]);
    held.hold = true;
    branch(&bed, "m", &held);
    assert_eq!(waiting(&bed, "held").0, 2);
    assert!(bed.engine.machine(&machine("held")).expect("status").held);
    bed.save("held", "held.checkpoint");
    bed.run(["machine", "branch-release", "--name", "held"])
        .expect("released");
    assert_eq!(found(&bed, "held", "/run/went"), "0 held held");
    assert!(!bed.engine.machine(&machine("held")).expect("status").held);
    assert_eq!(release(&bed, "held"), 0, "nothing waits any more");
    // Back before that they wait again, and can be told again.
    let undone = bed
        .engine
        .undo(&machine("held"), &UndoOptions::default(), &Silent);
    undone.unwrap_or_else(|error| panic!("{}", chain(&error)));
    assert_eq!(waiting(&bed, "held").0, 2);
    assert_eq!(release(&bed, "held"), 2);
    assert_eq!(found(&bed, "held", "/tmp/went"), "0 held");
}

#[test]
fn branches_wait_only_for_what_has_announced_itself() {
    let Some(bed) = Bed::open("branches_wait_only_for_what_has_announced_itself") else {
        return;
    };
    bed.boot("m", &["--mem", "256M"]);
    let script = "#!/bin/sh\n\
        smolvm-branch-ready --announce || exit 1\n\
        until test -e /run/prepared; do sleep 0.1; done\n\
        exec smolvm-branch-ready sh -c 'echo $SMOLVM_BRANCH_INDEX > /run/went'\n";
    bed.put("m", "/root/workload", script);
    // Nobody has: nothing is waited for.
    let numbered = |prefix: &str, limit| {
        let mut options = BranchOptions::numbered(prefix, 2).expect("names");
        options.ready_timeout = Some(limit);
        options
    };
    branch(&bed, "m", &numbered("early", Duration::from_secs(600)));
    ["early-0", "early-1"]
        .iter()
        .for_each(|name| bed.delete(name));

    start(&bed, "m", "sh /root/workload");
    wait_until("the announcement", || waiting(&bed, "m").1 == 1);
    let limit = Duration::from_millis(300);
    let error = bed
        .engine
        .branch(&machine("m"), &numbered("late", limit), &Silent);
    let error = error.expect_err("it is not ready");
    assert!(matches!(error, EngineError::NotReady { .. }), "{error}");
    assert_eq!(bed.engine.machine_names().expect("list"), [machine("m")]);
    // One that asks for nothing of the kind waits for nothing.
    branch(&bed, "m", &children(&["now"]));
    bed.delete("now");
    std::thread::scope(|scope| {
        let options = numbered("t", Duration::from_secs(600));
        let bed = &bed;
        let waits = scope.spawn(move || branch(bed, "m", &options));
        std::thread::sleep(Duration::from_millis(500));
        assert!(!waits.is_finished());
        bed.sh("m", "touch /run/prepared");
        waits.join().expect("branched");
    });
    for index in 0..2 {
        let name = format!("t-{index}");
        assert_eq!(found(&bed, &name, "/run/went"), index.to_string());
    }
    // One that ends is not waited for.
    bed.sh("m", "rm /run/prepared");
    start(&bed, "m", "sh /root/workload");
    wait_until("the announcement", || waiting(&bed, "m").1 == 1);
    bed.sh("m", "pkill -f '[r]oot/workload'");
    branch(&bed, "m", &numbered("x", Duration::from_secs(600)));
}

#[test]
fn a_child_that_is_killed_before_it_is_up_leaves_nothing() {
    let test = "a_child_that_is_killed_before_it_is_up_leaves_nothing";
    let Some(bed) = Bed::open(test) else {
        return;
    };
    bed.boot("m", &["--mem", "256M"]);
    bed.sh("m", "echo one > /run/memory; sync");
    let arguments = ["machine", "branch", "--from", "m", "--name", "c"];
    let only_source = |context: &str| {
        let names = bed.engine.machine_names().expect("list");
        assert_eq!(names, [machine("m")], "{context}");
    };
    let phases = [
        Phase::ChildCreated,
        Phase::RunRecorded,
        Phase::AgentAnswers,
        Phase::IdentityGiven,
    ];
    for phase in phases {
        for victim in Victim::ALL {
            let context = format!("{phase:?}, {victim:?}");
            if phase == Phase::ChildCreated && victim != Victim::Command {
                continue; // neither is there yet
            }
            let said_done = kill_at(&bed, phase, victim, "c", &arguments);
            assert!(!said_done, "{context}");
            if victim == Victim::Command && phase != Phase::ChildCreated {
                // It comes up by itself, and is a machine like any other.
                let up = || bed.engine.machine(&machine("c")).is_ok_and(|c| c.ready);
                wait_until("the child", up);
                assert_eq!(bed.sh("c", "cat /run/memory"), "one", "{context}");
                bed.delete("c");
            }
            only_source(&context);
            assert_eq!(bed.state("m"), MachineState::Running, "{context}");
        }
        // All at once: nobody is left who could put it in order.
        let context = format!("{phase:?}, all");
        let mut command = held_at(&bed, phase, &arguments);
        drop(command.process.kill());
        bed.supervisors("c").into_iter().for_each(kill);
        command.let_go();
        let gone = || {
            !bed.engine
                .machine(&machine("c"))
                .is_ok_and(|c| c.state == MachineState::Running)
        };
        wait_until("the end of its processes", gone);
        only_source(&context);
        let error = bed.engine.machine(&machine("c")).expect_err("no machine");
        assert!(
            matches!(error, EngineError::NoMachine { .. }),
            "{context}: {error}"
        );
    }
    // The name is free, and what was left goes with the next branch.
    branch(&bed, "m", &children(&["c"]));
    assert_eq!(bed.sh("c", "cat /run/memory"), "one");
    bed.delete("c");
    let left = names(&bed.home().join("machines"));
    assert_eq!(
        left.into_iter()
            .filter(|name| name != "m")
            .collect::<Vec<_>>(),
        [""; 0]
    );
}

#[test]
fn a_branch_that_fails_after_its_save_says_where_the_point_is() {
    let test = "a_branch_that_fails_after_its_save_says_where_the_point_is";
    let Some(bed) = Bed::open(test) else {
        return;
    };
    bed.run(["machine", "create", "--name", "m", "--mem", "256M"])
        .expect("create");
    bed.run(["machine", "start", "--name", "m"]).expect("start");
    let arguments = [
        "machine",
        "branch",
        "--from",
        "m",
        "--name",
        "c",
        "--store",
        "store",
        "-o",
        "x.checkpoint",
    ];
    let held = held_at(&bed, Phase::BranchFrozen, &arguments);
    for entry in std::fs::read_dir(bed.home().join("machines")).expect("machines") {
        let entry = entry.expect("entry");
        if entry.file_name() != "m" {
            std::fs::remove_dir_all(entry.path()).expect("removed");
            std::fs::write(entry.path(), "in the way").expect("written");
        }
    }
    let output = held.finish();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("saved as") && said.contains("x.checkpoint"),
        "{said}"
    );
    bed.restore("again", "x.checkpoint", None);
    assert_eq!(bed.state("m"), MachineState::Running);
    // Without a point nothing is said of one.
    let mut options = children(&["c"]);
    options.checkpoint = Some(CheckpointOptions::default());
    branch(&bed, "m", &options);
}
