//! Why a machine was not saved.

use cas_store::StoreError;
use thiserror::Error;

use super::super::chunk_sink::SinkError;
use super::super::disk_capture::DiskCaptureError;
use super::super::record::RecordError;
use crate::channel::ChannelError;
use crate::error::EngineError;
use crate::file_error::FileError;
use crate::machine::MachineDirError;
use crate::point::PointError;

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
    #[error(transparent)]
    Io(#[from] FileError),
    #[error(transparent)]
    Layer(#[from] Box<EngineError>),
    #[error("whoever asked for it is gone")]
    Cancelled,
}
