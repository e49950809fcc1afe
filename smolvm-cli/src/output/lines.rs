//! Foreign text as objects, one for each of its lines.

use std::io::{self, Write};

use serde_json::json;

use super::json::{object, render};

/// Longest line in bytes that becomes one object; a longer one becomes several.
const MAX_LINE_BYTES: usize = 64 << 10;

/// Writes each line as an object with the line as `line`. Flushing writes what has no line feed yet, too.
pub(crate) struct LineObjects<W> {
    to: W,
    line: Vec<u8>,
}

impl<W: Write> LineObjects<W> {
    /// Objects are written to `to`.
    pub(crate) fn new(to: W) -> Self {
        Self {
            to,
            line: Vec::new(),
        }
    }

    fn end_line(&mut self) -> io::Result<()> {
        let line = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(&line));
        writeln!(self.to, "{}", render(object(json!({"line": text}))))
    }
}

impl<W: Write> Write for LineObjects<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for &byte in bytes {
            if byte == b'\n' {
                self.end_line()?;
                continue;
            }
            self.line.push(byte);
            if self.line.len() == MAX_LINE_BYTES {
                self.end_line()?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.line.is_empty() {
            self.end_line()?;
        }
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(parts: &[&[u8]]) -> Vec<serde_json::Value> {
        let mut written = Vec::new();
        let mut lines = LineObjects::new(&mut written);
        for part in parts {
            lines.write_all(part).unwrap();
        }
        lines.flush().unwrap();
        let text = String::from_utf8(written).unwrap();
        let line = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
        text.lines()
            .map(|text| line(text)["line"].clone())
            .collect()
    }

    #[test]
    fn lines_are_put_together_and_the_last_one_is_not_lost() {
        let said = objects(&[b"a", b"b\r\n\nc\xff", b"\x1b[2J"]);
        assert_eq!(said, ["ab", "", "c\u{fffd}\u{1b}[2J"]);
        assert!(objects(&[]).is_empty());
    }

    #[test]
    fn a_line_without_an_end_takes_bounded_memory() {
        let said = objects(&[&vec![b'x'; 3 * MAX_LINE_BYTES + 1]]);
        let lengths: Vec<_> = said
            .iter()
            .map(|line| line.as_str().unwrap().len())
            .collect();
        assert_eq!(lengths, [MAX_LINE_BYTES, MAX_LINE_BYTES, MAX_LINE_BYTES, 1]);
    }
}
