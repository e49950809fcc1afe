//! Which of many points are kept: one rule, for `checkpoint-prune` and for autosaves.

use std::collections::HashSet;
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

const HOUR_SECONDS: u64 = 3600;
const DAY_SECONDS: u64 = 24 * HOUR_SECONDS;
/// Days from a Monday to 1970-01-01, a Thursday.
const FROM_MONDAY_DAYS: u64 = 3;

/// How many points are kept of a row of them.
///
/// `last` keeps that many of the newest. `hourly` keeps the newest of each hour, for as many hours as it says: only those in which
/// there is a point are counted, from the newest on. So do `daily` and `weekly`; weeks begin on Monday, and all is by UTC. A point
/// stays if any of them keeps it. Without any all stay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Retention {
    /// Newest points.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<NonZeroU32>,
    /// Hours of which the newest point is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hourly: Option<NonZeroU32>,
    /// Days of which the newest point is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub daily: Option<NonZeroU32>,
    /// Weeks of which the newest point is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weekly: Option<NonZeroU32>,
}

/// A part of a [`Retention`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeepRule {
    /// [`Retention::last`].
    Last,
    /// [`Retention::hourly`].
    Hourly,
    /// [`Retention::daily`].
    Daily,
    /// [`Retention::weekly`].
    Weekly,
}

impl KeepRule {
    /// Its name, as in the flag `--keep-hourly`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Last => "last",
            Self::Hourly => "hourly",
            Self::Daily => "daily",
            Self::Weekly => "weekly",
        }
    }

    /// What points have in common of which it keeps one; `Last` tells all apart.
    fn span(self, position: usize, taken_unix: u64) -> u64 {
        match self {
            Self::Last => position as u64,
            Self::Hourly => taken_unix / HOUR_SECONDS,
            Self::Daily => taken_unix / DAY_SECONDS,
            Self::Weekly => (taken_unix / DAY_SECONDS + FROM_MONDAY_DAYS) / 7,
        }
    }
}

impl Retention {
    /// Whether it says nothing: all points stay.
    pub fn is_empty(&self) -> bool {
        self.rules().next().is_none()
    }

    /// What keeps each of the points: nothing does for those to be given up. They are given by the seconds since 1970 when they were
    /// taken, the oldest first. That order counts, whatever a clock that was set back says.
    pub fn judge(&self, taken_unix: &[u64]) -> Vec<Vec<KeepRule>> {
        let mut kept = vec![Vec::new(); taken_unix.len()];
        for (rule, count) in self.rules() {
            let mut spans = HashSet::new();
            for (position, taken) in taken_unix.iter().enumerate().rev() {
                if spans.len() >= count.get() as usize {
                    break;
                }
                if spans.insert(rule.span(position, *taken)) {
                    kept[position].push(rule);
                }
            }
        }
        kept
    }

