//! Many branches: none sees another, and a long chain of them costs no more than a short one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use smolvm_engine::progress::Silent;
use smolvm_engine::{BranchOptions, chain};

use crate::bed::{Bed, long, machine, names};

/// Machines of one branch.
const CHILDREN: usize = 8;
/// What the last of a chain may cost, in proportion to the second.
const MOST: f64 = 1.3;

fn branch(bed: &Bed, from: &str, options: &BranchOptions) {
    let branched = bed.engine.branch(&machine(from), options, &Silent);
    let branched = branched.unwrap_or_else(|error| panic!("branch of {from}: {}", chain(&error)));
    if let Some((name, error)) = branched.failed.first() {
        panic!("{name} did not come up: {}", chain(error));
    }
}

/// Every command writes its own mark to disk and memory, and finds the one before, not another machine's; the numbers and ids that
/// it draws are nobody else's.
#[test]
fn branches_never_see_each_other() {
    let Some(bed) = Bed::open("branches_never_see_each_other") else {
        return;
    };
    let execs = if long() { 1000 } else { 64 };
    bed.boot("m", &["--mem", "256M"]);
    bed.sh(
        "m",
        "echo m-0 > /root/mark; echo m-0 > /run/mark; echo m-0 > /dev/shm/mark",
    );
    branch(
        &bed,
        "m",
        &BranchOptions::numbered("t", CHILDREN).expect("names"),
    );
    let numbers: Vec<_> = std::thread::scope(|scope| {
        let work = |index: usize| {
            let bed = &bed;
            scope.spawn(move || {
                let (name, mut mark) = (format!("t-{index}"), "m-0".to_owned());
                let mut numbers = Vec::new();
                for round in 1..=execs / CHILDREN {
                    let next = format!("{name}-{round}");
                    let script = format!(
                        "cat /root/mark /run/mark /dev/shm/mark | sort -u; \
                         for file in /root/mark /run/mark /dev/shm/mark; do echo {next} > $file; done; \
                         hostname; cat /etc/machine-id /proc/sys/kernel/random/uuid; \
                         od -An -N16 -tx8 /dev/urandom"
                    );
                    let found = bed.sh(&name, &script);
                    let mut lines = found.lines();
                    let mut line = || lines.next().unwrap_or_default().to_owned();
                    assert_eq!((line(), line()), (mark, name.clone()), "round {round}: {found}");
                    numbers.push([line(), line(), line()]);
                    mark = next;
                }
                numbers
            })
        };
        let threads: Vec<_> = (0..CHILDREN).map(work).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a child"))
            .collect()
    });
    let ids: BTreeSet<_> = numbers
        .iter()
        .flatten()
        .map(|[id, ..]| id.clone())
        .collect();
    assert_eq!(ids.len(), CHILDREN, "machine ids");
    for which in [1, 2] {
        let drawn: BTreeSet<_> = numbers
            .iter()
            .flatten()
            .map(|drawn| drawn[which].clone())
            .collect();
        assert_eq!(
            drawn.len(),
            execs / CHILDREN * CHILDREN,
            "numbers are drawn twice"
        );
    }
    assert_eq!(
        bed.sh("m", "cat /root/mark /run/mark /dev/shm/mark | sort -u"),
        "m-0"
    );
}

/// What a machine's VMM has of its host.
#[derive(Debug)]
struct Cost {
    /// Bytes of the layers of memory that it has, and of its own pages.
    memory: u64,
    /// Layers of memory.
    layers: usize,
    /// Mappings of its address space.
    mappings: usize,
    /// Layers of its disk, the map below them and locks.
    disk_files: usize,
}

impl Cost {
    fn of(bed: &Bed, name: &str) -> Self {
        let [vmm] = bed.vmms(name)[..] else {
            panic!("not one VMM of {name}");
        };
        let process = Path::new("/proc").join(vmm.to_string());
        let mut layers = BTreeMap::new();
        for entry in fs::read_dir(process.join("fd")).expect("descriptors") {
            let path = entry.expect("a descriptor").path();
            // One that was closed meanwhile is none.
            let Ok(target) = fs::read_link(&path) else {
                continue;
            };
            if target.to_string_lossy().starts_with("/memfd:guest-memory") {
                let file = fs::metadata(&path).expect("a layer");
                layers.insert(file.ino(), file.blocks() * 512);
            }
        }
        let rollup = fs::read_to_string(process.join("smaps_rollup")).expect("its memory");
        let anonymous = rollup
            .lines()
            .find_map(|line| line.strip_prefix("Anonymous:"));
        let anonymous = anonymous.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
        let own: u64 = anonymous.expect("anonymous pages");
        let maps = fs::read_to_string(process.join("maps")).expect("its mappings");
        Self {
            memory: layers.values().sum::<u64>() + (own << 10),
            layers: layers.len(),
            mappings: maps.lines().count(),
            disk_files: names(&bed.home().join("machines").join(name).join("disk")).len(),
        }
    }

    fn by(&self, other: &Self) -> [f64; 4] {
        let ratio = |of: fn(&Self) -> f64| of(self) / of(other);
        [
            ratio(|cost| cost.memory as f64),
            ratio(|cost| cost.layers as f64),
            ratio(|cost| cost.mappings as f64),
            ratio(|cost| cost.disk_files as f64),
        ]
    }
}

#[test]
fn a_long_chain_of_branches_costs_no_more_than_a_short_one() {
    let Some(bed) = Bed::open("a_long_chain_of_branches_costs_no_more_than_a_short_one") else {
        return;
    };
    let length = if long() { 100 } else { 16 };
    bed.boot("m", &["--mem", "256M"]);
    bed.sh(
        "m",
        "head -c 30000000 /dev/urandom > /run/bulk; sha256sum < /run/bulk > /run/sum",
    );
    let mut last = "m".to_owned();
    let mut costs = Vec::new();
    for number in 1..=length {
        let next = format!("m-{number}");
        bed.sh(
            &last,
            &format!("echo {number} > /root/number; echo {number} > /run/number"),
        );
        branch(&bed, &last, &BranchOptions::new(vec![machine(&next)]));
        let found = bed.sh(&next, "cat /root/number /run/number");
        assert_eq!(found, format!("{number}\n{number}"));
        bed.delete(&last);
        costs.push(Cost::of(&bed, &next));
        last = next;
    }
    bed.sh(&last, "sha256sum < /run/bulk | cmp - /run/sum");
    let (second, end) = (&costs[1], &costs[costs.len() - 1]);
    let [memory, layers, mappings, disk_files] = end.by(second);
    let _ = writeln!(
        std::io::stderr(),
        "branch {length} by branch 2: memory {memory:.2}, layers {layers:.2}, mappings {mappings:.2}, \
         files of the disk {disk_files:.2}; {second:?}, {end:?}"
    );
    assert!(
        memory <= MOST && layers <= MOST && mappings <= MOST,
        "{costs:#?}"
    );
    // Layers of the disk are merged above eight; the second has two.
    assert!(end.disk_files <= 12, "{end:?}");
}
