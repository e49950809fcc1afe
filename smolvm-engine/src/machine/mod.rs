//! A machine as it lies in the home: one directory with an atomically replaced `machine.json`.

mod base_map;
mod change;
mod chunk_base;
mod chunk_source;
mod command_line;
mod dir;
mod disk;
mod file;
mod held;
mod holders;
mod link;
mod log_file;
mod maps;
mod spec;

pub(crate) use base_map::{BaseMap, BaseMapError};
pub(crate) use change::Change;
pub(crate) use chunk_base::{ChunkBase, OnDamage};
pub(crate) use chunk_source::{ChunkSource, is_damage};
pub(crate) use command_line::{with_hostname, without_hostname};
pub use dir::MachineDirError;
pub(crate) use dir::{MachineDir, RunLock, TEMPORARY_PREFIX, replace_file, sync_directory};
pub(crate) use disk::create_overlay;
pub use file::{AutosaveSchedule, DEFAULT_HISTORY, MachineOrigin};
pub(crate) use file::{
    BootedStart, BranchPlace, BranchWord, DiskFile, MACHINE_FILE_VERSION, MachineFile,
    RecordedState,
};
pub(crate) use held::HeldDirectory;
pub(crate) use link::{link_machine, link_or_copy};
pub(crate) use log_file::{BoundedLog, open_log};
pub(crate) use maps::{
    ChunksOf, MapReadError, NodesIn, PointFile, needed_chunks, node_of, pin_whole_points,
};
pub use spec::{Backend, DEFAULT_DISK_BYTES, DEFAULT_MEMORY_BYTES, MachineSpec};
