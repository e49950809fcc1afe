use crate::fields::{FieldError, FieldReader, FieldWriter};

/// Longest unit or kind name in bytes.
pub(crate) const MAX_NAME_BYTES: usize = 64;
/// Most bytes one unit may save.
pub(crate) const MAX_STATE_BYTES: usize = 16 << 20;

/// The saved state of one unit of a machine: a device, a vCPU, a clock.
///
/// It is plain, untrusted data: the unit that reads it validates every value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateRecord {
    /// Which unit of the machine, unique within a point: `vcpu0`, `blk0`.
    pub unit: String,
    /// What kind of unit wrote it: `x86-vcpu`, `virtio-blk`.
    pub kind: String,
    /// Version of the kind's layout; a reader refuses versions newer than its own.
    pub version: u32,
    /// The unit's state, as [`crate::fields`].
    pub bytes: Vec<u8>,
}

impl StateRecord {
    /// A record of `unit`.
    pub fn new(unit: &str, kind: &str, version: u32, bytes: Vec<u8>) -> Self {
        Self {
            unit: unit.to_owned(),
            kind: kind.to_owned(),
            version,
            bytes,
        }
    }

    /// The record as a message of numbered fields.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = FieldWriter::new();
        self.encode_into(&mut writer);
        writer.finish()
    }

    /// Adds the record's fields to a message.
    pub(crate) fn encode_into(&self, writer: &mut FieldWriter) {
        writer
            .text(1, &self.unit)
            .text(2, &self.kind)
            .u32(3, self.version)
            .bytes(4, &self.bytes);
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self, FieldError> {
        let fields = FieldReader::parse(bytes)?;
        Ok(Self {
            unit: fields.text(1, MAX_NAME_BYTES)?.to_owned(),
            kind: fields.text(2, MAX_NAME_BYTES)?.to_owned(),
            version: fields.u32(3)?,
            bytes: fields.bytes(4, MAX_STATE_BYTES)?.to_vec(),
        })
    }
}
