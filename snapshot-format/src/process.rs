//! What ran in the guest when a point was taken, for people.

use crate::limits::{MAX_COMMAND_BYTES, MAX_PROCESSES};

/// One process of the guest.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuestProcess {
    /// Its number in the guest.
    pub pid: u32,
    /// Its parent's.
    pub parent_pid: u32,
    /// Its command line as the guest tells it, words separated by blanks. Untrusted.
    pub command: String,
}

/// The guest's processes as its agent listed them shortly before the pause.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessList {
    /// The processes, in the agent's order.
    pub processes: Vec<GuestProcess>,
    /// How many more there were.
    pub unlisted: u64,
}

impl ProcessList {
    /// A list that a record can hold: at most [`MAX_PROCESSES`], commands cut at [`MAX_COMMAND_BYTES`].
    #[must_use]
    pub fn bounded(processes: impl IntoIterator<Item = GuestProcess>) -> Self {
        let mut list = Self::default();
        for mut process in processes {
            if list.processes.len() == MAX_PROCESSES {
                list.unlisted += 1;
                continue;
            }
            let end = process.command.floor_char_boundary(MAX_COMMAND_BYTES);
            process.command.truncate(end);
            list.processes.push(process);
        }
        list
    }
}
