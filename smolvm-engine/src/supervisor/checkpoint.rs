//! Saving a running machine: from a command to a published point.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cas_store::{
    Capture, CaptureOptions, ChunkId, MAX_PACKS_PER_POINT, PackId, PackSet, PointId, SealedCapture,
    Store, StoreError, pack_file_name,
};
use snapshot_format::{
    Blob, BootBlobs, CheckpointId, ChunkMap, ChunkRef, LineageEntry, Point, StateRecord, WallTime,
};
use thiserror::Error;

use super::capture_route::CaptureRoute;
use super::chunk_sink::{ChunkSink, SinkError};
use super::control::{CheckpointDone, CheckpointRequest};
use super::disk_capture::{self, DiskCaptureError};
use super::record::{self, RecordError};
use super::run::Shared;
use crate::channel::{self as socket_channel, ChannelError};
use crate::error::EngineError;
use crate::image::ImageMap;
use crate::machine::{MachineDirError, MachineFile, replace_file};
use crate::phase::Phase;
use crate::point::{
    History, PointError, Publication, chunk_ids, publish, read_point, record_file_name,
    sync_directory, write_synced,
};
use crate::vmm::messages::{BeginCapture, CaptureEvent, CaptureRequest, ToVmm, UnitState};

/// Slots of the window between VMM and supervisor: 64 MiB.
const WINDOW_SLOTS: u32 = 1024;
/// How long the guest may take to write its page cache out, before the capture.
const SYNC_PATIENCE: Duration = Duration::from_millis(200);
/// How long the VMM may stay silent during a capture.
const VMM_PATIENCE: Duration = Duration::from_secs(120);

