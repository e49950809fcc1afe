//! Machines that go on from a running one: what they have of it, what they do not, and what is left when a process is killed.

use std::collections::BTreeSet;

use smolvm_engine::phase::Phase;
use smolvm_engine::progress::Silent;
use smolvm_engine::{
    BranchOptions, Branched, CheckpointOptions, EngineError, MAX_BRANCH_CHILDREN, StopOptions,
    UndoOptions, chain,
};

use crate::bed::{Bed, machine, names};
use crate::killed::{Victim, wait_end};
use crate::phases::{kill_at, start};

/// What the guest's disk and its memory hold.
fn found(bed: &Bed, name: &str) -> String {
    let script = "cat /root/disk; cat /run/memory 2> /dev/null || echo none";
    bed.sh(name, script).replace('\n', " ")
}

fn set(bed: &Bed, name: &str, value: &str) {
    let script = format!("echo {value} > /root/disk; echo {value} > /run/memory");
    bed.sh(name, &script);
}

fn branch(bed: &Bed, from: &str, children: &[&str]) -> Branched {
    let names = children.iter().map(|name| machine(name)).collect();
    try_branch(bed, from, &BranchOptions::new(names))
        .unwrap_or_else(|error| panic!("branch of {from}: {}", chain(&error)))
}

fn try_branch(bed: &Bed, from: &str, options: &BranchOptions) -> Result<Branched, EngineError> {
    let branched = bed.engine.branch(&machine(from), options, &Silent)?;
    if let Some((name, error)) = branched.failed.first() {
        panic!("{name} did not come up: {}", chain(error));
    }
    Ok(branched)
}

fn undo(bed: &Bed, name: &str) {
    let undone = bed
        .engine
        .undo(&machine(name), &UndoOptions::default(), &Silent);
    let undone = undone.unwrap_or_else(|error| panic!("undo of {name}: {}", chain(&error)));
    assert_eq!((undone.lost, undone.silent), (None, None));
}

fn stop(bed: &Bed, name: &str) {
    bed.engine
        .stop(&machine(name), StopOptions::default())
        .expect("stop");
}

/// A machine with something in memory that can be checked, and a process.
fn source(bed: &Bed) {
    bed.boot("m", &["--mem", "256M"]);
    set(bed, "m", "one");
    bed.sh(
        "m",
        "head -c 8000000 /dev/urandom > /run/bulk; sha256sum < /run/bulk > /run/sum; \
         nohup sleep 10000 > /dev/null 2>&1 & echo $! > /run/pid",
    );
}

fn check_bulk(bed: &Bed, name: &str) {
    let script = "sha256sum < /run/bulk | cmp - /run/sum; kill -0 $(cat /run/pid)";
    bed.sh(name, script);
    assert_eq!(bed.complaints(name), "", "{name}");
}

