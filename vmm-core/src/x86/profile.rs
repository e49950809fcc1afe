//! CPU profiles: the complete CPUID of a guest, so that a point restores on another host.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::cpuid_table::{CpuidEntry, CpuidTable};
use super::feature::{self, FeatureWord};
use super::msr_list::{MsrList, msr};

/// Physical address bits that `v1` to `v3` promise.
const PHYSICAL_ADDRESS_BITS: u32 = 40;
const LINEAR_ADDRESS_BITS: u32 = 48;
/// XCR0 of a guest with AVX: x87, SSE, AVX.
const XCR0_AVX: u32 = 7;
/// Size in bytes of the XSAVE area with AVX, and the offset and size of the AVX part.
const XSAVE_AVX_AREA: u32 = 0x340;
const XSAVE_AVX_OFFSET: u32 = 0x240;
const XSAVE_AVX_BYTES: u32 = 0x100;
/// KVM features that guests see: clocksource2 (bit 3) and stable clock (bit 24).
const KVM_FEATURES: u32 = 1 << 3 | 1 << 24;
const KVM_SIGNATURE_LEAF: u32 = 0x4000_0000;

/// Which CPU a guest sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CpuProfile {
    /// x86-64-v1 and CMPXCHG16B.
    V1,
    /// x86-64-v2.
    V2,
    /// x86-64-v3.
    V3,
    /// Whatever the host has; points restore on equal hosts only.
    Host,
}

impl CpuProfile {
    /// All profiles, the most portable first.
    pub const ALL: [Self; 4] = [Self::V1, Self::V2, Self::V3, Self::Host];

    /// The name it is asked for and recorded by.
    pub fn name(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V2 => "v2",
            Self::V3 => "v3",
            Self::Host => "host",
        }
    }
}

impl fmt::Display for CpuProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CpuProfile {
    type Err = ProfileError;

    fn from_str(name: &str) -> Result<Self, ProfileError> {
        Self::ALL
            .into_iter()
            .find(|profile| profile.name() == name)
            .ok_or_else(|| ProfileError::Unknown {
                name: name.to_owned(),
            })
    }
}

/// Why a profile cannot be used.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProfileError {
    /// The backend runs no x86 guests.
    #[error("this backend runs no x86 guests")]
    NoX86,
    /// No such profile.
    #[error("there is no CPU profile {name:?}, only v1, v2, v3 and host")]
    Unknown {
        /// The name asked for.
        name: String,
    },
    /// The host's CPU, or the backend, lacks features of the profile.
    #[error("this host lacks CPU features that the guest needs: {}", missing.join(", "))]
    MissingFeatures {
        /// Their names.
        missing: Vec<String>,
    },
    /// The host's physical addresses are too narrow.
    #[error("this host has {host} physical address bits, the guest needs {needed}")]
    AddressBits {
        /// Bits of the host.
        host: u32,
        /// Bits of the profile.
        needed: u32,
    },
}

/// The CPUID table and MSR list of `profile` on a host that supports `host`.
///
/// The vendor is the host's and is recorded with the table: a guest keeps it wherever it is restored.
pub fn build(
    profile: CpuProfile,
    host: &CpuidTable,
) -> Result<(CpuidTable, MsrList), ProfileError> {
    let table = match profile {
        CpuProfile::Host => host_table(host),
        _ => fixed_table(profile, host),
    };
    check(&table, host)?;
    Ok((table, msrs(profile)))
}

/// Checks that a host (or backend) can show `table` to a guest: each feature bit and the width of
/// physical addresses. Used for new guests and for restores.
pub fn check(table: &CpuidTable, host: &CpuidTable) -> Result<(), ProfileError> {
    let mut missing = Vec::new();
    for word in FeatureWord::ALL {
        let absent = word.of(table) & !word.of(host) & !word.always_available();
        missing.extend(
            (0..32)
                .filter(|bit| absent >> bit & 1 == 1)
                .map(|bit| word.name_of(bit)),
        );
    }
    if !missing.is_empty() {
        return Err(ProfileError::MissingFeatures { missing });
    }
    let bits = |table: &CpuidTable| table.get(0x8000_0008, 0).map_or(36, |leaf| leaf.eax & 0xff);
    if bits(host) < bits(table) {
        return Err(ProfileError::AddressBits {
            host: bits(host),
            needed: bits(table),
        });
    }
    Ok(())
}

fn msrs(profile: CpuProfile) -> MsrList {
    let list = MsrList::model_1();
    match profile {
        CpuProfile::Host => list.with(msr::TSC_AUX),
        _ => list,
    }
}

