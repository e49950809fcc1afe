//! The VMM: the process (or thread) that runs one machine's vCPUs and devices.
//!
//! It gets everything as open descriptors and by [messages](crate::channel::messages) over one socket from the supervisor,
//! and ends when that socket closes.

mod branch;
mod capture;
mod capture_socket;
mod console;
mod dial;
mod disk;
mod fill;
mod notes;
mod read_ahead;
mod run;
mod start;
mod undo;

pub(crate) use run::run;
pub(crate) use start::{Parts, StartError};
