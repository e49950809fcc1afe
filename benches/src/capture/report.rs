use serde::Serialize;

use super::Scenario;
use super::side::Figures;
use crate::end_to_end::{Unit, format_value};

/// Percentiles of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Percentiles {
    /// The 50th.
    pub p50: f64,
    /// The 90th.
    pub p90: f64,
    /// The 99th.
    pub p99: f64,
}

impl Percentiles {
    /// Those of some values; `None` without any. Of two that fit, the upper.
    fn of(values: &[f64]) -> Option<Self> {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)?;
        let at = |percent: usize| values[(values.len() * percent / 100).min(last)];
        Some(Self {
            p50: at(50),
            p90: at(90),
            p99: at(99),
        })
    }
}

/// A figure of a scenario.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The scenario.
    pub scenario: String,
    /// Name of the figure; stable, for scripts.
    pub name: &'static str,
    /// What it is.
    pub what: &'static str,
    /// What it counts.
    pub unit: Unit,
    /// Smolvm's, where it has this figure.
    pub smolvm: Option<Percentiles>,
    /// QEMU's.
    pub qemu: Option<Percentiles>,
    /// Smolvm's median by QEMU's.
    pub ratio: Option<f64>,
}

/// All figures.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    /// The backend that ran smolvm's machines.
    pub backend: String,
    /// Figures, scenario by scenario.
    pub rows: Vec<Row>,
}

/// Figures in their order: name, text, unit.
const FIGURES: &[(&str, &str, Unit)] = &[
    ("first_save", "first save, all of memory", Unit::Seconds),
    ("gap", "longest gap in the guest over a save", Unit::Seconds),
    ("jitter", "the same without a save", Unit::Seconds),
    ("gap_above", "gap above that", Unit::Seconds),
    ("paused", "paused, by the monitor's clock", Unit::Seconds),
    ("returned", "save until it is durable", Unit::Seconds),
    ("read", "read by its processes", Unit::Bytes),
    ("written", "written by its processes", Unit::Bytes),
    (
        "written_by_new",
        "written, by the size of what is new",
        Unit::Fraction,
    ),
    ("migrate", "written to a file while it runs", Unit::Seconds),
    ("migrate_paused", "paused at the end of that", Unit::Seconds),
    (
        "go_back",
        "64 MiB changed, back under its name to exec",
        Unit::Seconds,
    ),
    (
        "undo_kept",
        "the same, the state that is left kept",
        Unit::Seconds,
    ),
    ("undo_durable", "until that is durable", Unit::Seconds),
    (
        "restore",
        "new processes at the save to exec",
        Unit::Seconds,
    ),
    (
        "restore_and_read",
        "to 64 MiB of old memory read",
        Unit::Seconds,
    ),
];

/// A scenario in words.
pub(super) fn title(scenario: &Scenario) -> String {
    let Scenario {
        memory_mib,
        dirty_mib,
        layout,
        history,
        saves,
        ..
    } = scenario;
    format!(
        "{memory_mib} MiB of memory, {dirty_mib} MiB {} dirty, after {history} points, {saves} saves",
        layout.word()
    )
}

impl Report {
    /// Adds what a scenario gave.
    pub(super) fn add(&mut self, scenario: &Scenario, own: Figures, peer: Option<Figures>) {
        self.add_rows(title(scenario), &own, peer.as_ref());
    }

    /// Adds what machines with much memory in use gave.
    pub(super) fn add_in_use(&mut self, used_mib: u32, own: Figures, peer: Option<Figures>) {
        self.add_rows(format!("{used_mib} MiB in use"), &own, peer.as_ref());
    }

    fn add_rows(&mut self, scenario: String, own: &Figures, peer: Option<&Figures>) {
        for (name, what, unit) in FIGURES {
            let of = |figures: &Figures| Percentiles::of(figures.get(name)?);
            let (smolvm, qemu) = (of(own), peer.and_then(of));
            if smolvm.is_none() && qemu.is_none() {
                continue;
            }
            let ratio = smolvm.zip(qemu).filter(|(_, qemu)| qemu.p50 > 0.0);
            self.rows.push(Row {
                scenario: scenario.clone(),
                name,
                what,
                unit: *unit,
                smolvm,
                qemu,
                ratio: ratio.map(|(smolvm, qemu)| smolvm.p50 / qemu.p50),
            });
        }
    }

    /// A table for people.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut scenario = None;
        for row in &self.rows {
            if scenario != Some(&row.scenario) {
                scenario = Some(&row.scenario);
                lines.push(String::new());
                lines.push(row.scenario.clone());
                lines.push(format!(
                    "  {:<44} {:>34} {:>34} {:>7}",
                    "p50, p90, p99",
                    format!("smolvm ({})", self.backend),
                    "QEMU",
                    "ratio"
                ));
            }
            let shown = |found: Option<Percentiles>| {
                found.map_or_else(
                    || "-".to_owned(),
                    |Percentiles { p50, p90, p99 }| {
                        [p50, p90, p99]
                            .map(|value| format_value(row.unit, value))
                            .join(", ")
                    },
                )
            };
            lines.push(format!(
                "  {:<44} {:>34} {:>34} {:>7}",
                row.what,
                shown(row.smolvm),
                shown(row.qemu),
                row.ratio
                    .map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}")),
            ));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::{FIRST, Options, scenarios};

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let values: Vec<f64> = (0..200).map(|value| f64::from(199 - value)).collect();
        let expected = Percentiles {
            p50: 100.0,
            p90: 180.0,
            p99: 198.0,
        };
        assert_eq!(Percentiles::of(&values), Some(expected));
        assert_eq!(Percentiles::of(&[3.0]).unwrap().p99, 3.0);
        assert_eq!(Percentiles::of(&[]), None);
    }

    #[test]
    fn each_figure_is_shown_beside_its_peers() {
        let own = Figures::from([("gap", vec![1.0, 3.0]), ("undo_kept", vec![2.0])]);
        let peer = Figures::from([("gap", vec![6.0]), ("migrate", vec![1.0])]);
        let mut report = Report::default();
        report.add(&FIRST, own, Some(peer));
        let names: Vec<_> = report
            .rows
            .iter()
            .map(|row| (row.name, row.ratio))
            .collect();
        assert_eq!(
            names,
            [("gap", Some(0.5)), ("migrate", None), ("undo_kept", None)]
        );
        let lines = report.lines();
        assert_eq!(lines.len(), 3 + 3, "{lines:?}");
        assert!(lines[3].ends_with("0.500") && lines[3].contains("3.00 s"));
    }

    #[test]
    fn scenarios_differ_in_one_thing() {
        let all = scenarios(&Options::default());
        assert_eq!(all.len(), 8);
        for (number, scenario) in all.iter().enumerate().skip(1) {
            assert!(
                all[..number]
                    .iter()
                    .all(|other| title(other) != title(scenario))
            );
        }
        let quick = Options {
            axis_saves: 0,
            ..Options::default()
        };
        assert_eq!(scenarios(&quick).len(), 1);
    }
}
