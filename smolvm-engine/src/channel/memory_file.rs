//! Files without a name for data on its way between processes.

use std::fs::File;
use std::io;

/// An empty file, in memory where the host has such files. `name` shows in listings of open files.
#[cfg(target_os = "linux")]
pub(crate) fn memory_file(name: &str) -> io::Result<File> {
    use rustix::fs::{MemfdFlags, memfd_create};
    Ok(File::from(memfd_create(name, MemfdFlags::CLOEXEC)?))
}

/// An empty file, in memory where the host has such files. `name` shows in listings of open files.
#[cfg(not(target_os = "linux"))]
pub(crate) fn memory_file(_name: &str) -> io::Result<File> {
    tempfile::tempfile()
}
