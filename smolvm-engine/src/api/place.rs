//! Where stores and checkpoints may be made: nowhere in what is ours already.

use std::path::{Path, PathBuf};

use cas_store::{OsBackend, STORE_PARTS, Store, is_store};

use super::error::{EngineError, free_name};
use crate::file_error::FileError;
use crate::home::Home;
use crate::point::{CheckpointDir, PointError, SUFFIX};

pub(super) fn absolute(path: &Path) -> Result<PathBuf, EngineError> {
    Ok(std::path::absolute(path).map_err(FileError::at("find", path))?)
}

/// Checks where points are to be stored; returns the absolute path.
pub(super) fn check_store(store: &Path, home: &Home) -> Result<PathBuf, EngineError> {
    let store = absolute(store)?;
    let real = canonical(&store);
    let refuse = |why: String| {
        Err(EngineError::Invalid {
            what: format!("{} cannot be a store: {why}", store.display()),
            hint: Some("choose another directory with --store, or leave it out".to_owned()),
        })
    };
    if real != canonical(&home.store())
        && let Some(why) = in_home(&real, home)
    {
        return refuse(why);
    }
    // It may be the checkpoint itself.
    if let Some(checkpoint) = CheckpointDir::around(&real.join("packs")) {
        return refuse(format!("{} is a checkpoint", checkpoint.display()));
    }
    if let Some(other) = store_around(&real) {
        return refuse(format!("it lies in the store {}", other.display()));
    }
    Ok(store)
}

/// Marks the default store as one. It lies in the home, where nobody keeps anything else.
pub(super) fn own_default_store(store: &Path, home: &Home) -> Result<(), EngineError> {
    if canonical(store) == canonical(&home.store()) {
        Store::open_own(home.store())?;
    }
    Ok(())
}

/// Checks where a checkpoint is to be made; returns the absolute path.
pub(super) fn check_output(
    output: &Path,
    store: &Path,
    home: &Home,
) -> Result<PathBuf, EngineError> {
    let output = absolute(output)?;
    let invalid = |why: String, hint: String| EngineError::Invalid {
        what: format!("cannot make a checkpoint at {}: {why}", output.display()),
        hint: Some(hint),
    };
    let name = output.file_name().unwrap_or_default().to_string_lossy();
    if !name.ends_with(SUFFIX) || name.len() == SUFFIX.len() {
        let why = format!("its name must end with {SUFFIX}");
        let other = free_name(&output);
        return Err(invalid(why, instead(&other)));
    }
    let parent = output.parent().unwrap_or(Path::new("/"));
    let Ok(parent) = parent.canonicalize() else {
        let parent = parent.display();
        let why = format!("{parent} does not exist");
        return Err(invalid(why, format!("make it with: mkdir -p {parent}")));
    };
    let output = parent.join(output.file_name().unwrap_or_default());
    if output.symlink_metadata().is_ok() {
        return Err(PointError::Taken { path: output }.into());
    }
    let store = canonical(store);
    let Some((why, around)) = is_ours(&output, &store, home) else {
        return Ok(output);
    };
    // Beside what it would lie in, or beside what that lies in.
    let name = output.file_name().unwrap_or_default();
    let outside = around
        .ancestors()
        .skip(1)
        .map(|above| above.join(name))
        .find(|other| is_ours(other, &store, home).is_none());
    let hint = outside.map_or_else(
        || "choose a place outside of it".to_owned(),
        |other| match other.symlink_metadata() {
            Ok(_) => instead(&free_name(&other)),
            Err(_) => instead(&other),
        },
    );
    Err(invalid(why, hint))
}

fn instead(other: &Path) -> String {
    format!("choose another place, for instance: -o {}", other.display())
}

/// Why no checkpoint may be made at a path: it lies in something that is ours, which is named with its own path.
fn is_ours(output: &Path, store: &Path, home: &Home) -> Option<(String, PathBuf)> {
    if let Some(checkpoint) = CheckpointDir::around(output) {
        return Some((
            format!("{} is a checkpoint", checkpoint.display()),
            checkpoint,
        ));
    }
    if let Some(why) = in_home(output, home) {
        return Some((why, canonical(home.root())));
    }
    let inside = |store: &Path| format!("it lies in the store {}", store.display());
    if STORE_PARTS
        .iter()
        .any(|part| output.starts_with(store.join(part)))
    {
        return Some((inside(store), store.to_owned()));
    }
    store_around(output).map(|other| (inside(&other), other))
}

/// Checks where a file may be made that is no part of anything of ours; returns the absolute path.
pub(super) fn check_file(path: &Path, home: &Home) -> Result<PathBuf, EngineError> {
    let path = absolute(path)?;
    let refuse = |why: String| {
        Err(EngineError::Invalid {
            what: format!("cannot write {}: {why}", path.display()),
            hint: Some("choose another place with -o".to_owned()),
        })
    };
    let Some(name) = path.file_name() else {
        return refuse("it has no name".to_owned());
    };
    let parent = path.parent().unwrap_or(Path::new("/"));
    let Ok(parent) = parent.canonicalize() else {
        return refuse(format!("{} does not exist", parent.display()));
    };
    let real = parent.join(name);
    if real.symlink_metadata().is_ok() {
        return Err(PointError::Taken { path: real }.into());
    }
    if let Some(why) = in_home(&real, home) {
        return refuse(why);
    }
    if let Some(checkpoint) = CheckpointDir::around(&real) {
        return refuse(format!("{} is a checkpoint", checkpoint.display()));
    }
    let beside = is_store(&OsBackend, &parent).unwrap_or(false);
    if let Some(store) = beside.then_some(parent).or_else(|| store_around(&real)) {
        return refuse(format!("it lies in the store {}", store.display()));
    }
    Ok(real)
}

