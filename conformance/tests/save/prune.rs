//! Points are deleted and their room is given back; the others stay, whatever happens meanwhile.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use cas_store::{CaptureOptions, MAX_CHUNK_BYTES, PackSet, Store};
use smolvm_engine::phase::{Operation, Phase};
use smolvm_engine::progress::Silent;
use smolvm_engine::{
    CreateFromOptions, EngineError, PointSource, PruneOptions, Pruned, VerifyOptions, VerifySource,
    chain,
};
use snapshot_format::Point;

use crate::bed::{Bed, Saved, chunks_of, copy_bytes, long, machine};
use crate::killed::{Victim, hidden};
use crate::phases::{check_store, held_at, kill_at};

fn default_store(bed: &Bed) -> PathBuf {
    bed.home().join("store")
}

/// Saves a machine into the default store; the point's id.
fn keep(bed: &Bed, name: &str, history: usize) -> String {
    let saved = bed.try_save(name, "", |options| {
        options.store = None;
        options.output = None;
        options.history = history;
    });
    saved.unwrap_or_else(|error| panic!("{}", chain(&error))).id
}

fn create_from_id(bed: &Bed, name: &str, id: &str, at: Option<&str>) -> Result<(), EngineError> {
    let mut options = CreateFromOptions::new(PointSource::Id(id.to_owned()));
    options.name = Some(machine(name));
    options.at = at.map(str::to_owned);
    bed.engine.create_from(options).map(drop)
}

/// What the guest of a point says, asked in a machine that is made from it.
fn asked(bed: &Bed, id: &str, at: Option<&str>, script: &str) -> String {
    create_from_id(bed, "restored", id, at)
        .and_then(|()| bed.start("restored"))
        .unwrap_or_else(|error| panic!("{id} {at:?}: {}", chain(&error)));
    let said = bed.sh("restored", script);
    bed.delete("restored");
    said
}

fn prune(bed: &Bed, change: impl FnOnce(&mut PruneOptions)) -> Pruned {
    let mut options = PruneOptions::default();
    change(&mut options);
    let pruned = bed.engine.prune(&options, &Silent);
    pruned.unwrap_or_else(|error| panic!("{}", chain(&error)))
}

/// Every byte of the default store's points is there.
fn verify(bed: &Bed, context: &str) {
    let options = VerifyOptions::new(VerifySource::Store(None));
    let found = bed.engine.verify(&options, &Silent).expect("verify");
    assert!(found.is_sound(), "{context}: {found:?}");
}

/// Bytes of the packs of a store, as `du` counts them.
fn pack_bytes(store: &Path) -> u64 {
    let entries = fs::read_dir(store.join("packs")).expect("packs");
    let bytes = entries.map(|entry| entry.expect("entry").metadata().expect("length").blocks());
    bytes.sum::<u64>() * 512
}

/// Bytes that a first save of this point takes in a store of its own.
fn fresh_bytes(bed: &Bed, id: &str) -> u64 {
    let store = default_store(bed);
    let record = fs::read(store.join(format!("points/{id}.record"))).expect("its record");
    let point = Point::decode(&record).expect("a sound record");
    let packs = PackSet::open([store.join("packs")]);
    let fresh = Store::open(bed.path("fresh")).expect("a store");
    let capture = fresh
        .begin_capture(CaptureOptions::default())
        .expect("a capture");
    let mut buffer = vec![0; MAX_CHUNK_BYTES];
    for chunk in chunks_of(point.record(), &packs) {
        if !chunk.is_zero() {
            let length = packs.get(&chunk, &mut buffer).expect("a sound chunk");
            capture.put(&buffer[..length]).expect("put");
        }
    }
    drop(capture.seal().expect("seal"));
    let bytes = pack_bytes(&bed.path("fresh"));
    fs::remove_dir_all(bed.path("fresh")).expect("remove");
    bytes
}

const CONTENTS: &str = "cat /root/disk /run/memory";

