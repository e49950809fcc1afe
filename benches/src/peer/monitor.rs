//! QEMU's monitor (`docs/interop/qmp-spec.txt` of QEMU).

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

use super::error::PeerError;

/// Longest message that is read.
const MAX_MESSAGE_BYTES: u64 = 1 << 20;
/// Pause between two looks at a job.
const JOB_INTERVAL: Duration = Duration::from_millis(5);
/// Bytes a second that nothing reaches.
const UNLIMITED: u64 = 1 << 36;
/// What memory and devices are written to, in the folder of the process.
const MIGRATION: &str = "migration";

/// What a save of the whole machine took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Saved {
    /// How long the guest stood still.
    pub paused: Duration,
    /// How long everything took.
    pub saved_in: Duration,
    /// By how much the disk file grew.
    pub written_bytes: u64,
}

/// A connection that takes commands.
pub(crate) struct Monitor {
    stream: BufReader<UnixStream>,
    version: String,
}

/// A message of the monitor.
#[derive(Debug, Deserialize)]
struct Message {
    #[serde(rename = "return")]
    value: Option<Value>,
    error: Option<Value>,
    event: Option<String>,
    timestamp: Option<Timestamp>,
    #[serde(rename = "QMP")]
    greeting: Option<Value>,
}

/// When an event happened, since 1970.
#[derive(Debug, Clone, Copy, Deserialize)]
struct Timestamp {
    seconds: u64,
    microseconds: u64,
}