    fn rules(&self) -> impl Iterator<Item = (KeepRule, NonZeroU32)> + use<> {
        let rules = [
            (KeepRule::Last, self.last),
            (KeepRule::Hourly, self.hourly),
            (KeepRule::Daily, self.daily),
            (KeepRule::Weekly, self.weekly),
        ];
        rules
            .into_iter()
            .filter_map(|(rule, count)| Some((rule, count?)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 2026-09-28, a Monday, 00:00.
    const MONDAY: u64 = 1_790_553_600;

    fn count(count: u32) -> Option<NonZeroU32> {
        NonZeroU32::new(count)
    }

    fn kept(retention: Retention, taken: &[u64]) -> Vec<usize> {
        let judged = retention.judge(taken);
        let kept = judged
            .iter()
            .enumerate()
            .filter(|(_, rules)| !rules.is_empty());
        kept.map(|(position, _)| position).collect()
    }

    #[test]
    fn the_newest_of_each_span_stays() {
        assert_eq!(crate::time::format_utc(MONDAY), "2026-09-28T00:00:00Z");
        let hours = |hours: &[u64]| -> Vec<u64> {
            hours
                .iter()
                .map(|hour| MONDAY + hour * HOUR_SECONDS)
                .collect()
        };
        let none = Retention::default();
        assert!(none.is_empty());
        // Two in one hour; an hour without any is not counted.
        let mut taken = hours(&[0, 1, 1, 4, 5]);
        taken[2] += 59 * 60 + 59;
        let hourly = Retention {
            hourly: count(3),
            ..none
        };
        assert_eq!(kept(hourly, &taken), [2, 3, 4]);
        let last = Retention {
            last: count(2),
            ..none
        };
        assert_eq!(kept(last, &taken), [3, 4]);
        // The days before and after midnight, and the weeks before and after Monday.
        let mut taken = hours(&[23, 24, 47]);
        taken.insert(0, MONDAY - 1);
        let daily = Retention {
            daily: count(9),
            ..none
        };
        assert_eq!(kept(daily, &taken), [0, 1, 3]);
        let weekly = Retention {
            weekly: count(9),
            ..none
        };
        assert_eq!(kept(weekly, &taken), [0, 3]);
        let week = 7 * 24;
        assert_eq!(
            kept(weekly, &hours(&[0, week - 1, week, 2 * week - 1])),
            [1, 3]
        );
        let all = Retention {
            last: count(1),
            daily: count(1),
            ..none
        };
        assert_eq!(
            all.judge(&hours(&[0, 1])),
            [vec![], vec![KeepRule::Last, KeepRule::Daily]]
        );
        assert_eq!(none.judge(&[1, 2]), [vec![], vec![]]);
    }

    #[test]
    fn a_schedule_without_it_is_read_and_written_as_before() {
        let text = serde_json::to_string(&Retention::default()).unwrap();
        assert_eq!(text, "{}");
        let some = Retention {
            last: count(12),
            weekly: count(4),
            ..Retention::default()
        };
        let text = serde_json::to_string(&some).unwrap();
        assert_eq!(text, r#"{"last":12,"weekly":4}"#);
        assert_eq!(serde_json::from_str::<Retention>(&text).unwrap(), some);
    }

    /// What stays, said in another way: group all by span, then take the newest of each of the newest groups.
    fn model(retention: &Retention, taken: &[u64]) -> HashSet<usize> {
        let mut stays = HashSet::new();
        if let Some(count) = retention.last {
            stays.extend((0..taken.len()).rev().take(count.get() as usize));
        }
        type SpanOf = fn(u64) -> String;
        let spans: [(Option<NonZeroU32>, SpanOf); 3] = [
            (retention.hourly, |unix| {
                crate::time::format_utc(unix)[..13].to_owned()
            }),
            (retention.daily, |unix| {
                crate::time::format_utc(unix)[..10].to_owned()
            }),
            (retention.weekly, |unix| {
                // The date of its Monday.
                let monday = (0..7)
                    .find(|back| (unix / DAY_SECONDS - back) % 7 == 4)
                    .unwrap();
                crate::time::format_utc(unix - monday * DAY_SECONDS)[..10].to_owned()
            }),
        ];
        for (count, span) in spans {
            let mut newest: Vec<(String, usize)> = Vec::new();
            for (position, unix) in taken.iter().enumerate() {
                newest.retain(|(other, _)| *other != span(*unix));
                newest.push((span(*unix), position));
            }
            let count = count.map_or(0, NonZeroU32::get) as usize;
            stays.extend(
                newest
                    .iter()
                    .rev()
                    .take(count)
                    .map(|(_, position)| position),
            );
        }
        stays
    }

    fn rule() -> impl Strategy<Value = Option<NonZeroU32>> {
        (0..6_u32).prop_map(NonZeroU32::new)
    }

    proptest! {
        #[test]
        fn what_stays_is_what_the_rule_says(
            last in rule(), hourly in rule(), daily in rule(), weekly in rule(),
            steps in proptest::collection::vec((-4_000_i64..400_000, 0..3_u8), 0..40),
        ) {
            let retention = Retention { last, hourly, daily, weekly };
            // Mostly forwards, a clock that was set back now and then, and some within one second.
            let mut now = MONDAY;
            let taken: Vec<u64> = steps.iter().map(|(step, kind)| {
                now = now.saturating_add_signed(match kind { 0 => 0, 1 => step % 5_000, _ => *step });
                now
            }).collect();
            let stays = kept(retention, &taken);
            prop_assert_eq!(stays.iter().copied().collect::<HashSet<_>>(), model(&retention, &taken));
            if !retention.is_empty() && !taken.is_empty() {
                prop_assert!(stays.contains(&(taken.len() - 1)), "the newest stays");
            }
            // Of what stays all stays.
            let left: Vec<u64> = stays.iter().map(|position| taken[*position]).collect();
            prop_assert_eq!(kept(retention, &left).len(), left.len());
        }
    }
}
