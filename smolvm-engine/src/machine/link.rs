//! A machine's files in the directory of another.

use std::fs;
use std::path::Path;

use super::dir::MachineDir;
use super::disk::create_overlay;
use super::file::MachineFile;
use crate::file_error::FileError;
use crate::home::make_private_dir;

/// Hard link where possible, copy elsewhere.
pub(crate) fn link_or_copy(from: &Path, to: &Path) -> Result<(), FileError> {
    if fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    fs::copy(from, to).map_err(FileError::at("copy to", to))?;
    Ok(())
}

/// Puts all that `machine` consists of, but `machine.json` and its logs, from `dir` into the empty directory `to`. Its last layer is
/// made anew, empty; none of the others is written any more.
pub(crate) fn link_machine(
    dir: &MachineDir,
    machine: &MachineFile,
    to: &MachineDir,
) -> Result<(), FileError> {
    for (from, to) in [(dir.packs(), to.packs()), (dir.records(), to.records())] {
        make_private_dir(&to)?;
        link_all(&from, &to)?;
    }
    make_private_dir(&to.disk())?;
    if let Some((top, sealed)) = machine.disk.layers.split_last() {
        for name in sealed.iter().chain([&machine.disk.base]) {
            link_or_copy(&dir.disk().join(name), &to.disk().join(name))?;
        }
        create_overlay(&to.disk().join(top), machine.spec.disk_bytes)?;
    }
    link_or_copy(&dir.kernel(), &to.kernel())?;
    link_or_copy(&dir.initramfs(), &to.initramfs())
}

/// Links the files of a directory.
fn link_all(from: &Path, to: &Path) -> Result<(), FileError> {
    let list = || FileError::at("list", from);
    for entry in fs::read_dir(from).map_err(list())? {
        let entry = entry.map_err(list())?;
        if entry.file_type().map_err(list())?.is_file() {
            link_or_copy(&entry.path(), &to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_linked_with_a_top_of_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let [dir, child] = ["m", "c"].map(|name| MachineDir::new(directory.path().join(name)));
        for path in [dir.path(), child.path()] {
            fs::create_dir(path).unwrap();
        }
        for path in [dir.packs(), dir.records(), dir.disk()] {
            fs::create_dir(path).unwrap();
        }
        for path in [
            dir.packs().join("a.pack"),
            dir.records().join("b.record"),
            dir.disk().join("base-0.map"),
            dir.disk().join("layer-1"),
            dir.disk().join("layer-9"),
            dir.kernel(),
            dir.initramfs(),
            dir.console_log(),
        ] {
            fs::write(path, "of the source").unwrap();
        }
        let mut machine = MachineFile::for_tests();
        machine.spec.disk_bytes = 1 << 20;
        machine.disk.layers = vec!["layer-1".to_owned(), "layer-2".to_owned()];
        link_machine(&dir, &machine, &child).unwrap();
        fs::remove_dir_all(dir.path()).unwrap();

        let read = |path| fs::read_to_string(path).unwrap();
        for path in [
            child.packs().join("a.pack"),
            child.records().join("b.record"),
            child.disk().join("base-0.map"),
            child.disk().join("layer-1"),
            child.kernel(),
            child.initramfs(),
        ] {
            assert_eq!(read(path), "of the source");
        }
        assert!(child.disk().join("layer-2").exists());
        // What is no part of the instant stays with the source.
        assert!(!child.disk().join("layer-9").exists());
        assert!(!child.console_log().exists());
    }
}
