//! The drawing: points below one another, the longest line of descent straight down, the others beside it.
//!
//! Since what goes straight down is the larger part at each fork, no line is indented more often than the number of points can be
//! halved: 200 points need at most seven steps.

use super::{Machine, Point};
use crate::output::{count, harmless};

/// Columns of a line.
const WIDTH: usize = 80;
/// Points between, that say nothing new, from which on they are counted on one line; fewer where all are autosaves.
const COUNTED_FROM: usize = 3;
const AUTOSAVES_COUNTED_FROM: usize = 2;

/// Draws points and machines, whatever their texts hold. Parents stand before their children.
pub(super) fn draw(points: &[Point], machines: &[Machine]) -> Vec<String> {
    let mut drawing = Drawing::new(points, machines);
    for (place, point) in points.iter().enumerate() {
        if point.parent.is_some() {
            continue;
        }
        drawing.part();
        if let Some(parent) = &point.lost_parent {
            let parent = harmless(parent);
            drawing.line("", &format!("… its parent {parent} is not known here"));
        }
        drawing.column(place, "", "");
    }
    drawing.machines_without_a_point();
    drawing.lines
}

struct Drawing<'a> {
    points: &'a [Point],
    machines: &'a [Machine],
    /// Children of each point.
    children: Vec<Vec<usize>>,
    /// Machines at each point.
    heads: Vec<Vec<usize>>,
    /// Points in the part of the family that begins with each.
    sizes: Vec<usize>,
    lines: Vec<String>,
}

impl<'a> Drawing<'a> {
    fn new(points: &'a [Point], machines: &'a [Machine]) -> Self {
        let mut children = vec![Vec::new(); points.len()];
        let mut heads = vec![Vec::new(); points.len()];
        let mut sizes = vec![1; points.len()];
        for (place, point) in points.iter().enumerate() {
            if let Some(parent) = point.parent {
                children[parent].push(place);
            }
        }
        for (place, machine) in machines.iter().enumerate() {
            if let Some(head) = machine.head {
                heads[head].push(place);
            }
        }
        for (place, point) in points.iter().enumerate().rev() {
            if let Some(parent) = point.parent {
                sizes[parent] += sizes[place];
            }
        }
        Self {
            points,
            machines,
            children,
            heads,
            sizes,
            lines: Vec::new(),
        }
    }

    /// Begins a part that has nothing to do with the one before.
    fn part(&mut self) {
        if !self.lines.is_empty() {
            self.lines.push(String::new());
        }
    }

    fn line(&mut self, lead: &str, text: &str) {
        self.lines.push(cut(&format!("{lead}{text}"), WIDTH));
    }

    /// Draws a point and what goes straight down from it; its own line begins with `lead`, the others with `rest`.
    fn column(&mut self, from: usize, lead: &str, rest: &str) {
        let mut lead = lead;
        let mut next = Some(from);
        let mut between = Vec::new();
        while let Some(place) = next {
            if place != from && self.says_nothing_new(place) {
                between.push(place);
                next = self.children[place].first().copied();
                continue;
            }
            self.counted(&mut between, rest);
            self.line(lead, &format!("o {}", point_text(&self.points[place])));
            lead = rest;
            let children = self.children[place].clone();
            // Of equal ones the newest.
            next = children
                .iter()
                .copied()
                .max_by_key(|child| self.sizes[*child]);
            self.beside(place, next, &children, rest);
        }
    }

    /// Draws what does not go straight down from a point.
    fn beside(&mut self, place: usize, straight: Option<usize>, children: &[usize], rest: &str) {
        let heads = self.heads[place].clone();
        for (number, head) in heads.iter().enumerate() {
            let is_last = straight.is_none() && number + 1 == heads.len();
            let corner = if is_last { "└─" } else { "├─" };
            let text = machine_text(&self.machines[*head]);
            self.line(&format!("{rest}{corner}"), &text);
        }
        for child in children {
            if Some(*child) != straight {
                self.column(*child, &format!("{rest}├─"), &format!("{rest}│ "));
            }
        }
    }

    fn says_nothing_new(&self, place: usize) -> bool {
        self.children[place].len() == 1
            && self.heads[place].is_empty()
            && self.points[place].damaged.is_none()
    }

