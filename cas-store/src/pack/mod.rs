//! One pack: chunk bodies, then a sorted index, then a footer. `docs/format.md` has the byte layout.

pub(crate) mod builder;
pub(crate) mod layout;
pub(crate) mod reader;
pub(crate) mod sink;

use std::path::{Path, PathBuf};

use crate::PackId;

/// What a pack's file name ends with.
pub const PACK_SUFFIX: &str = ".pack";

/// The file name of a pack.
#[must_use]
pub fn pack_file_name(id: &PackId) -> String {
    format!("{id}{PACK_SUFFIX}")
}

pub(crate) fn pack_path(dir: &Path, id: &PackId) -> PathBuf {
    dir.join(pack_file_name(id))
}

/// The pack that a file name promises; `None` for names of other files.
pub(crate) fn parse_file_name(name: &std::ffi::OsStr) -> Option<PackId> {
    name.to_str()?.strip_suffix(PACK_SUFFIX)?.parse().ok()
}
