//! Which processes differ between two points.

use std::collections::BTreeSet;

use snapshot_format::ProcessList;

/// A process that ran at one of two points only.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessDifference {
    /// Its number in the guest.
    pub pid: u32,
    /// Its name, as the guest told it.
    pub command: String,
    /// It runs at the second point; else it ran at the first.
    pub began: bool,
}

/// The processes of which only one point has one of that number and name, by number.
pub(crate) fn compare_processes(from: &ProcessList, to: &ProcessList) -> Vec<ProcessDifference> {
    fn set(list: &ProcessList) -> BTreeSet<(u32, &str)> {
        let processes = list.processes.iter();
        processes.map(|one| (one.pid, &*one.command)).collect()
    }
    let (from, to) = (set(from), set(to));
    let differs = from.symmetric_difference(&to);
    let differs = differs.map(|process @ (pid, command)| ProcessDifference {
        pid: *pid,
        command: (*command).to_owned(),
        began: to.contains(process),
    });
    differs.collect()
}
