//! One overlay file: a sparse data region, identity mapped, and a map of what it holds.
//!
//! The map is never ahead of the data in a way that matters, without any sync between them: see
//! `docs/format.md`, "Overlay files", for the rules and why they hold.

mod read;
mod sync;
mod write;

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{DiskError, OverlayError};
use crate::file::OverlayFile;
use crate::granule::{GranuleRange, MapEntry, Source, State};
use crate::header::{GRANULES_PER_MAP_BYTE, Geometry, HEADER_USED, MAP_PAGE_BYTES};
use crate::map::AllocationMap;
use crate::range_lock::RangeLock;

/// Reads the content beneath an overlay.
pub(crate) type Below<'a> = &'a dyn Fn(u64, &mut [u8]) -> Result<(), DiskError>;

/// An open overlay file, made or opened for writing: what becomes the top of a disk.
///
/// A new or reopened overlay does nothing by itself; give it to a
/// [`LayeredDisk`](crate::LayeredDisk).
pub struct Overlay {
    file: Arc<dyn OverlayFile>,
    geometry: Geometry,
    map: AllocationMap,
    /// Orders changes of the file's map, whose bytes several granules share.
    map_writes: Mutex<()>,
    /// Held by every request that changes granules.
    requests: RangeLock,
    /// Ranges in which granules turned `ZeroStale` since the last flush.
    stale: Mutex<Vec<GranuleRange>>,
    /// Counts finished changes; compared with what a sync covered.
    changes: AtomicU64,
    /// The count that the last sync covered. Held during a sync, so that no flush answers while
    /// another one is still making the same changes durable.
    synced: Mutex<u64>,
    poisoned: AtomicBool,
    sealed: AtomicBool,
}

impl Overlay {
    /// Makes an empty overlay for a disk of `disk_bytes` in an empty file, durable on return. (The
    /// directory entry of the file is the caller's to sync.)
    ///
    /// # Errors
    ///
    /// The size is not possible, the file not empty, or it cannot be written.
    pub fn create(file: impl OverlayFile + 'static, disk_bytes: u64) -> Result<Self, OverlayError> {
        Self::create_shared(Arc::new(file), disk_bytes)
    }

    /// As [`create`](Self::create), in a file that others share.
    ///
    /// # Errors
    ///
    /// As for [`create`](Self::create).
    pub fn create_shared(
        file: Arc<dyn OverlayFile>,
        disk_bytes: u64,
    ) -> Result<Self, OverlayError> {
        let geometry = Geometry::new(disk_bytes)?;
        let size_bytes = file.size_bytes().map_err(io_error("read the size of"))?;
        if size_bytes != 0 {
            return Err(OverlayError::NotEmpty { size_bytes });
        }
        file.set_size_bytes(geometry.file_bytes())
            .map_err(io_error("size"))?;
        file.write_at(0, &geometry.encode())
            .map_err(io_error("write the header of"))?;
        file.sync_data().map_err(io_error("sync"))?;
        let map = AllocationMap::new(geometry.granules());
        Ok(Self::assemble(file, geometry, map, 0))
    }

    /// Opens an overlay to write to it again. What a crash left half done is finished first.
    ///
    /// # Errors
    ///
    /// The file is no overlay of a known version, is damaged, or cannot be read or written.
    pub fn open(file: impl OverlayFile + 'static) -> Result<Self, OverlayError> {
        Self::open_shared(Arc::new(file))
    }

    /// As [`open`](Self::open), from a file that others share.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open).
    pub fn open_shared(file: Arc<dyn OverlayFile>) -> Result<Self, OverlayError> {
        let overlay = Self::load(file)?;
        overlay.punch_after_open()?;
        Ok(overlay)
    }

    /// Opens an overlay that is only read from now on; its file may be open for reading only.
    pub(crate) fn open_sealed(file: Arc<dyn OverlayFile>) -> Result<Self, OverlayError> {
        let overlay = Self::load(file)?;
        overlay.seal();
        Ok(overlay)
    }

    fn load(file: Arc<dyn OverlayFile>) -> Result<Self, OverlayError> {
        let size_bytes = file.size_bytes().map_err(io_error("read the size of"))?;
        if size_bytes < HEADER_USED as u64 {
            return Err(OverlayError::Magic);
        }
        let mut header = [0; HEADER_USED];
        file.read_at(0, &mut header)
            .map_err(io_error("read the header of"))?;
        let geometry = Geometry::decode(&header)?;
        if size_bytes < geometry.file_bytes() {
            return Err(OverlayError::Truncated {
                size_bytes,
                needed_bytes: geometry.file_bytes(),
            });
        }
        let map = load_map(file.as_ref(), geometry)?;
        // A process that died may have left changes that no sync covered: one is due.
        Ok(Self::assemble(file, geometry, map, 1))
    }

    fn assemble(
        file: Arc<dyn OverlayFile>,
        geometry: Geometry,
        map: AllocationMap,
        changes: u64,
    ) -> Self {
        Self {
            file,
            geometry,
            map,
            map_writes: Mutex::default(),
            requests: RangeLock::default(),
            stale: Mutex::default(),
            changes: AtomicU64::new(changes),
            synced: Mutex::new(0),
            poisoned: AtomicBool::new(false),
            sealed: AtomicBool::new(false),
        }
    }

