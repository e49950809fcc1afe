//! What came out.

use std::time::Duration;

use serde::Serialize;

use super::{Group, Took};

/// One workload in both machines.
#[derive(Debug, Clone)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// What it is made of.
    pub group: Group,
    /// How often it was repeated in a round.
    pub times: u32,
    /// What it took in smolvm's machine, round by round.
    pub ours: Vec<Took>,
    /// And in QEMU's.
    pub theirs: Vec<Took>,
}

impl Row {
    pub(super) fn new(name: &'static str, group: Group, times: u32) -> Self {
        Self {
            name,
            group,
            times,
            ours: Vec::new(),
            theirs: Vec::new(),
        }
    }

    /// Medians: smolvm's and QEMU's processor time, then theirs on the clock, in seconds.
    fn medians(&self) -> [f64; 4] {
        let processor = |took: &Took| took.processor;
        let clock = |took: &Took| took.clock;
        [
            median(self.ours.iter().map(processor)),
            median(self.theirs.iter().map(processor)),
            median(self.ours.iter().map(clock)),
            median(self.theirs.iter().map(clock)),
        ]
    }

    /// Smolvm's processor time by QEMU's.
    pub fn ratio(&self) -> f64 {
        let [ours, theirs, ..] = self.medians();
        ours / theirs
    }
}

/// All workloads.
#[derive(Debug, Clone)]
pub struct Comparison {
    version: String,
    command: String,
    rows: Vec<Row>,
    /// Workloads whose program the image lacks.
    pub missing: Vec<&'static str>,
}

/// A row as JSON has it.
#[derive(Serialize)]
struct Shown {
    name: &'static str,
    group: Group,
    times: u32,
    processor_seconds: [f64; 2],
    clock_seconds: [f64; 2],
    processor_ratio: f64,
    clock_ratio: f64,
}

impl Comparison {
    pub(super) fn new(version: String, command: String) -> Self {
        Self {
            version,
            command,
            rows: Vec::new(),
            missing: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// The rows.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// One JSON object; in pairs smolvm's value is the first.
    ///
    /// # Errors
    ///
    /// When a value has no form in JSON.
    pub fn json(&self) -> serde_json::Result<String> {
        let rows: Vec<Shown> = self.rows.iter().map(shown).collect();
        serde_json::to_string(&serde_json::json!({
            "v": 1,
            "peer": self.version,
            "command": self.command,
            "missing": self.missing,
            "rows": rows,
        }))
    }

    /// The table, group by group.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            self.version.clone(),
            self.command.clone(),
            "smolvm: 1 vCPU of profile v2, backend soft, with the same memory, kernel, initramfs and image".to_owned(),
            String::new(),
            format!(
                "{:<18}{:>7}{:>12}{:>10}{:>8}{:>14}{:>10}{:>8}",
                "workload", "times", "smolvm CPU", "QEMU CPU", "ratio", "smolvm wall", "QEMU", "ratio"
            ),
        ];
        for (group, title) in [
            (Group::Boot, "boot"),
            (Group::Forks, "processes and system calls"),
            (Group::Compute, "computing"),
        ] {
            let rows: Vec<&Row> = self.rows.iter().filter(|row| row.group == group).collect();
            if rows.is_empty() {
                continue;
            }
            lines.push(format!("-- {title}"));
            lines.extend(rows.iter().map(|row| line(row)));
            if let Some(mean) = geometric_mean(rows.iter().map(|row| row.ratio())) {
                lines.push(format!("{:<18}{mean:>37.2}", "geometric mean"));
            }
        }
        if let Some(mean) = geometric_mean(self.rows.iter().map(Row::ratio)) {
            lines.push(format!("{:<18}{mean:>37.2}", "of all"));
        }
        if !self.missing.is_empty() {
            lines.push(format!("not in the image: {}", self.missing.join(", ")));
        }
        lines
    }
}

fn shown(row: &Row) -> Shown {
    let [ours, theirs, our_clock, their_clock] = row.medians();
    Shown {
        name: row.name,
        group: row.group,
        times: row.times,
        processor_seconds: [ours, theirs],
        clock_seconds: [our_clock, their_clock],
        processor_ratio: ours / theirs,
        clock_ratio: our_clock / their_clock,
    }
}

fn line(row: &Row) -> String {
    let s = shown(row);
    format!(
        "{:<18}{:>7}{:>10.2} s{:>8.2} s{:>8.2}{:>12.2} s{:>8.2} s{:>8.2}",
        s.name,
        s.times,
        s.processor_seconds[0],
        s.processor_seconds[1],
        s.processor_ratio,
        s.clock_seconds[0],
        s.clock_seconds[1],
        s.clock_ratio
    )
}

/// Of an even number, the upper of the middle two.
fn median(values: impl Iterator<Item = Duration>) -> f64 {
    let mut values: Vec<Duration> = values.collect();
    values.sort_unstable();
    let middle = values.get(values.len() / 2).copied();
    middle.unwrap_or_default().as_secs_f64()
}

fn geometric_mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0u32);
    for value in values {
        sum += value.ln();
        count += 1;
    }
    (count > 0).then(|| (sum / f64::from(count)).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn took(processor: u64, clock: u64) -> Took {
        Took {
            processor: Duration::from_secs(processor),
            clock: Duration::from_secs(clock),
        }
    }

    fn comparison() -> Comparison {
        let mut all = Comparison::new("QEMU 1".to_owned(), "qemu -x".to_owned());
        for (name, group, ours) in [("a", Group::Forks, 8), ("b", Group::Compute, 2)] {
            let mut row = Row::new(name, group, 5);
            row.ours = vec![took(100, 9), took(ours, 9), took(1, 9)];
            row.theirs = vec![took(4, 3); 3];
            all.add(row);
        }
        all.missing.push("lua");
        all
    }

    #[test]
    fn the_table_has_groups_ratios_and_what_is_missing() {
        let text = comparison().lines().join("\n");
        for wanted in [
            "QEMU 1",
            "qemu -x",
            "-- processes",
            "-- computing",
            "not in the image: lua",
        ] {
            assert!(text.contains(wanted), "{wanted} in {text}");
        }
        let words = |name: &str| -> Vec<String> {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().map(str::to_owned).collect()
        };
        assert_eq!(
            words("a "),
            [
                "a", "5", "8.00", "s", "4.00", "s", "2.00", "9.00", "s", "3.00", "s", "3.00"
            ]
        );
        assert_eq!(words("of all"), ["of", "all", "1.00"]);
    }

    #[test]
    fn json_has_smolvms_value_first() {
        let text = comparison().json().unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            value["rows"][1]["processor_seconds"],
            serde_json::json!([2.0, 4.0])
        );
        assert_eq!(value["rows"][1]["processor_ratio"], 0.5);
        assert_eq!(value["missing"][0], "lua");
    }
}
