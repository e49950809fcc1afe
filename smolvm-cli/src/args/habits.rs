//! Words of other tools that are no command here, and the command that does what they do.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// What is typed by habit, and what to type.
const HABITS: &[(&[&str], &str)] = &[
    (
        &["clone", "fork", "duplicate"],
        "smolvm machine branch --from NAME --name NEW",
    ),
    (
        &["commit", "save", "snap", "freeze"],
        "smolvm machine checkpoint NAME -m MESSAGE",
    ),
    (
        &["rollback", "revert", "reset", "back"],
        "smolvm machine undo NAME",
    ),
    (&["restore"], "smolvm machine create --name NEW --from ID"),
    (
        &["snapshots", "checkpoints", "history", "points"],
        "smolvm machine checkpoint-log",
    ),
    (&["diff", "compare"], "smolvm machine checkpoint-diff ID ID"),
    (
        &["attach", "console", "connect", "enter", "bash"],
        "smolvm machine shell NAME",
    ),
    (
        &["kill", "down", "halt", "poweroff", "shutdown"],
        "smolvm machine stop NAME",
    ),
    (&["up", "launch", "boot"], "smolvm machine start NAME"),
    (&["new", "init"], "smolvm machine create --name NEW"),
    (
        &["destroy", "remove", "purge", "del"],
        "smolvm machine delete NAME",
    ),
    (&["info", "show"], "smolvm machine status NAME"),
    (&["mv"], "smolvm machine rename NAME NEW"),
    (&["copy", "scp", "transfer"], "smolvm machine cp NAME:/ DIR"),
    (&["suspend"], "smolvm machine pause NAME"),
    (&["rmi"], "smolvm image rm IMAGE"),
    (&["build", "load"], "smolvm image import IMAGE FILE"),
    (&["du"], "smolvm df"),
    (&["gc", "prune"], "smolvm machine checkpoint-prune"),
    (&["verify", "fsck"], "smolvm machine checkpoint-verify"),
];

/// The word that was typed and the command that is meant, if that is what the error is about.
pub(super) fn meant(error: &clap::Error) -> Option<(String, &'static str)> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    let (_, command) = HABITS
        .iter()
        .find(|(words, _)| words.contains(&typed.as_str()))?;
    Some((typed.clone(), command))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Refusal, parse};

    /// With a value in the place of each thing that is filled in.
    fn words(line: &str) -> Vec<std::ffi::OsString> {
        let value = |word: &str| {
            let is_placeholder = word.bytes().all(|byte| byte.is_ascii_uppercase());
            if is_placeholder { "value" } else { word }.into()
        };
        line.replace("NAME:", "value:")
            .split(' ')
            .map(value)
            .collect()
    }

    #[test]
    fn each_word_leads_to_a_command_that_is_understood_and_is_none_itself() {
        for (typed, command) in HABITS {
            if let Err(refusal) = parse(words(command)) {
                panic!("{command}: {refusal:?}");
            }
            for word in *typed {
                for line in [format!("smolvm {word}"), format!("smolvm machine {word} x")] {
                    match parse(words(&line)) {
                        Err(Refusal::Habit { word: found, .. }) => assert_eq!(found, *word),
                        other => panic!("{line}: {other:?}"),
                    }
                }
            }
        }
    }
}
