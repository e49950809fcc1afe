//! Damage is found, named, and repaired from elsewhere.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use smolvm_engine::progress::Silent;
use smolvm_engine::{RepairSource, Verification, VerifyLevel, VerifyOptions, VerifySource};

use crate::bed::{Bed, copy_bytes, machine};

fn verify(bed: &Bed, change: impl FnOnce(&mut VerifyOptions)) -> Verification {
    let source = VerifySource::Directory(bed.path("copy.checkpoint"));
    let mut options = VerifyOptions::new(source);
    change(&mut options);
    bed.engine.verify(&options, &Silent).expect("verify")
}

/// Which of the points can be restored, newest first.
fn sound(found: &Verification) -> Vec<bool> {
    found.points.iter().map(|point| point.is_sound()).collect()
}

/// The packs of a checkpoint that the other one does not have.
fn new_packs(of: &Path, other: &Path) -> Vec<PathBuf> {
    let packs = fs::read_dir(of.join("packs")).expect("packs");
    let paths = packs.map(|entry| entry.expect("an entry").path());
    paths
        .filter(|path| {
            !other
                .join("packs")
                .join(path.file_name().expect("a name"))
                .exists()
        })
        .collect()
}

/// Changes bytes in the first half of a file, where a pack has its chunks.
fn damage(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("chmod");
    let file = fs::File::options().write(true).open(path).expect("open");
    let length = file.metadata().expect("length").len();
    for part in 1..8 {
        file.write_all_at(b"damage", length * part / 16)
            .expect("write");
    }
}

#[test]
fn damage_is_named_and_repaired_from_a_store_or_the_machine() {
    let Some(bed) = Bed::open("damage_is_named_and_repaired_from_a_store_or_the_machine") else {
        return;
    };
    bed.boot("source", &[]);
    bed.save("source", "first.checkpoint");
    bed.sh("source", "head -c 4000000 /dev/urandom > /root/noise; sync");
    bed.save("source", "second.checkpoint");
    let whole = VerifyOptions::new(VerifySource::Store(Some(bed.path("store"))));
    let found = bed.engine.verify(&whole, &Silent).expect("verify");
    assert_eq!((sound(&found), found.is_sound()), (vec![true; 2], true));
    assert_eq!(found.verified_chunks, found.chunks);

    for from in [
        RepairSource::Directory(bed.path("store")),
        RepairSource::Directory(bed.path("second.checkpoint")),
        RepairSource::Machine(machine("source")),
    ] {
        copy_bytes(&bed.path("second.checkpoint"), &bed.path("copy.checkpoint"));
        let new = new_packs(&bed.path("copy.checkpoint"), &bed.path("first.checkpoint"));
        assert!(!new.is_empty());
        new.iter().for_each(|path| damage(path));
        let found = verify(&bed, |_| {});
        assert_eq!(
            (sound(&found), found.is_sound()),
            (vec![false, true], false)
        );
        assert!(found.problems.iter().all(|problem| problem.lost));
        // What the older point needs may go: the store does not depend on it.
        let found = verify(&bed, |options| options.repair_from = Some(from.clone()));
        assert_eq!((sound(&found), found.is_sound()), (vec![true; 2], true));
        let repaired = found.repaired.expect("it was repaired");
        assert!(repaired.recovered_chunks > 0 && repaired.lost_chunks == 0);

        // A pack that is missing altogether is seen without reading data.
        new.iter().for_each(|path| drop(fs::remove_file(path)));
        let repaired = new_packs(&bed.path("copy.checkpoint"), &bed.path("first.checkpoint"));
        repaired
            .iter()
            .for_each(|path| fs::remove_file(path).expect("remove"));
        let found = verify(&bed, |options| options.level = VerifyLevel::Quick);
        assert_eq!(sound(&found), [false, true]);
        assert_eq!(found.verified_chunks, 0);
        let found = verify(&bed, |options| options.repair_from = Some(from));
        assert_eq!(sound(&found), [true, true]);
        fs::remove_dir_all(bed.path("copy.checkpoint")).expect("remove");
    }
    copy_bytes(&bed.path("second.checkpoint"), &bed.path("copy.checkpoint"));
    fs::write(bed.path("copy.checkpoint/packs/x"), "of the user").expect("write");
    assert!(verify(&bed, |_| {}).is_sound());
    // A record that is damaged harms its own point only.
    let generations = fs::read_dir(bed.path("copy.checkpoint/generations")).expect("generations");
    let record = generations.last().expect("one").expect("an entry").path();
    damage(&record);
    let found = verify(&bed, |options| options.level = VerifyLevel::Sample(10));
    assert_eq!(
        (sound(&found), found.is_sound()),
        (vec![true, false], false)
    );
    // And a checkpoint without its packs.
    fs::remove_dir_all(bed.path("first.checkpoint/packs")).expect("remove");
    let found = bed.engine.verify(&whole, &Silent).expect("verify");
    assert_eq!(sound(&found), [false, true]);
}

/// The machine's packs and the store's are the same files: what rots in one rots in the other. The guest still has its memory.
#[test]
fn a_save_after_damage_was_found_takes_what_is_lost_from_the_guest() {
    let Some(bed) = Bed::open("a_save_after_damage_was_found_takes_what_is_lost_from_the_guest")
    else {
        return;
    };
    bed.boot("source", &[]);
    bed.save("source", "first.checkpoint");
    bed.sh("source", "head -c 4000000 /dev/urandom > /dev/shm/noise");
    bed.save("source", "second.checkpoint");
    let new = new_packs(
        &bed.path("second.checkpoint"),
        &bed.path("first.checkpoint"),
    );
    assert!(!new.is_empty());
    new.iter().for_each(|path| damage(path));
    let store = VerifyOptions::new(VerifySource::Store(Some(bed.path("store"))));
    let found = bed.engine.verify(&store, &Silent).expect("verify");
    assert_eq!(sound(&found), [true, false]);

    bed.save("source", "third.checkpoint");
    let third = VerifyOptions::new(VerifySource::Directory(bed.path("third.checkpoint")));
    let found = bed.engine.verify(&third, &Silent).expect("verify");
    assert!(found.points[0].is_sound(), "{:?}", found.points);
    let before = bed.sh("source", "sha256sum /dev/shm/noise");
    bed.restore("copy", "third.checkpoint", None);
    assert_eq!(bed.sh("copy", "sha256sum /dev/shm/noise"), before);
    // A new machine takes nothing of the damage along.
    bed.save("copy", "fourth.checkpoint");
    let fourth = VerifyOptions::new(VerifySource::Directory(bed.path("fourth.checkpoint")));
    let found = bed.engine.verify(&fourth, &Silent).expect("verify");
    assert!(found.points[0].is_sound(), "{:?}", found.points);
}
