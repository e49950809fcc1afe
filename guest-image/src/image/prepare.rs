//! What every image has in common, whatever it was made from: no identity of
//! its own, the directories that a machine mounts things on, and a name for
//! the loopback address.

use std::collections::BTreeMap;

use super::contents::Contents;
use super::error::EntryError;
use super::tree::{Kind, Meta};

/// Files that identify a machine or seed its randomness.
const IDENTITY_FILES: [&[u8]; 3] = [
    b"var/lib/dbus/machine-id",
    b"var/lib/systemd/random-seed",
    b"var/lib/systemd/credential.secret",
];
const MACHINE_ID: &[u8] = b"etc/machine-id";
const HOSTS: &[u8] = b"etc/hosts";
const LOOPBACK: &[u8] = b"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n";
/// Files that say where an image was built.
const BUILDER_FILES: [&[u8]; 2] = [b"etc/hostname", b"etc/resolv.conf"];
const SSH_DIR: &[u8] = b"etc/ssh";
const SSH_HOST_KEY_PREFIX: &[u8] = b"ssh_host_";
/// Directories made where missing, and their modes.
const DIRECTORIES: [(&[u8], u16); 6] = [
    (b"dev", 0o755),
    (b"proc", 0o755),
    (b"sys", 0o755),
    (b"run", 0o755),
    (b"tmp", 0o1777),
    (b"root", 0o700),
];

/// Takes identities away and adds missing directories.
pub(crate) fn prepare(contents: &mut Contents) -> Result<(), EntryError> {
    let tree = &mut contents.tree;
    for file in IDENTITY_FILES {
        // A link to /etc/machine-id stays: that file is emptied below.
        let id = tree.lookup(file);
        if id.is_some_and(|id| matches!(tree.node(id).kind, Kind::File(_))) {
            tree.remove(file);
        }
    }
    let keys: Vec<Vec<u8>> = tree
        .lookup(SSH_DIR)
        .and_then(|id| tree.children(id))
        .into_iter()
        .flatten()
        .filter(|(name, _)| name.starts_with(SSH_HOST_KEY_PREFIX))
        .map(|(name, _)| [SSH_DIR, b"/", name].concat())
        .collect();
    for key in keys {
        tree.remove(&key);
    }
    for (path, mode) in DIRECTORIES {
        if tree.lookup(path).is_none() {
            let meta = Meta {
                mode,
                mtime: tree.newest(),
                ..Meta::default()
            };
            tree.insert(path, meta, Kind::Dir(BTreeMap::new()))?;
        }
    }
    if tree.lookup(MACHINE_ID).is_some() {
        // Empty means "none yet" to everything that reads it.
        contents.put_file(MACHINE_ID, 0o444, b"")?;
    }
    // Containers get this file at run time, so images come without or empty.
    let hosts = contents.tree.lookup(HOSTS);
    if hosts.is_none_or(|id| contents.tree.is_empty_file(id)) {
        contents.put_file(HOSTS, 0o644, LOOPBACK)?;
    }
    Ok(())
}

/// Makes the directory in which commands start, where it is missing: builders
/// leave that to whoever runs the image.
pub(crate) fn make_working_dir(contents: &mut Contents, dir: &str) -> Result<(), EntryError> {
    Ok(contents.tree.make_directory(dir.as_bytes())?)
}

/// Takes away what mmdebstrap copies from the building host.
pub(crate) fn forget_builder(contents: &mut Contents) {
    for file in BUILDER_FILES {
        contents.tree.remove(file);
    }
}
