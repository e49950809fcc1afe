//! The machine's head and the layers of its disk around a capture.

use std::fs::{self, File};
use std::os::fd::AsFd;

use cas_store::ChunkId;
use snapshot_format::Point;

use super::Run;
use super::error::CheckpointError;
use crate::channel::control::CheckpointRequest;
use crate::channel::messages::{CaptureEvent, CaptureRequest};
use crate::file_error::FileError;
use crate::image::ImageMap;
use crate::machine::{MachineDirError, MachineFile, create_overlay, replace_file};
use crate::phase::Phase;
use crate::point::sync_directory;

impl Run<'_> {
    /// Gives the disk a new top, in `machine.json` before the VMM uses it: whatever is killed when, no
    /// write is lost.
    pub(super) fn add_layer(&self) -> Result<MachineFile, CheckpointError> {
        let dir = &self.shared.dir;
        let mut machine = dir.read()?.ok_or(CheckpointError::Ended)?;
        let name = format!("layer-{}", machine.disk.next);
        let path = dir.disk().join(&name);
        create_overlay(&path, machine.spec.disk_bytes)?;
        sync_directory(&dir.disk())?;
        machine.disk.next += 1;
        machine.disk.layers.push(name.clone());
        if let Err(error) = dir.write(&machine) {
            self.remove_disk_files([&name]);
            return Err(error.into());
        }
        Ok(machine)
    }

    /// Makes the point the machine's head and the base of its disk. Returns the name of the base.
    pub(super) fn move_head(
        &self,
        machine: &MachineFile,
        point: &Point,
        request: &CheckpointRequest,
    ) -> Result<String, CheckpointError> {
        let dir = &self.shared.dir;
        let disk = &point.record().disks[0];
        let map = ImageMap::new(disk.chunks.iter().map(|chunk| ChunkId(chunk.0)).collect());
        let base = format!("base-{}.map", machine.disk.next);
        let base_path = dir.disk().join(&base);
        replace_file(&base_path, &map.encode())?;

        let mut machine = machine.clone();
        let top = machine.disk.layers.pop().ok_or(CheckpointError::Ended)?;
        machine.disk.base = base.clone();
        machine.disk.layers = vec![top];
        machine.disk.next += 1;
        machine.head = Some(point.id().to_string());
        machine.store = Some(request.store.clone());
        if let Err(error) = dir.write(&machine) {
            self.remove_disk_files([&base]);
            return Err(error.into());
        }
        Phase::HeadMoved.reached();
        Ok(base)
    }

    /// Puts the VMM's disk onto its new base; `former` is the machine as it was before its head moved. The
    /// point is published and durable: this is housekeeping and may fail.
    pub(super) fn rebase(&self, former: &MachineFile, base: &str) -> Result<(), CheckpointError> {
        let base_path = self.shared.dir.disk().join(base);
        let map = File::open(&base_path).map_err(FileError::at("open", &base_path))?;
        self.send(CaptureRequest::End, &[map.as_fd()])?;
        match self.next()? {
            CaptureEvent::Ended => {
                let sealed = former.disk.layers.len().saturating_sub(1);
                self.remove_disk_files(&former.disk.layers[..sealed]);
                self.remove_disk_files([&former.disk.base]);
            }
            CaptureEvent::Failed { message, .. } => return Err(CheckpointError::Vmm(message)),
            other => return Err(CheckpointError::Vmm(format!("unexpected {other:?}"))),
        }
        Phase::LayersDropped.reached();
        Ok(())
    }

    fn remove_disk_files<'b>(&self, names: impl IntoIterator<Item = &'b String>) {
        for name in names {
            if let Err(error) = fs::remove_file(self.shared.dir.disk().join(name)) {
                tracing::warn!(%name, %error, "a former file of the disk was not removed");
            }
        }
    }

    /// Takes a layer away that the VMM did not begin to use.
    pub(super) fn drop_unused_layer(&self) -> Result<(), MachineDirError> {
        let dir = &self.shared.dir;
        let Some(mut machine) = dir.read()? else {
            return Ok(());
        };
        if machine.disk.layers.len() > 1
            && let Some(unused) = machine.disk.layers.pop()
        {
            dir.write(&machine)?;
            self.remove_disk_files([&unused]);
        }
        Ok(())
    }
}
