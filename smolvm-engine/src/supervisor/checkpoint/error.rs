//! Why a machine was not saved.

use cas_store::StoreError;
use thiserror::Error;
use vmm_core::ram::SharedRamError;

use crate::channel::ChannelError;
use crate::error_chain::{full_hint, held_hint};
use crate::file_error::FileError;
use crate::machine::{BaseMapError, MachineDirError, is_damage};
use crate::point::PointError;
use crate::restore::PlaceError;
use crate::save::chunk_sink::SinkError;
use crate::save::disk_capture::DiskCaptureError;
use crate::save::maps::MapsError;
use crate::save::record::RecordError;

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
    /// Nothing is answered until somebody lets it go on.
    #[error("its VMM, process {pid}, is stopped")]
    VmmStopped {
        /// Its process id.
        pid: u32,
    },
    #[error("it goes back to another point before it was saved")]
    Undone,
    #[error("the VMM does not answer")]
    Channel(#[from] ChannelError),
    #[error(transparent)]
    Sink(#[from] SinkError),
    #[error(transparent)]
    Disk(#[from] DiskCaptureError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Base(#[from] BaseMapError),
    #[error(transparent)]
    Maps(#[from] MapsError),
    #[error(transparent)]
    Io(#[from] FileError),
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error("whoever asked for it is gone")]
    Cancelled,
    #[error("the machine is being saved")]
    Busy,
    #[error("memory of the instant cannot be used")]
    Memory(#[from] SharedRamError),
    #[error("the state of the instant cannot be read")]
    Inheritance(#[from] serde_json::Error),
    #[error("it keeps no track of changes")]
    Untracked,
    /// The point of a branch is there, its machines are not.
    #[error("its instant was saved as {saved}, but no machine goes on from it")]
    OnlySaved {
        /// The point, and where it is.
        saved: String,
        /// Why.
        #[source]
        source: Box<CheckpointError>,
    },
}

impl CheckpointError {
    /// Whether the reason is that chunks are lost.
    pub(super) fn is_loss(&self) -> bool {
        match self {
            Self::Maps(MapsError::Lost { .. }) => true,
            // These pass for the errors that they hold.
            Self::Store(error)
            | Self::Maps(MapsError::Store(error))
            | Self::Sink(SinkError::Store(error))
            | Self::Disk(DiskCaptureError::Store(error)) => error.is_damage(),
            error => is_damage(error),
        }
    }

    /// The next step, where there is one.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::VmmStopped { pid } => Some(format!("let it go on with: kill -CONT {pid}")),
            error => held_hint(error).or_else(|| {
                let hint = full_hint(error)?;
                Some(format!(
                    "{hint}, or choose another with --store and -o; the machine runs on"
                ))
            }),
        }
    }
}
