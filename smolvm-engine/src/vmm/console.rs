//! The serial console's way to its log, watched for what explains an end.

use std::io::{self, Write};

use crate::channel::messages::ConsoleNote;

/// Longest line that is looked at, in bytes; of longer ones the beginning.
const MAX_LINE_BYTES: usize = 512;

/// Writes console output to a log and reports lines that explain an end.
pub(super) struct ConsoleSink<W> {
    log: W,
    line: Vec<u8>,
    report: Box<dyn Fn(ConsoleNote) + Send>,
}

impl<W: Write> ConsoleSink<W> {
    /// A sink over `log`.
    pub(super) fn new(log: W, report: Box<dyn Fn(ConsoleNote) + Send>) -> Self {
        Self {
            log,
            line: Vec::new(),
            report,
        }
    }

    fn watch(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                b'\n' => {
                    if let Some(note) = explain(&self.line) {
                        (self.report)(note);
                    }
                    self.line.clear();
                }
                byte if self.line.len() < MAX_LINE_BYTES => self.line.push(*byte),
                _ => {}
            }
        }
    }
}

impl<W: Write> Write for ConsoleSink<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.log.write(bytes)?;
        self.watch(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.log.flush()
    }
}

/// What a line of the kernel's says about an end.
fn explain(line: &[u8]) -> Option<ConsoleNote> {
    let line = String::from_utf8_lossy(line);
    // The kernel's time stamp comes first.
    let text = line
        .rsplit_once("] ")
        .map_or(&*line, |(_, text)| text)
        .trim();
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    if let Some(reason) = text.strip_prefix("Kernel panic - not syncing: ") {
        return Some(ConsoleNote::Panic(reason.to_owned()));
    }
    let out_of_memory = [
        "Out of memory: Killed process ",
        "Memory cgroup out of memory: Killed ",
    ];
    out_of_memory
        .iter()
        .any(|start| text.starts_with(start))
        .then_some(ConsoleNote::OutOfMemory(text))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn panics_and_out_of_memory_are_recognised_across_writes() {
        let notes = Arc::new(Mutex::new(Vec::new()));
        let seen = notes.clone();
        let mut log = Vec::new();
        let mut sink = ConsoleSink::new(
            &mut log,
            Box::new(move |note| seen.lock().unwrap().push(note)),
        );
        sink.write_all(b"[    1.5] hello\r\n[    2.0] Kernel panic - not sync")
            .unwrap();
        sink.write_all(b"ing: sysrq triggered crash\r\nrest")
            .unwrap();
        sink.write_all(b"\n[3.0] Out of memory: Killed process 7 (python3) total-vm:1kB\n")
            .unwrap();
        assert_eq!(
            *notes.lock().unwrap(),
            [
                ConsoleNote::Panic("sysrq triggered crash".to_owned()),
                ConsoleNote::OutOfMemory(
                    "Out of memory: Killed process 7 (python3) total-vm:1kB".to_owned()
                ),
            ]
        );
        assert!(log.starts_with(b"[    1.5] hello"));
    }
}