#[test]
fn branches_stand_alone() {
    let Some(bed) = Bed::open("branches_stand_alone") else {
        return;
    };
    source(&bed);
    // Before any point: all that a branch's first save knows is its memory.
    branch(&bed, "m", &["early"]);
    set(&bed, "early", "early");
    bed.save("early", "early.checkpoint");
    bed.restore("early-again", "early.checkpoint", None);
    assert_eq!(found(&bed, "early-again"), "early early");
    check_bulk(&bed, "early-again");
    bed.delete("early-again");
    bed.delete("early");

    let head = bed.save("m", "one.checkpoint").id;
    set(&bed, "m", "two");
    let children = ["a", "b", "c"];
    let branched = branch(&bed, "m", &children);
    assert_eq!(branched.children.len(), children.len());
    let all = ["m", "a", "b", "c"];
    for name in all {
        assert_eq!(found(&bed, name), "two two", "{name}");
        check_bulk(&bed, name);
        let info = bed.engine.machine(&machine(name)).expect("status");
        let parent = (name != "m").then(|| machine("m"));
        assert_eq!(
            (info.branched_from, info.head),
            (parent, Some(head.clone()))
        );
    }
    for script in [
        "hostname",
        "cat /etc/machine-id",
        "cat /proc/sys/kernel/random/uuid",
    ] {
        let values: BTreeSet<_> = all.iter().map(|name| bed.sh(name, script)).collect();
        assert_eq!(values.len(), all.len(), "{script}: {values:?}");
    }
    for name in all {
        set(&bed, name, name);
    }
    for name in all {
        assert_eq!(found(&bed, name), format!("{name} {name}"));
    }

    // Nobody needs the source, its points or its store.
    bed.delete("m");
    for path in ["one.checkpoint", "store"] {
        std::fs::remove_dir_all(bed.path(path)).expect("remove");
    }
    // What the source had written since its head counts as written in the child.
    bed.save("a", "a.checkpoint");
    bed.restore("again", "a.checkpoint", None);
    assert_eq!(found(&bed, "again"), "a a");
    check_bulk(&bed, "again");
    bed.delete("again");
    set(&bed, "a", "later");
    undo(&bed, "a");
    assert_eq!(found(&bed, "a"), "a a");
    // The head of the source is there, too.
    undo(&bed, "b");
    assert_eq!(found(&bed, "b"), "one one");
    check_bulk(&bed, "b");

    // A branch of a branch, which outlives both.
    branch(&bed, "c", &["d"]);
    bed.delete("c");
    assert_eq!(found(&bed, "d"), "c c");
    check_bulk(&bed, "d");
    stop(&bed, "d");
    start(&bed, "d", "cold");
    assert_eq!(
        (found(&bed, "d"), bed.sh("d", "hostname")),
        ("c none".to_owned(), "d".to_owned())
    );
}

#[test]
fn branches_begin_at_a_point_of_their_instant() {
    let Some(bed) = Bed::open("branches_begin_at_a_point_of_their_instant") else {
        return;
    };
    source(&bed);
    bed.save("m", "zero.checkpoint");
    set(&bed, "m", "two");
    let mut options = BranchOptions::new(vec![machine("a"), machine("b")]);
    let mut checkpoint = CheckpointOptions::default();
    checkpoint.store = Some(bed.path("store"));
    checkpoint.output = Some(bed.path("one.checkpoint"));
    options.checkpoint = Some(checkpoint);
    let saved = try_branch(&bed, "m", &options).expect("branch").saved;
    let saved = saved.expect("a point").id;
    for name in ["m", "a", "b"] {
        let head = bed.engine.machine(&machine(name)).expect("status").head;
        assert_eq!(head.as_ref(), Some(&saved), "{name}");
        set(&bed, name, name);
    }
    // Nothing counts as written since that point but what the branch wrote itself.
    let written = bed.save("a", "a.checkpoint").written_bytes;
    assert!(written < 16 << 20, "{written} bytes");
    bed.restore("again", "a.checkpoint", None);
    assert_eq!(found(&bed, "again"), "a a");
    check_bulk(&bed, "again");
    bed.restore("point", "one.checkpoint", None);
    undo(&bed, "b");
    undo(&bed, "m");
    for name in ["point", "b", "m"] {
        assert_eq!(found(&bed, name), "two two", "{name}");
        check_bulk(&bed, name);
    }
}

#[test]
fn a_chain_of_branches_stays_short() {
    let Some(bed) = Bed::open("a_chain_of_branches_stays_short") else {
        return;
    };
    source(&bed);
    let mut last = "m".to_owned();
    for number in 0..12 {
        let next = format!("m-{number}");
        let value = number.to_string();
        set(&bed, &last, &value);
        branch(&bed, &last, &[&next]);
        bed.delete(&last);
        assert_eq!(found(&bed, &next), format!("{value} {value}"));
        last = next;
    }
    check_bulk(&bed, &last);
    let disk = names(&bed.home().join("machines").join(&last).join("disk"));
    assert!(disk.len() <= 11, "{disk:?}");
    // And of one source again and again.
    for number in 0..12 {
        branch(&bed, &last, &["x"]);
        bed.delete("x");
        set(&bed, &last, &number.to_string());
    }
    let disk = names(&bed.home().join("machines").join(&last).join("disk"));
    assert!(disk.len() <= 12, "{disk:?}");
    assert_eq!(found(&bed, &last), "11 11");
    stop(&bed, &last);
    start(&bed, &last, "cold");
    assert_eq!(found(&bed, &last), "11 none");
}

