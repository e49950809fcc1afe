//! Foreign text that cannot steer the terminal.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write};

/// Whether a terminal might obey this character, or show the text around it in another order.
pub(super) fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
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

/// Passes a guest's console on to a terminal: lines and tabs as they are, what could steer the terminal in caret
/// notation or as an escape. Bytes that are no UTF-8, overlong forms too, become U+FFFD.
pub(crate) struct ConsoleFilter<W> {
    to: W,
    /// The beginning of a character whose rest has not come yet: at most three bytes.
    pending: Vec<u8>,
}

impl<W: Write> ConsoleFilter<W> {
    pub(crate) fn new(to: W) -> Self {
        Self {
            to,
            pending: Vec::new(),
        }
    }

    /// The visible form of `bytes`, and how many of them were complete.
    fn visible(bytes: &[u8]) -> (String, usize) {
        let mut out = String::with_capacity(bytes.len());
        let mut done = 0;
        for chunk in bytes.utf8_chunks() {
            chunk
                .valid()
                .chars()
                .for_each(|c| push_visible(c, &mut out));
            done += chunk.valid().len();
            let is_cut = done + chunk.invalid().len() == bytes.len() && may_go_on(chunk.invalid());
            if is_cut {
                break;
            }
            if !chunk.invalid().is_empty() {
                out.push(char::REPLACEMENT_CHARACTER);
                done += chunk.invalid().len();
            }
        }
        (out, done)
    }
}

/// Whether more bytes could make these a character.
fn may_go_on(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

fn push_visible(c: char, out: &mut String) {
    match c {
        '\n' | '\t' => out.push(c),
        // Serial lines end in both.
        '\r' => {}
        '\u{7f}' => out.push_str("^?"),
        c @ '\0'..='\u{1f}' => out.extend(['^', char::from(c as u8 + 0x40)]),
        c @ '\u{80}'..='\u{9f}' => out.extend(['^', '[', char::from(c as u8 - 0x40)]),
        c if steers(c) => out.extend(c.escape_unicode()),
        c => out.push(c),
    }
}

impl<W: Write> Write for ConsoleFilter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pending.extend_from_slice(bytes);
        let (text, done) = Self::visible(&self.pending);
        self.pending.drain(..done);
        self.to.write_all(text.as_bytes())?;
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
            &b"\x9b1m \xc2\xa7 "[..],
            // Overlong forms of ESC and of a C1 character, a lone lead byte, and text that runs backwards.
            &b"\xc0\x9b \xe0\x82\x9b \xff \xe2\x80\xaeb"[..],
        ] {
            filter.write_all(part).unwrap();
        }
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "a\nb\t^[[2J^? ü ^[[1m § \u{fffd}\u{fffd} \u{fffd}\u{fffd}\u{fffd} \u{fffd} \\u{202e}b"
        );
    }
}
