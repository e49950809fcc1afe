//! Giving back the room of chunks that nobody needs inside packs that somebody needs, and keeping packs few.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{ReadError, StoreError};
use crate::pack::layout::Entry;
use crate::pack::pack_path;
use crate::pack::reader::Pack;
use crate::pack::sink::{ForeseenPacks, PackLimits, PackSink};
use crate::packset::{PackSet, PackSlot};
use crate::prune::PruneStep;
use crate::session::{self, Session, list, read_small};
use crate::store::Store;
use crate::sweep::{Liveness, Marking, RecordChunks};
use crate::{
    ChunkId, DEFAULT_PACK_BYTES, DEFAULT_PACK_CHUNKS, DirectoryState, MAX_CHUNK_BYTES,
    MAX_PACKS_PER_POINT, MAX_RECORD_BYTES, PackId,
};
use durable_files::FileStat;

/// When a new pack is begun.
const LIMITS: PackLimits = PackLimits {
    len_bytes: DEFAULT_PACK_BYTES,
    chunks: DEFAULT_PACK_CHUNKS,
};

/// Which packs are written again.
#[derive(Debug, Clone)]
pub struct RepackOptions {
    /// Packs of whose bodies at least this part, in percent, is dead.
    pub dead_percent: u8,
    /// If the store holds more packs than this, the smallest are merged as well.
    pub max_packs: usize,
}

impl Default for RepackOptions {
    fn default() -> Self {
        Self {
            dead_percent: 50,
            max_packs: MAX_PACKS_PER_POINT,
        }
    }
}

/// What a repack did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RepackReport {
    /// Packs that were replaced.
    pub replaced_packs: usize,
    /// Their bytes, given back.
    pub freed_bytes: u64,
    /// Packs written instead.
    pub new_packs: usize,
    /// Their bytes.
    pub written_bytes: u64,
    /// Packs worth replacing but left alone: pinned by a session, linked from places the store does not know (machines,
    /// moved directories), or damaged.
    pub left_alone: usize,
    /// Registered directories that are not at their place any more or cannot be read or changed.
    pub lost_directories: usize,
}

/// A registered checkpoint directory: `point.record`, `generations/*.record`, `packs/*.pack`.
struct Holder {
    packs_dir: PathBuf,
    records: Vec<PathBuf>,
    packs: PackSet,
}

/// What a repack is going to do.
pub(crate) struct RepackPlan {
    holders: Vec<Holder>,
    candidates: Vec<Candidate>,
    report: RepackReport,
}

/// Packs that are not looked at.
struct Busy<'a> {
    /// Sessions use them.
    pinned: &'a HashSet<PackId>,
    /// They are as good as gone.
    swept: &'a HashSet<PackId>,
}

/// A pack that is to be replaced.
struct Candidate {
    slot: Arc<PackSlot>,
    pack: Arc<Pack>,
    stat: FileStat,
    /// The holders that have it by link.
    holders: Vec<usize>,
}

impl Store {
    /// Writes the live chunks of mostly dead (or too many small) packs into new packs, links these into the registered
    /// checkpoint directories that need them, and removes the old ones from both. Readers that meet a vanished pack look
    /// again. Sweep first: packs that nobody needs at all are not repack's business.
    ///
    /// # Errors
    /// A record cannot be read, or the system refuses. Nothing is lost then: old packs go only after the new ones are
    /// durable everywhere.
    pub fn repack(
        &self,
        records: &dyn RecordChunks,
        options: &RepackOptions,
    ) -> Result<RepackReport, StoreError> {
        let _lock = self.inner.lock_exclusive()?;
        let pinned = self.inner.pinned(false)?;
        let mut live = self.inner.mark_points(records, &HashSet::new())?;
        let plan = self.plan_repack(records, options, &mut live, &pinned, &HashSet::new())?;
        self.carry_out(plan, &live, records, &mut |_| ())
    }

