//! `machine tree`.

mod dot;
mod drawing;

use std::collections::HashMap;

use serde_json::json;
use smolvm_engine::{Engine, Family, LogEntry, MachineInfo, chain, format_utc};

use super::describe;
use crate::args::TreeArgs;
use crate::failure::Failure;
use crate::output::{self, Object, Printer, object};

/// A point in a drawing. Its texts may hold anything.
#[derive(Debug, Clone, Default)]
struct Point {
    short_id: String,
    /// Its parent, by its place among the points: before its own.
    parent: Option<usize>,
    /// The parent's short id, where that one is not among the points.
    lost_parent: Option<String>,
    taken: String,
    machine: String,
    message: String,
    autosave: bool,
    gone: bool,
    damaged: Option<String>,
}

/// A machine in a drawing.
#[derive(Debug, Clone, Default)]
struct Machine {
    name: String,
    state: String,
    /// The point that it is at, by its place.
    head: Option<usize>,
    branch_of: Option<String>,
}

/// `machine tree`.
pub(crate) fn tree(engine: &Engine, printer: &Printer, args: &TreeArgs) -> Result<(), Failure> {
    let family = engine.family(args.store.as_deref())?;
    if printer.is_json() {
        for point in &family.points {
            printer.result(describe_point(point, &family), "")?;
        }
        for machine in &family.machines {
            printer.result(describe_machine(machine), "")?;
        }
    } else {
        let (points, machines) = nodes(&family);
        let lines = match args.dot {
            true => dot::dot(&points, &machines),
            false => drawing::draw(&points, &machines),
        };
        for line in lines {
            printer.line(&line)?;
        }
    }
    for (name, error) in &family.unreadable {
        printer.warning(&format!("{name}: {}", chain(error)));
    }
    match u64::try_from(family.unreadable.len()) {
        Ok(0) => Ok(()),
        count => Err(Failure::Partly {
            what: format!(
                "{} could not be read",
                output::count(count.unwrap_or(u64::MAX), "machine", "machines")
            ),
        }),
    }
}

/// Points and machines that know each other by their places.
fn nodes(family: &Family) -> (Vec<Point>, Vec<Machine>) {
    let places: HashMap<&str, usize> = (0..)
        .zip(&family.points)
        .map(|(place, point)| (point.id.as_str(), place))
        .collect();
    let point = |(own, entry): (usize, &LogEntry)| {
        let parent = entry.parent.as_deref();
        let place = parent.and_then(|parent| places.get(parent).copied());
        // What stands in a damaged line may go in a circle.
        let place = place.filter(|place| *place < own);
        Point {
            short_id: entry.short_id.clone(),
            parent: place,
            lost_parent: match place {
                Some(_) => None,
                None => parent.map(|parent| describe::short(parent).to_owned()),
            },
            taken: format_utc(entry.taken_unix),
            machine: entry.machine.clone(),
            message: entry.message.clone(),
            autosave: entry.autosave,
            gone: entry.gone,
            damaged: entry.damaged.clone(),
        }
    };
    let machine = |machine: &MachineInfo| Machine {
        name: machine.name.to_string(),
        state: describe::state(&machine.state),
        head: machine
            .head
            .as_deref()
            .and_then(|head| places.get(head).copied()),
        branch_of: machine.branched_from.as_ref().map(ToString::to_string),
    };
    (
        (0..).zip(&family.points).map(point).collect(),
        family.machines.iter().map(machine).collect(),
    )
}

fn describe_point(point: &LogEntry, family: &Family) -> Object {
    let is_here = |machine: &&MachineInfo| machine.head.as_ref() == Some(&point.id);
    let heads = family.machines.iter().filter(is_here);
    let heads: Vec<&str> = heads.map(|machine| machine.name.as_str()).collect();
    object(json!({
        "kind": "point",
        "id": point.id,
        "parent": point.parent,
        "taken": format_utc(point.taken_unix),
        "machine": point.machine,
        "message": point.message,
        "autosave": point.autosave,
        "gone": point.gone,
        "damaged": point.damaged,
        "heads": heads,
    }))
}

fn describe_machine(machine: &MachineInfo) -> Object {
    object(json!({
        "kind": "machine",
        "name": machine.name.as_str(),
        "state": machine.state.word(),
        "reason": machine.state.reason(),
        "head": machine.head,
        "branched_from": machine.branched_from.as_ref().map(|source| source.as_str()),
    }))
}
