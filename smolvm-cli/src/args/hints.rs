//! Every command that the program tells its user to type is one that it understands.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::parse;

/// Where text for users is made, seen from this crate.
const SOURCES: [&str; 3] = ["src/commands", "../smolvm-engine/src", "../guest-image/src"];
/// What a command begins with.
const PROGRAM: &str = "smolvm ";
/// What stands behind a command in a sentence.
const ENDS: [&str; 8] = ["\"", "`", ";", ", ", " (", " <", "\\n", "\n"];
/// The groups; the short forms of their commands are not used in messages.
const GROUPS: [&str; 4] = ["machine", "image", "kernel", "doctor"];

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The commands in the text of a source, but for its comments and its tests.
fn commands(text: &str) -> Vec<String> {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let is_comment = |line: &&str| line.trim_start().starts_with("//");
    let code: Vec<_> = code.lines().filter(|line| !is_comment(line)).collect();
    let code = code.join("\n");
    let mut found = Vec::new();
    for (at, _) in code.match_indices(PROGRAM) {
        let rest = &code[at..];
        let end = ENDS.iter().filter_map(|end| rest.find(end)).min();
        let command = rest[..end.unwrap_or(rest.len())].trim_end();
        let group = command.split(' ').nth(1).unwrap_or_default();
        if GROUPS.contains(&group) {
            found.push(command.to_owned());
        }
    }
    found
}

/// Its words, with a value in the place of each thing that is filled in.
fn words(command: &str) -> Vec<OsString> {
    let mut filled = String::new();
    let mut rest = command;
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        // What may be left out brings its own blank.
        if before.ends_with(|last: char| last.is_ascii_alphanumeric()) {
            filled.push(' ');
        }
        filled.push_str("value");
        rest = after.split_once('}').map_or("", |(_, after)| after);
    }
    filled.push_str(rest);
    let value = |word: &str| {
        let word = word.trim_matches('\'');
        let is_placeholder = word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_uppercase());
        OsString::from(if is_placeholder { "value" } else { word })
    };
    filled.split_whitespace().map(value).collect()
}

#[test]
fn every_command_in_a_message_is_understood() {
    let mut files = Vec::new();
    for directory in SOURCES {
        sources(
            &Path::new(env!("CARGO_MANIFEST_DIR")).join(directory),
            &mut files,
        );
    }
    let mut count = 0;
    for file in files {
        let text = fs::read_to_string(&file).expect("a source");
        for command in commands(&text) {
            count += 1;
            if let Err(refusal) = parse(words(&command)) {
                panic!("{}: {command}: {refusal:?}", file.display());
            }
        }
    }
    // Otherwise nothing was looked at.
    assert!(count > 40, "{count}");
}

#[test]
fn commands_are_found_in_sentences_and_filled_in() {
    let text = "hint(\"stop it with: smolvm machine stop --name {name}, or with -f\");\n\
        // smolvm machine nothing\n\
        \"smolvm machine checkpoint-verify{target} --repair-from STORE\"\n\
        #[cfg(test)]\n\"smolvm machine nothing\"";
    let found = commands(text);
    assert_eq!(
        found,
        [
            "smolvm machine stop --name {name}",
            "smolvm machine checkpoint-verify{target} --repair-from STORE",
        ]
    );
    assert_eq!(
        words(&found[0]).join(" ".as_ref()),
        "smolvm machine stop --name value"
    );
    let verify = "smolvm machine checkpoint-verify value --repair-from value";
    assert_eq!(words(&found[1]).join(" ".as_ref()), verify);
    assert!(parse(words("smolvm machine nothing")).is_err());
}