    /// What is to be written again. `live` is what the points need; what checkpoint directories need is added. `swept` are
    /// packs that are as good as gone. The caller holds the store's lock, exclusive, up to the end of the repack.
    pub(crate) fn plan_repack(
        &self,
        records: &dyn RecordChunks,
        options: &RepackOptions,
        live: &mut Liveness,
        pinned: &HashSet<PackId>,
        swept: &HashSet<PackId>,
    ) -> Result<RepackPlan, StoreError> {
        let mut report = RepackReport::default();
        let holders = self.holders(records, live, &mut report)?;
        let busy = Busy { pinned, swept };
        let candidates = self.candidates(live, &holders, &busy, options, &mut report)?;
        Ok(RepackPlan {
            holders,
            candidates,
            report,
        })
    }

    /// What [`Self::carry_out`] would report, as far as nothing fails then.
    pub(crate) fn foresee(
        &self,
        plan: &mut RepackPlan,
        live: &Liveness,
    ) -> Result<RepackReport, StoreError> {
        let RepackPlan {
            candidates, report, ..
        } = plan;
        let mut packs = ForeseenPacks::new(LIMITS);
        let append = &mut |entry: Entry, _: &[u8]| {
            packs.append_stored(entry);
            Ok(())
        };
        copy_live(candidates, live, append, report)?;
        let new = packs.finish();
        let verified = self.inner.verified()?;
        for (id, len_bytes) in &new {
            let present = self.inner.backend().stat(&self.inner.pack_path(id));
            if !present.is_ok_and(|stat| verified.has(id, &stat)) {
                report.new_packs += 1;
                report.written_bytes += len_bytes;
            }
        }
        candidates.retain(|candidate| new.iter().all(|(id, _)| *id != candidate.slot.id));
        for candidate in candidates.iter() {
            report.replaced_packs += 1;
            report.freed_bytes += candidate.stat.len_bytes;
        }
        Ok(*report)
    }

    pub(crate) fn carry_out(
        &self,
        plan: RepackPlan,
        live: &Liveness,
        records: &dyn RecordChunks,
        on_step: &mut dyn FnMut(PruneStep),
    ) -> Result<RepackReport, StoreError> {
        let inner = &self.inner;
        let RepackPlan {
            holders,
            mut candidates,
            mut report,
        } = plan;
        if candidates.is_empty() {
            return Ok(report);
        }
        let session = Session::begin(inner)?;
        let sink = PackSink::new(
            inner.shared_backend(),
            inner.staging_dir(),
            session.name().to_owned(),
            LIMITS,
        );
        let append = &mut |entry: Entry, stored: &[u8]| sink.append_stored(entry, stored).map(drop);
        copy_live(&mut candidates, live, append, &mut report)?;
        if candidates.is_empty() {
            return Ok(report);
        }
        let mut new = Vec::new();
        let verified = inner.verified()?;
        for pack in inner.watch(sink.finish())? {
            let path = inner.pack_path(&pack.id);
            if inner.publish_pack(&pack, &verified)? {
                report.new_packs += 1;
                report.written_bytes += pack.len_bytes;
            }
            new.push((pack.id, path));
        }
        inner.sync_dir(&inner.packs_dir())?;
        inner.note_verified(&new.iter().map(|(id, _)| *id).collect::<Vec<_>>());
        on_step(PruneStep::PacksWritten);
        // A pack that was written just as it was replaces itself.
        candidates.retain(|candidate| new.iter().all(|(id, _)| *id != candidate.slot.id));
        let new = PackSet::of_files(inner.shared_backend(), new);
        for (at, holder) in holders.iter().enumerate() {
            // A directory that its user removes meanwhile fails here. Its old links stay, so it stays whole.
            let replaced = self.replace_in_holder(at, holder, &candidates, &new, records);
            if let Err(error) = replaced {
                let path = holder.packs_dir.display();
                tracing::warn!(%path, %error, "checkpoint directory not repacked");
                report.lost_directories += 1;
            }
        }
        on_step(PruneStep::DirectoriesChanged);
        for candidate in &candidates {
            inner.remove_pack(&candidate.slot)?;
            report.replaced_packs += 1;
            report.freed_bytes += candidate.stat.len_bytes;
        }
        inner.sync_dir(&inner.packs_dir())?;
        inner.compact_verified()?;
        inner.packs().rescan()?;
        on_step(PruneStep::PacksReplaced);
        Ok(report)
    }

