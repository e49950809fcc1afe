//! What a guest said on its serial console, and how two guests differ.

use std::collections::BTreeMap;

use crate::error::{Error, Result};

/// Starts each line that is meant for this program.
const PREFIX: &str = "boots: ";
const MESSAGE: &str = "message ";
/// The last line of a guest that did everything.
const END: &str = "end";

/// The results of one boot.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What was computed, by its key.
    pub values: BTreeMap<String, String>,
    /// Kernel messages of level err or worse.
    pub messages: Vec<String>,
}

impl Report {
    /// Reads a console. One that does not end as the start script does, says a key twice or has a
    /// line of another form is an error: a guest that stopped half-way is equal to nothing.
    pub fn parse(cpu: &'static str, console: &str) -> Result<Self> {
        let error = |problem: String| Error::Boot {
            cpu,
            problem,
            console: crate::process::tail(console, 3000).to_owned(),
        };
        let mut report = Self::default();
        let mut ended = false;
        // A console ends its lines with a carriage return.
        for line in console.lines().map(str::trim_end) {
            let Some(line) = line.strip_prefix(PREFIX) else {
                continue;
            };
            if line == END {
                ended = true;
            } else if let Some(message) = line.strip_prefix(MESSAGE) {
                report.messages.push(message.to_owned());
            } else if let Some((key, value)) = line.split_once(" = ") {
                let earlier = report.values.insert(key.to_owned(), value.to_owned());
                if earlier.is_some() {
                    return Err(error(format!("said {key:?} twice")));
                }
            } else {
                return Err(error(format!("said {line:?}")));
            }
        }
        match ended {
            true => Ok(report),
            false => Err(error("did not get to the end".to_owned())),
        }
    }

    /// Each value in which this report and another differ, as a line that names it.
    pub fn differences(&self, other: &Self, expected: &[&str]) -> Vec<String> {
        let keys = self
            .values
            .keys()
            .chain((other.values.keys()).filter(|key| !self.values.contains_key(*key)));
        keys.filter(|key| !expected.contains(&key.as_str()))
            .filter_map(|key| {
                let (ours, theirs) = (self.values.get(key), other.values.get(key));
                let shown = |value: Option<&String>| {
                    value.map_or_else(|| "nothing".to_owned(), |value| format!("{value:?}"))
                };
                (ours != theirs).then(|| {
                    format!(
                        "{key}: software CPU {}, QEMU {}",
                        shown(ours),
                        shown(theirs)
                    )
                })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONSOLE: &str = "[ 0.1] Linux\r\nboots: a = 1\r\nboots: b = x = y\r\n\
                           boots: message [ 0.2] broken\r\nboots: end\r\n";

    fn report(text: &str) -> Report {
        Report::parse("test", text).unwrap()
    }

    #[test]
    fn lines_become_values_and_messages() {
        let report = report(CONSOLE);
        assert_eq!(report.values["a"], "1");
        assert_eq!(report.values["b"], "x = y");
        assert_eq!(report.messages, ["[ 0.2] broken"]);
        assert!(report.differences(&report, &[]).is_empty());
    }

    #[test]
    fn a_guest_that_stops_early_or_repeats_itself_is_an_error() {
        for (text, problem) in [
            ("boots: a = 1\n", "did not get to the end"),
            ("boots: a = 1\nboots: a = 1\nboots: end\n", "twice"),
            ("boots: nonsense\nboots: end\n", "nonsense"),
        ] {
            let error = Report::parse("test", text).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }

    #[test]
    fn each_difference_is_named_unless_expected() {
        let ours = report("boots: a = 1\nboots: b = 2\nboots: e = 5\nboots: end");
        let theirs = report("boots: a = 1\nboots: b = 3\nboots: c = 4\nboots: end");
        assert_eq!(
            ours.differences(&theirs, &["e"]),
            [
                "b: software CPU \"2\", QEMU \"3\"",
                "c: software CPU nothing, QEMU \"4\"",
            ]
        );
    }
}
