//! Names of images and kernels.

/// Longest name in bytes.
const MAX_NAME_BYTES: usize = 63;

/// Whether `name` may name an image or a kernel: 1 to 63 of `a`–`z`, `0`–`9`,
/// `-`, `_` and `.`, beginning with a letter or a digit. Such a name is always
/// one plain path component.
pub fn valid_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    let lower_alnum = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    (1..=MAX_NAME_BYTES).contains(&bytes.len())
        && bytes.first().is_some_and(lower_alnum)
        && bytes
            .iter()
            .all(|b| lower_alnum(b) || matches!(b, b'-' | b'_' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_what_the_rule_allows() {
        for name in ["debian", "a", "0", "debian-12.5_x", &"a".repeat(63)] {
            assert!(valid_name(name), "{name}");
        }
    }

    #[test]
    fn refuses_everything_else() {
        let long = "a".repeat(64);
        for name in [
            "", "../x", "a/b", "Debian", ".hidden", "-x", "a b", "ä", "a\0", &long,
        ] {
            assert!(!valid_name(name), "{name:?}");
        }
    }
}