    /// The registered directories whose records could be read, with their needs marked.
    fn holders(
        &self,
        records: &dyn RecordChunks,
        live: &mut Liveness,
        report: &mut RepackReport,
    ) -> Result<Vec<Holder>, StoreError> {
        let mut holders: Vec<Holder> = Vec::new();
        for directory in self
            .points()?
            .into_iter()
            .filter_map(|point| point.directory)
        {
            if directory.state != DirectoryState::Present {
                report.lost_directories += 1;
                continue;
            }
            let packs_dir = directory.path.join("packs");
            if holders.iter().any(|holder| holder.packs_dir == packs_dir) {
                continue;
            }
            // What it needs is unknown if it cannot be read; its links then keep its packs as they are.
            match self.read_holder(&directory.path, packs_dir, records, live) {
                Ok(holder) => holders.push(holder),
                Err(error) => {
                    let path = directory.path.display();
                    tracing::warn!(%path, %error, "checkpoint directory cannot be read");
                    report.lost_directories += 1;
                }
            }
        }
        Ok(holders)
    }

    fn read_holder(
        &self,
        dir: &Path,
        packs_dir: PathBuf,
        reader: &dyn RecordChunks,
        live: &mut Liveness,
    ) -> Result<Holder, StoreError> {
        let backend = self.inner.backend();
        let generations = dir.join("generations");
        let mut records = vec![dir.join("point.record")];
        if backend.stat(&generations).is_ok() {
            let names = list(backend, &generations)?;
            records.extend(names.iter().map(|name| generations.join(name)));
        }
        records.retain(|path| path.extension().is_some_and(|end| end == "record"));
        let packs = PackSet::with_backend(self.inner.shared_backend(), [packs_dir.clone()]);
        let holder = Holder {
            packs_dir,
            records,
            packs,
        };
        let mut marking = Marking::new(&holder.packs);
        for path in &holder.records {
            let record = self.read_record(path)?;
            live.mark_record(&mut marking, &path.display(), &record, reader)?;
        }
        Ok(holder)
    }

    fn read_record(&self, path: &Path) -> Result<Vec<u8>, StoreError> {
        let missing = || StoreError::Malformed {
            path: path.to_path_buf(),
            what: "no record",
        };
        read_small(self.inner.backend(), path, MAX_RECORD_BYTES)?.ok_or_else(missing)
    }