fn host_table(host: &CpuidTable) -> CpuidTable {
    let mut table = host.clone();
    table
        .entries_mut()
        .retain(|entry| entry.leaf & 0xf000_0000 != KVM_SIGNATURE_LEAF);
    for entry in table.entries_mut() {
        match entry.leaf {
            1 => {
                entry.ecx &= !(feature::ecx1::X2APIC | feature::ecx1::TSC_DEADLINE);
                entry.ecx |= feature::ecx1::HYPERVISOR;
            }
            // Performance counters and the like are not part of machine model 1.
            0xa => {
                *entry = CpuidEntry {
                    leaf: 0xa,
                    ..CpuidEntry::default()
                }
            }
            _ => {}
        }
    }
    table.entries_mut().extend(kvm_leaves());
    table
}

fn fixed_table(profile: CpuProfile, host: &CpuidTable) -> CpuidTable {
    let vendor = host.get(0, 0).copied().unwrap_or_default();
    let amd = vendor.ebx == u32::from_le_bytes(*b"Auth");
    let avx = profile == CpuProfile::V3;
    let features = feature::of_profile(profile);
    let leaf = |leaf, eax, ebx, ecx, edx| CpuidEntry {
        leaf,
        eax,
        ebx,
        ecx,
        edx,
        ..CpuidEntry::default()
    };
    let subleaf = |leaf, subleaf, eax, ebx, ecx, edx| CpuidEntry {
        leaf,
        subleaf,
        indexed: true,
        eax,
        ebx,
        ecx,
        edx,
    };
    let mut entries = vec![
        leaf(
            0,
            if avx { 0xd } else { 7 },
            vendor.ebx,
            vendor.ecx,
            vendor.edx,
        ),
        // One logical processor per package, 64 byte cache lines for CLFLUSH.
        leaf(
            1,
            signature(amd),
            1 << 16 | 8 << 8,
            features.ecx1,
            features.edx1,
        ),
        // The timer of the local APIC runs whatever the vCPU does (ARAT). A kernel that does not know has only the periodic one,
        // and sleeps a whole tick at least.
        leaf(6, feature::ARAT, 0, 0, 0),
        subleaf(7, 0, 0, features.ebx7, 0, 0),
        leaf(0x8000_0000, 0x8000_0008, vendor.ebx, vendor.ecx, vendor.edx),
        leaf(0x8000_0001, 0, 0, features.ecx_ext, features.edx_ext),
    ];
    entries.extend(brand(profile));
    entries.extend(caches(amd));
    entries.push(leaf(
        0x8000_0008,
        PHYSICAL_ADDRESS_BITS | LINEAR_ADDRESS_BITS << 8,
        0,
        0,
        0,
    ));
    if avx {
        entries.push(subleaf(0xd, 0, XCR0_AVX, XSAVE_AVX_AREA, XSAVE_AVX_AREA, 0));
        entries.push(subleaf(0xd, 1, 0, 0, 0, 0));
        entries.push(subleaf(0xd, 2, XSAVE_AVX_BYTES, XSAVE_AVX_OFFSET, 0, 0));
    }
    entries.extend(kvm_leaves());
    CpuidTable::new(entries)
}

/// Family, model and stepping: an old model of each vendor, for which kernels expect no
/// model-specific registers.
fn signature(amd: bool) -> u32 {
    if amd {
        // Family 15, model 107, stepping 1.
        0x0006_0fb1
    } else {
        // Family 6, model 15, stepping 11.
        0x0000_06fb
    }
}

fn brand(profile: CpuProfile) -> [CpuidEntry; 3] {
    let mut text = [0_u8; 48];
    let name = format!("smolvm CPU, x86-64-{profile}");
    text[..name.len()].copy_from_slice(name.as_bytes());
    [0, 1, 2].map(|index: u32| {
        let word = |at: usize| {
            let start = index as usize * 16 + at * 4;
            u32::from_le_bytes([
                text[start],
                text[start + 1],
                text[start + 2],
                text[start + 3],
            ])
        };
        CpuidEntry {
            leaf: 0x8000_0002 + index,
            eax: word(0),
            ebx: word(1),
            ecx: word(2),
            edx: word(3),
            ..CpuidEntry::default()
        }
    })
}