#[test]
fn a_branch_that_is_killed_at_any_phase_leaves_nothing_half_done() {
    let test = "a_branch_that_is_killed_at_any_phase_leaves_nothing_half_done";
    let Some(bed) = Bed::open(test) else {
        return;
    };
    bed.run(["machine", "create", "--name", "m", "--mem", "256M"])
        .expect("create");
    start(&bed, "m", "first");
    set(&bed, "m", "one");
    bed.sh("m", "sync");
    let arguments = ["machine", "branch", "--from", "m", "--name", "c"];
    for phase in [
        Phase::PreCopied,
        Phase::Paused,
        Phase::DiskSwitched,
        Phase::Resumed,
        Phase::BranchFrozen,
        Phase::BranchLinked,
    ] {
        for victim in Victim::ALL {
            let context = format!("{phase:?}, {victim:?}");
            let said_done = kill_at(&bed, phase, victim, "m", &arguments);
            if said_done {
                // The source may end as soon as its supervisor has what the child needs.
                assert_eq!(victim, Victim::Vmm, "{context}");
                assert_eq!(found(&bed, "c"), "one one", "{context}");
                bed.delete("c");
            }
            if victim != Victim::Command {
                wait_end(&bed, "m");
                start(&bed, "m", &context);
                bed.sh("m", "echo one > /run/memory");
            }
            assert_eq!(found(&bed, "m"), "one one", "{context}");
            assert_eq!(
                bed.engine.machine_names().expect("list"),
                [machine("m")],
                "{context}"
            );
            branch(&bed, "m", &["after"]);
            assert_eq!(found(&bed, "after"), "one one", "{context}");
            bed.delete("after");
        }
    }
    branch(&bed, "m", &["after"]);
    let machines = names(&bed.home().join("machines"));
    assert_eq!(
        machines.len(),
        2,
        "what was cut off is removed: {machines:?}"
    );
}

#[test]
fn what_cannot_be_branched_is_refused() {
    let Some(bed) = Bed::open("what_cannot_be_branched_is_refused") else {
        return;
    };
    bed.run(["machine", "create", "--name", "m", "--mem", "256M"])
        .expect("create");
    let to = |names: &[&str]| BranchOptions::new(names.iter().map(|name| machine(name)).collect());
    let error = try_branch(&bed, "m", &to(&["a"])).expect_err("it does not run");
    assert!(
        matches!(&error, EngineError::WrongState { state, .. } if state == "created"),
        "{error}"
    );
    bed.run(["machine", "start", "--name", "m", "--no-branchable"])
        .expect("start");
    let error = try_branch(&bed, "m", &to(&["a"])).expect_err("it keeps no track");
    assert!(
        matches!(error, EngineError::NotBranchable { .. }),
        "{error}"
    );
    bed.run(["machine", "restart", "--name", "m"])
        .expect("restart");
    let error = try_branch(&bed, "m", &to(&["a", "m"])).expect_err("taken");
    assert!(
        matches!(&error, EngineError::MachineExists { name } if *name == machine("m")),
        "{error}"
    );
    let many = BranchOptions::numbered("x", MAX_BRANCH_CHILDREN + 1).expect("names");
    for options in [to(&[]), to(&["a", "a"]), many] {
        let error = try_branch(&bed, "m", &options).expect_err("not so many");
        assert!(matches!(error, EngineError::Invalid { .. }), "{error}");
    }
    assert_eq!(bed.engine.machine_names().expect("list"), [machine("m")]);
    branch(&bed, "m", &["a"]);
}
