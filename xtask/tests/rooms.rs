//! Which room of the engine may import from which: api -> supervisor -> channel <- vmm, read from the
//! paths in its source.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A room, which is a folder or file of `smolvm-engine/src`, and the rooms that it may import from
/// besides itself and the [`LEAVES`].
const ROOMS: &[(&str, &[&str])] = &[
    (
        "api",
        &[
            "supervisor",
            "vmm",
            "channel",
            "save",
            "restore",
            "inside",
            "point",
            "backend",
            "machine",
        ],
    ),
    (
        "supervisor",
        &["channel", "save", "restore", "point", "backend", "machine"],
    ),
    ("vmm", &["channel", "backend", "machine"]),
    ("channel", &["machine"]),
    ("save", &["channel", "point", "machine"]),
    ("restore", &["point", "machine"]),
    ("inside", &["machine"]),
    ("point", &["machine"]),
    ("backend", &["machine"]),
    ("machine", &[]),
];

/// What every room may use, and what uses no room.
const LEAVES: &[&str] = &[
    "error_chain",
    "file_error",
    "home",
    "image",
    "kernel",
    "name",
    "phase",
    "progress",
    "retention",
    "size",
    "time",
];

#[test]
fn no_room_imports_from_a_room_above() {
    let mut followed = 0;
    for file in sources() {
        let room = room_of(&file);
        let allowed = ROOMS
            .iter()
            .find(|(name, _)| *name == room)
            .map(|(_, allowed)| *allowed)
            .or_else(|| LEAVES.contains(&&*room).then_some(&[][..]))
            .unwrap_or_else(|| panic!("{} is in no room", file.display()));
        let text = fs::read_to_string(engine().join(&file)).unwrap();
        for target in imports(&text) {
            // What lies in lib.rs itself.
            if target.chars().all(|c| c.is_uppercase() || c == '_') {
                continue;
            }
            assert!(
                target == room
                    || allowed.contains(&&*target)
                    || LEAVES.contains(&&*target)
                    || target == "chain",
                "{} imports from {target}, which {room} may not know",
                file.display()
            );
            followed += 1;
        }
        assert!(
            !code(&text).any(|line| line.contains("super::super::")),
            "{} leaves its module by `super::super`; name the room instead",
            file.display()
        );
    }
    assert!(followed > 100, "only {followed} imports were seen");
}

#[test]
fn imports_are_seen_in_every_form() {
    let text = "
        use crate::channel::{self, ChannelError};
        use crate::{
            supervisor::{run, stop},
            vmm,
        };
        // crate::comment is none
        fn f() -> crate::machine::MachineDir {}
    ";
    let expected = ["channel", "machine", "supervisor", "vmm"].map(str::to_owned);
    assert_eq!(imports(text), BTreeSet::from(expected));
}

fn engine() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../smolvm-engine/src")
}

/// All source files but `lib.rs`, relative to the engine's.
fn sources() -> Vec<PathBuf> {
    let root = engine();
    let (mut folders, mut files) = (vec![root.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path.strip_prefix(&root).unwrap().to_owned());
            }
        }
    }
    files.retain(|file| file != Path::new("lib.rs"));
    files
}

/// The folder, or file without its extension, that holds a source file.
fn room_of(file: &Path) -> String {
    let first = Path::new(file.iter().next().unwrap());
    first.with_extension("").to_string_lossy().into_owned()
}

/// The lines of a source without those that are comments.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
}

/// The first names behind `crate::`.
fn imports(text: &str) -> BTreeSet<String> {
    let text: String = code(text).collect::<Vec<_>>().join("\n");
    let mut found = BTreeSet::new();
    for rest in text.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            Some(list) => found.extend(top_level_names(list)),
            None => found.extend(name_at(rest)),
        }
    }
    found
}

/// The first name of each item of a list that an opening brace was before.
fn top_level_names(list: &str) -> Vec<String> {
    let (mut names, mut depth, mut item) = (Vec::new(), 0, String::new());
    for c in list.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => names.extend(name_at(&std::mem::take(&mut item))),
            _ if depth == 0 => item.push(c),
            _ => {}
        }
    }
    names.extend(name_at(&item));
    names
}

fn name_at(text: &str) -> Option<String> {
    let is_name = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
    let name: String = text.trim_start().chars().take_while(is_name).collect();
    (!name.is_empty()).then_some(name)
}
