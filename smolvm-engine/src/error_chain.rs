//! Errors with their sources.

use std::error::Error;
use std::path::Path;
use std::{fs, io};

use durable_files::LockHeld;

/// What paths begin with that lead through a descriptor.
pub(crate) const HELD_ROOT: &str = "/proc/self/fd/";
/// Where a path through a descriptor of a machine's directory goes and comes back, to end in a directory, not in a link.
pub(crate) const AROUND_LINK: &str = "packs/..";

/// An error and its sources as one text, outermost first. Paths through descriptors of this process are those that a person finds.
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
    named(&text)
}

/// A path as a person finds it.
pub(crate) fn place(path: &Path) -> String {
    named(&path.display().to_string())
}

/// The text with the directories' names instead of paths that only this process can use.
fn named(text: &str) -> String {
    let mut parts = text.split(HELD_ROOT);
    let mut named = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = part.split_at(digits);
        let path = format!("{HELD_ROOT}{number}");
        match fs::read_link(&path) {
            Ok(place) => named.push_str(&place.to_string_lossy()),
            Err(_) => named.push_str(&path),
        }
        let around = format!("/{AROUND_LINK}");
        named.push_str(rest.strip_prefix(&around).unwrap_or(rest));
    }
    named
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

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn held_directories_are_told_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let held = fs::File::open(directory.path()).unwrap();
        let path = format!("{HELD_ROOT}{}/{AROUND_LINK}/packs", held.as_raw_fd());
        let error = io::Error::other(format!("cannot open {path}, {path}"));
        let place = directory.path().canonicalize().unwrap();
        let place = place.join("packs").display().to_string();
        assert_eq!(chain(&error), format!("cannot open {place}, {place}"));
        let none = format!("{HELD_ROOT}4000000000/x and {HELD_ROOT}");
        assert_eq!(chain(&io::Error::other(none.clone())), none);
    }
}