    /// Draws points between others, on one line if they are many.
    fn counted(&mut self, between: &mut Vec<usize>, rest: &str) {
        let between = std::mem::take(between);
        let is_autosave = |place: &&usize| self.points[**place].autosave;
        let autosaves = between.iter().filter(is_autosave).count();
        let all_are = autosaves == between.len();
        if between.len() < COUNTED_FROM && !(all_are && between.len() >= AUTOSAVES_COUNTED_FROM) {
            for place in between {
                self.line(rest, &format!("o {}", point_text(&self.points[place])));
            }
            return;
        }
        let points = count(between.len() as u64, "point", "points");
        let text = match autosaves {
            _ if all_are => count(autosaves as u64, "autosave", "autosaves"),
            0 => points,
            some => format!("{points}, {some} of them autosaves"),
        };
        self.line(rest, &format!("… {text}"));
    }

    /// Machines that were never saved, each below the one that it is a branch of.
    fn machines_without_a_point(&mut self) {
        let loose = |machine: &Machine| machine.head.is_none();
        let machines = self.machines;
        let source = |machine: &Machine| {
            let source = machine.branch_of.as_ref()?;
            let is_source = |other: &Machine| loose(other) && other.name == *source;
            machines.iter().position(is_source)
        };
        let mut below = vec![Vec::new(); machines.len()];
        let mut first = Vec::new();
        for (place, machine) in machines.iter().enumerate() {
            match source(machine) {
                _ if !loose(machine) => {}
                Some(source) if source != place => below[source].push(place),
                _ => first.push(place),
            }
        }
        let mut drawn = vec![false; machines.len()];
        // Names are given anew, so what is a branch of what may go in a circle.
        let rest = (0..machines.len()).filter(|place| loose(&machines[*place]));
        for place in first.into_iter().chain(rest) {
            if !drawn[place] {
                self.part();
                self.branches(place, &below, &mut drawn);
            }
        }
    }

    /// Draws a machine and its branches, and theirs. A branch of a branch may be of any depth: it is indented as far as that can be read.
    fn branches(&mut self, from: usize, below: &[Vec<usize>], drawn: &mut [bool]) {
        const DEEPEST: usize = 12;
        let mut waiting = vec![(from, 0_usize)];
        while let Some((place, depth)) = waiting.pop() {
            if std::mem::replace(&mut drawn[place], true) {
                continue;
            }
            let lead = match depth {
                0 => String::new(),
                depth => format!("{}└─", "  ".repeat(depth.min(DEEPEST) - 1)),
            };
            self.line(&lead, &machine_text(&self.machines[place]));
            let children = below[place].iter().rev();
            waiting.extend(children.map(|child| (*child, depth + 1)));
        }
    }
}

fn point_text(point: &Point) -> String {
    let id = harmless(&point.short_id);
    if let Some(reason) = &point.damaged {
        return format!("{id}  (damaged: {})", harmless(reason));
    }
    let mut text = format!("{id}  {}  {}", point.taken, harmless(&point.machine));
    if point.gone {
        text.push_str("  (gone)");
    }
    if point.autosave {
        text.push_str("  autosave");
    }
    if !point.message.is_empty() {
        text.push_str(&format!("  \"{}\"", harmless(&point.message)));
    }
    text
}

fn machine_text(machine: &Machine) -> String {
    let mut text = format!(
        "@ {}  {}",
        harmless(&machine.name),
        harmless(&machine.state)
    );
    if let Some(source) = &machine.branch_of {
        text.push_str(&format!("  branch of {}", harmless(source)));
    }
    text
}

