//! Points that are damaged, hostile or of another computer are refused by name; no guest runs.

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use smolvm_engine::{EngineError, MachineState, PointError, chain};
use snapshot_format::{Arch, GuestOs, Point, PointRecord};
use vmm_core::machine::X86MachineRecord;
use vmm_core::x86::CpuidTable;

use crate::bed::{Bed, copy_bytes, long, machine, names};
use crate::killed::wait_end;

/// A bed with one checkpoint, `good.checkpoint`, and no machine.
fn bed_with_point(test: &str) -> Option<Bed> {
    let bed = Bed::open(test)?;
    bed.boot("source", &["--mem", "256M"]);
    bed.save("source", "good.checkpoint");
    bed.delete("source");
    Some(bed)
}

/// What creating and starting from `bad.checkpoint` says; no guest may have run.
fn refusal(bed: &Bed) -> String {
    let result = bed
        .create_from("victim", "bad.checkpoint", None)
        .and_then(|()| {
            let result = bed.start("victim");
            assert_ne!(
                bed.state("victim"),
                MachineState::Running,
                "a bad point runs"
            );
            result
        });
    let error = result.expect_err("a bad point was accepted");
    let console = bed.home().join("machines/victim/console.log");
    if let Ok(console) = fs::read(&console) {
        assert!(
            console.is_empty(),
            "the guest ran: {}",
            String::from_utf8_lossy(&console)
        );
    }
    if bed.engine.machine(&machine("victim")).is_ok() {
        bed.delete("victim");
    }
    chain(&error)
}

/// Makes `bad.checkpoint` a copy of the good one with another record.
fn with_record(bed: &Bed, bytes: &[u8]) {
    fresh_copy(bed);
    let path = bed.path("bad.checkpoint/point.record");
    fs::remove_file(&path).expect("remove");
    fs::write(&path, bytes).expect("write");
}

fn fresh_copy(bed: &Bed) {
    let bad = bed.path("bad.checkpoint");
    if bad.exists() {
        fs::remove_dir_all(&bad).expect("remove");
    }
    copy_bytes(&bed.path("good.checkpoint"), &bad);
}

fn good_record(bed: &Bed) -> (PointRecord, Vec<u8>) {
    let bytes = fs::read(bed.path("good.checkpoint/point.record")).expect("record");
    (
        Point::decode(&bytes).expect("a sound record").into_record(),
        bytes,
    )
}

#[test]
fn damaged_packs_are_named() {
    let Some(bed) = bed_with_point("damaged_packs_are_named") else {
        return;
    };
    let packs = |dir: &Path| -> Vec<_> {
        let entries = fs::read_dir(dir.join("packs")).expect("packs");
        entries.map(|entry| entry.expect("entry").path()).collect()
    };
    let count = if long() { 24 } else { 6 };
    for number in 0..count {
        fresh_copy(&bed);
        for pack in packs(&bed.path("bad.checkpoint")) {
            let length = fs::metadata(&pack).expect("pack").len();
            let mut mode = fs::metadata(&pack).expect("pack").permissions();
            std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o600);
            fs::set_permissions(&pack, mode).expect("mode");
            let mut file = fs::File::options().write(true).open(&pack).expect("open");
            // Bytes all over it, in other places each time; once a cut.
            let step = 128 << 10;
            if number == 0 {
                file.set_len(length / 2).expect("cut");
                continue;
            }
            for at in (step * number / count..length).step_by(step as usize) {
                file.seek(SeekFrom::Start(at)).expect("seek");
                let bytes = vec![0x5a; 512.min((length - at) as usize)];
                file.write_all(&bytes).expect("write");
            }
        }
        let error = refusal(&bed);
        assert!(error.contains("pack") || error.contains("chunk"), "{error}");
    }
    fresh_copy(&bed);
    for pack in packs(&bed.path("bad.checkpoint")) {
        fs::remove_file(pack).expect("remove");
    }
    let error = refusal(&bed);
    assert!(error.contains("pack") || error.contains("chunk"), "{error}");
}

/// Gives the machine packs of its own, instead of links to those of the checkpoint.
fn own_packs(bed: &Bed, name: &str) -> Vec<PathBuf> {
    let packs = bed.home().join("machines").join(name).join("packs");
    let own = |name: String| {
        let path = packs.join(name);
        let bytes = fs::read(&path).expect("read");
        fs::remove_file(&path).expect("remove");
        fs::write(&path, bytes).expect("write");
        path
    };
    names(&packs).into_iter().map(own).collect()
}

/// Writes over a part of each chunk, in place.
fn damage(packs: &[PathBuf]) {
    for pack in packs {
        let file = fs::File::options().write(true).open(pack).expect("open");
        let length = file.metadata().expect("length").len();
        // Chunks are compressed, and the index at the end is left as it is.
        for at in (4096..length.saturating_sub(1 << 20)).step_by(2048) {
            file.write_all_at(&[0x5a; 64], at).expect("write");
        }
    }
}

