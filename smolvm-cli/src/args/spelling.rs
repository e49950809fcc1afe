//! Other spellings of a command line, rewritten into the one that is parsed.
//!
//! `exec` and `run` are followed by a command, whose words are its own. The parser wants `--` before it; users of docker
//! and ssh type `exec agent ls -l` and `run debian ls`. Here the first word that is no option becomes `--name` or
//! `--image`, and `--` is put before the command. What is an option, and what its value, comes from the description of the
//! command line itself.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::{Arg, Command};

/// Where a command's words end and those of the command that it runs begin.
const SEPARATOR: &str = "--";

/// Commands that run a command, and the option that their first word is the value of.
const RUNNERS: [(&str, &str); 3] = [("exec", "name"), ("run", "image"), ("try", "name")];

/// Rewrites the program's arguments; those of other commands stay as they are.
pub(super) fn canonical(root: &Command, arguments: Vec<OsString>) -> Vec<OsString> {
    let Some((position, command, target)) = find_runner(root, &arguments) else {
        return arguments;
    };
    let (before, own) = arguments.split_at(position + 1);
    let rewritten = Rewriter::new(command, target, own).rewrite();
    before.iter().cloned().chain(rewritten).collect()
}

/// The position of a runner's word, its description, and its target's option.
fn find_runner<'a>(
    root: &'a Command,
    arguments: &[OsString],
) -> Option<(usize, &'a Command, &'static str)> {
    let mut words = arguments
        .iter()
        .enumerate()
        .skip(1)
        .filter(|(_, word)| !word.as_bytes().starts_with(b"-"));
    let (mut position, mut word) = words.next()?;
    let mut group = root;
    if word == "machine" {
        group = root.find_subcommand("machine")?;
        (position, word) = words.next()?;
    }
    let (name, target) = RUNNERS.iter().find(|(name, _)| word == name)?;
    Some((position, group.find_subcommand(name)?, target))
}

/// What one word of a command line is.
enum Word {
    Separator,
    /// An option; `takes_next`: the next word is its value.
    Option {
        takes_next: bool,
        is_target: bool,
    },
    Plain,
}

struct Rewriter<'a> {
    command: &'a Command,
    target: &'static str,
    words: &'a [OsString],
}

impl<'a> Rewriter<'a> {
    fn new(command: &'a Command, target: &'static str, words: &'a [OsString]) -> Self {
        Self {
            command,
            target,
            words,
        }
    }

    fn rewrite(&self) -> Vec<OsString> {
        let mut rewritten = Vec::with_capacity(self.words.len() + 2);
        let mut has_target = false;
        let mut words = self.words.iter();
        while let Some(word) = words.next() {
            match self.word(word) {
                Word::Separator => {
                    rewritten.push(word.clone());
                    break;
                }
                Word::Option {
                    takes_next,
                    is_target,
                } => {
                    has_target |= is_target;
                    rewritten.push(word.clone());
                    if takes_next {
                        rewritten.extend(words.next().cloned());
                    }
                }
                Word::Plain if has_target => {
                    rewritten.extend([SEPARATOR.into(), word.clone()]);
                    break;
                }
                Word::Plain => {
                    has_target = true;
                    rewritten.extend([format!("--{}", self.target).into(), word.clone()]);
                }
            }
        }
        rewritten.extend(words.cloned());
        rewritten
    }

    fn word(&self, word: &OsStr) -> Word {
        let bytes = word.as_bytes();
        if word == SEPARATOR {
            return Word::Separator;
        }
        if let Some(long) = bytes.strip_prefix(b"--") {
            let (name, inline) = match long.iter().position(|byte| *byte == b'=') {
                Some(end) => (&long[..end], true),
                None => (long, false),
            };
            let is_it = |option: &&Arg| option.get_long().is_some_and(|l| l.as_bytes() == name);
            return self.option(self.command.get_arguments().find(is_it), inline);
        }
        match bytes.strip_prefix(b"-") {
            None | Some(b"") => Word::Plain,
            Some(cluster) => self.cluster(cluster),
        }
    }

    /// Short options written together: only the last may take the next word.
    fn cluster(&self, letters: &[u8]) -> Word {
        for (index, letter) in letters.iter().enumerate() {
            let is_it = |option: &&Arg| option.get_short() == Some(char::from(*letter));
            let option = self.command.get_arguments().find(is_it);
            if option.is_some_and(|option| option.get_action().takes_values()) {
                return self.option(option, index + 1 < letters.len());
            }
        }
        self.option(None, false)
    }

    fn option(&self, option: Option<&Arg>, inline: bool) -> Word {
        let takes_value = option.is_some_and(|option| option.get_action().takes_values());
        Word::Option {
            takes_next: takes_value && !inline,
            is_target: option.is_some_and(|option| option.get_id() == self.target),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(line: &str) -> String {
        let words = std::iter::once("smolvm").chain(line.split(' '));
        let words = words.map(OsString::from).collect();
        let words = canonical(&crate::args::describe(), words);
        let words: Vec<_> = words.iter().map(|word| word.to_str().unwrap()).collect();
        words[1..].join(" ")
    }

    #[test]
    fn the_machine_and_the_command_are_told_apart() {
        for (typed, meant) in [
            ("exec a ls -la", "exec --name a -- ls -la"),
            ("exec a -- ls", "exec --name a -- ls"),
            (
                "machine exec a ls --json",
                "machine exec --name a -- ls --json",
            ),
            ("exec --name a ls", "exec --name a -- ls"),
            ("exec --name=a ls", "exec --name=a -- ls"),
            ("exec -n a ls", "exec -n a -- ls"),
            ("exec -na ls", "exec -na -- ls"),
            ("exec -it a sh", "exec -it --name a -- sh"),
            (
                "exec -ite A=b a sh -c x",
                "exec -ite A=b --name a -- sh -c x",
            ),
            ("exec -eA=b a sh", "exec -eA=b --name a -- sh"),
            ("exec a -it -w / -- sh", "exec --name a -it -w / -- sh"),
            ("exec a -it sh -c x", "exec --name a -it -- sh -c x"),
            ("exec -w / a pwd", "exec -w / --name a -- pwd"),
            ("exec a sh -- x", "exec --name a -- sh -- x"),
            ("--json exec a ls", "--json exec --name a -- ls"),
            ("run debian ls -l", "run --image debian -- ls -l"),
            ("run --image debian ls", "run --image debian -- ls"),
            (
                "run --mem 1G debian ls",
                "run --mem 1G --image debian -- ls",
            ),
        ] {
            assert_eq!(rewritten(typed), meant, "{typed}");
        }
    }

    #[test]
    fn what_is_spelled_out_stays_as_it_is() {
        for line in [
            "machine exec --name a -it -- sh -c x",
            "machine exec -- true",
            "run -- true",
            "run --from ./x.checkpoint -- true",
            "machine start a",
            "ls",
            "exec --help",
        ] {
            assert_eq!(rewritten(line), line);
        }
    }
}