#[test]
fn every_subset_of_five_points_may_be_deleted() {
    let Some(bed) = Bed::open("every_subset_of_five_points_may_be_deleted") else {
        return;
    };
    bed.boot("source", &["--mem", "256M"]);
    let mut ids = Vec::new();
    for number in 0..5 {
        bed.sh(
            "source",
            &format!(
                "echo disk {number} > /root/disk; echo memory {number} > /run/memory; \
                 head -c 3000000 /dev/urandom > /root/noise-{number}"
            ),
        );
        ids.push(keep(&bed, "source", 32));
    }
    bed.delete("source");
    let store = default_store(&bed);
    fs::rename(&store, bed.path("kept")).expect("move");
    for subset in (0..32_u32).filter(|subset| long() || subset % 5 == 3) {
        let context = format!("{subset:05b}");
        let (gone, left): (Vec<usize>, Vec<usize>) = (0..5).partition(|bit| subset >> bit & 1 == 1);
        copy_bytes(&bed.path("kept"), &store);
        for at in &gone {
            let deleted = bed.engine.delete_point(None, &ids[*at][..12]);
            assert_eq!(deleted.expect("delete").id, ids[*at]);
        }
        let dry = prune(&bed, |options| options.dry_run = true);
        let before = pack_bytes(&store);
        let done = prune(&bed, |_| {});
        assert_eq!(dry, done, "{context}");
        assert_eq!(gone.is_empty(), done.freed_bytes == 0, "{context}");
        assert!(pack_bytes(&store) <= before, "{context}");
        check_store(&store, &context);
        verify(&bed, &context);
        let log = bed.engine.store_log(None, None).expect("log");
        let is_gone: Vec<bool> = log.iter().map(|entry| entry.gone).collect();
        let expected: Vec<bool> = (0..5).map(|at| gone.contains(&at)).collect();
        assert_eq!(is_gone, expected, "{context}: every line stays");
        for at in &gone {
            let error = bed.engine.delete_point(None, &ids[*at]).expect_err("gone");
            assert!(matches!(error, EngineError::PointGone { .. }), "{error}");
            assert!(create_from_id(&bed, "none", &ids[*at], None).is_err());
        }
        let restored = left.iter().rev().enumerate();
        for (generation, at) in restored.filter(|(generation, _)| long() || *generation < 2) {
            // By its own id, and as what lies so many points behind the newest that is left.
            let newest = left.last().expect("one is left");
            let found = match generation {
                0 => asked(&bed, &ids[*at], None, CONTENTS),
                _ => {
                    let generation = format!("~{generation}");
                    asked(&bed, &ids[*newest], Some(&generation), CONTENTS)
                }
            };
            assert_eq!(found, format!("disk {at}\nmemory {at}"), "{context}");
        }
        fs::remove_dir_all(&store).expect("remove");
    }
}

#[test]
fn what_is_left_of_ten_points_takes_little_more_than_one() {
    let Some(bed) = Bed::open("what_is_left_of_ten_points_takes_little_more_than_one") else {
        return;
    };
    bed.boot("source", &["--mem", "256M"]);
    let mut ids = Vec::new();
    for number in 0..10 {
        // Some stays for long, some for two points, some for one.
        bed.sh(
            "source",
            &format!(
                "head -c 2000000 /dev/urandom > /root/long-{number}; \
                 head -c 6000000 /dev/urandom > /root/two-$(({number} % 2)); \
                 head -c 9000000 /dev/urandom > /run/one; sync; echo {number} > /run/memory"
            ),
        );
        ids.push(keep(&bed, "source", 0));
    }
    let store = default_store(&bed);
    let before = pack_bytes(&store);
    for id in &ids[..9] {
        bed.run(["machine", "checkpoint-delete", id, "-f"])
            .expect("delete");
    }
    // The machine has its head by links: what of it is mostly dead stays for it, and no more.
    bed.run(["machine", "checkpoint-prune"]).expect("prune");
    let beside = pack_bytes(&store);
    let sums = bed.sh("source", "sha256sum /root/long-* /root/two-* /run/one");
    bed.delete("source");
    bed.run(["machine", "checkpoint-prune"]).expect("prune");
    let after = pack_bytes(&store);
    let fresh = fresh_bytes(&bed, &ids[9]);
    assert!(
        after * 10 <= fresh * 12 && beside < before,
        "{before} before, {beside} beside its machine, {after} after, {fresh} of its own"
    );
    check_store(&store, "pruned");
    let found = asked(
        &bed,
        &ids[9],
        None,
        "sha256sum /root/long-* /root/two-* /run/one",
    );
    assert_eq!(found, sums);
}

/// What [`two_of_three`] made.
struct Three {
    older: String,
    newer: String,
    sums: String,
}