/// The machine is damaged, and says which chunk, which pack and which point.
fn check_damaged(bed: &Bed, point: &str) {
    let MachineState::Damaged { reason } = bed.state("victim") else {
        panic!("{:?}", bed.state("victim"));
    };
    for word in ["chunk", ".pack", point] {
        assert!(reason.contains(word), "no {word}: {reason}");
    }
    let status = bed.run(["machine", "status", "--name", "victim"]);
    assert!(status.expect("status").contains("damaged: "));
    let refused = bed.try_exec("victim", &["true"]).expect_err("no machine");
    assert!(refused.contains("damaged ("), "{refused}");
}

#[test]
fn damage_that_is_found_late_makes_the_machine_damaged() {
    let Some(bed) = bed_with_point("damage_that_is_found_late_makes_the_machine_damaged") else {
        return;
    };
    let record = fs::read(bed.path("good.checkpoint/point.record")).expect("record");
    let point = Point::decode(&record).expect("sound").id().short();
    let create = || {
        bed.create_from("victim", "good.checkpoint", None)
            .expect("create");
        own_packs(&bed, "victim")
    };
    // In memory, found before the guest runs: no machine starts without the page of its generation id.
    damage(&create());
    let start = ["machine", "start", "--name", "victim"];
    let error = bed.run(start).expect_err("a damaged point runs");
    assert!(error.contains("machine create --from"), "no hint: {error}");
    check_damaged(&bed, &point);
    let console = fs::read(bed.home().join("machines/victim/console.log"));
    assert!(console.is_ok_and(|text| text.is_empty()), "the guest ran");
    // Another copy is used where there is one.
    let copies = bed.home().join("store/packs");
    fs::create_dir_all(&copies).expect("create");
    for name in names(&bed.path("good.checkpoint/packs")) {
        let from = bed.path("good.checkpoint/packs").join(&name);
        fs::copy(from, copies.join(name)).expect("copy");
    }
    bed.start("victim").expect("there is another copy");
    assert_eq!(bed.sh("victim", "echo works"), "works");
    bed.delete("victim");
    fs::remove_dir_all(bed.home().join("store")).expect("remove");
    // On the disk, found while the guest runs.
    let packs = create();
    bed.start("victim").expect("a sound machine");
    damage(&packs);
    let read = "echo 3 > /proc/sys/vm/drop_caches; find /usr -type f -exec cat {} + > /dev/null";
    bed.try_exec("victim", &["sh", "-c", read])
        .expect_err("damaged files were read");
    wait_end(&bed, "victim");
    check_damaged(&bed, &point);
    bed.delete("victim");
}

#[test]
fn damaged_records_are_named() {
    let Some(bed) = bed_with_point("damaged_records_are_named") else {
        return;
    };
    let (_, bytes) = good_record(&bed);
    let steps = if long() { 200 } else { 40 };
    let mut places: Vec<usize> = (0..steps).map(|step| bytes.len() * step / steps).collect();
    places.extend([1, 7, 8, 23, 24, bytes.len() - 4, bytes.len() - 1]);
    for at in places {
        let mut flipped = bytes.clone();
        flipped[at] ^= 0x40;
        for bad in [&bytes[..at], &flipped] {
            with_record(&bed, bad);
            let error = bed
                .create_from("victim", "bad.checkpoint", None)
                .expect_err("accepted");
            assert!(
                matches!(error, EngineError::Point(PointError::Damaged { .. })),
                "at {at}: {error:?}"
            );
            assert!(chain(&error).contains("point.record"), "{}", chain(&error));
        }
    }
    fs::remove_dir_all(bed.path("bad.checkpoint")).expect("remove");
    fs::create_dir(bed.path("bad.checkpoint")).expect("create");
    assert!(refusal(&bed).contains("is not a checkpoint"));
    fs::remove_dir_all(bed.path("bad.checkpoint")).expect("remove");
    assert!(refusal(&bed).contains("bad.checkpoint"));
}

