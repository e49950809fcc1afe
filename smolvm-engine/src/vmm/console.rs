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

/// What a line of the kernel's says about an end. Others may write to the console, too: without the kernel's time stamp
/// at its beginning a line is not the kernel's.
fn explain(line: &[u8]) -> Option<ConsoleNote> {
    let line = String::from_utf8_lossy(line);
    let text = behind_time_stamp(line.trim_end_matches('\r'))?;
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

/// The text behind the kernel's time stamp, `[ SECONDS.MICROSECONDS] `, and the caller that some kernels name there.
fn behind_time_stamp(line: &str) -> Option<&str> {
    let (stamp, text) = line.strip_prefix('[')?.split_once(']')?;
    let (seconds, fraction) = stamp.trim_start().split_once('.')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !is_number(seconds) || !is_number(fraction) {
        return None;
    }
    let text = match text.strip_prefix('[') {
        Some(caller) => caller.split_once(']')?.1,
        None => text,
    };
    text.strip_prefix(' ')
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

    #[test]
    fn only_lines_of_the_kernel_explain_an_end() {
        let panic = |line: &str| explain(line.as_bytes());
        let found = Some(ConsoleNote::Panic("x".to_owned()));
        assert_eq!(
            panic("[   12.345678] Kernel panic - not syncing: x\r"),
            found
        );
        let with_caller = "[   12.345678][    T1] Kernel panic - not syncing: x";
        assert_eq!(panic(with_caller), found);
        for line in [
            "Kernel panic - not syncing: x",
            "job] Kernel panic - not syncing: x",
            "[job] Kernel panic - not syncing: x",
            "[.] Kernel panic - not syncing: x",
            " [1.0] Kernel panic - not syncing: x",
            "[1.0] said: Kernel panic - not syncing: x",
        ] {
            assert_eq!(panic(line), None, "{line}");
        }
    }
}
