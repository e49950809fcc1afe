//! The complete state of a vCPU, keyed by the guest's architecture; the same types on every host.

use snapshot_format::StateRecord;

use crate::VcpuIndex;
use crate::arm64::Arm64VcpuState;
use crate::unit::UnitError;
use crate::x86::X86VcpuState;

/// What a vCPU is, as data. Untrusted when it comes from a record: backends validate it on load.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum VcpuState {
    /// An x86-64 vCPU.
    X86(Box<X86VcpuState>),
    /// An arm64 vCPU.
    Arm64(Box<Arm64VcpuState>),
}

impl VcpuState {
    /// The state as the record of unit `vcpuN`.
    pub fn to_record(&self, index: VcpuIndex) -> StateRecord {
        let unit = index.to_string();
        match self {
            Self::X86(state) => StateRecord::new(
                &unit,
                X86VcpuState::KIND,
                X86VcpuState::VERSION,
                state.encode(),
            ),
            Self::Arm64(state) => StateRecord::new(
                &unit,
                Arm64VcpuState::KIND,
                Arm64VcpuState::VERSION,
                state.encode(),
            ),
        }
    }

    /// Reads what [`to_record`](Self::to_record) wrote.
    pub fn from_record(record: &StateRecord, index: VcpuIndex) -> Result<Self, UnitError> {
        let unit = index.to_string();
        let damaged = |source| UnitError::Fields {
            unit: unit.clone(),
            source,
        };
        match record.kind.as_str() {
            Arm64VcpuState::KIND => {
                let version = Arm64VcpuState::VERSION;
                crate::unit::expect_record(record, &unit, Arm64VcpuState::KIND, version)?;
                let state = Arm64VcpuState::decode(&record.bytes).map_err(damaged)?;
                Ok(Self::Arm64(Box::new(state)))
            }
            _ => {
                let version = X86VcpuState::VERSION;
                crate::unit::expect_record(record, &unit, X86VcpuState::KIND, version)?;
                let state = X86VcpuState::decode(&record.bytes).map_err(damaged)?;
                Ok(Self::X86(Box::new(state)))
            }
        }
    }
}
