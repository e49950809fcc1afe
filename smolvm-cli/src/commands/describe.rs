//! Machines in words and as objects.

use serde_json::{Value, json};
use smolvm_engine::{
    MachineInfo, MachineName, MachineOrigin, MachineState, Retention, Saving, format_utc,
};

use crate::output::Object;

/// Digits of an id that are shown.
const SHORT_ID: usize = 12;

/// What a machine was made from.
pub(crate) fn origin(origin: &MachineOrigin) -> String {
    match origin {
        MachineOrigin::Image { image, .. } => format!("image {image}"),
        MachineOrigin::Point { id, machine } => format!("point {} of {machine}", short(id)),
        _ => "elsewhere".to_owned(),
    }
}

/// The beginning of an id.
pub(crate) fn short(id: &str) -> &str {
    id.get(..SHORT_ID).unwrap_or(id)
}

/// The state, with its reason.
pub(crate) fn state(state: &MachineState) -> String {
    match state.reason() {
        Some(reason) => format!("{}: {reason}", state.word()),
        None => state.word().to_owned(),
    }
}

/// A machine for programs.
pub(crate) fn object_of(machine: &MachineInfo) -> Value {
    let reason = machine.state.reason();
    let (image, kernel, point) = match &machine.origin {
        MachineOrigin::Image { image, kernel } => (Some(image), Some(kernel), None),
        MachineOrigin::Point { id, .. } => (None, None, Some(id)),
        _ => (None, None, None),
    };
    let spec = &machine.spec;
    json!({
        "name": machine.name.as_str(),
        "state": machine.state.word(),
        "reason": reason,
        "ready": machine.ready,
        "backend": machine.backend.as_deref().unwrap_or(spec.backend.name()),
        "translates": machine.translates,
        "cpus": machine.vcpus.or(spec.cpus),
        "memory_bytes": spec.memory_bytes,
        "disk_bytes": spec.disk_bytes,
        "cpu": spec.cpu,
        "image": image,
        "kernel": kernel,
        "from": point,
        "branched_from": machine.branched_from.as_ref().map(MachineName::as_str),
        "held": machine.held,
        "head": machine.head,
        "created": format_utc(machine.created_unix),
        "paused": machine.paused_unix.map(format_utc),
        "started": machine.started_unix.map(format_utc),
        "out_of_memory": machine.out_of_memory,
        "host_full": machine.host_full.map(|full| json!({
            "failed_writes": full.failed_writes,
            "last": format_utc(full.last_unix),
        })),
        "left": machine.left.as_ref().map(|left| json!({
            "id": left.id,
            "state": left.saving.word(),
            "reason": saving_failed(&left.saving),
        })),
        "autosave": machine.autosave.map(|schedule| json!({
            "every_seconds": schedule.every_seconds,
            "keep": schedule.keep,
            "last": machine.last_autosave.as_ref().map(|last| json!({
                "at": format_utc(last.unix),
                "id": last.id,
                "failed": last.failed,
            })),
        })),
        "labels": spec.labels,
        "environment": spec.environment,
        "working_directory": spec.working_directory,
    })
}

/// Why a state that was left is lost, if it is.
pub(crate) fn saving_failed(saving: &Saving) -> Option<&str> {
    match saving {
        Saving::Failed { reason } => Some(reason),
        _ => None,
    }
}

/// The backend, and how it works.
pub(crate) fn backend(machine: &MachineInfo) -> String {
    let name = machine.backend.clone();
    let name = name.unwrap_or_else(|| machine.spec.backend.to_string());
    match machine.translates {
        Some(true) => format!("{name}, translating what runs often"),
        Some(false) => format!("{name}, interpreting"),
        None => name,
    }
}

/// The same as a printable object.
pub(crate) fn object(machine: &MachineInfo) -> Object {
    crate::output::object(object_of(machine))
}

/// A rule of which points stay: `last 12, daily 7`; `None` where all do.
pub(super) fn kept(keep: &Retention) -> Option<String> {
    let parts = [
        ("last", keep.last),
        ("hourly", keep.hourly),
        ("daily", keep.daily),
        ("weekly", keep.weekly),
    ];
    let parts = parts
        .iter()
        .filter_map(|(name, count)| Some(format!("{name} {}", (*count)?)));
    let text = parts.collect::<Vec<_>>().join(", ");
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_carry_their_reason() {
        let failed = MachineState::Failed {
            reason: "kernel panic".to_owned(),
        };
        assert_eq!(state(&failed), "failed: kernel panic");
        assert_eq!(state(&MachineState::Stopped), "stopped");
    }

    #[test]
    fn ids_are_shortened() {
        assert_eq!(short("c4c23a7c6d3a99999"), "c4c23a7c6d3a");
        assert_eq!(short("c4"), "c4");
    }
}
