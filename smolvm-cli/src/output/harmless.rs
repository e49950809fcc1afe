//! Foreign text that cannot steer the terminal.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write};

/// Whether a terminal might obey this character, or show the text around it in another order.
fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// `text` with all control characters, line ends included, written as escapes.
pub(crate) fn harmless(text: &str) -> Cow<'_, str> {
    if !text.chars().any(steers) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            c if !steers(c) => out.push(c),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
        }
    }
    Cow::Owned(out)
}

/// Passes a guest's console on to a terminal: lines and tabs as they are, other control characters in
/// caret notation.
pub(crate) struct ConsoleFilter<W> {
    to: W,
    /// The lead byte of C1 control characters was seen.
    c1: bool,
}

/// First byte of U+0080 to U+00BF.
const C1_LEAD: u8 = 0xc2;

impl<W: Write> ConsoleFilter<W> {
    pub(crate) fn new(to: W) -> Self {
        Self { to, c1: false }
    }

    fn push(&mut self, byte: u8, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.c1) {
            if (0x80..=0x9f).contains(&byte) {
                out.extend_from_slice(&[b'^', b'[', byte - 0x40]);
                return;
            }
            out.push(C1_LEAD);
        }
        match byte {
            C1_LEAD => self.c1 = true,
            b'\n' | b'\t' | b' '..=0x7e | 0xa0.. => out.push(byte),
            // Serial lines end in both.
            b'\r' => {}
            0x7f => out.extend_from_slice(b"^?"),
            0..0x20 => out.extend_from_slice(&[b'^', byte + 0x40]),
            // Continuation bytes of longer characters.
            0x80..=0x9f => out.push(byte),
        }
    }
}

impl<W: Write> Write for ConsoleFilter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut out = Vec::with_capacity(bytes.len());
        for byte in bytes {
            self.push(*byte, &mut out);
        }
        self.to.write_all(&out)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_become_visible() {
        assert_eq!(harmless("plain ü"), "plain ü");
        assert_eq!(
            harmless("a\x1b[2Jb\nc\u{9b}d\u{202e}e"),
            "a\\u{1b}[2Jb\\nc\\u{9b}d\\u{202e}e"
        );
    }

    #[test]
    fn a_console_keeps_its_lines_and_cannot_steer() {
        let mut out = Vec::new();
        let mut filter = ConsoleFilter::new(&mut out);
        // The C1 character is cut in two on purpose.
        for part in [
            &b"a\r\nb\t\x1b[2J\x7f \xc3\xbc \xc2"[..],
            &b"\x9b1m \xc2\xa7"[..],
        ] {
            filter.write_all(part).unwrap();
        }
        assert_eq!(String::from_utf8(out).unwrap(), "a\nb\t^[[2J^? ü ^[[1m §");
    }
}
