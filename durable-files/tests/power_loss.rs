//! Power lost at every operation of the helpers, and failures of every operation.

use std::path::Path;
use std::sync::Arc;

use durable_files::testing::{FaultBackend, MemoryBackend, Operation, Plan, Survivors};
use durable_files::{
    FileBackend, PublishError, ReplaceError, Staging, read_bounded, remove_whole, replace,
    write_new,
};

const EIO: i32 = 5;
const OPERATIONS: [Operation; 4] = [
    Operation::Create,
    Operation::Write,
    Operation::Sync,
    Operation::Rename,
];
const ALL_SURVIVORS: [Survivors; 3] = [
    Survivors::OnlySynced,
    Survivors::AllNames,
    Survivors::Everything,
];

fn content(files: &dyn FileBackend, path: &str) -> Option<Vec<u8>> {
    read_bounded(files, Path::new(path), 1 << 20).unwrap()
}

fn with_file() -> MemoryBackend {
    let memory = MemoryBackend::new();
    memory.make_dirs(Path::new("/dir")).unwrap();
    replace(&memory, Path::new("/dir/file"), b"old").unwrap();
    memory
}

#[test]
fn a_replaced_file_is_old_or_new_and_never_else() {
    for operation in OPERATIONS {
        for at in 0..4 {
            for survivors in ALL_SURVIVORS {
                let memory = with_file();
                let faulty = FaultBackend::new(memory.clone(), Plan::Crash(operation, at));
                let replaced = replace(&faulty, Path::new("/dir/file"), b"new");
                let found = content(&memory.after_crash(survivors), "/dir/file").unwrap();
                let context = format!("{operation:?} {at} {survivors:?}: {replaced:?}");
                match replaced {
                    Ok(()) => assert_eq!(found, b"new", "{context}"),
                    Err(ReplaceError::NotDone(_)) => assert_eq!(found, b"old", "{context}"),
                    Err(ReplaceError::Unknown(_)) => {
                        assert!(found == b"old" || found == b"new", "{context}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_failed_replacement_says_what_is_in_place_and_leaves_nothing_else() {
    let mut unknown = 0;
    for operation in OPERATIONS {
        for at in 0..3 {
            let memory = with_file();
            let faulty = FaultBackend::new(memory.clone(), Plan::FailOnce(operation, at, EIO));
            let replaced = replace(&faulty, Path::new("/dir/file"), b"new");
            let found = content(&memory, "/dir/file").unwrap();
            match replaced {
                Ok(()) => assert_eq!(found, b"new"),
                Err(ReplaceError::NotDone(_)) => assert_eq!(found, b"old"),
                Err(ReplaceError::Unknown(_)) => {
                    unknown += 1;
                    assert_eq!(found, b"new");
                }
            }
            assert_eq!(memory.list(Path::new("/dir")).unwrap().len(), 1);
        }
    }
    assert_eq!(unknown, 1, "only the sync of the directory leaves it open");
}

fn build(files: &Arc<dyn FileBackend>) -> Result<(), PublishError> {
    let mut staging = Staging::create(Arc::clone(files), Path::new("/things"))?;
    let inner = staging.path().join("inner");
    files
        .create_dir(&inner)
        .map_err(durable_files::FileError::at("create", &inner))?;
    write_new(&**files, &inner.join("file"), b"whole")?;
    write_new(&**files, &staging.path().join("more"), b"whole")?;
    staging.publish_as("thing").map(drop)
}

#[test]
fn a_directory_appears_whole_or_not_at_all() {
    for operation in OPERATIONS {
        for at in 0..12 {
            for survivors in ALL_SURVIVORS {
                let memory = MemoryBackend::new();
                let faulty = FaultBackend::new(memory.clone(), Plan::Crash(operation, at));
                let built = build(&(Arc::new(faulty) as Arc<dyn FileBackend>));
                let after = memory.after_crash(survivors);
                let context = format!("{operation:?} {at} {survivors:?}: {built:?}");
                let there = after.stat(Path::new("/things/thing")).is_ok();
                assert!(there || built.is_err(), "{context}");
                if there {
                    for file in ["/things/thing/inner/file", "/things/thing/more"] {
                        assert_eq!(content(&after, file).unwrap(), b"whole", "{context}");
                    }
                }
                // The next one removes what is left, and can have the name if it is free.
                let again = build(&(Arc::new(after.clone()) as Arc<dyn FileBackend>));
                assert_eq!(again.is_err(), there, "{context}");
                assert_eq!(
                    after.list(Path::new("/things")).unwrap().len(),
                    1,
                    "{context}"
                );
            }
        }
    }
}

#[test]
fn a_directory_that_was_not_published_is_gone() {
    for operation in OPERATIONS {
        for at in 0..8 {
            let memory = MemoryBackend::new();
            let faulty = FaultBackend::new(memory.clone(), Plan::FailOnce(operation, at, EIO));
            if build(&(Arc::new(faulty) as Arc<dyn FileBackend>)).is_err() {
                assert_eq!(memory.paths(), Vec::<std::path::PathBuf>::new());
            }
        }
    }
}

#[test]
fn what_is_taken_out_has_no_name_before_it_has_no_contents() {
    for operation in [Operation::Rename, Operation::Sync] {
        for at in 0..5 {
            for survivors in ALL_SURVIVORS {
                let memory = MemoryBackend::new();
                build(&(Arc::new(memory.clone()) as Arc<dyn FileBackend>)).unwrap();
                let faulty = FaultBackend::new(memory.clone(), Plan::Crash(operation, at));
                let removed = remove_whole(Arc::new(faulty), Path::new("/things"), "thing");
                let after = memory.after_crash(survivors);
                let context = format!("{operation:?} {at} {survivors:?}: {removed:?}");
                let there = after.stat(Path::new("/things/thing")).is_ok();
                assert!(!there || removed.is_err(), "{context}");
                if there {
                    assert_eq!(
                        content(&after, "/things/thing/inner/file").unwrap(),
                        b"whole",
                        "{context}"
                    );
                }
            }
        }
    }
}