#[test]
fn points_that_this_host_cannot_run_are_refused_with_the_reason() {
    let Some(bed) = bed_with_point("points_that_this_host_cannot_run_are_refused_with_the_reason")
    else {
        return;
    };
    let cases: &[(&str, &str, Change)] = &[
        ("architecture", "aarch64", |record| {
            record.host.arch = Arch::Aarch64
        }),
        ("system", "unknown (77)", |record| {
            record.host.guest_os = GuestOs::from_number(77)
        }),
        ("CPU feature", "", |record| {
            // Everything that leaf 7 can name: no host has all of it.
            change_machine(record, |machine| {
                let entries = machine.cpuid.entries().iter().map(|entry| {
                    let mut entry = *entry;
                    if (entry.leaf, entry.subleaf) == (7, 0) {
                        (entry.ebx, entry.ecx, entry.edx) = (u32::MAX, u32::MAX, u32::MAX);
                    }
                    entry
                });
                machine.cpuid = CpuidTable::new(entries.collect());
            });
        }),
    ];
    for (what, says, change) in cases {
        let (mut record, _) = good_record(&bed);
        change(&mut record);
        with_record(&bed, &Point::seal(record).expect("sealed").1);
        match bed.create_from("victim", "bad.checkpoint", None) {
            Err(error @ EngineError::Unrestorable { .. }) => {
                assert!(chain(&error).contains(says), "{what}: {}", chain(&error));
            }
            other => panic!("{what}: {other:?}"),
        }
        assert!(bed.engine.machine(&machine("victim")).is_err(), "{what}");
    }
}

/// Makes a record one that this host cannot run.
type Change = fn(&mut PointRecord);

fn change_machine(record: &mut PointRecord, change: impl FnOnce(&mut X86MachineRecord)) {
    let mut machine = X86MachineRecord::find(&record.states).expect("the machine's record");
    change(&mut machine);
    let changed = machine.to_record();
    let place = record
        .states
        .iter_mut()
        .find(|state| state.unit == changed.unit);
    *place.expect("the machine's record") = changed;
}

#[test]
fn hostile_records_are_refused() {
    let Some(bed) = bed_with_point("hostile_records_are_refused") else {
        return;
    };
    let mut cases: Vec<(String, PointRecord)> = Vec::new();
    let mut case = |what: String, change: &dyn Fn(&mut PointRecord)| {
        let (mut record, _) = good_record(&bed);
        change(&mut record);
        cases.push((what, record));
    };
    case("no vCPU".into(), &|record| record.spec.vcpus = 0);
    case("more vCPUs than states".into(), &|record| {
        record.spec.vcpus = 4
    });
    case("300 vCPUs".into(), &|record| record.spec.vcpus = 300);
    case("other memory size".into(), &|record| {
        record.spec.memory_bytes *= 2
    });
    case("odd memory size".into(), &|record| {
        record.spec.memory_bytes = u64::MAX
    });
    case("no memory".into(), &|record| record.memory.clear());
    case("memory elsewhere".into(), &|record| {
        record.memory[0].start_gpa = 1 << 20
    });
    case("two regions in one place".into(), &|record| {
        record.memory.push(record.memory[0].clone());
    });
    case("no disk".into(), &|record| record.disks.clear());
    case("larger disk".into(), &|record| {
        record.spec.disk_bytes = 1 << 62
    });
    case("disk by another name".into(), &|record| {
        record.disks[0].name = "../../x".to_owned()
    });
    case("no kernel".into(), &|record| {
        record.boot.kernel.size_bytes = 0
    });
    case("no states".into(), &|record| record.states.clear());
    let (record, _) = good_record(&bed);
    for (index, state) in record.states.iter().enumerate() {
        let unit = &state.unit;
        case(format!("{unit} missing"), &|record| {
            drop(record.states.remove(index))
        });
        case(format!("{unit} twice"), &|record| {
            record.states.push(record.states[index].clone());
        });
        case(format!("{unit} of a later version"), &|record| {
            record.states[index].version += 1000
        });
        case(format!("{unit} empty"), &|record| {
            record.states[index].bytes.clear()
        });
        case(format!("{unit} cut"), &|record| {
            let length = record.states[index].bytes.len();
            record.states[index].bytes.truncate(length / 2);
        });
        case(format!("{unit} with garbage"), &|record| {
            record.states[index].bytes.fill(0xff)
        });
        case(format!("{unit} of another kind"), &|record| {
            record.states[index].kind = "other".to_owned();
        });
    }
    let mut accepted = Vec::new();
    for (what, record) in cases {
        // What cannot even be written down is refused by the format.
        let Ok((_, bytes)) = Point::seal(record) else {
            continue;
        };
        with_record(&bed, &bytes);
        let result = bed
            .create_from("victim", "bad.checkpoint", None)
            .and_then(|()| bed.start("victim"));
        if bed.engine.machine(&machine("victim")).is_ok() {
            if bed.state("victim") == MachineState::Running {
                accepted.push(what.clone());
            }
            bed.delete("victim");
        }
        if let Err(error) = result {
            assert!(!chain(&error).is_empty(), "{what}");
            assert!(
                !chain(&error).contains("panick"),
                "{what}: {}",
                chain(&error)
            );
        }
    }
    // Fields that are absent are zero, which is a sound state of these two.
    accepted.retain(|what| what != "clock empty" && what != "serial0 empty");
    assert!(accepted.is_empty(), "accepted: {accepted:?}");
}
