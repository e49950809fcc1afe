//! `help`: a topic in a few lines, or a command's own help.

use std::process::ExitCode;

use crate::args::{self, HelpArgs};
use crate::failure::Failure;
use crate::output;

/// Topics by name.
const TOPICS: [(&str, &str); 3] = [
    ("checkpoints", include_str!("help/checkpoints.txt")),
    ("images", include_str!("help/images.txt")),
    ("exit-codes", include_str!("help/exit-codes.txt")),
];

/// `help`.
pub(crate) fn help(args: &HelpArgs) -> Result<ExitCode, Failure> {
    let words: Vec<&str> = args.words.iter().map(String::as_str).collect();
    let topic = |word: &str| TOPICS.iter().find(|(name, _)| name.starts_with(word));
    let text = match words.as_slice() {
        // "checkpoint" is a command, "checkpoints" is the topic.
        [word] if find(&args::describe(), &[word]).is_none() && word.len() > 2 => {
            topic(word).map(|(_, text)| (*text).to_owned())
        }
        ["exit", "codes"] => topic("exit-codes").map(|(_, text)| (*text).to_owned()),
        words => find(&args::describe(), words),
    };
    let text = text.ok_or_else(|| Failure::Usage {
        what: format!("there is no command or topic `{}`", words.join(" ")),
        hint: Some("list the commands with: smolvm --help".to_owned()),
    })?;
    output::data(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// The long help of a command.
fn find(root: &clap::Command, words: &[&str]) -> Option<String> {
    let mut root = root.clone();
    root.build();
    let mut command = &mut root;
    for word in words {
        command = command.find_subcommand_mut(word)?;
    }
    Some(command.render_long_help().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_help_by_all_their_names() {
        for words in [
            &["machine", "exec"][..],
            &["exec"],
            &["rm"],
            &["image", "import"],
            &[],
        ] {
            let text = find(&args::describe(), words).unwrap();
            assert!(text.contains("Usage: smolvm"), "{words:?}: {text}");
        }
        assert!(find(&args::describe(), &["fly"]).is_none());
    }

    #[test]
    fn topics_fit_a_terminal() {
        for (name, text) in TOPICS {
            assert!(text.lines().all(|line| line.len() <= 80), "{name}");
            assert!(text.lines().count() <= 24, "{name}");
        }
    }
}
