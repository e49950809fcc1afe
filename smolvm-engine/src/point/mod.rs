//! Saved points as files: checkpoint directories, a machine's own records, stores.

pub(crate) mod archive;
mod checkpoint_dir;
mod error;
mod history;
mod publish;
mod store_log;
mod upkeep;

pub use archive::ArchiveError;
pub(crate) use checkpoint_dir::{CheckpointDir, SUFFIX};
pub use error::PointError;
pub(crate) use history::{
    Generation, History, MAX_GENERATIONS, RECORD_SUFFIX, is_paused_file_name, open_regular,
    own_record, paused_file_name, read_point, record_file_name,
};
pub(crate) use publish::{Output, Publication, link_record, publish, sync_directory, write_synced};
pub(crate) use store_log::{StoreLog, by_lineage};
pub(crate) use upkeep::{Thoroughness, prune};
