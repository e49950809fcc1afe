//! Processes killed exactly at each named phase of saving and restoring: what was said holds, nothing half
//! done is seen, nothing is left over.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::Duration;

use cas_store::{CheckLevel, ChunkId, PackSet, Store};
use smolvm_engine::MachineState;
use smolvm_engine::phase::{Operation, Phase};
use snapshot_format::Point;

use crate::bed::{Bed, Saved, chunks_of, machine, names};
use crate::killed::{Victim, count, counting, hidden, wait_end};

/// How often a test looks whether a process is held.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

fn phases_of(operations: &[Operation]) -> impl Iterator<Item = Phase> {
    let of = |phase: &Phase| operations.contains(&phase.operation());
    Phase::ALL.iter().copied().filter(of)
}

fn is_before(phase: Phase, other: Phase) -> bool {
    let position = |wanted| Phase::ALL.iter().position(|phase| *phase == wanted);
    position(phase) < position(other)
}

/// Runs the command until it reaches the phase, kills the victim there, and lets go whoever is left.
/// Returns whether the command claimed success.
pub(crate) fn kill_at(
    bed: &Bed,
    phase: Phase,
    victim: Victim,
    name: &str,
    arguments: &[&str],
) -> bool {
    let mut command = held_at(bed, phase, arguments);
    victim.kill(bed, name, &mut command.process);
    command.finish().status.success()
}

/// A command one of whose processes is held at a phase.
pub(crate) struct Held {
    pub(crate) process: Child,
    hold: PathBuf,
    held: PathBuf,
}

