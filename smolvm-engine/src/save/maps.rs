//! The maps of a point that is being made: former nodes are read from the machine, new ones are stored.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{PoisonError, RwLock};

use cas_store::{Capture, ChunkId, PackSet, ReadError, StoreError};
use snapshot_format::map::{ChangeError, SeenNodes};
use snapshot_format::{
    CHUNK_BYTES, ChunkRef, MapNodes, MapReader, MapRoot, NodeSource, Part, PointRecord,
};
use thiserror::Error;

use crate::machine::{BaseMap, MapReadError, NodesIn};

/// Why the maps of a point could not be made.
#[derive(Debug, Error)]
pub(crate) enum MapsError {
    #[error(transparent)]
    Read(#[from] MapReadError),
    #[error(transparent)]
    Change(#[from] ChangeError<ReadError, StoreError>),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Packs(#[from] ReadError),
    #[error(
        "{count} chunks that did not change are lost: none of the machine's packs has them undamaged"
    )]
    Lost { count: usize },
}

/// Makes maps for one capture.
pub(crate) struct Maps<'a> {
    capture: &'a Capture,
    machine_packs: &'a PackSet,
    /// Directories with copies of some of these.
    elsewhere: &'a [PathBuf],
    reader: MapReader<Nodes<'a>>,
}

/// Nodes of the capture, of the disk's base where it came from an image, and of the machine's packs.
struct Nodes<'a> {
    new: RwLock<MapNodes>,
    base: MapNodes,
    packs: NodesIn<'a>,
}

impl Nodes<'_> {
    fn new_node(&self, id: &ChunkRef) -> Option<Vec<u8>> {
        let new = self.new.read().unwrap_or_else(PoisonError::into_inner);
        new.get(id).map(<[u8]>::to_vec)
    }
}

impl NodeSource for Nodes<'_> {
    type Error = ReadError;

    fn node(&self, id: &ChunkRef) -> Result<Vec<u8>, ReadError> {
        if let Some(bytes) = self.new_node(id) {
            return Ok(bytes);
        }
        match self.base.get(id) {
            Some(bytes) => Ok(bytes.to_vec()),
            None => self.packs.node(id),
        }
    }
}

impl<'a> Maps<'a> {
    /// Maps for `capture` of a machine with these packs, whose disk has this base. Where a pack is damaged, its chunks are looked
    /// for `elsewhere`.
    pub(crate) fn new(
        capture: &'a Capture,
        machine_packs: &'a PackSet,
        elsewhere: &'a [PathBuf],
        base: &BaseMap,
    ) -> Self {
        Self {
            capture,
            machine_packs,
            elsewhere,
            reader: MapReader::new(Nodes {
                new: RwLock::default(),
                base: base.nodes().clone(),
                packs: NodesIn(machine_packs),
            }),
        }
    }

    /// The map that differs from `map` in these chunks.
    pub(crate) fn change(
        &self,
        map: &MapRoot,
        changes: &BTreeMap<u64, ChunkRef>,
    ) -> Result<MapRoot, MapsError> {
        let write = &mut |bytes: &[u8]| {
            let id = self.capture.put(bytes)?;
            let new = &self.reader.source().new;
            new.write()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(bytes.to_vec());
            Ok(ChunkRef(id.0))
        };
        Ok(self.reader.change(map, changes, write)?)
    }

    /// The places at which `map` has data, within `range`.
    pub(crate) fn data_places(
        &self,
        map: &MapRoot,
        range: std::ops::Range<u64>,
    ) -> Result<Vec<u64>, MapsError> {
        let places = self.reader.data_in(map, range).map(|found| Ok(found?.0));
        places.collect()
    }

    /// Makes all that the record needs part of the capture: what did not change comes from the machine's packs. Sets
    /// the record's count of data. Returns the ids of all its chunks.
    pub(crate) fn complete(&self, record: &mut PointRecord) -> Result<Vec<ChunkId>, MapsError> {
        let ids = self.name_all(record)?;
        let mut lost = self.capture.adopt(self.machine_packs, &ids)?.missing;
        if !lost.is_empty() {
            lost = self.find_elsewhere(&lost)?;
        }
        match lost.len() {
            0 => Ok(ids),
            count => Err(MapsError::Lost { count }),
        }
    }

    /// As [`Self::complete`], for a record that the machine keeps: what did not change stays in its packs.
    pub(crate) fn complete_in_place(
        &self,
        record: &mut PointRecord,
    ) -> Result<Vec<ChunkId>, MapsError> {
        let ids = self.name_all(record)?;
        let mut lost = Vec::new();
        for id in &ids {
            if !(self.capture.contains(id)? || self.machine_packs.contains(id)?) {
                lost.push(*id);
            }
        }
        if !lost.is_empty() {
            lost = self.find_elsewhere(&lost)?;
        }
        match lost.len() {
            0 => Ok(ids),
            count => Err(MapsError::Lost { count }),
        }
    }

    /// Looks for copies of chunks that the machine has lost. Returns those of which there is none.
    fn find_elsewhere(&self, lost: &[ChunkId]) -> Result<Vec<ChunkId>, StoreError> {
        tracing::warn!(
            chunks = lost.len(),
            "chunks of the machine are lost; copies are looked for"
        );
        let elsewhere = PackSet::open(self.elsewhere);
        Ok(self.capture.adopt(&elsewhere, lost)?.missing)
    }

    /// The ids of all chunks of the record, whose count of data is set; nodes that are in no pack are stored.
    fn name_all(&self, record: &mut PointRecord) -> Result<Vec<ChunkId>, MapsError> {
        let ids = self.count(record)?;
        for id in &ids {
            self.put_base_node(id)?;
        }
        Ok(ids)
    }

    /// Makes the nodes of a map that the disk's base brought along part of the capture.
    pub(crate) fn put_base_nodes(&self, map: &MapRoot) -> Result<(), MapsError> {
        let mut ids = Vec::new();
        let visit = &mut |name: ChunkRef| ids.push(ChunkId(name.0));
        self.reader
            .visit_distinct(map, &mut SeenNodes::default(), visit)?;
        ids.iter().try_for_each(|id| self.put_base_node(id))
    }

    fn put_base_node(&self, id: &ChunkId) -> Result<(), MapsError> {
        if let Some(node) = self.reader.source().base.get(&ChunkRef(id.0)) {
            self.capture.put(node)?;
        }
        Ok(())
    }

    /// Sets the record's count of data. Returns the ids of all its chunks.
    pub(crate) fn count(&self, record: &mut PointRecord) -> Result<Vec<ChunkId>, MapsError> {
        let mut ids = Vec::new();
        let mut seen = SeenNodes::default();
        let mut data_chunks = 0u64;
        for part in record.parts() {
            let visit = &mut |name: ChunkRef| ids.push(ChunkId(name.0));
            let data = self.reader.visit_distinct(&part.map, &mut seen, visit)?;
            if matches!(part.part, Part::Memory { .. } | Part::Disk { .. }) {
                data_chunks = data_chunks.saturating_add(data);
            }
        }
        record.data_bytes = data_chunks.saturating_mul(CHUNK_BYTES);
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }
}
