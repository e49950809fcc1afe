//! Quantities as people read them.

use std::time::Duration;

/// A number of bytes: `401 MiB`, `18.4 MiB`, `8 GiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let exponent = (bytes.ilog2() / 10).min(UNITS.len() as u32);
    let value = bytes as f64 / (1_u64 << (10 * exponent)) as f64;
    let unit = UNITS[exponent as usize - 1];
    if value >= 100.0 || value.fract() < 0.05 {
        format!("{value:.0} {unit}")
    } else {
        format!("{value:.1} {unit}")
    }
}

/// A time in seconds as people say it: `10 s`, `0.5 s`.
pub(crate) fn seconds(time: Duration) -> String {
    if time.subsec_millis() == 0 {
        format!("{} s", time.as_secs())
    } else {
        format!("{:.1} s", time.as_secs_f64())
    }
}

/// How long ago something was, in its largest unit: `40 s`, `5 min`, `3 h`, `12 d`.
pub(crate) fn age(time: Duration) -> String {
    let seconds = time.as_secs();
    let units = [(86_400, "d"), (3600, "h"), (60, "min")];
    let unit = units.into_iter().find(|(length, _)| seconds >= *length);
    let (length, name) = unit.unwrap_or((1, "s"));
    format!("{} {name}", seconds / length)
}

/// An interval as it is typed, in its largest unit that says it exactly: `90s`, `5m`, `1h`.
pub(crate) fn every(seconds: u64) -> String {
    let exact = |(length, _): &(u64, &str)| seconds > 0 && seconds.is_multiple_of(*length);
    let unit = [(3600, "h"), (60, "m")].into_iter().find(exact);
    let (length, name) = unit.unwrap_or((1, "s"));
    format!("{}{name}", seconds / length)
}

/// A short time: `6.1 ms`.
pub(crate) fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

/// A number and what is counted.
pub(crate) fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// `yes` or `no`.
pub(crate) fn yes_no(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_said_as_they_are_typed() {
        for text in ["1s", "90s", "5m", "61m", "1h", "24h"] {
            let typed = crate::args::values::duration(text).unwrap();
            assert_eq!(every(typed.as_secs()), text);
        }
    }

    #[test]
    fn bytes_are_readable() {
        for (value, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1 << 30, "1 GiB"),
            (401 << 20, "401 MiB"),
            (19_293_798, "18.4 MiB"),
            (u64::MAX, "16384 PiB"),
        ] {
            assert_eq!(bytes(value), text);
        }
    }

    #[test]
    fn times_are_readable() {
        assert_eq!(seconds(Duration::from_secs(10)), "10 s");
        assert_eq!(seconds(Duration::from_millis(500)), "0.5 s");
        for (time, text) in [
            (0, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (7199, "1 h"),
            (90_000, "1 d"),
        ] {
            assert_eq!(age(Duration::from_secs(time)), text);
        }
    }
}
