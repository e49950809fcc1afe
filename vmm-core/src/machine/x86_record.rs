use snapshot_format::fields::{FieldReader, FieldWriter};
use snapshot_format::{FieldError, StateRecord};

use crate::hypervisor::Hypervisor;
use crate::unit::{UnitError, expect_record};
use crate::x86::{
    CpuProfile, CpuidEntry, CpuidTable, MAX_CPUID_ENTRIES, MsrList, ProfileError, build_profile,
};

const UNIT: &str = "machine";
const KIND: &str = "x86-machine";
const VERSION: u32 = 1;
/// The machine model that this version builds.
const MODEL: u32 = 1;
/// Most MSRs in a profile.
const MAX_MSRS: usize = 1024;

/// What the vCPUs of an x86 machine are: fixed when the machine is made, recorded with every point,
/// never recomputed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct X86MachineRecord {
    /// CPUID as vCPU 0 sees it.
    pub cpuid: CpuidTable,
    /// MSRs that are guest state.
    pub msrs: MsrList,
    /// Rate of the TSC in kHz.
    pub tsc_khz: u32,
}

impl X86MachineRecord {
    /// CPUID and MSRs of `profile`, as `hypervisor` runs them here, at its own TSC rate.
    ///
    /// # Errors
    /// The host lacks a feature of the profile, or the backend runs no x86 guests.
    pub fn for_profile(
        profile: CpuProfile,
        hypervisor: &dyn Hypervisor,
    ) -> Result<Self, ProfileError> {
        let host = hypervisor.capabilities().x86.as_ref();
        let host = host.ok_or(ProfileError::NoX86)?;
        let (cpuid, msrs) = build_profile(profile, &host.cpuid)?;
        Ok(Self {
            cpuid,
            msrs,
            tsc_khz: host.tsc_khz,
        })
    }

    /// The vendor string that the guest's CPUID gives; unprintable bytes become `?`.
    pub fn vendor(&self) -> String {
        let leaf = self.cpuid.get(0, 0).copied().unwrap_or_default();
        let bytes = [leaf.ebx, leaf.edx, leaf.ecx]
            .map(u32::to_le_bytes)
            .concat();
        bytes
            .iter()
            .map(|byte| {
                if byte.is_ascii_graphic() {
                    *byte as char
                } else {
                    '?'
                }
            })
            .collect()
    }

    /// The record of unit `machine`.
    pub fn to_record(&self) -> StateRecord {
        let mut writer = FieldWriter::new();
        writer.u32(1, MODEL).u32(2, self.tsc_khz);
        for entry in self.cpuid.entries() {
            writer.nested(3, |w| {
                w.u32(1, entry.leaf)
                    .u32(2, entry.subleaf)
                    .bool(3, entry.indexed)
                    .u32(4, entry.eax)
                    .u32(5, entry.ebx)
                    .u32(6, entry.ecx)
                    .u32(7, entry.edx);
            });
        }
        for msr in self.msrs.numbers() {
            writer.bytes(4, &msr.to_le_bytes());
        }
        StateRecord::new(UNIT, KIND, VERSION, writer.finish())
    }

    /// Finds and reads the record among those of a point.
    pub fn find(records: &[StateRecord]) -> Result<Self, UnitError> {
        let record =
            records
                .iter()
                .find(|record| record.unit == UNIT)
                .ok_or(UnitError::Mismatch {
                    unit: UNIT.to_owned(),
                    problem: "missing",
                })?;
        expect_record(record, UNIT, KIND, VERSION)?;
        let (model, decoded) = decode(&record.bytes).map_err(|source| UnitError::Fields {
            unit: UNIT.to_owned(),
            source,
        })?;
        if model != MODEL {
            return Err(UnitError::Invalid {
                unit: UNIT.to_owned(),
                what: format!("machine model {model} is unknown, only {MODEL} can be built"),
            });
        }
        Ok(decoded)
    }
}

fn decode(bytes: &[u8]) -> Result<(u32, X86MachineRecord), FieldError> {
    let fields = FieldReader::parse(bytes)?;
    if fields.all(3).count() > MAX_CPUID_ENTRIES || fields.all(4).count() > MAX_MSRS {
        return Err(FieldError::TooManyFields);
    }
    let entry = |bytes| {
        let entry = FieldReader::parse(bytes)?;
        Ok(CpuidEntry {
            leaf: entry.u32(1)?,
            subleaf: entry.u32(2)?,
            indexed: entry.bool(3)?,
            eax: entry.u32(4)?,
            ebx: entry.u32(5)?,
            ecx: entry.u32(6)?,
            edx: entry.u32(7)?,
        })
    };
    let cpuid = fields.all(3).map(entry).collect::<Result<_, _>>()?;
    let number = |bytes: &[u8]| {
        let wrong = FieldError::WrongLength {
            number: 4,
            length: bytes.len(),
            expected: 4,
        };
        bytes.try_into().map(u32::from_le_bytes).map_err(|_| wrong)
    };
    let msrs = fields.all(4).map(number).collect::<Result<_, _>>()?;
    let record = X86MachineRecord {
        cpuid: CpuidTable::new(cpuid),
        msrs: MsrList::from_numbers(msrs),
        tsc_khz: fields.u32(2)?,
    };
    Ok((fields.u32(1)?, record))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_comes_back_and_another_model_is_refused() {
        let entry = CpuidEntry {
            leaf: 7,
            indexed: true,
            ebx: 0x80,
            ..CpuidEntry::default()
        };
        let record = X86MachineRecord {
            cpuid: CpuidTable::new(vec![entry]),
            msrs: MsrList::model_1(),
            tsc_khz: 2_596_130,
        };
        let mut saved = record.to_record();
        assert_eq!(X86MachineRecord::find(&[saved.clone()]).unwrap(), record);
        let mut other = FieldWriter::new();
        other.u32(1, 9);
        saved.bytes = other.finish();
        assert!(matches!(
            X86MachineRecord::find(&[saved]),
            Err(UnitError::Invalid { .. })
        ));
        assert!(matches!(
            X86MachineRecord::find(&[]),
            Err(UnitError::Mismatch { .. })
        ));
    }
}
