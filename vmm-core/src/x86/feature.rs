//! CPU feature bits by name (Intel SDM volume 2, CPUID; AMD APM volume 3, appendix E).

use super::cpuid_table::CpuidTable;
use super::profile::CpuProfile;

/// In EAX of leaf 6: the timer of the local APIC runs whatever the vCPU does.
pub(super) const ARAT: u32 = 1 << 2;

/// Bits of CPUID leaf 1 ECX that are set or cleared by hand.
pub(super) mod ecx1 {
    pub(in crate::x86) const X2APIC: u32 = 1 << 21;
    pub(in crate::x86) const TSC_DEADLINE: u32 = 1 << 24;
    /// Reports the OS's choice in CR4; never a property of the host.
    pub(in crate::x86) const OSXSAVE: u32 = 1 << 27;
    pub(in crate::x86) const HYPERVISOR: u32 = 1 << 31;
}

/// A register of CPUID that holds feature bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FeatureWord {
    Edx1,
    Ecx1,
    Ebx7,
    EdxExt,
    EcxExt,
}

impl FeatureWord {
    pub(super) const ALL: [Self; 5] = [
        Self::Edx1,
        Self::Ecx1,
        Self::Ebx7,
        Self::EdxExt,
        Self::EcxExt,
    ];

    /// The word's value in a table.
    pub(super) fn of(self, table: &CpuidTable) -> u32 {
        let leaf = |leaf| table.get(leaf, 0).copied().unwrap_or_default();
        match self {
            Self::Edx1 => leaf(1).edx,
            Self::Ecx1 => leaf(1).ecx,
            Self::Ebx7 => leaf(7).ebx,
            Self::EdxExt => leaf(0x8000_0001).edx,
            Self::EcxExt => leaf(0x8000_0001).ecx,
        }
    }

    /// Bits that a guest may have whatever the host says.
    pub(super) fn always_available(self) -> u32 {
        match self {
            Self::Ecx1 => ecx1::HYPERVISOR | ecx1::OSXSAVE,
            _ => 0,
        }
    }

    /// A bit's name.
    pub(super) fn name_of(self, bit: u32) -> String {
        let known = NAMES
            .iter()
            .find(|(word, number, _)| *word == self && *number == bit);
        known.map_or_else(
            || format!("{self:?}[{bit}]"),
            |(_, _, name)| (*name).to_owned(),
        )
    }
}

/// The feature words of a profile.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Features {
    pub(super) edx1: u32,
    pub(super) ecx1: u32,
    pub(super) ebx7: u32,
    pub(super) edx_ext: u32,
    pub(super) ecx_ext: u32,
}

const V1: &[&str] = &[
    "fpu",
    "de",
    "pse",
    "tsc",
    "msr",
    "pae",
    "cx8",
    "apic",
    "sep",
    "mtrr",
    "pge",
    "cmov",
    "pat",
    "pse36",
    "clflush",
    "mmx",
    "fxsr",
    "sse",
    "sse2",
    "cx16",
    "hypervisor",
    "smep",
    "syscall",
    "nx",
    "lm",
];
const V2: &[&str] = &["sse3", "ssse3", "sse4_1", "sse4_2", "popcnt", "lahf_lm"];
const V3: &[&str] = &[
    "fma", "movbe", "xsave", "avx", "f16c", "bmi1", "avx2", "bmi2", "abm",
];

/// The features of a fixed profile; `host` has none of its own.
pub(super) fn of_profile(profile: CpuProfile) -> Features {
    let lists: &[&[&str]] = match profile {
        CpuProfile::V1 => &[V1],
        CpuProfile::V2 => &[V1, V2],
        CpuProfile::V3 => &[V1, V2, V3],
        CpuProfile::Host => &[],
    };
    let mut features = Features::default();
    for wanted in lists.iter().copied().flatten() {
        for (word, bit, name) in NAMES {
            if name == wanted {
                let register = match word {
                    FeatureWord::Edx1 => &mut features.edx1,
                    FeatureWord::Ecx1 => &mut features.ecx1,
                    FeatureWord::Ebx7 => &mut features.ebx7,
                    FeatureWord::EdxExt => &mut features.edx_ext,
                    FeatureWord::EcxExt => &mut features.ecx_ext,
                };
                *register |= 1 << bit;
            }
        }
    }
    features
}

