//! The layers of a disk while nothing runs on it: a fresh one for a restore, many made into one.

use std::fs::{self, File};
use std::ops::ControlFlow;

use cow_disk::{Layer, LayerError, Overlay, OverlayError};
use thiserror::Error;

use crate::file_error::FileError;
use crate::machine::{
    BaseMap, BaseMapError, Change, MachineDir, MachineDirError, MachineFile, create_overlay,
};
use crate::point::{PointError, sync_directory};
use crate::save::disk_capture::{DiskCaptureError, open_disk, open_layer};

/// With more layers than this below its top, a disk's layers are merged before it is used. Each capture that
/// fails after its instant leaves one, each that succeeds drops them all.
pub(super) const MERGE_ABOVE: usize = 8;

/// Why layers could not be made or merged.
#[derive(Debug, Error)]
pub(super) enum LayersError {
    #[error(transparent)]
    Dir(#[from] MachineDirError),
    #[error(transparent)]
    Point(#[from] PointError),
    #[error(transparent)]
    Create(#[from] FileError),
    #[error(transparent)]
    Base(#[from] BaseMapError),
    #[error(transparent)]
    Disk(#[from] DiskCaptureError),
    #[error("an empty layer")]
    Overlay(#[from] OverlayError),
    #[error(transparent)]
    Layer(#[from] LayerError),
}

/// Gives a machine that is restored an empty layer: an earlier start that was killed at the wrong
/// moment may have written to the one it has, and that would be the disk of another instant.
pub(super) fn fresh_layer(dir: &MachineDir, machine: &mut MachineFile) -> Result<(), LayersError> {
    let (name, _) = new_layer(dir, machine)?;
    replace_layers(dir, machine, &name, |layers| {
        std::mem::replace(layers, vec![name.clone()])
    })
}

/// Puts the new layer `name` in the place of others, the list of which `replace` returns; these go, unless it is unknown which of
/// them a power failure would bring back.
fn replace_layers(
    dir: &MachineDir,
    machine: &mut MachineFile,
    name: &str,
    replace: impl FnOnce(&mut Vec<String>) -> Vec<String>,
) -> Result<(), LayersError> {
    let (mut former, next) = (Vec::new(), machine.disk.next);
    let change = dir.change(|machine| {
        former = replace(&mut machine.disk.layers);
        machine.disk.next = next;
    });
    match change {
        Change::Done(changed) => {
            former.retain(|layer| !changed.disk.layers.contains(layer));
            remove(dir, &former);
            *machine = changed;
        }
        Change::NotDone(error) => {
            remove(dir, &[name.to_owned()]);
            return Err(error.into());
        }
        unknown @ Change::Unknown(..) => *machine = unknown.visible()?,
    }
    Ok(())
}

/// Merges the layers below the top when they are many: a start hands each of them to the VMM, which takes
/// no more than a few hundred. A crash at any moment leaves the old layers or the new one in use.
pub(super) fn merge_layers(dir: &MachineDir, machine: &mut MachineFile) -> Result<(), LayersError> {
    let Some((top, sealed)) = machine.disk.layers.split_last() else {
        return Ok(());
    };
    if sealed.len() <= MERGE_ABOVE {
        return Ok(());
    }
    let (top, former) = (top.clone(), sealed.to_vec());
    let base = BaseMap::read(&dir.disk().join(&machine.disk.base))?;
    let layers = former.iter().map(|name| open_layer(&dir.disk().join(name)));
    let layers: Vec<Layer> = layers.collect::<Result<_, _>>()?;
    let Some(through) = layers.last().map(Layer::id) else {
        return Ok(());
    };
    let disk = open_disk(dir, machine, base, layers)?;
    let (name, file) = new_layer(dir, machine)?;
    let merged = disk.flatten(through, Overlay::open(file)?, &mut |_, _| {
        ControlFlow::Continue(())
    });
    if let Err(error) = merged {
        remove(dir, &[name]);
        return Err(error.into());
    }
    replace_layers(dir, machine, &name, |layers| {
        std::mem::replace(layers, vec![name.clone(), top])
    })
}

/// Makes an empty layer, durably; `machine` counts it, but does not name it.
fn new_layer(dir: &MachineDir, machine: &mut MachineFile) -> Result<(String, File), LayersError> {
    let name = loop {
        let name = format!("layer-{}", machine.disk.next);
        // A start that was killed may have left it.
        if !dir.disk().join(&name).exists() {
            break name;
        }
        machine.disk.next += 1;
    };
    let file = create_overlay(&dir.disk().join(&name), machine.spec.disk_bytes)?;
    sync_directory(&dir.disk())?;
    machine.disk.next += 1;
    Ok((name, file))
}

fn remove(dir: &MachineDir, names: &[String]) {
    for name in names {
        let path = dir.disk().join(name);
        if let Err(error) = fs::remove_file(&path) {
            tracing::warn!(path = %crate::error_chain::place(&path), %error, "a former layer is kept");
        }
    }
}

#[cfg(test)]
mod tests {
    use cow_disk::BlockDevice;

    use super::*;
    use crate::machine::replace_file;

    const DISK_BYTES: u64 = 1 << 20;

    /// A machine whose layer `n` of eleven wrote `n` over all granules from the `n`-th on.
    fn machine_with_layers() -> (tempfile::TempDir, MachineDir, MachineFile) {
        let directory = tempfile::tempdir().unwrap();
        let dir = MachineDir::new(directory.path().to_owned());
        for path in [dir.packs(), dir.disk()] {
            fs::create_dir(path).unwrap();
        }
        let base = BaseMap::of_image(&[cas_store::ChunkId::ZERO; 16]).unwrap();
        replace_file(&dir.disk().join("base-0.map"), &base.encode()).unwrap();
        let mut machine = MachineFile::for_tests();
        machine.spec.disk_bytes = DISK_BYTES;
        for number in 0..11_u8 {
            let (name, file) = new_layer(&dir, &mut machine).unwrap();
            let overlay = Overlay::open(file).unwrap();
            let disk =
                cow_disk::LayeredDisk::new(cow_disk::Base::zeroes(), Vec::new(), overlay).unwrap();
            let at = u64::from(number) * 4096;
            disk.write_at(at, &vec![number; (DISK_BYTES - at) as usize])
                .unwrap();
            disk.flush().unwrap();
            machine.disk.layers.push(name);
        }
        dir.write_first(&machine).unwrap();
        (directory, dir, machine)
    }

    fn content(dir: &MachineDir, machine: &MachineFile) -> Vec<u8> {
        let base = BaseMap::read(&dir.disk().join(&machine.disk.base)).unwrap();
        let layers = machine.disk.layers.iter();
        let layers = layers.map(|name| open_layer(&dir.disk().join(name)).unwrap());
        let disk = open_disk(dir, machine, base, layers.collect());
        let mut bytes = vec![0xff; DISK_BYTES as usize];
        disk.unwrap().read_at(0, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn many_layers_become_one_of_the_same_content() {
        let (_directory, dir, mut machine) = machine_with_layers();
        let before = content(&dir, &machine);
        let top = machine.disk.layers[10].clone();
        merge_layers(&dir, &mut machine).unwrap();
        assert_eq!(machine.disk.layers, ["layer-12".to_owned(), top]);
        assert_eq!(dir.read().unwrap().unwrap(), machine);
        assert_eq!(content(&dir, &machine), before);
        // Base, merged layer, top: the others are gone.
        assert_eq!(fs::read_dir(dir.disk()).unwrap().count(), 3);
        merge_layers(&dir, &mut machine).unwrap();
        assert_eq!(machine.disk.next, 13, "two layers are not merged");
    }

    #[test]
    fn a_merge_that_fails_changes_nothing() {
        let (_directory, dir, mut machine) = machine_with_layers();
        let before = machine.disk.layers.clone();
        let path = dir.disk().join(&before[3]);
        fs::write(path, b"damaged").unwrap();
        assert!(merge_layers(&dir, &mut machine).is_err());
        assert_eq!(machine.disk.layers, before);
        assert_eq!(dir.read().unwrap().unwrap().disk.layers, before);
    }
}
