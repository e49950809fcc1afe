//! A machine that is saved very often: nothing that a save costs grows with those before.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use smolvm_engine::CheckpointOptions;
use smolvm_engine::progress::Silent;

use crate::bed::{Bed, long, machine};

/// A mapping of this size is the guest's memory: the processes have none as large.
const GUEST_BYTES: u64 = 64 << 20;

/// One machine with a store of its own.
struct Saved<'a> {
    bed: &'a Bed,
    name: &'static str,
}

/// What a save took.
#[derive(Debug, Clone, Copy)]
struct Cost {
    took: Duration,
    paused: Duration,
}

/// What there is of a machine and its store.
#[derive(Debug)]
struct Extent {
    /// Files in the machine's directory.
    files: usize,
    /// Entries in its store but points, lineage and packs.
    others: usize,
    /// Bytes that its processes take besides the guest's memory.
    memory: u64,
}

impl<'a> Saved<'a> {
    fn begin(bed: &'a Bed, name: &'static str) -> Self {
        bed.run(["machine", "create", "--name", name, "--mem", "256M"])
            .expect("create");
        bed.run(["machine", "start", "--name", name])
            .expect("start");
        Self { bed, name }
    }

    fn store(&self) -> std::path::PathBuf {
        self.bed.path(&format!("store-of-{}", self.name))
    }

    fn save(&self) -> Cost {
        self.bed.sh(
            self.name,
            "head -c 8M /dev/urandom | dd of=/dev/shm/changed bs=1M conv=notrunc status=none",
        );
        let mut options = CheckpointOptions::default();
        options.store = Some(self.store());
        let begin = Instant::now();
        let saved = self
            .bed
            .engine
            .checkpoint(&machine(self.name), &options, &Silent)
            .expect("saved");
        Cost {
            took: begin.elapsed(),
            paused: saved.paused,
        }
    }

    fn extent(&self) -> Extent {
        let machine = self.bed.home().join("machines").join(self.name);
        let parts = ["points", "lineage", "packs"];
        let others = fs::read_dir(self.store()).expect("its store");
        let others = others.map(|entry| entry.expect("entry").path());
        let others = others.filter(|path| !parts.iter().any(|part| path.ends_with(part)));
        let processes = self.bed.supervisors(self.name);
        let processes = processes.into_iter().chain(self.bed.vmms(self.name));
        Extent {
            files: count(&machine),
            others: others.map(|path| count(&path)).sum(),
            memory: processes.map(memory_besides_guest).sum(),
        }
    }
}

/// Files in a directory, whatever their depth; one for a file.
fn count(path: &Path) -> usize {
    match fs::read_dir(path) {
        Ok(entries) => entries
            .map(|entry| count(&entry.expect("entry").path()))
            .sum(),
        Err(_) => 1,
    }
}

/// Bytes of a process's memory that are not the guest's (`proc_pid_smaps(5)`).
fn memory_besides_guest(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps")).expect("its mappings");
    let (mut sum, mut size) = (0, 0);
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let name = words.next();
        let bytes = || {
            words
                .next()
                .and_then(|word| word.parse::<u64>().ok())
                .map(|kib| kib << 10)
        };
        match name {
            Some("Size:") => size = { bytes }().expect("a size"),
            Some("Pss:") if size < GUEST_BYTES => sum += { bytes }().expect("a part"),
            _ => {}
        }
    }
    sum
}

fn median(mut values: Vec<Duration>) -> Duration {
    values.sort_unstable();
    values[values.len() / 2]
}

/// How many saves there are.
struct Counts {
    /// Of the old machine before the young one begins.
    before: usize,
    /// Of the young one before they are compared.
    early: usize,
    /// That are compared.
    compared: usize,
}

/// The old machine has its many saves behind it when the young one begins; both are saved in turn then, on a host that is equally
/// busy for both.
#[test]
fn the_thousandth_save_is_like_the_hundredth() {
    let Some(bed) = Bed::open("the_thousandth_save_is_like_the_hundredth") else {
        return;
    };
    let counts = match long() {
        true => Counts {
            before: 950,
            early: 50,
            compared: 50,
        },
        // The default history is full then.
        false => Counts {
            before: 50,
            early: 1,
            compared: 9,
        },
    };
    let old = Saved::begin(&bed, "old");
    let mut early = None;
    for number in 1..=counts.before {
        old.save();
        if number == counts.before.min(100) - 10 {
            early = Some(old.extent());
        }
    }
    let young = Saved::begin(&bed, "young");
    for _ in 0..counts.early {
        young.save();
    }
    let (mut olds, mut youngs) = (Vec::new(), Vec::new());
    for _ in 0..counts.compared {
        olds.push(old.save());
        youngs.push(young.save());
    }
    let (early, late) = (early.expect("it was looked at"), old.extent());
    let ratio = |of: fn(&Cost) -> Duration| {
        let median = |costs: &[Cost]| median(costs.iter().map(of).collect()).as_secs_f64();
        median(&olds) / median(&youngs)
    };
    let (took, paused) = (ratio(|cost| cost.took), ratio(|cost| cost.paused));
    let said = format!("took {took:.3}, paused {paused:.3}, {early:?}, {late:?}");
    // A few saves say nothing of their time.
    assert!(!long() || took <= 1.2, "saves slow down: {said}");
    assert!(!long() || paused <= 1.2, "pauses grow: {said}");
    assert!(late.files <= early.files + 8, "{said}");
    assert!(late.others <= early.others + 8, "{said}");
    assert!(late.memory <= early.memory + early.memory / 10, "{said}");
    let store = old.store().to_string_lossy().into_owned();
    let verify = ["machine", "checkpoint-verify", "--quick", "--store", &store];
    bed.run(verify).unwrap_or_else(|error| panic!("{error}"));
    let _ = writeln!(std::io::stderr(), "{said}");
}
