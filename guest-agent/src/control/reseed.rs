//! New randomness for the kernel, so that two copies of a machine draw different numbers.

use std::fs;
use std::path::Path;

use agent_protocol::codec::Id;
use agent_protocol::message::{MAX_SEED_BYTES, StepOutcome, StepReport};

use super::ControlError;
use super::place::replace;
use crate::sys::random;

/// Least seed that gives the pool its full strength.
const MIN_SEED_BYTES: usize = 32;
/// Where programs can watch for restores.
const NOTIFY_DIRECTORY: &str = "/run/smolvm";

/// Credits `seed` to the kernel's pool, makes the kernel use it, and says so in a file. Returns what
/// became of the file if it is not there: the pool has its seed all the same.
pub(super) fn reseed(seed: &[u8], restore_id: Id) -> Result<Option<StepReport>, ControlError> {
    if !(MIN_SEED_BYTES..=MAX_SEED_BYTES).contains(&seed.len()) {
        return Err(ControlError::Invalid {
            what: "a seed has 32 to 4096 bytes",
        });
    }
    random::credit(seed).map_err(ControlError::system("add to the random pool"))?;
    random::reseed().map_err(ControlError::system("reseed the random generator"))?;
    let directory = Path::new(NOTIFY_DIRECTORY);
    let text = format!("{}\n", super::identity::hex(restore_id));
    let written = fs::create_dir_all(directory)
        .and_then(|()| replace(&directory.join("restore-id"), text.as_bytes(), 0o644));
    Ok(written.err().map(|error| StepReport {
        step: "restore id".into(),
        outcome: StepOutcome::UntilBoot,
        reason: format!("cannot write it to {NOTIFY_DIRECTORY}: {error}"),
    }))
}
