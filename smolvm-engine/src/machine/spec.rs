use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Guest memory when nothing is said, in bytes.
pub const DEFAULT_MEMORY_BYTES: u64 = 1 << 30;
/// Root disk when nothing is said, in bytes.
pub const DEFAULT_DISK_BYTES: u64 = 8 << 30;

/// Which backend runs a machine's vCPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Backend {
    /// The best that the host has.
    #[default]
    Auto,
    /// Linux KVM.
    Kvm,
    /// The software CPU.
    Soft,
    /// Apple's Hypervisor.framework.
    Hvf,
}

impl Backend {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Kvm => "kvm",
            Self::Soft => "soft",
            Self::Hvf => "hvf",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Backend {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        [Self::Auto, Self::Kvm, Self::Soft, Self::Hvf]
            .into_iter()
            .find(|backend| backend.name() == name)
            .ok_or_else(|| format!("there is no backend {name:?}, only auto, kvm, soft and hvf"))
    }
}

/// What a machine is: fixed when it is created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineSpec {
    /// vCPUs; `None`: the backend's default.
    pub cpus: Option<u8>,
    /// Guest memory in bytes.
    pub memory_bytes: u64,
    /// Root disk in bytes.
    pub disk_bytes: u64,
    /// CPU profile by name; `None`: the backend's default.
    pub cpu: Option<String>,
    /// Which backend runs it.
    pub backend: Backend,
    /// Environment of every command.
    pub environment: BTreeMap<String, String>,
    /// Directory in which commands start; `None`: the image's, else `/root`.
    pub working_directory: Option<String>,
    /// What the user attached to it.
    pub labels: BTreeMap<String, String>,
}

impl Default for MachineSpec {
    fn default() -> Self {
        Self {
            cpus: None,
            memory_bytes: DEFAULT_MEMORY_BYTES,
            disk_bytes: DEFAULT_DISK_BYTES,
            cpu: None,
            backend: Backend::Auto,
            environment: BTreeMap::new(),
            working_directory: None,
            labels: BTreeMap::new(),
        }
    }
}
