//! What a host must offer, in words that have numbers.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A word that names nothing known.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[error("{word:?} is not one of: {}", .known.join(", "))]
pub struct UnknownName {
    /// The word.
    pub word: String,
    /// The words there are.
    pub known: &'static [&'static str],
}

/// A number that this version has no name for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnknownNumber(u32);

impl UnknownNumber {
    /// The number.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }
}

/// An enum whose variants have numbers in records and names for people. Numbers of later versions are kept, so that their
/// records can be listed.
macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $variant:ident = $number:literal, $text:literal;)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $name {
            /// Not said.
            #[default]
            Unspecified,
            $($(#[$about])* $variant,)+
            /// One that a later version knows.
            Unknown(UnknownNumber),
        }

        impl $name {
            const NAMES: &[&str] = &[$($text),+];

            /// Its number in records.
            #[must_use]
            pub fn number(self) -> u32 {
                match self {
                    Self::Unspecified => 0,
                    $(Self::$variant => $number,)+
                    Self::Unknown(number) => number.get(),
                }
            }

            /// The one with this number.
            #[must_use]
            pub fn from_number(number: u32) -> Self {
                match number {
                    0 => Self::Unspecified,
                    $($number => Self::$variant,)+
                    other => Self::Unknown(UnknownNumber(other)),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    Self::Unspecified => f.pad("unspecified"),
                    $(Self::$variant => f.pad($text),)+
                    Self::Unknown(number) => f.pad(&format!("unknown ({})", number.get())),
                }
            }
        }

        impl FromStr for $name {
            type Err = UnknownName;

            fn from_str(word: &str) -> Result<Self, UnknownName> {
                match word {
                    $($text => Ok(Self::$variant),)+
                    _ => Err(UnknownName { word: word.to_owned(), known: Self::NAMES }),
                }
            }
        }
    };
}

numbered! {
    /// Operating system of a guest.
    GuestOs {
        /// Linux.
        Linux = 1, "linux";
    }
}

numbered! {
    /// Architecture of a guest, named as Rust does.
    Arch {
        /// 64-bit x86.
        X86_64 = 1, "x86_64";
        /// 64-bit Arm.
        Aarch64 = 2, "aarch64";
    }
}

numbered! {
    /// What runs the vCPUs of a machine.
    BackendKind {
        /// Linux KVM.
        Kvm = 1, "kvm";
        /// The software CPU.
        Soft = 2, "soft";
        /// Hypervisor.framework of macOS.
        Hvf = 3, "hvf";
    }
}

numbered! {
    /// Which CPU features a guest sees.
    CpuProfile {
        /// x86-64-v1.
        V1 = 1, "v1";
        /// x86-64-v2.
        V2 = 2, "v2";
        /// x86-64-v3.
        V3 = 3, "v3";
        /// Those of the host that it was started on; promises nothing on others.
        Host = 4, "host";
    }
}

/// Version of the protocol that a guest's agent speaks; 0 where there is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentVersion(pub u32);

impl fmt::Display for AgentVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Version of the machine model: which devices a guest has and where.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MachineModel(pub u32);

impl fmt::Display for MachineModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
