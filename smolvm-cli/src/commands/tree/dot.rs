//! The same for Graphviz: all points, none counted only.

use super::{Machine, Point};
use crate::output::harmless;

/// A graph in the language of Graphviz, whatever the texts hold.
pub(super) fn dot(points: &[Point], machines: &[Machine]) -> Vec<String> {
    let mut lines = vec![
        "digraph smolvm {".to_owned(),
        "  node [fontname=\"monospace\"];".to_owned(),
    ];
    for (place, point) in points.iter().enumerate() {
        let label = label(&texts(point));
        let style = match (&point.damaged, point.gone) {
            (Some(_), _) => ", color=\"red\"",
            (None, true) => ", style=\"dashed\"",
            (None, false) => "",
        };
        lines.push(format!("  p{place} [shape=box, label=\"{label}\"{style}];"));
        if let Some(parent) = point.parent {
            lines.push(format!("  p{parent} -> p{place};"));
        }
    }
    for (place, machine) in machines.iter().enumerate() {
        let label = label(&[&machine.name, &machine.state]);
        lines.push(format!("  m{place} [shape=ellipse, label=\"{label}\"];"));
        if let Some(head) = machine.head {
            lines.push(format!("  p{head} -> m{place};"));
        }
        let is_source = |other: &Machine| Some(&other.name) == machine.branch_of.as_ref();
        if let Some(source) = machines.iter().position(is_source) {
            lines.push(format!(
                "  m{source} -> m{place} [style=\"dotted\", label=\"branch\"];"
            ));
        }
    }
    lines.push("}".to_owned());
    lines
}

fn texts(point: &Point) -> Vec<&str> {
    if let Some(reason) = &point.damaged {
        return vec![&point.short_id, "damaged", reason];
    }
    let mut texts = vec![&*point.short_id, &*point.taken, &*point.machine];
    if !point.message.is_empty() {
        texts.push(&point.message);
    }
    for (word, is_so) in [("autosave", point.autosave), ("gone", point.gone)] {
        if is_so {
            texts.push(word);
        }
    }
    texts
}

/// Lines of a label, as what stands between quotation marks.
fn label(lines: &[&str]) -> String {
    let escaped = lines.iter().map(|line| {
        let line = harmless(line);
        line.replace('\\', "\\\\").replace('"', "\\\"")
    });
    escaped.collect::<Vec<_>>().join("\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_names_all_and_texts_cannot_leave_their_label() {
        let first = Point {
            short_id: "58a6bb95baca".to_owned(),
            taken: "2026-12-01T02:00:00Z".to_owned(),
            machine: "agent".to_owned(),
            message: "\"]; evil [label=\"\\\n".to_owned(),
            ..Point::default()
        };
        let second = Point {
            parent: Some(0),
            autosave: true,
            gone: true,
            message: String::new(),
            ..first.clone()
        };
        let damaged = Point {
            short_id: "c4c23a7c6d3a".to_owned(),
            damaged: Some("cut off".to_owned()),
            ..Point::default()
        };
        let machines = [
            Machine {
                name: "agent".to_owned(),
                state: "running".to_owned(),
                head: Some(1),
                branch_of: None,
            },
            Machine {
                name: "try-0".to_owned(),
                state: "paused".to_owned(),
                head: Some(1),
                branch_of: Some("agent".to_owned()),
            },
        ];
        insta::assert_snapshot!(dot(&[first, second, damaged], &machines).join("\n"));
    }
}