/// Runs the command until it reaches the phase.
pub(crate) fn held_at(bed: &Bed, phase: Phase, arguments: &[&str]) -> Held {
    let (hold, held) = (phase.hold_file(&bed.holds()), phase.held_file(&bed.holds()));
    fs::write(&hold, "").expect("hold");
    let mut process = spawn(bed, arguments);
    while !held.exists() {
        if let Some(status) = process.try_wait().expect("try to wait") {
            panic!("{phase:?}: the command ended before: {status}");
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    Held {
        process,
        hold,
        held,
    }
}

impl Held {
    /// Lets it go on.
    pub(crate) fn let_go(&self) {
        fs::remove_file(&self.hold).expect("let go");
        fs::remove_file(&self.held).expect("remove");
    }

    /// Lets it go on to its end.
    pub(crate) fn finish(self) -> Output {
        fs::remove_file(&self.hold).expect("let go");
        let output = self.process.wait_with_output().expect("it ends");
        fs::remove_file(&self.held).expect("remove");
        output
    }
}

fn spawn(bed: &Bed, arguments: &[&str]) -> Child {
    let mut command = bed.command(arguments.iter().copied());
    let command = command.stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().expect("smolvm starts")
}

/// Starts a machine by the command, so that its processes can be held.
pub(crate) fn start(bed: &Bed, name: &str, context: &str) {
    bed.run(["machine", "start", "--name", name])
        .unwrap_or_else(|error| panic!("{context}: {error}"));
}

#[test]
fn a_kill_at_any_phase_of_a_checkpoint_loses_nothing() {
    let Some(bed) = Bed::open("a_kill_at_any_phase_of_a_checkpoint_loses_nothing") else {
        return;
    };
    bed.run(["machine", "create", "--name", "source", "--mem", "256M"])
        .expect("create");
    start(&bed, "source", "first");
    bed.put("source", "/root/writer.py", include_str!("guest/writer.py"));
    bed.save("source", "first.checkpoint");
    let mut floor = 0;
    for phase in phases_of(&[Operation::Checkpoint]) {
        for victim in Victim::ALL {
            floor = cut_checkpoint(&bed, phase, victim, floor);
        }
    }
}

/// One checkpoint that is cut off; `floor` is what was durable in the guest before. Returns what is now.
fn cut_checkpoint(bed: &Bed, phase: Phase, victim: Victim, floor: u64) -> u64 {
    let context = format!("{phase:?}, {victim:?}");
    let counted = counting(bed, "source");
    let arguments: Vec<&str> = "machine checkpoint --name source --store store -o cut.checkpoint"
        .split(' ')
        .collect();
    let said_saved = kill_at(bed, phase, victim, "source", &arguments);
    let output = bed.path("cut.checkpoint");
    if victim == Victim::Command {
        assert_eq!(bed.state("source"), MachineState::Running, "{context}");
        bed.sh("source", "pkill -f '[w]riter.py' || :");
    } else {
        wait_end(bed, "source");
        let state = bed.state("source");
        assert!(
            matches!(state, MachineState::Failed { .. }),
            "{context}: {state:?}"
        );
    }
    if victim == Victim::Supervisor {
        // Who publishes is gone: it is there exactly if it had its name.
        assert_eq!(
            output.exists(),
            !is_before(phase, Phase::Published),
            "{context}"
        );
    }
    assert!(!said_saved || output.exists(), "{context}: said, not done");
    let floor = counted.join().expect("counted").max(floor);
    if victim != Victim::Command {
        check_store(&bed.path("store"), &context);
        start(bed, "source", &context);
    }
    let found = count(bed, "source");
    assert!(found >= floor, "{context}: {found}, {floor} was durable");

    // The next one is whole, and what was cut off is cleaned away with it.
    bed.save("source", "next.checkpoint");
    assert_eq!(hidden(bed), Vec::<String>::new(), "{context}");
    check_store(&bed.path("store"), &context);
    check_machine(bed, "source", &context);
    for name in ["cut.checkpoint", "next.checkpoint"] {
        if bed.path(name).exists() {
            Saved::open(&bed.path(name)).verify();
        }
    }
    if victim == Victim::Vmm {
        bed.restore("restored", "next.checkpoint", None);
        assert!(count(bed, "restored") >= floor, "{context}");
        bed.delete("restored");
    }
    for name in ["cut.checkpoint", "next.checkpoint"] {
        if bed.path(name).exists() {
            fs::remove_dir_all(bed.path(name)).expect("remove");
        }
    }
    floor
}

/// Every chunk of the store is sound, and no session or staged file of the dead is left.
pub(crate) fn check_store(path: &Path, context: &str) {
    let store = Store::open(path).expect("the store opens");
    let chunks = |record: &[u8], visit: &mut dyn FnMut(ChunkId)| {
        let point = Point::decode(record)?;
        let chunks = chunks_of(point.record(), store.chunks());
        chunks.into_iter().for_each(visit);
        Ok(())
    };
    let report = store
        .check(CheckLevel::Full, &chunks, &mut |_, _| {})
        .expect("the store can be checked");
    assert!(report.is_clean(), "{context}: {:?}", report.findings);
    for part in ["staging", "pins"] {
        let left = names(&path.join(part));
        assert!(left.is_empty(), "{context}: {part} holds {left:?}");
    }
}

/// After a checkpoint the machine's directory holds its history and nothing else: one base and one layer of
/// the disk, the records of its head and of that one's parents, packs that those need.
pub(crate) fn check_machine(bed: &Bed, name: &str, context: &str) {
    let directory = bed.home().join("machines").join(name);
    let disk = names(&directory.join("disk"));
    let of = |prefix: &str| disk.iter().filter(|name| name.starts_with(prefix)).count();
    assert_eq!(
        (of("base-"), of("layer-"), disk.len()),
        (1, 1, 2),
        "{context}: {disk:?}"
    );

    let records = directory.join("records");
    let packs = PackSet::open([directory.join("packs")]);
    let mut known = BTreeSet::new();
    let mut needed = BTreeSet::new();
    let info = bed.engine.machine(&machine(name));
    let mut next = info.expect("status").head;
    while let Some(id) = next {
        let file = format!("{id}.record");
        let Ok(record) = fs::read(records.join(&file)) else {
            break;
        };
        let point = Point::decode(&record).expect("a sound record");
        needed.extend(chunks_of(point.record(), &packs));
        next = point.record().parent.map(|parent| parent.to_string());
        known.insert(file);
    }
    assert_eq!(names(&records), known, "{context}: records");

    let used: BTreeSet<_> = needed
        .iter()
        .filter(|chunk| !chunk.is_zero())
        .map(|chunk| {
            let info = packs.info(chunk).expect("the packs can be read");
            info.expect("a chunk of the history is there").pack
        })
        .collect();
    let present: BTreeSet<_> = packs.packs().expect("packs").into_iter().collect();
    assert_eq!(present, used, "{context}: packs");
    let left = names(&directory);
    let temporary = left.iter().any(|name| name.starts_with('.'));
    assert!(!temporary, "{context}: {left:?}");
}

/// A bed with a point of a machine that is deleted, and what its identity was.
fn bed_with_point(test: &str) -> Option<(Bed, String)> {
    let bed = Bed::open(test)?;
    bed.boot("source", &["--mem", "256M"]);
    bed.sh(
        "source",
        "echo disk > /root/file; sync; echo memory > /run/file",
    );
    let identity = bed.exec("source", &["cat", "/etc/machine-id"]);
    bed.save("source", "point.checkpoint");
    bed.delete("source");
    Some((bed, identity))
}

#[test]
fn a_kill_at_any_phase_of_a_create_leaves_a_machine_or_none() {
    let test = "a_kill_at_any_phase_of_a_create_leaves_a_machine_or_none";
    let Some((bed, _)) = bed_with_point(test) else {
        return;
    };
    for phase in phases_of(&[Operation::CreateFrom]) {
        let create: Vec<&str> = "machine create --name victim --from point.checkpoint"
            .split(' ')
            .collect();
        kill_at(&bed, phase, Victim::Command, "victim", &create);
        let exists = !bed.engine.machines().expect("list").is_empty();
        assert_eq!(exists, phase == Phase::MachineCreated, "{phase:?}");
        if !exists {
            bed.create_from("victim", "point.checkpoint", None)
                .expect("the name is free");
        }
        assert_eq!(bed.state("victim"), MachineState::Created, "{phase:?}");
        let machines = names(&bed.home().join("machines"));
        assert_eq!(machines, BTreeSet::from(["victim".to_owned()]), "{phase:?}");
        bed.start("victim").expect("start");
        assert_eq!(bed.sh("victim", "cat /run/file /root/file"), "memory\ndisk");
        bed.delete("victim");
    }
}

#[test]
fn a_kill_at_any_phase_of_a_restore_leaves_a_machine_that_works() {
    let test = "a_kill_at_any_phase_of_a_restore_leaves_a_machine_that_works";
    let Some((bed, identity)) = bed_with_point(test) else {
        return;
    };
    for phase in phases_of(&[Operation::Restore]) {
        for victim in Victim::ALL {
            if victim == Victim::Vmm && is_before(phase, Phase::MemoryFilled) {
                continue; // there is none yet
            }
            cut_restore(&bed, phase, victim, &identity);
        }
    }
}

fn cut_restore(bed: &Bed, phase: Phase, victim: Victim, identity: &str) {
    let context = format!("{phase:?}, {victim:?}");
    bed.create_from("victim", "point.checkpoint", None)
        .expect("create");
    let arguments = ["machine", "start", "--name", "victim"];
    let said_started = kill_at(bed, phase, victim, "victim", &arguments);
    if victim != Victim::Command {
        wait_end(bed, "victim");
        // A VMM that dies when its guest was ready: it was started, and then it ended.
        let was_ready = victim == Victim::Vmm && !is_before(phase, Phase::IdentityGiven);
        assert!(!said_started || was_ready, "{context}: said, not done");
        let state = bed.state("victim");
        let honest = match state {
            MachineState::Created => is_before(phase, Phase::RunRecorded),
            MachineState::Failed { .. } => !is_before(phase, Phase::MemoryFilled),
            _ => false,
        };
        assert!(honest, "{context}: {state:?}");
    }
    // Whatever happened: it starts, restored while it never ran, else booted, with the point's disk and
    // an identity of its own.
    start(bed, "victim", &context);
    let memory = bed.sh("victim", "cat /run/file 2> /dev/null || :");
    if victim == Victim::Command || is_before(phase, Phase::RunRecorded) {
        assert_eq!(memory, "memory", "{context}");
    }
    assert_eq!(bed.sh("victim", "cat /root/file"), "disk", "{context}");
    let own = bed.sh("victim", "hostname; cat /etc/machine-id");
    let (hostname, id) = own.split_once('\n').expect("two lines");
    assert_eq!(hostname, "victim", "{context}");
    assert!(id != identity && id.len() == 32, "{context}: {id}");
    assert_eq!(bed.complaints("victim"), "", "{context}");
    bed.delete("victim");
    let left = names(&bed.home().join("machines"));
    assert!(left.is_empty(), "{context}: {left:?}");
}
