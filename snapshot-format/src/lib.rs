//! The bytes of a saved point: records, ids, lineage.
//!
//! This crate turns saved state into bytes and back, with hard limits, and needs only
//! [`std::io::Read`] and [`std::io::Write`].
//!
//! * [`fields`] is the numbered-field codec that all saved state uses: unknown numbers are skipped,
//!   absent numbers read as zero, so old readers and new writers understand each other.
//! * [`StateRecord`] is one unit's saved state (a device, a vCPU, a clock).
//!
//! ```
//! use snapshot_format::{StateRecord, fields::{FieldReader, FieldWriter}};
//!
//! let mut writer = FieldWriter::new();
//! writer.u64(1, 42).bytes(2, b"hello");
//! let record = StateRecord::new("serial0", "uart16550", 1, writer.finish());
//!
//! let decoded = StateRecord::decode(&record.encode()).unwrap();
//! let fields = FieldReader::parse(&decoded.bytes).unwrap();
//! assert_eq!(fields.u64(1).unwrap(), 42);
//! assert_eq!(fields.u64(9).unwrap(), 0, "absent reads as zero");
//! ```

pub mod fields;
mod state_record;

pub use fields::FieldError;
pub use state_record::StateRecord;