/// `text`, which holds nothing that steers, within so many columns.
fn cut(text: &str, columns: usize) -> String {
    let width = |c: char| match u32::from(c) {
        // Combining marks and the like have none; to count them costs a column, not the form.
        0..0x1100 | 0x2000..0x2e80 => 1,
        _ => 2,
    };
    if text.chars().map(width).sum::<usize>() <= columns {
        return text.to_owned();
    }
    let mut out = String::new();
    let mut used = 0;
    for c in text.chars() {
        used += width(c);
        if used >= columns {
            break;
        }
        out.push(c);
    }
    out.push('…');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(number: usize, parent: Option<usize>) -> Point {
        Point {
            short_id: format!("{number:012x}"),
            parent,
            taken: format!("2026-12-01T02:{:02}:{:02}Z", number / 60, number % 60),
            machine: "agent".to_owned(),
            ..Point::default()
        }
    }

    fn chain(count: usize) -> Vec<Point> {
        let parent = |number: usize| number.checked_sub(1);
        (0..count)
            .map(|number| point(number, parent(number)))
            .collect()
    }

    fn machine(name: &str, state: &str, head: Option<usize>) -> Machine {
        Machine {
            name: name.to_owned(),
            state: state.to_owned(),
            head,
            branch_of: None,
        }
    }

    fn drawn(points: &[Point], machines: &[Machine]) -> String {
        let lines = draw(points, machines);
        for line in &lines {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
        lines.join("\n")
    }

    #[test]
    fn nothing_is_nothing() {
        assert_eq!(drawn(&[], &[]), "");
    }

    #[test]
    fn a_chain_is_counted() {
        let mut points = chain(20);
        points[0].message = "before migrate".to_owned();
        insta::assert_snapshot!(drawn(&points, &[machine("agent", "running", Some(19))]));
    }

    #[test]
    fn few_points_between_are_shown_and_autosaves_are_counted() {
        let mut points = chain(12);
        for place in [5, 6, 9, 10] {
            points[place].autosave = true;
        }
        points[11].autosave = true;
        let machines = [
            machine("first", "stopped", Some(0)),
            machine("one", "paused", Some(3)),
            machine("two", "running", Some(7)),
            machine(
                "agent",
                "failed: kernel panic: Attempted to kill init! exitcode=0x00000009 and more",
                Some(11),
            ),
        ];
        insta::assert_snapshot!(drawn(&points, &machines));
    }

    #[test]
    fn forks_show_their_ways() {
        let mut points = chain(6);
        points.push(point(6, Some(2)));
        points.push(point(7, Some(6)));
        points.push(point(8, Some(2)));
        points[8].message = "another try".to_owned();
        let mut machines = vec![
            machine("agent", "running", Some(5)),
            machine("rewind", "stopped", Some(7)),
        ];
        for number in 0..3 {
            let mut branch = machine(&format!("try-{number}"), "running", Some(5));
            branch.branch_of = Some("agent".to_owned());
            machines.push(branch);
        }
        insta::assert_snapshot!(drawn(&points, &machines));
    }

    #[test]
    fn two_hundred_points_stay_readable() {
        let mut points = chain(100);
        // A fork every tenth point, and forks of those.
        for place in (0..100).step_by(10) {
            let fork = points.len();
            points.push(point(fork, Some(place)));
            for number in 1..10 {
                let parent = if number == 6 {
                    fork + 2
                } else {
                    fork + number - 1
                };
                points.push(point(fork + number, Some(parent)));
            }
        }
        assert_eq!(points.len(), 200);
        let machines = [
            machine("agent", "running", Some(99)),
            machine("old", "stopped", Some(109)),
        ];
        insta::assert_snapshot!(drawn(&points, &machines));
    }

    #[test]
    fn two_roots_lost_parents_and_damage_are_told() {
        let mut points = chain(3);
        points.push(point(3, None));
        points[3].lost_parent = Some("c4c23a7c6d3a".to_owned());
        points.push(point(4, Some(3)));
        points[4].gone = true;
        points.push(Point {
            short_id: "58a6bb95baca".to_owned(),
            damaged: Some(
                "58a6bb95baca.record is not a record of a point, or it was cut off somewhere"
                    .to_owned(),
            ),
            ..Point::default()
        });
        let mut branch = machine("child", "running", None);
        branch.branch_of = Some("new".to_owned());
        let mut stray = machine("stray", "stopped", None);
        stray.branch_of = Some("deleted".to_owned());
        let machines = [
            machine("agent", "stopped", Some(2)),
            machine("new", "running", None),
            branch,
            stray,
            machine("lost", "damaged", Some(5)),
        ];
        insta::assert_snapshot!(drawn(&points, &machines));
    }

    #[test]
    fn hostile_texts_stay_on_their_line() {
        let mut points = chain(1);
        points[0].machine = "a\u{1b}[31m\nb\u{202e}".to_owned();
        points[0].message = "界".repeat(60);
        points[0].short_id = "\r\u{9b}2J".to_owned();
        insta::assert_snapshot!(drawn(&points, &[]));
    }

    #[test]
    fn a_long_history_takes_no_long_stack_and_a_circle_of_branches_ends() {
        let points = chain(200_000);
        assert_eq!(draw(&points, &[]).len(), 3);
        let mut one = machine("one", "running", None);
        one.branch_of = Some("two".to_owned());
        let mut two = machine("two", "running", None);
        two.branch_of = Some("one".to_owned());
        assert_eq!(draw(&[], &[one, two]).len(), 2);
        // The most indented that there can be: each way as long as the other.
        let halves: Vec<_> = (0..4095_usize)
            .map(|place| point(place, place.checked_sub(1).map(|before| before / 2)))
            .collect();
        for line in draw(&halves, &[]) {
            let indent = line.chars().take_while(|c| "│├─ ".contains(*c)).count();
            assert!(indent <= 24, "{line}");
        }
    }
}