const NAMES: &[(FeatureWord, u32, &str)] = &[
    (FeatureWord::Edx1, 0, "fpu"),
    (FeatureWord::Edx1, 2, "de"),
    (FeatureWord::Edx1, 3, "pse"),
    (FeatureWord::Edx1, 4, "tsc"),
    (FeatureWord::Edx1, 5, "msr"),
    (FeatureWord::Edx1, 6, "pae"),
    (FeatureWord::Edx1, 8, "cx8"),
    (FeatureWord::Edx1, 9, "apic"),
    (FeatureWord::Edx1, 11, "sep"),
    (FeatureWord::Edx1, 12, "mtrr"),
    (FeatureWord::Edx1, 13, "pge"),
    (FeatureWord::Edx1, 15, "cmov"),
    (FeatureWord::Edx1, 16, "pat"),
    (FeatureWord::Edx1, 17, "pse36"),
    (FeatureWord::Edx1, 19, "clflush"),
    (FeatureWord::Edx1, 23, "mmx"),
    (FeatureWord::Edx1, 24, "fxsr"),
    (FeatureWord::Edx1, 25, "sse"),
    (FeatureWord::Edx1, 26, "sse2"),
    (FeatureWord::Ecx1, 0, "sse3"),
    (FeatureWord::Ecx1, 1, "pclmulqdq"),
    (FeatureWord::Ecx1, 9, "ssse3"),
    (FeatureWord::Ecx1, 12, "fma"),
    (FeatureWord::Ecx1, 13, "cx16"),
    (FeatureWord::Ecx1, 19, "sse4_1"),
    (FeatureWord::Ecx1, 20, "sse4_2"),
    (FeatureWord::Ecx1, 22, "movbe"),
    (FeatureWord::Ecx1, 23, "popcnt"),
    (FeatureWord::Ecx1, 25, "aes"),
    (FeatureWord::Ecx1, 26, "xsave"),
    (FeatureWord::Ecx1, 28, "avx"),
    (FeatureWord::Ecx1, 29, "f16c"),
    (FeatureWord::Ecx1, 30, "rdrand"),
    (FeatureWord::Ecx1, 31, "hypervisor"),
    (FeatureWord::Ebx7, 0, "fsgsbase"),
    (FeatureWord::Ebx7, 3, "bmi1"),
    (FeatureWord::Ebx7, 5, "avx2"),
    (FeatureWord::Ebx7, 7, "smep"),
    (FeatureWord::Ebx7, 8, "bmi2"),
    (FeatureWord::Ebx7, 9, "erms"),
    (FeatureWord::Ebx7, 16, "avx512f"),
    (FeatureWord::Ebx7, 18, "rdseed"),
    (FeatureWord::Ebx7, 19, "adx"),
    (FeatureWord::Ebx7, 20, "smap"),
    (FeatureWord::Ebx7, 23, "clflushopt"),
    (FeatureWord::Ebx7, 24, "clwb"),
    (FeatureWord::Ebx7, 29, "sha_ni"),
    (FeatureWord::EdxExt, 11, "syscall"),
    (FeatureWord::EdxExt, 20, "nx"),
    (FeatureWord::EdxExt, 26, "pdpe1gb"),
    (FeatureWord::EdxExt, 27, "rdtscp"),
    (FeatureWord::EdxExt, 29, "lm"),
    (FeatureWord::EcxExt, 0, "lahf_lm"),
    (FeatureWord::EcxExt, 5, "abm"),
    (FeatureWord::EcxExt, 6, "sse4a"),
];
