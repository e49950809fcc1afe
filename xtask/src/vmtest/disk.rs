//! Disk images for the emulated host.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use crate::error::{Error, Result};
use crate::process;

/// Makes a sparse ext4 image, holding a copy of `content` if given. Needs no privilege.
pub fn format(path: &Path, size_bytes: u64, content: Option<&Path>) -> Result<()> {
    let file = File::create(path).map_err(Error::file("create", path))?;
    file.set_len(size_bytes)
        .map_err(Error::file("resize", path))?;
    let mut command = Command::new("mke2fs");
    command.args(["-q", "-F", "-t", "ext4", "-m", "0"]);
    command.args(["-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard"]);
    if let Some(content) = content {
        command.arg("-d").arg(content);
    }
    command.arg(path);
    // Debian keeps it in /sbin, which is not on an ordinary user's PATH.
    let mut path_variable = std::env::var_os("PATH").unwrap_or_default();
    path_variable.push(":/usr/sbin:/sbin");
    command.env("PATH", path_variable);
    process::capture(&mut command).map(drop)
}