/// Why a machine was not saved.
#[derive(Debug, Error)]
pub(crate) enum CheckpointError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Point(#[from] PointError),
    #[error(transparent)]
    Dir(#[from] MachineDirError),
    #[error("the machine ended while it was saved")]
    Ended,
    #[error("the VMM: {0}")]
    Vmm(String),
    #[error("the VMM does not answer")]
    Channel(#[from] ChannelError),
    #[error(transparent)]
    Sink(#[from] SinkError),
    #[error(transparent)]
    Disk(#[from] DiskCaptureError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("cannot {operation} {}", path.display())]
    Io {
        operation: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Layer(#[from] Box<EngineError>),
    #[error("whoever asked for it is gone")]
    Cancelled,
}

fn io_error(
    operation: &'static str,
    path: &Path,
) -> impl FnOnce(io::Error) -> CheckpointError + use<> {
    let path = path.to_owned();
    move |source| CheckpointError::Io {
        operation,
        path,
        source,
    }
}

/// What a supervisor remembers between captures.
#[derive(Default)]
pub(super) struct CaptureState {
    /// The point that memory is equal to, but for the pages that the VMM notes as written.
    pub(super) base: Option<Arc<Point>>,
}

/// Told about progress: phase, bytes done, bytes in total if known. `false` cancels.
pub(super) type OnProgress<'a> = &'a dyn Fn(&str, u64, Option<u64>) -> bool;

/// Saves the machine as asked.
pub(super) fn checkpoint(
    shared: &Shared,
    request: &CheckpointRequest,
    progress: OnProgress<'_>,
) -> Result<CheckpointDone, CheckpointError> {
    let begin = Instant::now();
    let mut state = shared
        .capture
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    if shared.has_ended() {
        return Err(CheckpointError::Ended);
    }
    if shared.rebooted.swap(false, Ordering::SeqCst) {
        state.base = None;
    }
    let store = Store::open(&request.store)?;
    let machine_packs = PackSet::open([shared.dir.packs()]);
    let options = CaptureOptions {
        parents: machine_packs.packs().map_err(PointError::from)?,
        ..CaptureOptions::default()
    };
    let capture = store.begin_capture(options)?;
    Phase::CaptureBegun.reached();
    shared.sync_guest(SYNC_PATIENCE);

    let mut run = Run {
        shared,
        route: shared.capture_router.open(),
        frozen: false,
    };
    let result = run.save(
        &mut state,
        &store,
        capture,
        &machine_packs,
        request,
        progress,
        begin,
    );
    result.inspect_err(|_| run.abort(&mut state))
}

/// One capture.
struct Run<'a> {
    shared: &'a Shared,
    route: CaptureRoute<'a>,
    /// The VMM has switched the disk to its new top.
    frozen: bool,
}

/// What the VMM brought out.
struct Moment {
    states: Vec<UnitState>,
    pause_micros: u64,
    taken: WallTime,
}

impl Run<'_> {
    #[allow(clippy::too_many_arguments)]
    fn save(
        &mut self,
        state: &mut MutexGuard<'_, CaptureState>,
        store: &Store,
        capture: Capture,
        machine_packs: &PackSet,
        request: &CheckpointRequest,
        progress: OnProgress<'_>,
        begin: Instant,
    ) -> Result<CheckpointDone, CheckpointError> {
        let machine = self.add_layer()?;
        Phase::LayerAdded.reached();
        let base = state.base.clone();
        let mut sink = ChunkSink::new(&capture, base.as_deref(), machine.spec.memory_bytes)?;
        let instant = self.receive(&machine, base.is_none(), &mut sink, progress)?;
        let memory = sink.finish(machine_packs)?;
        Phase::MemoryStored.reached();
        progress("disk", 0, None);
        let disk = disk_capture::capture_disk(&self.shared.dir, &machine, &capture, machine_packs)?;
        Phase::DiskStored.reached();
        let boot = self.boot_blobs(&machine, &capture, machine_packs)?;
        let record = record::assemble(
            &machine,
            self.shared,
            &request.message,
            instant.taken,
            to_records(instant.states),
            record::Maps { memory, disk, boot },
        )?;
        let (point, bytes) = Point::seal(record).map_err(PointError::from)?;
        let ids = chunk_ids(&point);
        capture.limit_packs(&ids, MAX_PACKS_PER_POINT)?;
        let data_before = capture.stats();
        if !progress("publishing", 0, None) {
            return Err(CheckpointError::Cancelled);
        }
        let sealed = capture.seal()?;
        Phase::PacksSealed.reached();
        let pinned_before = self.pinned_packs()?;
        let published = self
            .pin_into_machine(&point, &bytes, &ids, &sealed)
            .and_then(|()| self.publish(store, request, &machine, &point, &bytes, &sealed));
        if let Err(error) = published {
            self.unpin(&point.id(), &pinned_before);
            return Err(error);
        }
        Phase::Registered.reached();
        let point = Arc::new(point);
        // The point is published and durable: it stands even if the machine cannot take it as its head.
        match self.move_head(&machine, &point, request) {
            Ok(base) => {
                state.base = self.shared.branchable.then(|| point.clone());
                if let Err(error) = self.rebase(&machine, &base) {
                    tracing::warn!(%error, "former layers of the disk are kept");
                }
            }
            Err(error) => {
                tracing::error!(error = %crate::error::chain(&error), "the head was not moved");
                self.unpin(&point.id(), &pinned_before);
                self.abort(state);
            }
        }
        let stats = sealed.stats();
        let data_bytes = point.record().data_bytes;
        let stored = data_before
            .data_bytes
            .saturating_sub(data_before.shared_bytes);
        Ok(CheckpointDone {
            id: point.id().to_string(),
            short_id: point.id().short(),
            output: request.output.clone(),
            pause_micros: instant.pause_micros,
            saved_micros: u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX),
            written_bytes: stats.written_bytes,
            data_bytes,
            shared_bytes: data_bytes.saturating_sub(stored),
            tracked: self.shared.branchable,
        })
    }

    /// Gives the disk a new top, in `machine.json` before the VMM uses it: whatever is killed when, no
    /// write is lost.
    fn add_layer(&self) -> Result<MachineFile, CheckpointError> {
        let dir = &self.shared.dir;
        let mut machine = dir.read()?.ok_or(CheckpointError::Ended)?;
        let name = format!("layer-{}", machine.disk.next);
        let path = dir.disk().join(&name);
        crate::create::create_overlay(&path, machine.spec.disk_bytes).map_err(Box::new)?;
        sync_directory(&dir.disk())?;
        machine.disk.next += 1;
        machine.disk.layers.push(name.clone());
        if let Err(error) = dir.write(&machine) {
            self.remove_disk_files([&name]);
            return Err(error.into());
        }
        Ok(machine)
    }

    /// Lets the VMM capture and takes what it sends.
    fn receive(
        &mut self,
        machine: &MachineFile,
        full: bool,
        sink: &mut ChunkSink<'_>,
        progress: OnProgress<'_>,
    ) -> Result<Moment, CheckpointError> {
        let window = sink.window()?;
        let top = machine.disk.layers.last().ok_or(CheckpointError::Ended)?;
        let top_path = self.shared.dir.disk().join(top);
        let top = File::options()
            .read(true)
            .write(true)
            .open(&top_path)
            .map_err(io_error("open", &top_path))?;
        let begin = CaptureRequest::Begin(BeginCapture {
            full,
            slots: WINDOW_SLOTS,
        });
        self.send(begin, &[window.as_fd(), top.as_fd()])?;
        let total = full.then_some(machine.spec.memory_bytes);
        let mut instant = None;
        loop {
            match self.next()? {
                CaptureEvent::Chunks(chunks) => {
                    let freed = sink.take(&chunks)?;
                    if !freed.is_empty() {
                        self.send(CaptureRequest::FreeSlots(freed), &[])?;
                    }
                    if !progress("memory", sink.seen_bytes(), total) {
                        return Err(CheckpointError::Cancelled);
                    }
                }
                CaptureEvent::Frozen {
                    states,
                    pause_micros,
                    taken,
                } => {
                    self.frozen = true;
                    let taken = WallTime::new(taken.0, taken.1).unwrap_or_default();
                    instant = Some(Moment {
                        states,
                        pause_micros,
                        taken,
                    });
                }
                CaptureEvent::MemoryDone => {
                    return instant.ok_or(CheckpointError::Vmm("no instant".to_owned()));
                }
                CaptureEvent::Failed { message, switched } => {
                    self.frozen |= switched;
                    return Err(CheckpointError::Vmm(message));
                }
                other => return Err(CheckpointError::Vmm(format!("unexpected {other:?}"))),
            }
        }
    }

    fn next(&self) -> Result<CaptureEvent, CheckpointError> {
        match self.route.next(VMM_PATIENCE) {
            Ok(message) => Ok(message),
            Err(RecvTimeoutError::Disconnected) => Err(CheckpointError::Ended),
            Err(RecvTimeoutError::Timeout) => {
                Err(CheckpointError::Vmm("it stays silent".to_owned()))
            }
        }
    }

    fn send(
        &self,
        request: CaptureRequest,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), CheckpointError> {
        let message = ToVmm::Capture(self.route.number(), request);
        let socket = self
            .shared
            .vmm_socket
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        Ok(socket_channel::send(&socket, &message, descriptors)?)
    }

    /// Kernel and initramfs as chunks: those of the head, or from the machine's files.
    fn boot_blobs(
        &self,
        machine: &MachineFile,
        capture: &Capture,
        machine_packs: &PackSet,
    ) -> Result<BootBlobs, CheckpointError> {
        let dir = &self.shared.dir;
        if let Some(head) = &machine.head
            && let Ok(id) = head.parse::<CheckpointId>()
            && let Ok(point) = read_point(&dir.records().join(record_file_name(&id)), Some(id))
        {
            let boot = point.record().boot.clone();
            disk_capture::adopt(capture, machine_packs, boot_ids(&boot))?;
            // It names the host, which a restored machine may have changed.
            let command_line = machine.command_line.clone();
            return Ok(BootBlobs {
                command_line,
                ..boot
            });
        }
        Ok(BootBlobs {
            kernel: put_file(capture, &dir.kernel())?,
            initramfs: put_file(capture, &dir.initramfs())?,
            command_line: machine.command_line.clone(),
        })
    }

    /// The machine keeps the point by itself: whatever happens to the store, it goes on.
    fn pin_into_machine(
        &self,
        point: &Point,
        record: &[u8],
        ids: &[ChunkId],
        sealed: &SealedCapture,
    ) -> Result<(), CheckpointError> {
        let dir = &self.shared.dir;
        sealed.pin_into(&dir.packs(), ids)?;
        let path = dir.records().join(record_file_name(&point.id()));
        if !path.exists() {
            write_synced(&path, record)?;
            sync_directory(&dir.records())?;
        }
        Phase::Pinned.reached();
        Ok(())
    }

    /// The packs that the machine has.
    fn pinned_packs(&self) -> Result<HashSet<PackId>, CheckpointError> {
        let packs = PackSet::open([self.shared.dir.packs()]).packs();
        Ok(packs.map_err(PointError::from)?.into_iter().collect())
    }

    /// Undoes [`Run::pin_into_machine`] for a point that was not published.
    fn unpin(&self, id: &CheckpointId, pinned_before: &HashSet<PackId>) {
        let dir = &self.shared.dir;
        let mut unneeded = vec![dir.records().join(record_file_name(id))];
        match self.pinned_packs() {
            Ok(packs) => unneeded.extend(
                packs
                    .difference(pinned_before)
                    .map(|pack| dir.packs().join(pack_file_name(pack))),
            ),
            Err(error) => tracing::warn!(%error, "packs of a point that failed are kept"),
        }
        for path in unneeded {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(path = %path.display(), %error, "a leftover of a failed capture is kept");
                }
                _ => {}
            }
        }
    }

    fn publish(
        &self,
        store: &Store,
        request: &CheckpointRequest,
        machine: &MachineFile,
        point: &Point,
        record: &[u8],
        sealed: &SealedCapture,
    ) -> Result<(), CheckpointError> {
        let dir = &self.shared.dir;
        let id = PointId(point.id().0);
        let line = LineageEntry::from(point).to_line();
        let Some(output) = &request.output else {
            return Ok(store.put_point(&id, record, &line)?);
        };
        let earlier = self.earlier(machine, request.history)?;
        let earlier_packs = PackSet::open([dir.packs()]);
        let published = publish(&Publication {
            target: output,
            point,
            record,
            earlier: earlier.as_ref(),
            earlier_packs: &earlier_packs,
            sealed,
        })?;
        Phase::Published.reached();
        if let Err(error) = store.register_directory(&id, output, &line) {
            published.withdraw();
            return Err(error.into());
        }
        Ok(())
    }

    /// The machine's head and its parents, at most `limit`.
    fn earlier(
        &self,
        machine: &MachineFile,
        limit: usize,
    ) -> Result<Option<History>, CheckpointError> {
        let Some(head) = machine.head.as_ref().and_then(|head| head.parse().ok()) else {
            return Ok(None);
        };
        let records = self.shared.dir.records();
        if limit == 0 {
            return Ok(None);
        }
        let file = records.join(record_file_name(&head));
        let head = read_point(&file, Some(head))?;
        Ok(Some(
            History::follow(head, &file, &records)?.limit(limit - 1),
        ))
    }

    /// Makes the point the machine's head and the base of its disk. Returns the name of the base.
    fn move_head(
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
    fn rebase(&self, former: &MachineFile, base: &str) -> Result<(), CheckpointError> {
        let base_path = self.shared.dir.disk().join(base);
        let map = File::open(&base_path).map_err(io_error("open", &base_path))?;
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

    /// After an error: the VMM forgets the capture, an unused layer goes away, nothing else changed.
    fn abort(&mut self, state: &mut MutexGuard<'_, CaptureState>) {
        if self.shared.has_ended() {
            return;
        }
        if let Err(error) = self.send(CaptureRequest::End, &[]) {
            tracing::debug!(%error, "the VMM is gone");
            return;
        }
        loop {
            match self.next() {
                Ok(CaptureEvent::Ended) => break,
                Ok(CaptureEvent::Frozen { .. }) => self.frozen = true,
                Ok(CaptureEvent::Failed { switched, .. }) => self.frozen |= switched,
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%error, "the VMM does not end the capture");
                    // What it holds is unknown: the next capture takes everything.
                    state.base = None;
                    return;
                }
            }
        }
        if !self.frozen
            && let Err(error) = self.drop_unused_layer()
        {
            tracing::warn!(%error, "an unused layer is kept");
        }
    }

    fn drop_unused_layer(&self) -> Result<(), MachineDirError> {
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

fn to_records(states: Vec<UnitState>) -> Vec<StateRecord> {
    let record =
        |state: UnitState| StateRecord::new(&state.unit, &state.kind, state.version, state.bytes);
    states.into_iter().map(record).collect()
}

fn boot_ids(boot: &BootBlobs) -> Vec<ChunkId> {
    let blobs = [&boot.kernel, &boot.initramfs];
    blobs
        .iter()
        .flat_map(|blob| blob.chunks.data())
        .map(|chunk| ChunkId(chunk.0))
        .collect()
}

fn put_file(capture: &Capture, path: &Path) -> Result<Blob, CheckpointError> {
    let bytes = fs::read(path).map_err(io_error("read", path))?;
    let mut chunks = ChunkMap::new();
    for chunk in bytes.chunks(cas_store::MAX_CHUNK_BYTES) {
        chunks.push(ChunkRef(capture.put(chunk)?.0));
    }
    Ok(Blob::new(bytes.len() as u64, chunks))
}
