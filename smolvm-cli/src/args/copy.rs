//! `machine cp`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use smolvm_engine::MachineName;

use super::point::{PointText, SUFFIX};

/// `machine cp`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples: smolvm machine cp ./src agent:/root/\n          \
    smolvm machine cp agent:/var/log ./logs\n          \
    smolvm machine cp './before.checkpoint@~2:/etc/hosts' .\n          \
    smolvm machine cp 'agent@~1:/root/notes' ./notes-before\n\n\
    Out of a saved point nothing is started. POINT is a checkpoint, an exported file, an id of the default store, or a machine, \
    which stands for the point it was last saved to; GEN is ~N, an id or the beginning of one, and ~0 the point itself. A point \
    holds what was on the machine's disk: not what lay in memory, as /run does."
)]
pub(crate) struct CopyArgs {
    /// What to copy: NAME:/path in a machine, POINT@GEN:/path in a saved point, or a path of this host
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
    /// An absolute path in a saved point.
    Point { point: PointText, path: OsString },
}

impl Place {
    /// `NAME:/path` is in a machine, `POINT@GEN:/path` and `X.checkpoint:/path` in a point; everything else, and whatever
    /// has a `/` before its first `:`, is on the host.
    fn parse(text: &OsStr) -> Result<Self, String> {
        let bytes = text.as_bytes();
        let host = || Self::Host(PathBuf::from(text));
        let colons = (0..bytes.len()).filter(|at| bytes[*at] == b':');
        for colon in colons.clone() {
            let (before, path) = (&bytes[..colon], &bytes[colon + 1..]);
            let point = PointText::parse(OsStr::from_bytes(before));
            let is_point = point.at.is_some() || before.ends_with(SUFFIX.as_bytes());
            if path.starts_with(b"/") && is_point {
                let path = OsStr::from_bytes(path).to_owned();
                return Ok(Self::Point { point, path });
            }
        }
        let Some(colon) = colons.clone().next() else {
            return Ok(host());
        };
        let (before, path) = (&bytes[..colon], &bytes[colon + 1..]);
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
        let point = |from: &str, at: Option<&str>, path: &str| {
            Ok(Place::Point {
                point: PointText {
                    from: from.into(),
                    at: at.map(str::to_owned),
                },
                path: path.into(),
            })
        };
        for (text, from, at, path) in [
            ("x.checkpoint@~2:/etc", "x.checkpoint", "~2", "/etc"),
            ("./x.checkpoint@2:/a:b", "./x.checkpoint", "~2", "/a:b"),
            ("./a:b/x.tar@C4c23a7c:/", "./a:b/x.tar", "c4c23a7c", "/"),
            ("agent@~1:/root", "agent", "~1", "/root"),
        ] {
            assert_eq!(parse(text), point(from, Some(at), path), "{text}");
        }
        assert_eq!(
            parse("./x.checkpoint:/etc"),
            point("./x.checkpoint", None, "/etc")
        );
        assert_eq!(parse("./x.checkpoint@~2"), host("./x.checkpoint@~2"));
        assert!(parse("me@host:/etc").is_err());
        assert!(
            parse("agent:file")
                .unwrap_err()
                .contains("agent:/root/file")
        );
        assert!(parse("Agent:/x").unwrap_err().contains("./Agent:/x"));
        assert!(parse(":x").is_err());
    }
}
