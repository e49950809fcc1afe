use std::time::Duration;

use serde::Serialize;

use super::{Comparison, PeerRound, Round};

/// What a figure counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Unit {
    /// Seconds.
    Seconds,
    /// Bytes.
    Bytes,
    /// A part of one.
    Fraction,
}

/// One figure: its median and its extremes over all rounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// What was measured; stable, for scripts.
    pub name: &'static str,
    /// The same for people.
    pub what: &'static str,
    /// What it counts.
    pub unit: Unit,
    /// Median; of an even number, the upper of the middle two.
    pub median: f64,
    /// Least.
    pub least: f64,
    /// Most.
    pub most: f64,
}

/// One median by another of the same run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ratio {
    /// Name of the figure.
    pub of: &'static str,
    /// Name of what it is divided by.
    pub to: &'static str,
    /// The quotient.
    pub value: f64,
}

/// The figures of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Version of this layout, 1.
    pub v: u32,
    /// The backend that ran the machines.
    pub backend: String,
    /// Rounds.
    pub rounds: usize,
    /// Figures in the order of a round.
    pub figures: Vec<Figure>,
    /// Ratios.
    pub ratios: Vec<Ratio>,
    /// The peer's figures, if it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comparison: Option<Comparison>,
}

/// A figure's name, its text, its unit and its value in a round.
type Column = (&'static str, &'static str, Unit, fn(&Round) -> f64);

const COLUMNS: &[Column] = &[
    (
        "boot",
        "start a new machine until exec works",
        Unit::Seconds,
        |r| seconds(r.boot),
    ),
    (
        "booted_start",
        "start one more from the booted point",
        Unit::Seconds,
        |r| seconds(r.booted_start),
    ),
    ("exec", "exec of `true`", Unit::Seconds, |r| seconds(r.exec)),
    ("work", "Python, SQLite, find", Unit::Seconds, |r| {
        seconds(r.work)
    }),
    (
        "first_pause",
        "first checkpoint: guest paused",
        Unit::Seconds,
        |r| seconds(r.first.paused),
    ),
    (
        "first_save",
        "first checkpoint: saved",
        Unit::Seconds,
        |r| seconds(r.first.saved_in),
    ),
    (
        "first_written",
        "first checkpoint: written",
        Unit::Bytes,
        |r| r.first.written_bytes as f64,
    ),
    ("data", "data of memory and disk", Unit::Bytes, |r| {
        r.second.data_bytes as f64
    }),
    (
        "second_pause",
        "next checkpoint: guest paused",
        Unit::Seconds,
        |r| seconds(r.second.paused),
    ),
    (
        "second_save",
        "next checkpoint: saved",
        Unit::Seconds,
        |r| seconds(r.second.saved_in),
    ),
    (
        "second_written",
        "next checkpoint: written",
        Unit::Bytes,
        |r| r.second.written_bytes as f64,
    ),
    (
        "idle",
        "an idle machine: of one processor",
        Unit::Fraction,
        |r| r.idle_share,
    ),
    (
        "host_memory",
        "host memory besides the guest's",
        Unit::Bytes,
        |r| r.host_memory_bytes as f64,
    ),
    (
        "create_from",
        "create a machine from it",
        Unit::Seconds,
        |r| seconds(r.create_from),
    ),
    (
        "restore",
        "start that machine until exec works",
        Unit::Seconds,
        |r| seconds(r.restore),
    ),
    (
        "go_back",
        "both: create and start until exec works",
        Unit::Seconds,
        |r| seconds(r.create_from + r.restore),
    ),
];

const RATIOS: &[(&str, &str)] = &[
    ("second_save", "first_save"),
    ("second_written", "first_written"),
    ("restore", "boot"),
    ("booted_start", "boot"),
    ("work", "boot"),
];

pub(super) fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