/// Why a path must not be used that lies in the home.
pub(super) fn in_home(path: &Path, home: &Home) -> Option<String> {
    let root = canonical(home.root());
    path.starts_with(&root)
        .then(|| format!("{} is the home of machines", root.display()))
}

/// The store in whose own directories a path lies, or would.
fn store_around(path: &Path) -> Option<PathBuf> {
    path.ancestors()
        .skip(1)
        .filter(|above| {
            let inside = path.strip_prefix(above).ok();
            let first = inside.and_then(|inside| inside.iter().next());
            first.is_some_and(|first| STORE_PARTS.iter().any(|part| first == *part))
        })
        // What cannot be looked into is no place for anything anyway.
        .find(|above| is_store(&OsBackend, above).unwrap_or(false))
        .map(Into::into)
}

/// The path without links, as far as it exists.
fn canonical(path: &Path) -> PathBuf {
    let existing = path.ancestors().find_map(|above| {
        let real = above.canonicalize().ok()?;
        Some(real.join(path.strip_prefix(above).ok()?))
    });
    existing.unwrap_or_else(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    struct Bed {
        directory: tempfile::TempDir,
        home: Home,
    }

    /// A home with a machine and the default store, a checkpoint, another store and a link.
    fn bed() -> Bed {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for store in ["store", "home/store"] {
            Store::open(at(store)).unwrap();
        }
        for path in ["home/machines/a", "home/images", "old.checkpoint/packs"] {
            fs::create_dir_all(at(path)).unwrap();
        }
        fs::write(at("old.checkpoint/point.record"), b"").unwrap();
        symlink(at("home/machines"), at("link")).unwrap();
        let home = Home::at(at("home"));
        Bed { directory, home }
    }

    #[test]
    fn places_for_checkpoints_are_checked() {
        let bed = bed();
        let at = |name: &str| bed.directory.path().join(name);
        let check = |name: &str| check_output(&at(name), &at("store"), &bed.home);
        check("new.checkpoint").unwrap();
        check("store/beside.checkpoint").unwrap();
        for bad in [
            "new",
            ".checkpoint",
            "old.checkpoint",
            "old.checkpoint/in.checkpoint",
            "old.checkpoint/packs/in.checkpoint",
            "store/packs/in.checkpoint",
            "missing/new.checkpoint",
            "home/machines/a/in.checkpoint",
            "home/images/in.checkpoint",
            "home/in.checkpoint",
            "link/in.checkpoint",
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
        let elsewhere = check_output(&at("store/pins/in.checkpoint"), &at("other"), &bed.home);
        assert!(elsewhere.is_err());
    }

    /// The place that a hint names is one where a checkpoint can be made.
    #[test]
    fn another_place_is_one_that_will_do() {
        let bed = bed();
        let at = |name: &str| bed.directory.path().join(name);
        let check = |path: &Path| check_output(path, &at("store"), &bed.home);
        for (bad, good) in [
            ("old.checkpoint", "old-2.checkpoint"),
            ("new", "new-2.checkpoint"),
            ("home/in.checkpoint", "in.checkpoint"),
            ("home/machines/a/old.checkpoint", "old-2.checkpoint"),
            ("old.checkpoint/packs/in.checkpoint", "in.checkpoint"),
            ("store/packs/in.checkpoint", "in.checkpoint"),
        ] {
            let hint = check(&at(bad)).unwrap_err().hint().unwrap();
            let (_, other) = hint.split_once("-o ").expect("a place");
            let real = bed.directory.path().canonicalize().unwrap();
            assert!(
                Path::new(other) == at(good) || Path::new(other) == real.join(good),
                "{bad}: {hint}"
            );
            check(Path::new(other)).unwrap_or_else(|error| panic!("{bad}: {error}"));
        }
        let hint = check(&at("missing/new.checkpoint")).unwrap_err().hint();
        assert!(hint.unwrap().ends_with("missing"));
    }

    #[test]
    fn places_for_files_are_checked() {
        let bed = bed();
        let at = |name: &str| bed.directory.path().join(name);
        fs::create_dir(at("store/mine")).unwrap();
        for good in ["x.tar", "store/mine/x.tar"] {
            check_file(&at(good), &bed.home).unwrap();
        }
        for bad in [
            "home/x.tar",
            "home/machines/a/x.tar",
            "home/images/x.tar",
            "home/store/x.tar",
            "link/x.tar",
            "store/x.tar",
            "store/packs/x.tar",
            "old.checkpoint/x.tar",
            "old.checkpoint/packs/x.tar",
            "old.checkpoint",
            "missing/x.tar",
            "link",
        ] {
            assert!(check_file(&at(bad), &bed.home).is_err(), "{bad}");
        }
    }

    #[test]
    fn places_for_stores_are_checked() {
        let bed = bed();
        let at = |name: &str| bed.directory.path().join(name);
        for good in ["store", "new", "store/new", "deep/new", "home/store"] {
            check_store(&at(good), &bed.home).unwrap();
        }
        for bad in [
            "home",
            "home/machines",
            "home/machines/a",
            "home/images",
            "home/new",
            "old.checkpoint",
            "old.checkpoint/new",
            "old.checkpoint/packs",
            "store/packs",
            "store/packs/new",
            "home/store/points",
            "link",
        ] {
            assert!(check_store(&at(bad), &bed.home).is_err(), "{bad}");
        }
    }
}
