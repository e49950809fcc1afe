//! `machine ls` and `machine status`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use smolvm_engine::{Engine, HostFull, LeftState, MachineInfo, MachineState, format_utc};

use super::describe;
use crate::args::{ListArgs, Named};
use crate::failure::Failure;
use crate::output::{self, Printer, Table};

/// What a column without a value shows.
const NOTHING: &str = "-";

/// `machine ls`. A machine that cannot be read does not hide the others.
pub(crate) fn list(engine: &Engine, printer: &Printer, args: &ListArgs) -> Result<(), Failure> {
    let mut table = match args.verbose {
        true => Table::new(WIDE),
        false => Table::new(NARROW),
    };
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let (mut objects, mut unreadable) = (Vec::new(), 0);
    for (name, machine) in engine.machines()? {
        match machine {
            Ok(machine) => {
                match args.verbose {
                    true => table.row(wide_row(&machine)),
                    false => table.row(narrow_row(&machine, now)),
                }
                objects.push(describe::object(&machine));
            }
            Err(error) => {
                unreadable += 1;
                printer.warning(&format!("{name}: {}", smolvm_engine::chain(&error)));
            }
        }
    }
    printer.results(objects, table)?;
    Failure::unless_readable(unreadable, "machine", "machines")
}

/// Columns that fit a terminal of 80.
const NARROW: [&str; 5] = ["NAME", "STATE", "MEM", "FROM", "AGE"];
/// All columns.
const WIDE: [&str; 10] = [
    "NAME",
    "STATE",
    "BACKEND",
    "CPUS",
    "MEM",
    "DISK",
    "FROM",
    "CREATED",
    "BRANCHED FROM",
    "AUTOSAVE",
];

fn narrow_row(machine: &MachineInfo, now_unix: u64) -> [String; 5] {
    let age = Duration::from_secs(now_unix.saturating_sub(machine.created_unix));
    [
        machine.name.to_string(),
        machine.state.word().to_owned(),
        output::bytes(machine.spec.memory_bytes),
        describe::origin(&machine.origin),
        output::age(age),
    ]
}

fn wide_row(machine: &MachineInfo) -> [String; 10] {
    let spec = &machine.spec;
    let cpus = machine.vcpus.or(spec.cpus);
    [
        machine.name.to_string(),
        machine.state.word().to_owned(),
        machine
            .backend
            .clone()
            .unwrap_or_else(|| spec.backend.to_string()),
        cpus.map_or_else(|| NOTHING.to_owned(), |cpus| cpus.to_string()),
        output::bytes(spec.memory_bytes),
        output::bytes(spec.disk_bytes),
        describe::origin(&machine.origin),
        format_utc(machine.created_unix),
        machine
            .branched_from
            .as_ref()
            .map_or_else(|| NOTHING.to_owned(), ToString::to_string),
        machine.autosave.map_or_else(
            || NOTHING.to_owned(),
            |schedule| output::every(schedule.every_seconds),
        ),
    ]
}

/// `machine status`.
pub(crate) fn status(engine: &Engine, printer: &Printer, args: Named) -> Result<(), Failure> {
    let name = engine.resolve(args.given())?;
    let machine = engine.machine(&name)?;
    if printer.is_json() {
        return printer.result(describe::object(&machine), "");
    }
    for (key, value) in lines(&machine) {
        printer.line(&format!("{key:<11}{value}"))?;
    }
    if matches!(machine.state, MachineState::Failed { .. }) {
        printer.note(&format!(
            "hint: see its console with: smolvm machine logs --name {name}"
        ));
    }
    if machine.state == MachineState::Paused {
        printer.note(&format!(
            "hint: let it go on with: smolvm machine resume --name {name}"
        ));
    }
    Ok(())
}

/// The state that an undo left.
fn undone(left: &LeftState) -> String {
    let id = describe::short(&left.id);
    match describe::saving_failed(&left.saving) {
        Some(reason) => format!("{id} is lost: {reason}"),
        None => format!("{id} {}", left.saving.word()),
    }
}

/// When it is saved without being asked, and what became of that last.
fn autosave(machine: &MachineInfo) -> Option<String> {
    let schedule = machine.autosave?;
    let mut every = output::every(schedule.every_seconds);
    if let Some(kept) = describe::kept(&schedule.keep) {
        every.push_str(&format!(", keeping {kept}"));
    }
    let Some(last) = &machine.last_autosave else {
        return Some(format!("every {every}"));
    };
    let at = format_utc(last.unix);
    Some(match (&last.id, &last.failed) {
        (Some(id), _) => format!("every {every}; {at}: {}", describe::short(id)),
        (None, Some(reason)) => format!("every {every}; {at}: failed: {reason}"),
        (None, None) => format!("every {every}; {at}: nothing changed"),
    })
}

fn lines(machine: &MachineInfo) -> Vec<(&'static str, String)> {
    let spec = &machine.spec;
    let cpus = machine.vcpus.or(spec.cpus);
    let mut lines = vec![
        ("name", machine.name.to_string()),
        ("state", describe::state(&machine.state)),
        ("from", describe::origin(&machine.origin)),
        ("created", format_utc(machine.created_unix)),
        ("backend", describe::backend(machine)),
        (
            "cpus",
            cpus.map_or_else(
                || "the backend's default".to_owned(),
                |cpus| cpus.to_string(),
            ),
        ),
        ("memory", output::bytes(spec.memory_bytes)),
        ("disk", output::bytes(spec.disk_bytes)),
    ];
    if machine.state == MachineState::Running {
        lines.push(("answers", output::yes_no(machine.ready).to_owned()));
    }
    let optional = [
        ("started", machine.started_unix.map(format_utc)),
        ("paused", machine.paused_unix.map(format_utc)),
        (
            "branch of",
            machine.branched_from.as_ref().map(ToString::to_string),
        ),
        (
            "held",
            machine.held.then(|| {
                let name = &machine.name;
                format!("until smolvm machine branch-release --name {name}")
            }),
        ),
        ("head", machine.head.clone()),
        ("undone", machine.left.as_ref().map(undone)),
        ("autosave", autosave(machine)),
        ("no memory", machine.out_of_memory.clone()),
        ("host full", machine.host_full.map(host_full)),
        ("directory", spec.working_directory.clone()),
    ];
    lines.extend(
        optional
            .into_iter()
            .filter_map(|(key, value)| Some((key, value?))),
    );
    let pairs = |key, map: &std::collections::BTreeMap<String, String>| {
        map.iter()
            .map(|(name, value)| (key, format!("{name}={value}")))
            .collect::<Vec<_>>()
    };
    lines.extend(pairs("label", &spec.labels));
    lines.extend(pairs("variable", &spec.environment));
    lines
}

/// What a full file system of the host took from a guest.
fn host_full(full: HostFull) -> String {
    format!(
        "{} writes of its disk failed, the last at {}: make room where SMOLVM_HOME lies",
        full.failed_writes,
        format_utc(full.last_unix)
    )
}
