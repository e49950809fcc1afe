//! Times as text.

use snapshot_format::WallTime;

/// Seconds since 1970 as `2026-09-28T03:01:05Z`; what comes after the year 9999 as its end.
pub fn format_utc(seconds: u64) -> String {
    WallTime::new(seconds, 0)
        .unwrap_or(WallTime::LAST)
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::format_utc;

    #[test]
    fn knows_the_calendar() {
        assert_eq!(format_utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(format_utc(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(format_utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(format_utc(1_790_564_465), "2026-09-28T03:01:05Z");
        assert_eq!(format_utc(4_107_542_400), "2100-03-01T00:00:00Z");
        assert_eq!(format_utc(u64::MAX), "9999-12-31T23:59:59Z");
    }
}