impl Monitor {
    /// Takes the greeting and gets ready for commands.
    pub(crate) fn open(stream: UnixStream) -> Result<Self, PeerError> {
        let mut monitor = Self {
            stream: BufReader::new(stream),
            version: String::new(),
        };
        let greeting = monitor.message()?.greeting.unwrap_or_default();
        monitor.version = version(&greeting).ok_or_else(|| PeerError::Monitor {
            command: "its greeting".to_owned(),
            answer: greeting.to_string(),
        })?;
        monitor.command("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    /// QEMU's version.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// Runs a command and returns its value.
    pub(crate) fn command(&mut self, name: &str, arguments: &Value) -> Result<Value, PeerError> {
        self.command_with_events(name, arguments)
            .map(|(value, _)| value)
    }

    /// Runs a job of block devices to its end.
    pub(crate) fn create_block_device(&mut self, options: &Value) -> Result<(), PeerError> {
        let id = "bench";
        let command = "blockdev-create";
        self.command(command, &json!({"job-id": id, "options": options}))?;
        loop {
            let jobs = self.command("query-jobs", &json!({}))?;
            let job = &jobs[0];
            match job["status"].as_str() {
                Some("concluded") if job["error"].is_null() => break,
                Some("created" | "running" | "waiting" | "pending") => {
                    std::thread::sleep(JOB_INTERVAL);
                }
                _ => {
                    return Err(PeerError::Monitor {
                        command: command.to_owned(),
                        answer: jobs.to_string(),
                    });
                }
            }
        }
        self.command("job-dismiss", &json!({"id": id})).map(drop)
    }

    /// Saves the whole machine under a name. Returns how long the guest stood still, and how long all
    /// of it took; then the guest runs on.
    pub(crate) fn save(&mut self, tag: &str) -> Result<(Duration, Duration), PeerError> {
        let command = format!("savevm {tag}");
        let begin = Instant::now();
        let (answer, events) =
            self.command_with_events("human-monitor-command", &json!({"command-line": command}))?;
        let saved_in = begin.elapsed();
        match (answer.as_str(), pause(&events)) {
            (Some(""), Some(paused)) => Ok((paused, saved_in)),
            _ => Err(PeerError::Monitor {
                command,
                answer: answer.to_string(),
            }),
        }
    }

    /// Runs a command for people that says nothing when all is well.
    pub(crate) fn human(&mut self, command: &str) -> Result<(), PeerError> {
        let answer = self.command("human-monitor-command", &json!({"command-line": command}))?;
        match answer.as_str() {
            Some("") => Ok(()),
            _ => Err(PeerError::Monitor {
                command: command.to_owned(),
                answer: answer.to_string(),
            }),
        }
    }

    /// Writes memory and devices to a file while the guest runs, as for a move to another host, and lets the guest go on.
    /// Returns how long that took, and how long the guest stood still.
    pub(crate) fn migrate_to_file(&mut self) -> Result<(Duration, Duration), PeerError> {
        self.command(
            "migrate-set-parameters",
            &json!({"max-bandwidth": UNLIMITED}),
        )?;
        let begin = Instant::now();
        self.command(
            "migrate",
            &json!({"uri": format!("exec:cat > {MIGRATION}")}),
        )?;
        loop {
            let state = self.command("query-migrate", &json!({}))?;
            match state["status"].as_str() {
                Some("completed") => {
                    let took = begin.elapsed();
                    let stood = state["downtime"].as_u64().unwrap_or_default();
                    self.command("cont", &json!({}))?;
                    return Ok((took, Duration::from_millis(stood)));
                }
                Some("setup" | "active" | "device" | "wait-unplug") => {
                    std::thread::sleep(JOB_INTERVAL);
                }
                _ => {
                    return Err(PeerError::Monitor {
                        command: "migrate".to_owned(),
                        answer: state.to_string(),
                    });
                }
            }
        }
    }

    fn command_with_events(
        &mut self,
        name: &str,
        arguments: &Value,
    ) -> Result<(Value, Vec<Message>), PeerError> {
        let text = json!({"execute": name, "arguments": arguments}).to_string();
        self.stream
            .get_mut()
            .write_all(text.as_bytes())
            .map_err(PeerError::host("write to its monitor"))?;
        let mut events = Vec::new();
        loop {
            let message = self.message()?;
            if let Some(error) = message.error {
                return Err(PeerError::Monitor {
                    command: name.to_owned(),
                    answer: error.to_string(),
                });
            }
            match message.value {
                Some(value) => return Ok((value, events)),
                None => events.push(message),
            }
        }
    }

    fn message(&mut self) -> Result<Message, PeerError> {
        let mut line = Vec::new();
        (&mut self.stream)
            .take(MAX_MESSAGE_BYTES)
            .read_until(b'\n', &mut line)
            .map_err(PeerError::host("read from its monitor"))?;
        serde_json::from_slice(&line).map_err(|error| PeerError::Monitor {
            command: "anything".to_owned(),
            answer: format!("{:?}: {error}", String::from_utf8_lossy(&line)),
        })
    }
}

/// The version that a greeting tells.
fn version(greeting: &Value) -> Option<String> {
    let numbers = &greeting["version"]["qemu"];
    let number = |name| numbers[name].as_u64();
    let (major, minor, micro) = (number("major")?, number("minor")?, number("micro")?);
    Some(format!("{major}.{minor}.{micro}"))
}

/// The time from the guest's last stop to its going on after that.
fn pause(events: &[Message]) -> Option<Duration> {
    let last = |name: &str| {
        let of_name = |event: &&Message| event.event.as_deref() == Some(name);
        let time = events.iter().rfind(of_name)?.timestamp?;
        Some(Duration::from_secs(time.seconds) + Duration::from_micros(time.microseconds))
    };
    last("RESUME")?.checked_sub(last("STOP")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str, seconds: u64, microseconds: u64) -> Message {
        let time = json!({"seconds": seconds, "microseconds": microseconds});
        serde_json::from_value(json!({"event": name, "timestamp": time})).unwrap()
    }

    /// A monitor whose other end has said all this already.
    fn monitor_of(lines: &[Value]) -> (Result<Monitor, PeerError>, UnixStream) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        for line in lines {
            writeln!(theirs, "{line}").unwrap();
        }
        (Monitor::open(ours), theirs)
    }

    fn greeting() -> Value {
        json!({"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}}}})
    }

    #[test]
    fn a_pause_is_between_stop_and_resume() {
        let events = [
            event("STOP", 7, 999_000),
            event("OTHER", 8, 0),
            event("RESUME", 8, 1_500),
        ];
        assert_eq!(pause(&events), Some(Duration::from_micros(2_500)));
        assert_eq!(pause(&events[..2]), None, "it still stands");
        assert_eq!(pause(&[event("RESUME", 1, 0), event("STOP", 2, 0)]), None);
    }

    #[test]
    fn a_save_tells_its_pause() {
        let (monitor, _theirs) = monitor_of(&[
            greeting(),
            json!({"return": {}}),
            json!({"event": "STOP", "timestamp": {"seconds": 1, "microseconds": 5}}),
            json!({"event": "RESUME", "timestamp": {"seconds": 1, "microseconds": 9}}),
            json!({"return": ""}),
        ]);
        let mut monitor = monitor.unwrap();
        assert_eq!(monitor.version(), "7.2.22");
        assert_eq!(monitor.save("a").unwrap().0, Duration::from_micros(4));
    }

    #[test]
    fn refusals_are_errors() {
        let (monitor, _theirs) = monitor_of(&[
            greeting(),
            json!({"return": {}}),
            json!({"return": "Error: no room\r\n"}),
            json!({"error": {"class": "GenericError", "desc": "no such device"}}),
        ]);
        let mut monitor = monitor.unwrap();
        let error = monitor.save("a").unwrap_err().to_string();
        assert!(error.contains("no room"), "{error}");
        let error = monitor.command("x", &json!({})).unwrap_err().to_string();
        assert!(error.contains("no such device"), "{error}");
    }

    #[test]
    fn what_is_no_monitor_is_an_error() {
        let (monitor, _theirs) = monitor_of(&[json!({"QMP": {}})]);
        assert!(monitor.is_err());
        let (monitor, _theirs) = monitor_of(&[json!("hello")]);
        assert!(monitor.is_err());
    }
}
