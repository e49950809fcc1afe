//! `machine checkpoint` and `machine checkpoint-log`.

use smolvm_engine::Engine;

use crate::args::{CheckpointArgs, CheckpointLogArgs};
use crate::failure::Failure;
use crate::output::Printer;

/// `machine checkpoint`.
pub(crate) fn checkpoint(
    _engine: &Engine,
    _printer: &Printer,
    _args: CheckpointArgs,
) -> Result<(), Failure> {
    Err(Failure::not_available("`machine checkpoint`"))
}

/// `machine checkpoint-log`.
pub(crate) fn log(
    _engine: &Engine,
    _printer: &Printer,
    _args: CheckpointLogArgs,
) -> Result<(), Failure> {
    Err(Failure::not_available("`machine checkpoint-log`"))
}
