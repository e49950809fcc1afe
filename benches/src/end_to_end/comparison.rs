//! The peer's medians beside smolvm's.

use serde::Serialize;

use super::report::{Figure, figure, seconds};
use super::{PeerRound, Report, format_value};

/// What the peer was, and its figures.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Its name, version and what ran its vCPU.
    pub peer: String,
    /// Its figures; each has one of smolvm's of the same name.
    pub figures: Vec<Figure>,
    /// Smolvm's medians by the peer's.
    pub ratios: Vec<PeerRatio>,
}

/// Smolvm's median by the peer's of the same run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PeerRatio {
    /// Name of the figure.
    pub of: &'static str,
    /// The quotient.
    pub value: f64,
}

/// A figure's name, as smolvm's has it, and its value in a round.
type Column = (&'static str, fn(&PeerRound) -> f64);

const COLUMNS: &[Column] = &[
    ("boot", |r| seconds(r.boot)),
    ("exec", |r| seconds(r.exec)),
    ("work", |r| seconds(r.work)),
    ("first_pause", |r| seconds(r.first.paused)),
    ("first_save", |r| seconds(r.first.saved_in)),
    ("first_written", |r| r.first.written_bytes as f64),
    ("second_pause", |r| seconds(r.second.paused)),
    ("second_save", |r| seconds(r.second.saved_in)),
    ("second_written", |r| r.second.written_bytes as f64),
    ("idle", |r| r.idle_share),
    ("host_memory", |r| r.host_memory_bytes as f64),
    ("go_back", |r| seconds(r.go_back)),
];

impl Comparison {
    /// The peer's figures beside these of smolvm; `None` without rounds.
    pub(super) fn of(own: &[Figure], rounds: &[PeerRound]) -> Option<Self> {
        let first = rounds.first()?;
        let figures: Vec<Figure> = COLUMNS
            .iter()
            .filter_map(|(name, value)| {
                let own = own.iter().find(|figure| figure.name == *name)?;
                figure(own.name, own.what, own.unit, rounds.iter().map(value))
            })
            .collect();
        let ratios = figures
            .iter()
            .filter_map(|theirs| {
                let own = own.iter().find(|figure| figure.name == theirs.name)?;
                (theirs.median > 0.0).then(|| PeerRatio {
                    of: theirs.name,
                    value: own.median / theirs.median,
                })
            })
            .collect();
        Some(Self {
            peer: format!("QEMU {} ({})", first.version, first.accelerator),
            figures,
            ratios,
        })
    }

    /// The lines of a table of medians.
    pub(super) fn lines(&self, report: &Report) -> Vec<String> {
        let head = format!("smolvm ({})", report.backend);
        let mut lines = vec![format!(
            "{:<40} {head:>16} {:>20} {:>10}",
            "medians", self.peer, "ratio"
        )];
        for theirs in &self.figures {
            let Some(own) = report.figures.iter().find(|own| own.name == theirs.name) else {
                continue;
            };
            let ratio = self.ratios.iter().find(|ratio| ratio.of == theirs.name);
            let [own, peer] = [own.median, theirs.median].map(|m| format_value(theirs.unit, m));
            lines.push(format!(
                "{:<40} {own:>16} {peer:>20} {:>10}",
                theirs.what,
                ratio.map_or_else(|| "-".to_owned(), |ratio| format_ratio(ratio.value)),
            ));
        }
        lines
    }
}

/// A ratio as people read it, with two digits that count.
fn format_ratio(value: f64) -> String {
    let decimals = (1.0 - value.log10().floor()).clamp(0.0, 6.0);
    format!("{value:.*}", decimals as usize)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::end_to_end::Unit;
    use crate::end_to_end::report::figures_of;
    use crate::peer::Saved;

    fn round(boot_seconds: u64) -> PeerRound {
        let saved = Saved {
            paused: Duration::from_secs(1),
            saved_in: Duration::from_secs(2),
            written_bytes: 3 << 20,
        };
        PeerRound {
            version: "1.2.3".to_owned(),
            accelerator: "tcg",
            boot: Duration::from_secs(boot_seconds),
            exec: Duration::ZERO,
            work: Duration::from_secs(1),
            first: saved,
            second: saved,
            idle_share: 0.1,
            host_memory_bytes: 1 << 20,
            go_back: Duration::from_secs(1),
        }
    }

    fn own(name: &'static str, median: f64) -> Figure {
        Figure {
            name,
            what: "what it is",
            unit: Unit::Seconds,
            median,
            least: 0.0,
            most: 100.0,
        }
    }

    #[test]
    fn each_of_the_peers_figures_has_one_of_smolvm() {
        for (name, _) in COLUMNS {
            assert!(figures_of().any(|own| own == *name), "{name}");
        }
    }

    #[test]
    fn medians_are_compared() {
        let figures = [own("boot", 3.0), own("exec", 1.0), own("data", 1.0)];
        let comparison = Comparison::of(&figures, &[round(9), round(2), round(4)]).unwrap();
        assert_eq!(comparison.peer, "QEMU 1.2.3 (tcg)");
        let names: Vec<_> = comparison.figures.iter().map(|f| f.name).collect();
        assert_eq!(names, ["boot", "exec"]);
        assert_eq!(comparison.figures[0].median, 4.0);
        let expected = [PeerRatio {
            of: "boot",
            value: 0.75,
        }];
        assert_eq!(comparison.ratios, expected, "nothing is divided by zero");
    }

    #[test]
    fn the_table_names_the_peer_and_shows_each_ratio() {
        let figures = vec![own("boot", 3.0), own("exec", 1.0)];
        let mut report = Report::of(&[], &[]);
        report.backend = "soft".to_owned();
        let comparison = Comparison::of(&figures, &[round(4)]).unwrap();
        report.figures = figures;
        let lines = comparison.lines(&report);
        assert!(lines[0].contains("smolvm (soft)") && lines[0].contains("QEMU 1.2.3 (tcg)"));
        assert!(lines[1].ends_with(" 0.75") && lines[1].contains("4.00 s"));
        assert!(lines[2].ends_with(" -"), "{}", lines[2]);
    }

    #[test]
    fn no_rounds_compare_nothing() {
        assert_eq!(Comparison::of(&[own("boot", 1.0)], &[]), None);
    }

    #[test]
    fn ratios_are_readable() {
        let shown = [0.0, 0.00065, 0.1234, 1.5, 123.4].map(format_ratio);
        assert_eq!(shown, ["0.000000", "0.00065", "0.12", "1.5", "123"]);
    }
}
