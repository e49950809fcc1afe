//! The real binary without a machine: help, refusals, exit codes, streams.

mod errors;
mod forms;
mod help;
mod home;
