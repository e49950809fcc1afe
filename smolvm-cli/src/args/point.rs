//! How points are named: by where they are, and which of the generations there.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};

use super::values::SHORTEST_ID;

/// Suffix of a checkpoint directory.
pub(crate) const SUFFIX: &str = ".checkpoint";
/// Digits of a whole id.
const ID_DIGITS: usize = 64;

/// `machine checkpoint-diff`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples: smolvm machine checkpoint-diff 'agent@~1' agent\n          \
    smolvm machine checkpoint-diff ./before.checkpoint ./after.checkpoint\n          \
    smolvm machine checkpoint-diff './after.checkpoint@~3' ./after.checkpoint"
)]
pub(crate) struct CheckpointDiffArgs {
    /// The earlier point: a checkpoint, exported file, id or machine, with @GEN one of its generations
    #[arg(value_name = "A", value_parser = point())]
    pub(crate) from: PointText,
    /// The later point, in the same way
    #[arg(value_name = "B", value_parser = point())]
    pub(crate) to: PointText,
}

fn point() -> impl TypedValueParser<Value = PointText> {
    OsStringValueParser::new().map(|text| PointText::parse(&text))
}

/// A point as it is typed: `PLACE` or `PLACE@GEN`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PointText {
    /// A path, an id or a machine.
    pub(crate) from: PathBuf,
    /// `~N`, an id or the beginning of one.
    pub(crate) at: Option<String>,
}

impl PointText {
    /// What follows the last `@` is a generation if it can be one.
    pub(crate) fn parse(text: &OsStr) -> Self {
        let bytes = text.as_bytes();
        let at = bytes.iter().rposition(|byte| *byte == b'@');
        let split = at.and_then(|at| {
            let behind = std::str::from_utf8(&bytes[at + 1..]).ok()?;
            Some((&bytes[..at], generation_in(behind)?))
        });
        match split {
            Some((from, generation)) if !from.is_empty() => Self {
                from: OsStr::from_bytes(from).into(),
                at: Some(generation),
            },
            _ => Self {
                from: text.into(),
                at: None,
            },
        }
    }
}

/// A generation as the engine knows it, if the text is one.
fn generation_in(text: &str) -> Option<String> {
    let digits = text.strip_prefix('~').unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let is_id = (SHORTEST_ID..=ID_DIGITS).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match (is_id, is_number) {
        (true, _) => Some(text.to_ascii_lowercase()),
        (false, true) => Some(format!("~{digits}")),
        (false, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_is_what_can_be_one() {
        let parse = |text: &str| PointText::parse(OsStr::new(text));
        for (text, from, at) in [
            ("agent@~1", "agent", Some("~1")),
            ("agent@1", "agent", Some("~1")),
            ("./a@b.checkpoint@~12", "./a@b.checkpoint", Some("~12")),
            ("x.tar@C4C23A7C", "x.tar", Some("c4c23a7c")),
            ("x@12345678", "x", Some("12345678")),
            ("./a@b.checkpoint", "./a@b.checkpoint", None),
            ("agent", "agent", None),
            ("agent@", "agent@", None),
            ("agent@~", "agent@~", None),
            ("@~1", "@~1", None),
        ] {
            let expected = PointText {
                from: from.into(),
                at: at.map(str::to_owned),
            };
            assert_eq!(parse(text), expected, "{text}");
        }
    }
}
