//! Bringing points back: their data in a machine's directory.

mod back;
mod boot_cache;
mod booted;
mod place;

pub(crate) use back::{HeldPoint, PreparedDisk, prepare_disk};
pub(crate) use boot_cache::BootCache;
pub(crate) use booted::{BootedCache, BootedKind, BootedPoint, make_durable, take_back};
pub(crate) use place::{FoundPoint, PlaceError, check_sound, fill_from_point, unsoundness};
