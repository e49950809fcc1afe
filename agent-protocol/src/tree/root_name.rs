//! What the root of a tree is called where it is made.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use thiserror::Error;

use super::MAX_NAME_BYTES;

/// Bytes that are no name of a tree's root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("that is no name of a file")]
pub struct BadRootName;

/// The name that a tree gets inside the directory it is copied to, or that it gets none: its contents
/// go into the target itself.
///
/// Both sides know it from the path of the source, so it never travels with the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootName(Vec<u8>);

impl RootName {
    /// What a copy of `source` is called: its last component, or nothing when the path ends in `/.` or
    /// names no entry (`/`, `..`, `.`).
    #[must_use]
    pub fn of_source(source: &Path) -> Self {
        let path = source.as_os_str().as_bytes();
        let end = path.iter().rposition(|&b| b != b'/').map_or(0, |at| at + 1);
        let last = path[..end].rsplit(|&b| b == b'/').next().unwrap_or(b"");
        match last {
            b"." | b".." => Self(Vec::new()),
            name => Self(name.to_vec()),
        }
    }

    /// A name as it came from a client; empty means none.
    ///
    /// # Errors
    /// [`BadRootName`] when it is a path, or too long.
    pub fn new(name: &[u8]) -> Result<Self, BadRootName> {
        if name.is_empty() || is_name(name) {
            return Ok(Self(name.to_vec()));
        }
        Err(BadRootName)
    }

    /// The name; `None` where the contents are meant.
    #[must_use]
    pub fn name(&self) -> Option<&OsStr> {
        (!self.0.is_empty()).then(|| OsStr::from_bytes(&self.0))
    }

    /// The name as bytes, empty where the contents are meant.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Whether these bytes name one entry of a directory and nothing else.
pub(super) fn is_name(name: &[u8]) -> bool {
    let plain = !name.is_empty() && name.len() <= MAX_NAME_BYTES;
    plain && name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_says_what_its_copy_is_called() {
        for (source, name) in [
            ("/etc/hosts", "hosts"),
            ("hosts", "hosts"),
            ("/etc/ssh/", "ssh"),
            ("/etc//ssh//", "ssh"),
            ("/etc/ssh/.", ""),
            ("/etc/ssh/..", ""),
            ("/etc/./", ""),
            ("..", ""),
            (".", ""),
            ("/", ""),
            ("", ""),
            ("/home/.ssh", ".ssh"),
            ("...", "..."),
        ] {
            let root = RootName::of_source(Path::new(source));
            assert_eq!(root.as_bytes(), name.as_bytes(), "{source:?}");
            assert_eq!(root.name().is_none(), name.is_empty());
        }
    }

    #[test]
    fn a_client_cannot_give_a_path_for_a_name() {
        for bad in [&b".."[..], b".", b"a/b", b"/", b"a\0", &[b'x'; 256]] {
            assert_eq!(RootName::new(bad), Err(BadRootName));
        }
        assert!(RootName::new(b"").is_ok() && RootName::new(b"...").is_ok());
    }
}
