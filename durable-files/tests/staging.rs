//! Staging on the real file system.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use durable_files::{
    FileBackend, OsBackend, PublishError, Staging, remove_leftovers, remove_whole,
};

fn files() -> Arc<dyn FileBackend> {
    Arc::new(OsBackend)
}

fn names(dir: &Path) -> usize {
    fs::read_dir(dir).unwrap().count()
}

#[test]
fn publishes_once_and_never_replaces() {
    let home = tempfile::tempdir().unwrap();
    let collection = home.path().join("things");
    let mut first = Staging::create(files(), &collection).unwrap();
    fs::write(first.path().join("f"), "one").unwrap();
    first.publish_as("x").unwrap();
    let mut second = Staging::create(files(), &collection).unwrap();
    fs::write(second.path().join("f"), "two").unwrap();
    assert!(matches!(second.publish_as("x"), Err(PublishError::Taken)));
    second.publish_as("y").unwrap();
    assert_eq!(fs::read(collection.join("x/f")).unwrap(), b"one");
    assert_eq!(fs::read(collection.join("y/f")).unwrap(), b"two");
    assert_eq!(names(&collection), 2, "no staging left");
}

#[test]
fn removes_leftovers_but_nothing_that_lives_or_is_not_ours() {
    let home = tempfile::tempdir().unwrap();
    let running = Staging::create(files(), home.path()).unwrap();
    let leftover = home.path().join(".staging-dead");
    fs::create_dir(&leftover).unwrap();
    fs::write(leftover.join("f"), "x").unwrap();
    let elsewhere = home.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("precious"), "x").unwrap();
    std::os::unix::fs::symlink(&elsewhere, leftover.join("link")).unwrap();
    std::os::unix::fs::symlink(&elsewhere, home.path().join(".staging-link")).unwrap();
    fs::write(home.path().join(".staging-file"), "x").unwrap();
    fs::create_dir(home.path().join("my.staging-x")).unwrap();
    drop(Staging::create(files(), home.path()).unwrap());
    assert!(running.path().exists());
    assert!(!leftover.exists());
    assert!(elsewhere.join("precious").exists());
    assert!(home.path().join(".staging-file").exists());
    assert!(home.path().join("my.staging-x").exists());
    remove_leftovers(&OsBackend, home.path()).unwrap();
}

#[test]
fn what_is_beside_a_user_s_file_is_not_looked_at() {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join(".staging-mine")).unwrap();
    let staging = Staging::create_beside(files(), &home.path().join("x.out")).unwrap();
    fs::write(staging.path().join("f"), "x").unwrap();
    let published = staging.publish_synced(&home.path().join("x.out")).unwrap();
    assert!(home.path().join("x.out/f").exists());
    published.withdraw().unwrap();
    assert!(home.path().join(".staging-mine").exists());
    assert_eq!(names(home.path()), 1);
}

#[test]
fn a_leftover_that_cannot_be_removed_is_passed_over() {
    let home = tempfile::tempdir().unwrap();
    // Not of this kind of file system object: a mount point would do, a directory that somebody holds is simpler.
    let held = home.path().join(".staging-held");
    fs::create_dir(&held).unwrap();
    let _lock = OsBackend.lock_dir(&held, false).unwrap().unwrap();
    let mut staging = Staging::create(files(), home.path()).unwrap();
    staging.publish_as("x").unwrap();
    assert!(remove_whole(files(), home.path(), "x").unwrap());
    assert!(!remove_whole(files(), home.path(), "x").unwrap());
    assert!(held.exists());
}
