//! `machine cp`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use smolvm_engine::MachineName;

/// `machine cp`.
#[derive(Debug, Args)]
#[command(after_help = "Example: smolvm machine cp ./src agent:/root/")]
pub(crate) struct CopyArgs {
    /// What to copy: NAME:/path in a machine, or a path of this host
    #[arg(value_name = "SRC", value_parser = place())]
    pub(crate) source: Place,
    /// Where to: into it if it is a directory, else as it
    #[arg(value_name = "DST", value_parser = place())]
    pub(crate) target: Place,
}

fn place() -> impl TypedValueParser<Value = Place> {
    OsStringValueParser::new().try_map(|text| Place::parse(&text))
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
