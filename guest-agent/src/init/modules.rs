//! Kernel modules of the initramfs.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use rustix::io::Errno;
use rustix::system::finit_module;

use super::{InitError, console};

const DIRECTORY: &str = "/modules";

/// Loads the modules that `/modules/order` lists. One that fails is reported; whether the machine
/// needs it shows soon enough.
pub(super) fn load_all() -> Result<(), InitError> {
    let order = Path::new(DIRECTORY).join("order");
    let list = match fs::read_to_string(&order) {
        Ok(list) => list,
        // A kernel with everything built in.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(InitError::path("read", order)(error)),
    };
    for name in list.lines().map(str::trim) {
        if name.is_empty() || name.starts_with('#') {
            continue;
        }
        if let Err(error) = load(&Path::new(DIRECTORY).join(name)) {
            console::say(&format!("module {name}: {error}"));
        }
    }
    Ok(())
}

fn load(path: &Path) -> io::Result<()> {
    match finit_module(File::open(path)?, c"", 0) {
        Ok(()) | Err(Errno::EXIST) => Ok(()), // loaded, now or before, or built in
        Err(errno) => Err(errno.into()),
    }
}
