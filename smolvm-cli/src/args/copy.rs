//! `machine cp`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use smolvm_engine::MachineName;

/// `machine cp`, both places parsed: exactly one of them is in a machine.
#[derive(Debug)]
pub(crate) struct CopyArgs {
    pub(crate) source: Place,
    pub(crate) target: Place,
}

/// One side of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// A path on this host.
    Host(PathBuf),
    /// An absolute path in a machine.
    Machine { name: MachineName, path: OsString },
    /// A path in a saved point.
    Point,
}

impl Place {
    /// `NAME:/path` is in a machine, `X@GENERATION:/path` in a point; everything else, and whatever
    /// has a `/` before its first `:`, is on the host.
    fn parse(text: &OsStr) -> Result<Self, String> {
        let bytes = text.as_bytes();
        let host = || Self::Host(PathBuf::from(text));
        let Some(colon) = bytes.iter().position(|byte| *byte == b':') else {
            return Ok(host());
        };
        let (before, path) = (&bytes[..colon], &bytes[colon + 1..]);
        if before.contains(&b'@') && path.starts_with(b"/") {
            return Ok(Self::Point);
        }
        if before.contains(&b'/') {
            return Ok(host());
        }
        let name = std::str::from_utf8(before)
            .ok()
            .and_then(|n| n.parse().ok());
        match name {
            Some(name) if path.starts_with(b"/") => Ok(Self::Machine {
                name,
                path: OsStr::from_bytes(path).to_owned(),
            }),
            Some(name) => Err(format!(
                "paths in a machine begin with a slash, as {name}:/root/file; a file of this host: ./{}",
                text.to_string_lossy()
            )),
            None => Err(format!(
                "`{}` is not the name of a machine; a file of this host: ./{}",
                String::from_utf8_lossy(before),
                text.to_string_lossy()
            )),
        }
    }
}

/// Parses a [`Place`] for clap.
#[derive(Clone)]
struct PlaceParser;

impl TypedValueParser for PlaceParser {
    type Value = Place;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Place, clap::Error> {
        let text = OsStringValueParser::new().parse_ref(command, argument, value)?;
        Place::parse(&text).map_err(|message| usage(command, ErrorKind::ValueValidation, &message))
    }
}

fn usage(command: &Command, kind: ErrorKind, message: &str) -> clap::Error {
    let mut error = clap::Error::raw(kind, format!("{message}\n")).with_cmd(command);
    error.insert(ContextKind::Usage, ContextValue::None);
    error
}

impl Args for CopyArgs {
    fn augment_args(command: Command) -> Command {
        let place = |id: &'static str, help| {
            Arg::new(id)
                .required(true)
                .value_parser(PlaceParser)
                .help(help)
        };
        command
            .arg(place(
                "SRC",
                "What to copy: NAME:/path in a machine, or a path of this host",
            ))
            .arg(place(
                "DST",
                "Where to: into it if it is a directory, else as it",
            ))
            .after_help("Example: smolvm machine cp ./src agent:/root/")
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for CopyArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let place = |id| matches.get_one::<Place>(id).cloned();
        let missing = || clap::Error::new(ErrorKind::MissingRequiredArgument);
        let (source, target) = (
            place("SRC").ok_or_else(missing)?,
            place("DST").ok_or_else(missing)?,
        );
        let wrong = |message: &str| {
            Err(clap::Error::raw(
                ErrorKind::ValueValidation,
                format!("{message}\n"),
            ))
        };
        match (&source, &target) {
            (Place::Host(_), Place::Host(_)) => {
                wrong("neither place is in a machine; write one as NAME:/path")
            }
            (Place::Machine { .. }, Place::Machine { .. }) => {
                wrong("both places are in machines; copy to this host first")
            }
            _ => Ok(Self { source, target }),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_on_the_host_unless_it_names_a_machine() {
        let parse = |text: &str| Place::parse(OsStr::new(text));
        let host = |text: &str| Ok(Place::Host(PathBuf::from(text)));
        for text in ["a", "./a:b", "/tmp/a:b", "../x", "dir/x:y"] {
            assert_eq!(parse(text), host(text));
        }
        assert_eq!(
            parse("agent:/root/a:b"),
            Ok(Place::Machine {
                name: "agent".parse().unwrap(),
                path: "/root/a:b".into()
            })
        );
        assert_eq!(parse("x.checkpoint@~2:/etc"), Ok(Place::Point));
        assert_eq!(parse("./x.checkpoint@~2:/etc"), Ok(Place::Point));
        assert!(
            parse("agent:file")
                .unwrap_err()
                .contains("agent:/root/file")
        );
        assert!(parse("Agent:/x").unwrap_err().contains("./Agent:/x"));
        assert!(parse(":x").is_err());
    }
}
