//! Text that comes from the other side and is shown or logged here.

/// Longest text in bytes that is taken over from the other side.
pub const MAX_WORDS_BYTES: usize = 1024;

/// `text` as it may reach a terminal or a log: at most [`MAX_WORDS_BYTES`], and what steers a terminal
/// or the direction of text is escaped.
#[must_use]
pub fn harmless(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        let before = out.len();
        if steers(character) {
            out.extend(character.escape_unicode());
        } else {
            out.push(character);
        }
        if out.len() > MAX_WORDS_BYTES {
            out.truncate(before);
            out.push('…');
            break;
        }
    }
    out
}

/// Control characters of both sets, and the formatting characters that reorder or hide text
/// (Unicode standard annex 9 and general category Cf).
fn steers(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{00ad}'
                | '\u{061c}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_steers_a_terminal() {
        let evil = "a\x1b[2Jb\u{9b}31m\u{202e}c\r\nd\u{7f}é😀";
        let shown = harmless(evil);
        assert!(!shown.chars().any(steers), "{shown:?}");
        assert!(shown.starts_with("a\\u{1b}[2Jb") && shown.ends_with("é😀"));
    }

    #[test]
    fn a_long_text_is_cut_where_a_character_ends() {
        for text in ["é".repeat(100_000), "\x1b".repeat(100_000)] {
            let shown = harmless(&text);
            assert!(shown.len() <= MAX_WORDS_BYTES + '…'.len_utf8());
            assert!(shown.ends_with('…'));
        }
        assert_eq!(harmless("short"), "short");
    }
}