    /// The packs worth replacing that may be.
    fn candidates(
        &self,
        live: &Liveness,
        holders: &[Holder],
        busy: &Busy<'_>,
        options: &RepackOptions,
        report: &mut RepackReport,
    ) -> Result<Vec<Candidate>, StoreError> {
        let inner = &self.inner;
        let slots = inner.packs().slots()?;
        let mut wanted = Vec::new();
        let mut rest = Vec::new();
        for slot in slots.iter().filter(|slot| !busy.swept.contains(&slot.id)) {
            let stat = inner.backend().stat(&slot.path);
            let stat = stat.map_err(StoreError::io("find", &slot.path))?;
            let live_bytes = live.get(&slot.id).map_or(0, |pack| pack.live_bytes);
            if live_bytes == 0 && stat.links == 1 {
                continue;
            }
            let pack = match inner.packs().open_slot(slot) {
                Ok(pack) => pack,
                Err(ReadError::DamagedPack { .. }) => {
                    report.left_alone += 1;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let dead = pack.index.body_bytes().saturating_sub(live_bytes);
            let mostly_dead =
                dead > 0 && dead * 100 >= pack.index.body_bytes() * u64::from(options.dead_percent);
            let candidate = Candidate {
                slot: Arc::clone(slot),
                pack,
                stat,
                holders: Vec::new(),
            };
            if mostly_dead {
                wanted.push(candidate)
            } else {
                rest.push(candidate)
            }
        }
        if rest.len() > options.max_packs {
            rest.sort_unstable_by_key(|candidate| std::cmp::Reverse(candidate.stat.len_bytes));
            wanted.extend(rest.split_off(options.max_packs / 2));
        }
        wanted.retain_mut(|candidate| {
            let free =
                !busy.pinned.contains(&candidate.slot.id) && self.find_links(candidate, holders);
            report.left_alone += usize::from(!free);
            free
        });
        Ok(wanted)
    }

    /// Notes which holders have the pack by link. False if there are links elsewhere too.
    fn find_links(&self, candidate: &mut Candidate, holders: &[Holder]) -> bool {
        for (at, holder) in holders.iter().enumerate() {
            let path = pack_path(&holder.packs_dir, &candidate.slot.id);
            let linked = self.inner.backend().stat(&path);
            if linked.is_ok_and(|stat| stat.same_file(&candidate.stat)) {
                candidate.holders.push(at);
            }
        }
        candidate.stat.links == 1 + candidate.holders.len() as u64
    }

    /// Links what the holder needs of the new packs, makes that durable, then removes the old ones.
    fn replace_in_holder(
        &self,
        at: usize,
        holder: &Holder,
        candidates: &[Candidate],
        new: &PackSet,
        reader: &dyn RecordChunks,
    ) -> Result<(), StoreError> {
        let old: HashMap<PackId, &Candidate> = candidates
            .iter()
            .filter(|candidate| candidate.holders.contains(&at))
            .map(|candidate| (candidate.slot.id, candidate))
            .collect();
        if old.is_empty() {
            return Ok(());
        }
        let kept: Vec<PackId> = holder
            .packs
            .packs()?
            .into_iter()
            .filter(|id| !old.contains_key(id))
            .collect();
        let kept = kept
            .iter()
            .map(|id| (*id, pack_path(&holder.packs_dir, id)))
            .collect();
        let kept = PackSet::of_files(self.inner.shared_backend(), kept);
        let needed = self.needed_from(holder, &kept, new, reader)?;
        new.pin_into(&holder.packs_dir, &needed)?;
        for candidate in old.values() {
            let path = pack_path(&holder.packs_dir, &candidate.slot.id);
            session::remove_file(self.inner.backend(), &path)?;
        }
        self.inner.sync_dir(&holder.packs_dir)
    }

    /// The chunks of a holder's records that only the new packs give it.
    fn needed_from(
        &self,
        holder: &Holder,
        kept: &PackSet,
        new: &PackSet,
        reader: &dyn RecordChunks,
    ) -> Result<Vec<ChunkId>, StoreError> {
        let mut needed = HashSet::new();
        for path in &holder.records {
            let record = self.read_record(path)?;
            let mut failed = None;
            let listed = reader.chunks(&record, &mut |id| {
                let only_new = kept
                    .contains(&id)
                    .and_then(|kept| Ok(!kept && new.contains(&id)?));
                match only_new {
                    Ok(true) => needed.extend([id]),
                    Ok(false) => {}
                    Err(error) => failed = failed.take().or(Some(error)),
                }
            });
            if let Some(error) = failed {
                return Err(error.into());
            }
            let point = path.display().to_string();
            listed.map_err(|source| StoreError::Record { point, source })?;
        }
        Ok(needed.into_iter().collect())
    }
}

/// Takes a chunk as it is stored.
type Append<'a> = &'a mut dyn FnMut(Entry, &[u8]) -> Result<(), StoreError>;

/// Gives the live chunks to `append`; a pack with a damaged one is dropped from the candidates.
fn copy_live(
    candidates: &mut Vec<Candidate>,
    live: &Liveness,
    append: Append<'_>,
    report: &mut RepackReport,
) -> Result<(), StoreError> {
    let (mut stored, mut raw) = (Vec::new(), vec![0; MAX_CHUNK_BYTES]);
    let mut intact = Vec::new();
    for candidate in candidates.drain(..) {
        let mut damaged = false;
        for (position, entry) in candidate.pack.index.entries().enumerate() {
            let needed = live
                .get(&candidate.slot.id)
                .is_some_and(|pack| pack.is_live(position));
            if !needed {
                continue;
            }
            if candidate.pack.read(&entry, &mut stored, &mut raw).is_err() {
                tracing::warn!(pack = %candidate.slot.id, chunk = %entry.id, "damaged, not repacked");
                damaged = true;
                break;
            }
            append(entry, &stored)?;
        }
        if damaged {
            report.left_alone += 1;
        } else {
            intact.push(candidate);
        }
    }
    *candidates = intact;
    Ok(())
}