    /// The size of the disk that the overlay was made for.
    pub fn disk_bytes(&self) -> u64 {
        self.geometry.disk_bytes()
    }

    /// What the file takes on its disk.
    ///
    /// # Errors
    ///
    /// When the system does not say.
    pub fn stored_bytes(&self) -> io::Result<u64> {
        self.file.stored_bytes()
    }

    /// Whether a failed sync or repair has made the overlay refuse writes and flushes.
    pub fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }

    /// Refuses writes from now on.
    pub(crate) fn seal(&self) {
        self.sealed.store(true, Ordering::Release);
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::Acquire)
    }

    /// Whether no granule is recorded.
    pub(crate) fn is_empty(&self) -> bool {
        self.map.run(0..self.map.granules()) == (State::Absent, self.map.granules())
    }

    /// Where the bytes of granules come from: those of the first one, and where the run of
    /// granules with the same source ends.
    pub(crate) fn source_run(&self, range: GranuleRange) -> (Source, u64) {
        let (state, end) = self.map.run(range);
        (state.source(), end)
    }

    /// Writes an entry for all granules of the range into the file's map, then gives them the
    /// state in memory. After an error the file's map is as before, or the overlay is poisoned.
    fn record(&self, range: GranuleRange, entry: MapEntry, state: State) -> io::Result<()> {
        debug_assert_eq!(state.recorded(), entry);
        let _order = self
            .map_writes
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut at = range.start;
        while at < range.end {
            // One page of the map at a time: bounded memory for any range.
            let page_granules = MAP_PAGE_BYTES * GRANULES_PER_MAP_BYTE;
            let end = range.end.min((at / page_granules + 1) * page_granules);
            self.record_piece(at..end, entry)?;
            self.map.set(at..end, state);
            at = end;
        }
        Ok(())
    }

    fn record_piece(&self, range: GranuleRange, entry: MapEntry) -> io::Result<()> {
        let bytes = self.geometry.map_byte_range(&range);
        let offset = self.geometry.map_offset() + bytes.start;
        let new = self.map_bytes(bytes.clone(), |granule| {
            range.contains(&granule).then_some(entry)
        });
        self.file.write_at(offset, &new).inspect_err(|_| {
            // A part may have been written. It must not stay: the granules will go on in their
            // old states, and a reopening would take the new ones for true.
            let old = self.map_bytes(bytes, |_| None);
            if self.file.write_at(offset, &old).is_err() {
                self.poison();
            }
        })
    }

    /// Bytes of the file's map: the entry given, else the one recorded.
    fn map_bytes(
        &self,
        bytes: std::ops::Range<u64>,
        entry: impl Fn(u64) -> Option<MapEntry>,
    ) -> Vec<u8> {
        bytes
            .map(|byte| {
                (0..GRANULES_PER_MAP_BYTE).fold(0, |bits, slot| {
                    let granule = byte * GRANULES_PER_MAP_BYTE + slot;
                    let entry = entry(granule).unwrap_or_else(|| self.map.get(granule).recorded());
                    bits | (entry as u8) << (slot * 2)
                })
            })
            .collect()
    }

    fn poison(&self) {
        self.poisoned.store(true, Ordering::Release);
    }

    fn data_offset(&self, disk_offset: u64) -> u64 {
        self.geometry.data_offset() + disk_offset
    }
}

impl fmt::Debug for Overlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overlay")
            .field("file", &self.file)
            .field("disk_bytes", &self.disk_bytes())
            .field("sealed", &self.is_sealed())
            .field("poisoned", &self.is_poisoned())
            .finish_non_exhaustive()
    }
}

/// Reads the file's map, a page at a time.
fn load_map(file: &dyn OverlayFile, geometry: Geometry) -> Result<AllocationMap, OverlayError> {
    /// Pages read together.
    const BATCH_BYTES: u64 = 64 * MAP_PAGE_BYTES;
    let map = AllocationMap::new(geometry.granules());
    let mut buf = vec![0; BATCH_BYTES.min(geometry.map_bytes()) as usize];
    let mut at = 0;
    while at < geometry.map_bytes() {
        let len = BATCH_BYTES.min(geometry.map_bytes() - at) as usize;
        file.read_at(geometry.map_offset() + at, &mut buf[..len])
            .map_err(io_error("read the map of"))?;
        for (index, byte) in buf[..len]
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte != 0)
        {
            load_map_byte(&map, (at + index as u64) * GRANULES_PER_MAP_BYTE, *byte);
        }
        at += len as u64;
    }
    Ok(map)
}

fn load_map_byte(map: &AllocationMap, first: u64, byte: u8) {
    for slot in 0..GRANULES_PER_MAP_BYTE {
        let granule = first + slot;
        // Entries beyond the disk have no meaning.
        if granule < map.granules() {
            let entry = MapEntry::from_bits(byte >> (slot * 2));
            map.set(granule..granule + 1, State::on_open(entry));
        }
    }
}

/// Wraps what the system said about an overlay's file.
fn io_error(action: &'static str) -> impl FnOnce(io::Error) -> OverlayError {
    move |source| OverlayError::Io { action, source }
}