impl Report {
    /// The figures of these rounds, of smolvm and of the peer; empty for none.
    pub fn of(rounds: &[Round], peer: &[PeerRound]) -> Self {
        let figures: Vec<Figure> = COLUMNS
            .iter()
            .filter_map(|(name, what, unit, value)| {
                figure(name, what, *unit, rounds.iter().map(value))
            })
            .collect();
        let ratios = RATIOS
            .iter()
            .filter_map(|(of, to)| ratio(&figures, of, to))
            .collect();
        Self {
            v: 1,
            backend: rounds
                .first()
                .map_or_else(String::new, |round| round.backend.clone()),
            rounds: rounds.len(),
            comparison: Comparison::of(&figures, peer),
            figures,
            ratios,
        }
    }

    /// The lines of a table.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            format!(
                "backend {}, medians of {} rounds",
                self.backend, self.rounds
            ),
            String::new(),
            format!("{:<40} {:>12} {:>12} {:>12}", "", "median", "least", "most"),
        ];
        for figure in &self.figures {
            let [median, least, most] = [figure.median, figure.least, figure.most]
                .map(|value| format_value(figure.unit, value));
            lines.push(format!(
                "{:<40} {median:>12} {least:>12} {most:>12}",
                figure.what
            ));
        }
        lines.push(String::new());
        for ratio in &self.ratios {
            lines.push(format!("{} / {}: {:.3}", ratio.of, ratio.to, ratio.value));
        }
        if let Some(comparison) = &self.comparison {
            lines.push(String::new());
            lines.extend(comparison.lines(self));
        }
        lines
    }
}

/// A value as people read it.
pub fn format_value(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Seconds if value < 1.0 => format!("{:.1} ms", value * 1e3),
        Unit::Seconds => format!("{value:.2} s"),
        Unit::Bytes => format!("{:.1} MiB", value / f64::from(1 << 20)),
        Unit::Fraction => format!("{:.1} %", value * 100.0),
    }
}

pub(super) fn figure(
    name: &'static str,
    what: &'static str,
    unit: Unit,
    values: impl Iterator<Item = f64>,
) -> Option<Figure> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    Some(Figure {
        name,
        what,
        unit,
        median: *values.get(values.len() / 2)?,
        least: *values.first()?,
        most: *values.last()?,
    })
}

fn ratio(figures: &[Figure], of: &'static str, to: &'static str) -> Option<Ratio> {
    let median = |name| {
        let found = figures.iter().find(|figure| figure.name == name)?;
        Some(found.median)
    };
    let (above, below) = (median(of)?, median(to)?);
    (below > 0.0).then(|| Ratio {
        of,
        to,
        value: above / below,
    })
}

/// The names of all of smolvm's figures.
#[cfg(test)]
pub(super) fn figures_of() -> impl Iterator<Item = &'static str> {
    COLUMNS.iter().map(|column| column.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure_of(name: &'static str, values: [f64; 3]) -> Figure {
        Figure {
            name,
            what: "",
            unit: Unit::Seconds,
            median: values[1],
            least: values[0],
            most: values[2],
        }
    }

    #[test]
    fn ratios_are_those_of_medians() {
        let figures = [
            figure_of("restore", [1.0, 2.0, 9.0]),
            figure_of("boot", [3.0, 8.0, 9.0]),
            figure_of("none", [0.0, 0.0, 0.0]),
        ];
        assert_eq!(ratio(&figures, "restore", "boot").unwrap().value, 0.25);
        assert_eq!(ratio(&figures, "restore", "none"), None);
        assert_eq!(ratio(&figures, "restore", "missing"), None);
    }

    #[test]
    fn every_ratio_is_of_figures_that_exist() {
        for (of, to) in RATIOS {
            for name in [of, to] {
                assert!(COLUMNS.iter().any(|column| column.0 == *name), "{name}");
            }
        }
    }

    #[test]
    fn values_are_readable() {
        assert_eq!(format_value(Unit::Seconds, 0.0061), "6.1 ms");
        assert_eq!(format_value(Unit::Seconds, 2.5), "2.50 s");
        assert_eq!(format_value(Unit::Bytes, 1_572_864.0), "1.5 MiB");
    }

    #[test]
    fn no_rounds_give_no_figures() {
        let report = Report::of(&[], &[]);
        assert!(report.figures.is_empty() && report.ratios.is_empty());
        // The layout without a peer stays as it was.
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json.get("comparison"), None);
    }
}