const SUMS: &str = "sha256sum /root/a /root/b | cut -c 1-64; cat /run/memory";

/// Two points in the default store and the checkpoint `x.checkpoint`, none of a machine that is still there.
fn two_of_three(bed: &Bed, context: &str) -> Three {
    create_from_id_or_boot(bed);
    bed.sh(
        "source",
        "head -c 6000000 /dev/urandom > /root/a; head -c 6000000 /dev/urandom > /root/b; sync",
    );
    let older = keep(bed, "source", 0);
    bed.sh(
        "source",
        &format!("head -c 6000000 /dev/urandom > /root/a; sync; echo '{context}' > /run/memory"),
    );
    let newer = keep(bed, "source", 0);
    let sums = bed.sh("source", SUMS);
    bed.try_save("source", "x.checkpoint", |options| {
        options.store = None;
        options.history = 0;
    })
    .unwrap_or_else(|error| panic!("{context}: {}", chain(&error)));
    bed.delete("source");
    Three { older, newer, sums }
}

fn create_from_id_or_boot(bed: &Bed) {
    match bed.path("seed.checkpoint").exists() {
        true => bed.restore("source", "seed.checkpoint", None),
        false => {
            bed.boot("source", &["--mem", "256M"]);
            bed.try_save("source", "seed.checkpoint", |options| {
                options.store = Some(bed.path("seeds"));
            })
            .expect("save");
        }
    }
}

fn phases_of(operation: Operation) -> impl Iterator<Item = Phase> {
    let all = Phase::ALL.iter().copied();
    all.filter(move |phase| phase.operation() == operation)
}

#[test]
fn a_kill_at_any_phase_of_a_prune_is_settled_by_the_next() {
    let Some(bed) = Bed::open("a_kill_at_any_phase_of_a_prune_is_settled_by_the_next") else {
        return;
    };
    let store = default_store(&bed);
    for phase in phases_of(Operation::Prune) {
        let context = format!("{phase:?}");
        let three = two_of_three(&bed, &context);
        let arguments = ["machine", "checkpoint-prune", "--keep-last", "1"];
        let said_done = kill_at(&bed, phase, Victim::Command, "source", &arguments);
        assert!(!said_done, "{context}");
        check_store(&store, &context);
        Saved::open(&bed.path("x.checkpoint")).verify();
        bed.run(arguments).expect("prune");
        check_store(&store, &context);
        verify(&bed, &context);
        let again = prune(&bed, |_| {});
        let idle = (again.freed_bytes, again.replaced_packs, again.left_alone);
        assert_eq!(idle, (0, 0, 0), "{context}");
        assert!(create_from_id(&bed, "none", &three.older, None).is_err());
        assert_eq!(
            asked(&bed, &three.newer, None, SUMS),
            three.sums,
            "{context}"
        );
        bed.restore("restored", "x.checkpoint", None);
        assert_eq!(bed.sh("restored", SUMS), three.sums, "{context}");
        bed.delete("restored");
        // A directory that its user removes is nobody's: its data goes, its line stays.
        fs::remove_dir_all(bed.path("x.checkpoint")).expect("remove");
        bed.engine.delete_point(None, &three.newer).expect("delete");
        prune(&bed, |_| {});
        let packs = fs::read_dir(store.join("packs")).expect("packs");
        let links = packs.map(|entry| entry.expect("entry").metadata().expect("links").nlink());
        // The image has some of them.
        assert!(links.into_iter().all(|links| links > 1), "{context}");
    }
}

