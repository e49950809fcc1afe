//! New randomness for the kernel, so that two copies of a machine draw different numbers.

use std::fs;
use std::path::Path;

use agent_protocol::message::MAX_SEED_BYTES;

use super::ControlError;
use super::identity::write_replacing;
use crate::sys::random;

/// Least seed that gives the pool its full strength.
const MIN_SEED_BYTES: usize = 32;
/// Where programs can watch for restores.
const NOTIFY_DIRECTORY: &str = "/run/smolvm";

/// Credits `seed` to the kernel's pool, makes the kernel use it, and says so in a file.
pub(super) fn reseed(seed: &[u8], restore_id: [u8; 16]) -> Result<(), ControlError> {
    if !(MIN_SEED_BYTES..=MAX_SEED_BYTES).contains(&seed.len()) {
        return Err(ControlError::Invalid {
            what: "a seed has 32 to 4096 bytes",
        });
    }
    random::credit(seed).map_err(ControlError::system("add to the random pool"))?;
    random::reseed().map_err(ControlError::system("reseed the random generator"))?;
    let directory = Path::new(NOTIFY_DIRECTORY);
    fs::create_dir_all(directory).map_err(ControlError::system("make /run/smolvm"))?;
    let text = format!("{}\n", super::identity::hex(restore_id));
    write_replacing(&directory.join("restore-id"), text.as_bytes(), 0o644)
}
