//! Errors with their sources.

use std::error::Error;
use std::io;

use durable_files::LockHeld;

/// An error and its sources as one text, outermost first.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        // Transparent errors repeat their source.
        if !text.ends_with(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = error.source();
    }
    text
}

/// An error and its sources, outermost first.
pub(crate) fn sources<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}

/// What to do about an error whose reason is a process that holds a lock for good.
pub(crate) fn held_hint(error: &(dyn Error + 'static)) -> Option<String> {
    let held = |error: &(dyn Error + 'static)| {
        let held = LockHeld::in_error(error.downcast_ref::<io::Error>()?)?;
        Some(held.holder.as_ref()?.way_out())
    };
    sources(error).find_map(held)
}

/// What to do about an error whose reason lies on the host: a lock that is held for good, or a full file system.
pub(crate) fn host_hint(error: &(dyn Error + 'static)) -> Option<String> {
    held_hint(error).or_else(|| full_hint(error))
}

/// What to do about an error whose reason is a full file system.
pub(crate) fn full_hint(error: &(dyn Error + 'static)) -> Option<String> {
    let is_full = |error: &(dyn Error + 'static)| {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        matches!(
            kind,
            Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        )
    };
    sources(error)
        .any(is_full)
        .then(|| "make room on that file system".to_owned())
}