#[test]
fn a_kill_at_any_phase_of_a_deletion_is_settled_by_the_next_command() {
    let test = "a_kill_at_any_phase_of_a_deletion_is_settled_by_the_next_command";
    let Some(bed) = Bed::open(test) else {
        return;
    };
    let three = two_of_three(&bed, "all");
    let path = bed.path("x.checkpoint");
    for phase in phases_of(Operation::Delete) {
        let context = format!("{phase:?}");
        let what = match phase {
            Phase::PointDeleted => three.older.as_str(),
            _ => "x.checkpoint",
        };
        let arguments = ["machine", "checkpoint-delete", what, "-f"];
        let said_done = kill_at(&bed, phase, Victim::Command, "source", &arguments);
        assert!(!said_done, "{context}");
        match phase {
            Phase::PointDeleted => {
                assert!(
                    bed.run(arguments)
                        .expect_err("gone")
                        .contains("gone already")
                );
            }
            Phase::DeletionNoted => {
                Saved::open(&path).verify();
                bed.restore("restored", "x.checkpoint", None);
                assert_eq!(bed.sh("restored", SUMS), three.sums);
                bed.delete("restored");
            }
            _ => assert!(!path.exists() && hidden(&bed).len() == 1, "{context}"),
        }
        bed.run(["machine", "checkpoint-prune"]).expect("prune");
        assert_eq!(hidden(&bed), Vec::<String>::new(), "{context}");
        check_store(&default_store(&bed), &context);
        verify(&bed, &context);
    }
    let log = bed.engine.store_log(None, None).expect("log");
    let gone: Vec<bool> = log.iter().map(|entry| entry.gone).collect();
    assert_eq!(gone, [true, false, true]);
    assert_eq!(asked(&bed, &three.newer, None, SUMS), three.sums);
}

#[test]
fn what_is_being_restored_is_not_deleted() {
    let Some(bed) = Bed::open("what_is_being_restored_is_not_deleted") else {
        return;
    };
    let three = two_of_three(&bed, "all");
    for what in [three.newer.as_str(), "x.checkpoint"] {
        let delete = ["machine", "checkpoint-delete", what, "-f"];
        let create = ["machine", "create", "--name", "restored", "--from", what];
        let restoring = held_at(&bed, Phase::MachineStaged, &create);
        let error = bed.run(delete).expect_err("it is in use");
        assert!(error.contains("in use"), "{error}");
        let pruned = prune(&bed, |options| {
            options.keep.last = Some(1.try_into().expect("one"))
        });
        assert!(
            !pruned
                .points
                .iter()
                .any(|point| point.given_up && point.entry.id == what)
        );
        assert!(restoring.finish().status.success(), "create");
        bed.start("restored").expect("start");
        bed.run(delete).expect("delete");
        bed.run(["machine", "checkpoint-prune"]).expect("prune");
        assert_eq!(bed.sh("restored", SUMS), three.sums);
        bed.delete("restored");
    }
}

#[test]
fn saves_beside_prunes_lose_nothing() {
    let Some(bed) = Bed::open("saves_beside_prunes_lose_nothing") else {
        return;
    };
    let rounds = if long() { 100 } else { 12 };
    let names = ["one", "two"];
    for name in names {
        bed.boot(name, &["--mem", "256M"]);
        keep(&bed, name, 2);
    }
    let done = AtomicBool::new(false);
    let save = |name: &str| {
        let mut last = String::new();
        for round in 0..rounds {
            bed.sh(
                name,
                &format!("head -c 900000 /dev/urandom > /root/noise; echo {round} > /run/memory"),
            );
            let file = format!("{name}-{round}.checkpoint");
            match round % 3 {
                0 => drop(
                    bed.try_save(name, &file, |options| options.store = None)
                        .expect("save"),
                ),
                _ => last = keep(&bed, name, 2),
            }
            if round % 6 == 0 {
                bed.run(["machine", "checkpoint-delete", &file, "-f"])
                    .expect("delete");
            }
        }
        last
    };
    let last: Vec<String> = std::thread::scope(|scope| {
        let pruner = scope.spawn(|| {
            let mut prunes = 0;
            while !done.load(Ordering::SeqCst) {
                prune(&bed, |options| {
                    options.keep.last = Some(2.try_into().expect("two"))
                });
                prunes += 1;
            }
            prunes
        });
        let savers = names.map(|name| scope.spawn(move || save(name)));
        let last = savers.map(|saver| saver.join().expect("saved"));
        done.store(true, Ordering::SeqCst);
        assert!(pruner.join().expect("pruned") > 1);
        last.into()
    });
    check_store(&default_store(&bed), "beside");
    verify(&bed, "beside");
    let mut memories = BTreeSet::new();
    for (name, id) in names.iter().zip(&last) {
        bed.delete(name);
        memories.insert(asked(&bed, id, None, "cat /run/memory"));
    }
    assert_eq!(memories.len(), 1);
    for round in (0..rounds).filter(|round| round % 6 == 3) {
        for name in names {
            Saved::open(&bed.path(&format!("{name}-{round}.checkpoint"))).verify();
        }
    }
}
