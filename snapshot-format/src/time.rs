//! Wall times of points.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// First second of the year 10000, which the log's form cannot show.
const END_OF_YEARS_SECONDS: u64 = 253_402_300_800;
const NANOS_PER_SECOND: u32 = 1_000_000_000;
const SECONDS_PER_DAY: u64 = 86_400;

/// A moment on the wall clock, from 1970 to the year 9999. Shown as `2026-09-28T03:01:05Z`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallTime {
    /// Whole seconds since 1970-01-01T00:00:00Z, leap seconds not counted.
    pub seconds: u64,
    /// Nanoseconds of the second, below 1,000,000,000.
    pub nanos: u32,
}

impl WallTime {
    /// The last moment of the year 9999.
    pub const LAST: Self = Self {
        seconds: END_OF_YEARS_SECONDS - 1,
        nanos: NANOS_PER_SECOND - 1,
    };

    /// A moment, if it has a meaning: before the year 10000 and with nanoseconds of one second.
    #[must_use]
    pub fn new(seconds: u64, nanos: u32) -> Option<Self> {
        (seconds < END_OF_YEARS_SECONDS && nanos < NANOS_PER_SECOND)
            .then_some(Self { seconds, nanos })
    }

    /// The host's wall clock now; the beginning of 1970 where the clock stands before it.
    #[must_use]
    pub fn now() -> Self {
        SystemTime::now().into()
    }
}

impl From<SystemTime> for WallTime {
    /// Moments before 1970 become its beginning, moments after 9999 its end.
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self::new(since.as_secs(), since.subsec_nanos()).unwrap_or(Self::LAST)
    }
}

impl From<WallTime> for SystemTime {
    fn from(time: WallTime) -> Self {
        UNIX_EPOCH + Duration::new(time.seconds, time.nanos)
    }
}

impl fmt::Display for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = civil_date(self.seconds / SECONDS_PER_DAY);
        let second = self.seconds % SECONDS_PER_DAY;
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        f.pad(&format!(
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z"
        ))
    }
}

/// Year, month and day of the day `days` after 1970-01-01 in the Gregorian calendar.
///
/// Years are counted from March, so that the leap day is a year's last and months follow one formula.
fn civil_date(days: u64) -> (u64, u64, u64) {
    /// Days from 0000-03-01 to 1970-01-01.
    const EPOCH_DAYS: u64 = 719_468;
    const DAYS_PER_400_YEARS: u64 = 146_097;
    let days = days + EPOCH_DAYS;
    let era = days / DAYS_PER_400_YEARS;
    let day_of_era = days % DAYS_PER_400_YEARS;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_follow_the_calendar_day_by_day() {
        // A calendar by counting, from 1970 through 2500.
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for days in 0..194_000 {
            assert_eq!(civil_date(days), (year, month, day));
            let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let length = match month {
                2 => 28 + u64::from(leap),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            day += 1;
            if day > length {
                (month, day) = (month + 1, 1);
            }
            if month > 12 {
                (year, month) = (year + 1, 1);
            }
        }
    }

    #[test]
    fn shown_as_in_the_log() {
        let time = WallTime::new(1_790_564_465, 5).unwrap();
        assert_eq!(time.to_string(), "2026-09-28T03:01:05Z");
        let last = WallTime::new(END_OF_YEARS_SECONDS - 1, 0).unwrap();
        assert_eq!(last.to_string(), "9999-12-31T23:59:59Z");
        assert_eq!(WallTime::new(END_OF_YEARS_SECONDS, 0), None);
        assert_eq!(WallTime::new(0, NANOS_PER_SECOND), None);
    }

    #[test]
    fn system_times_go_there_and_back() {
        let time = WallTime::now();
        assert_eq!(WallTime::from(SystemTime::from(time)), time);
        let before = UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(WallTime::from(before), WallTime::default());
    }
}
