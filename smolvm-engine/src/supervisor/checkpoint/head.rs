//! The machine's head and the layers of its disk around a capture.

use std::fs::{self, File};
use std::os::fd::AsFd;

use snapshot_format::Point;

use super::dialogue::Switched;
use super::error::CheckpointError;
use super::{CaptureState, Run};
use crate::channel::ChannelError;
use crate::channel::capture::{CaptureEvent, CaptureRequest};
use crate::channel::control::CheckpointRequest;
use crate::file_error::FileError;
use crate::machine::{BaseMap, Change, MachineDirError, MachineFile, create_overlay, replace_file};
use crate::phase::Phase;
use crate::point::sync_directory;
use crate::supervisor::layers::MERGE_ABOVE;

/// A layer that takes the place of others.
pub(super) struct Merged {
    pub(super) name: String,
    replaces: Vec<String>,
}

/// A head that `machine.json` names.
pub(super) struct MovedHead {
    /// The base of the disk, by name.
    base: String,
    /// It is known to survive a power failure.
    durable: bool,
}

impl MovedHead {
    /// Whether it is known to survive a power failure.
    pub(super) fn is_durable(&self) -> bool {
        self.durable
    }
}

impl Run<'_> {
    /// Gives the disk a new top, in `machine.json` before the VMM uses it: whatever is killed when, no
    /// write is lost.
    pub(super) fn add_layer(&self) -> Result<MachineFile, CheckpointError> {
        let dir = &self.shared.dir;
        let machine = dir.read()?.ok_or(CheckpointError::Ended)?;
        let next = machine.disk.next;
        let name = format!("layer-{next}");
        let path = dir.disk().join(&name);
        create_overlay(&path, machine.spec.disk_bytes)?;
        sync_directory(&dir.disk())?;
        let change = dir.change(|machine| {
            machine.disk.next = next + 1;
            machine.disk.layers.push(name.clone());
        });
        match change {
            Change::Done(machine) => Ok(machine),
            // The layer stays, empty and named; without being sure of that nothing is written to it.
            Change::Unknown(_, error) => Err(error.into()),
            Change::NotDone(error) => {
                self.remove_disk_files([&name]);
                Err(error.into())
            }
        }
    }

    /// Makes an empty layer for the VMM to merge the disk's sealed ones into, when they are many: each capture that
    /// fails after its instant leaves one, and a disk takes no more than a few hundred.
    pub(super) fn add_merged(
        &mut self,
        state: &CaptureState,
        machine: &mut MachineFile,
    ) -> Result<(), CheckpointError> {
        let layers = &machine.disk.layers;
        let top = state.vmm_top.as_ref();
        let Some(at) = top.and_then(|top| layers.iter().position(|layer| layer == top)) else {
            return Ok(());
        };
        let replaces = layers[..at].to_vec();
        if replaces.len() <= MERGE_ABOVE {
            return Ok(());
        }
        let dir = &self.shared.dir;
        let name = format!("layer-{}", machine.disk.next);
        create_overlay(&dir.disk().join(&name), machine.spec.disk_bytes)?;
        sync_directory(&dir.disk())?;
        self.merged = Some(Merged { name, replaces });
        *machine = dir.change(|machine| machine.disk.next += 1).visible()?;
        Ok(())
    }

    /// Names the layer that the VMM has merged others into in their place.
    pub(super) fn take_merged(&mut self, machine: &mut MachineFile) -> Result<(), CheckpointError> {
        let Some(Merged { name, replaces }) = self.merged.take() else {
            return Err(CheckpointError::Vmm("it merged unasked".to_owned()));
        };
        let change = self.shared.dir.change(|machine| {
            let layers = &mut machine.disk.layers;
            layers.retain(|layer| !replaces.contains(layer));
            layers.insert(0, name.clone());
        });
        match change {
            Change::Done(changed) => {
                self.remove_disk_files(&replaces);
                *machine = changed;
            }
            Change::NotDone(error) => {
                // The former ones are as good, and the VMM has the file open.
                self.remove_disk_files([&name]);
                return Err(error.into());
            }
            unknown @ Change::Unknown(..) => *machine = unknown.visible()?,
        }
        Ok(())
    }

    /// Makes the point the machine's head and the base of its disk.
    pub(super) fn move_head(
        &self,
        machine: &MachineFile,
        point: &Point,
        request: &CheckpointRequest,
    ) -> Result<MovedHead, CheckpointError> {
        let dir = &self.shared.dir;
        let disk = &point.record().disks[0];
        let map = BaseMap::of_point(disk);
        let base = format!("base-{}.map", machine.disk.next);
        let base_path = dir.disk().join(&base);
        replace_file(&base_path, &map.encode())?;

        let sealed = sealed_layers(machine);
        let change = dir.change(|machine| {
            machine.disk.base = base.clone();
            machine.disk.layers.retain(|layer| !sealed.contains(layer));
            machine.disk.next += 1;
            machine.head = Some(point.id().to_string());
            machine.store = Some(request.store.clone());
            machine.history = request.history;
        });
        let durable = match change {
            Change::Done(_) => true,
            unknown @ Change::Unknown(..) => {
                unknown.visible()?;
                false
            }
            Change::NotDone(error) => {
                self.remove_disk_files([&base]);
                return Err(error.into());
            }
        };
        Phase::HeadMoved.reached();
        Ok(MovedHead { base, durable })
    }

    /// Puts the VMM's disk onto its new base; `former` is the machine as it was before its head moved. The
    /// point is published and durable: this is housekeeping and may fail.
    pub(super) fn rebase(
        &mut self,
        former: &MachineFile,
        head: &MovedHead,
    ) -> Result<(), CheckpointError> {
        let base_path = self.shared.dir.disk().join(&head.base);
        let map = File::open(&base_path).map_err(FileError::at("open", &base_path))?;
        let told = self.send(CaptureRequest::Published, &[map.as_fd()]);
        match told.and_then(|()| self.next()) {
            // It ended meanwhile: nobody uses them.
            Ok(CaptureEvent::Rebased) | Err(CheckpointError::Ended) => {}
            Err(CheckpointError::Channel(ChannelError::Closed)) => {}
            Ok(CaptureEvent::Failed { message, .. }) => return Err(CheckpointError::Vmm(message)),
            Ok(other) => return Err(CheckpointError::Vmm(format!("unexpected {other:?}"))),
            Err(error) => return Err(error),
        }
        // Otherwise a power failure may bring the former ones back into use.
        if head.durable {
            self.remove_disk_files(sealed_layers(former));
            self.remove_disk_files([&former.disk.base]);
        }
        Phase::LayersDropped.reached();
        Ok(())
    }

    pub(super) fn remove_disk_files<'b>(&self, names: impl IntoIterator<Item = &'b String>) {
        for name in names {
            if let Err(error) = fs::remove_file(self.shared.dir.disk().join(name)) {
                tracing::warn!(%name, %error, "a former file of the disk was not removed");
            }
        }
    }

    /// Takes files away that the VMM did not begin to use.
    pub(super) fn drop_unused_files(&mut self) {
        if let Some(merged) = self.merged.take() {
            self.remove_disk_files([&merged.name]);
        }
        if self.switched == Switched::No
            && let Some(unused) = self.added_layer.take()
            && let Err(error) = self.drop_unused_layer(&unused)
        {
            tracing::warn!(%error, "an unused layer is kept");
        }
    }

    fn drop_unused_layer(&self, unused: &String) -> Result<(), MachineDirError> {
        let drop = |machine: &mut MachineFile| machine.disk.layers.retain(|layer| layer != unused);
        match self.shared.dir.change(drop) {
            Change::Done(_) => self.remove_disk_files([unused]),
            unknown => {
                unknown.visible()?;
            }
        }
        Ok(())
    }
}

/// The layers below the top.
fn sealed_layers(machine: &MachineFile) -> &[String] {
    let layers = &machine.disk.layers;
    &layers[..layers.len().saturating_sub(1)]
}
