//! arm64 register state, so that any host can read any point.

use snapshot_format::FieldError;
use snapshot_format::fields::{FieldReader, FieldWriter};

/// Most registers one vCPU may save.
const MAX_REGISTERS: usize = 4096;
/// Longest register in bytes (an SVE vector).
const MAX_REGISTER_BYTES: usize = 256;

/// One register: its encoding (KVM's `KVM_REG_ARM64` numbering without the size bits) and value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arm64Register {
    /// Which register.
    pub id: u64,
    /// Its value, little-endian, as wide as the register.
    pub value: Vec<u8>,
}

/// The state of an arm64 vCPU.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Arm64VcpuState {
    /// All registers, general, system and vector.
    pub registers: Vec<Arm64Register>,
    /// Whether the vCPU is powered off (PSCI).
    pub powered_off: bool,
}

impl Arm64VcpuState {
    /// The record kind.
    pub const KIND: &'static str = "arm64-vcpu";
    /// The newest layout.
    pub const VERSION: u32 = 1;

    /// The state as numbered fields.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = FieldWriter::new();
        writer.bool(1, self.powered_off);
        for register in &self.registers {
            writer.nested(2, |fields| {
                fields.u64(1, register.id).bytes(2, &register.value);
            });
        }
        writer.finish()
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self, FieldError> {
        let fields = FieldReader::parse(bytes)?;
        let mut registers = Vec::new();
        for value in fields.all(2) {
            if registers.len() == MAX_REGISTERS {
                return Err(FieldError::TooManyFields);
            }
            let register = FieldReader::parse(value)?;
            let value = register.bytes(2, MAX_REGISTER_BYTES)?.to_vec();
            registers.push(Arm64Register {
                id: register.u64(1)?,
                value,
            });
        }
        Ok(Self {
            registers,
            powered_off: fields.bool(1)?,
        })
    }
}
