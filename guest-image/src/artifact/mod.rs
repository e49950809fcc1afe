//! What machines are made of: images and kernels as named directories under
//! `$SMOLVM_HOME`.
//!
//! An artifact is a directory `HOME/COLLECTION/NAME` that appears whole or not
//! at all. It is built in a hidden staging sibling, synced, and renamed to its
//! name without ever replacing anything; see [`staging::Staging`]. A leftover
//! of a killed import is removed by the next one.

pub(crate) mod decompress;
pub(crate) mod name;
pub mod staging;

/// The present as descriptions of artifacts say it: `2026-09-28T03:01:05Z`.
pub(crate) fn now() -> String {
    humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string()
}