/// Caches: 32 KiB L1, 512 KiB L2, 8 MiB L3, so that C libraries choose sane copy sizes.
fn caches(amd: bool) -> Vec<CpuidEntry> {
    if amd {
        let l1 = 32 << 24 | 8 << 16 | 1 << 8 | 64;
        return vec![
            CpuidEntry {
                leaf: 0x8000_0005,
                ecx: l1,
                edx: l1,
                ..CpuidEntry::default()
            },
            CpuidEntry {
                leaf: 0x8000_0006,
                ecx: 512 << 16 | 6 << 12 | 1 << 8 | 64,
                edx: 16 << 18 | 8 << 12 | 1 << 8 | 64,
                ..CpuidEntry::default()
            },
        ];
    }
    let cache = |subleaf, kind: u32, level: u32, ways: u32, sets: u32| CpuidEntry {
        leaf: 4,
        subleaf,
        indexed: true,
        eax: kind | level << 5 | 1 << 8,
        ebx: (ways - 1) << 22 | 63,
        ecx: sets - 1,
        edx: 0,
    };
    vec![
        cache(0, 1, 1, 8, 64),
        cache(1, 2, 1, 8, 64),
        cache(2, 3, 2, 8, 1024),
        cache(3, 3, 3, 16, 8192),
        CpuidEntry {
            leaf: 4,
            subleaf: 4,
            indexed: true,
            ..CpuidEntry::default()
        },
    ]
}

fn kvm_leaves() -> [CpuidEntry; 2] {
    let word = |text: &[u8; 4]| u32::from_le_bytes(*text);
    [
        CpuidEntry {
            leaf: KVM_SIGNATURE_LEAF,
            eax: KVM_SIGNATURE_LEAF + 1,
            ebx: word(b"KVMK"),
            ecx: word(b"VMKV"),
            edx: word(b"M\0\0\0"),
            ..CpuidEntry::default()
        },
        CpuidEntry {
            leaf: KVM_SIGNATURE_LEAF + 1,
            eax: KVM_FEATURES,
            ..CpuidEntry::default()
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rich_host() -> CpuidTable {
        let all = |leaf, subleaf, indexed| CpuidEntry {
            leaf,
            subleaf,
            indexed,
            eax: 0xffff_ffff,
            ebx: 0xffff_ffff,
            ecx: 0xffff_ffff,
            edx: 0xffff_ffff,
        };
        let vendor = CpuidEntry {
            ebx: u32::from_le_bytes(*b"Auth"),
            edx: u32::from_le_bytes(*b"enti"),
            ecx: u32::from_le_bytes(*b"cAMD"),
            ..CpuidEntry::default()
        };
        let sizes = CpuidEntry {
            leaf: 0x8000_0008,
            eax: 0x3030,
            ..CpuidEntry::default()
        };
        let ext = all(0x8000_0001, 0, false);
        CpuidTable::new(vec![vendor, all(1, 0, false), all(7, 0, true), ext, sizes])
    }

    #[test]
    fn fixed_profiles_have_a_timer_that_never_stops() {
        for profile in [CpuProfile::V2, CpuProfile::V3] {
            let table = fixed_table(profile, &CpuidTable::default());
            let leaf = table.get(6, 0).expect("leaf 6");
            assert_eq!(leaf.eax, feature::ARAT, "{profile}");
            assert!(table.get(0, 0).expect("leaf 0").eax >= 6, "{profile}");
        }
    }

    #[test]
    fn each_profile_has_more_features_than_the_one_before() {
        let bits = |profile| {
            let (table, _) = build(profile, &rich_host()).unwrap();
            FeatureWord::ALL.map(|word| word.of(&table))
        };
        for pair in [CpuProfile::V1, CpuProfile::V2, CpuProfile::V3].windows(2) {
            let (less, more) = (bits(pair[0]), bits(pair[1]));
            assert_ne!(less, more);
            assert!(less.iter().zip(more).all(|(less, more)| less & !more == 0));
        }
    }

    #[test]
    fn a_missing_feature_is_named() {
        let mut host = rich_host();
        for entry in host.entries_mut() {
            if entry.leaf == 1 {
                entry.ecx &= !(1 << 20);
            }
        }
        build(CpuProfile::V1, &host).unwrap();
        let error = build(CpuProfile::V2, &host).unwrap_err();
        assert_eq!(
            error,
            ProfileError::MissingFeatures {
                missing: vec!["sse4_2".to_owned()]
            }
        );
    }

    #[test]
    fn a_narrow_host_is_refused() {
        let mut host = rich_host();
        for entry in host.entries_mut() {
            if entry.leaf == 0x8000_0008 {
                entry.eax = 0x3024;
            }
        }
        let error = build(CpuProfile::V1, &host).unwrap_err();
        assert_eq!(
            error,
            ProfileError::AddressBits {
                host: 36,
                needed: 40
            }
        );
    }

    #[test]
    fn names_are_parsed() {
        for profile in CpuProfile::ALL {
            assert_eq!(profile.name().parse(), Ok(profile));
        }
        assert!("v9".parse::<CpuProfile>().is_err());
    }
}
