//! The output of detached commands.

use minicbor::{Decode, Encode};

use crate::codec::{Bytes, Data, Wire};

/// Agent to the reader of its log.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub enum LogOutput {
    /// Whole lines, each with its end. Always raw.
    #[n(1)]
    Lines(#[n(0)] Bytes),
    /// So much was dropped before what follows, since nobody read the log.
    #[n(2)]
    Lost {
        /// Bytes.
        #[n(0)]
        bytes: u64,
    },
}

impl Wire for LogOutput {
    fn as_data(&self) -> Option<(Data, &[u8])> {
        match self {
            Self::Lines(bytes) => Some((Data::Log, bytes)),
            Self::Lost { .. } => None,
        }
    }

    fn from_data(data: Data, bytes: &[u8]) -> Option<Self> {
        (data == Data::Log).then(|| Self::Lines(bytes.into()))
    }
}
