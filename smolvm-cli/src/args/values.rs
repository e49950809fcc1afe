//! Values on the command line: sizes, times, assignments.

use std::time::Duration;

/// Fewest digits by which a point is named.
pub(crate) const SHORTEST_ID: usize = 8;

/// A size with its unit: `512M`, `1G`, `2GiB`. Units are powers of 1024.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a size; write a number and its unit, as 512M or 2G");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let unit = unit.to_ascii_lowercase();
    let shift = match unit.trim_end_matches('b').trim_end_matches('i') {
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(wrong()),
    };
    number
        .checked_mul(1 << shift)
        .filter(|bytes| *bytes > 0)
        .ok_or_else(wrong)
}

/// A time with its unit: `500ms`, `10s`, `5m`, `1h`. Without one it is in seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a time; write it as 500ms, 10s, 5m or 1h");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let milliseconds = match unit {
        "ms" => Some(number),
        "" | "s" => number.checked_mul(1000),
        "m" => number.checked_mul(60_000),
        "h" => number.checked_mul(3_600_000),
        _ => None,
    };
    milliseconds.map(Duration::from_millis).ok_or_else(wrong)
}

/// A part of a whole: `5%` or `5`, from 1 to 100.
pub(crate) fn percent(text: &str) -> Result<u8, String> {
    let number = text.strip_suffix('%').unwrap_or(text);
    let percent = number
        .parse()
        .ok()
        .filter(|percent| (1..=100).contains(percent));
    percent.ok_or_else(|| format!("`{text}` is not a part; write it as 5% or 5, from 1 to 100"))
}

/// A generation. `~N` also as `N`: zsh takes `~1` for a directory, and no id is that short.
pub(crate) fn generation(text: &str) -> Result<String, String> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    match text.len() {
        0 => Err("name a point: ~N, an id, or its message".to_owned()),
        1..SHORTEST_ID if is_number => Ok(format!("~{text}")),
        _ => Ok(text.to_owned()),
    }
}

/// `KEY=VALUE`.
pub(crate) fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is not of the form KEY=VALUE")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_percents() {
        assert_eq!(percent("5%"), Ok(5));
        assert_eq!(percent("100"), Ok(100));
        for wrong in ["", "%", "0", "101%", "5 %", "-1", "half", "5%%"] {
            assert!(percent(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_number_is_a_generation_unless_it_may_be_an_id() {
        assert_eq!(generation("1"), Ok("~1".into()));
        for same in ["~1", "12345678", "c4c23a7c", "before migrate"] {
            assert_eq!(generation(same), Ok(same.into()));
        }
        assert!(generation("").is_err());
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("1G"), Ok(1 << 30));
        assert_eq!(size("512M"), Ok(512 << 20));
        assert_eq!(size("512MiB"), Ok(512 << 20));
        assert_eq!(size("4kb"), Ok(4096));
        for wrong in [
            "",
            "1",
            "G",
            "1.5G",
            "-1G",
            "0M",
            "1X",
            "99999999999999T",
            "1b",
        ] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_are_seconds_unless_said() {
        assert_eq!(duration("10"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(duration("1h"), Ok(Duration::from_secs(3600)));
        for wrong in ["", "s", "1d", "-1s", "1.5s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn assignments_have_a_key() {
        assert_eq!(assignment("A=b=c"), Ok(("A".into(), "b=c".into())));
        assert_eq!(assignment("A="), Ok(("A".into(), String::new())));
        assert!(assignment("=x").is_err() && assignment("x").is_err());
    }
}
