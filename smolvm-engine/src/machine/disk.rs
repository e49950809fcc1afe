//! The files of a machine's disk.

use std::fs;
use std::io;
use std::path::Path;

use cow_disk::Overlay;

use crate::file_error::FileError;

/// Makes an empty overlay file.
pub(crate) fn create_overlay(path: &Path, disk_bytes: u64) -> Result<fs::File, FileError> {
    use std::os::unix::fs::OpenOptionsExt;
    let open = fs::File::options()
        .create_new(true)
        .read(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .map_err(FileError::at("create", path))?;
    let made = open
        .try_clone()
        .and_then(|keep| match Overlay::create(open, disk_bytes) {
            Ok(_) => Ok(keep),
            Err(error) => Err(io::Error::other(error)),
        });
    made.map_err(|error| {
        // Half of a layer is in the way of the next one of that name. The first error is the one to report.
        let _ = fs::remove_file(path);
        FileError::at("create", path)(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_that_cannot_be_made_is_not_in_the_way() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("layer-1");
        let error = create_overlay(&path, cow_disk::MAX_DISK_BYTES * 2).unwrap_err();
        assert!(crate::chain(&error).contains("layer-1"));
        create_overlay(&path, 1 << 20).unwrap();
    }
}
