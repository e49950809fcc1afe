//! What an image says about how it is to be used.

use serde::{Deserialize, Serialize};

/// The configuration of an image. For a plain directory or archive all of it
/// is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageConfig {
    /// Environment, each `KEY=value`.
    pub env: Vec<String>,
    /// Directory that commands start in.
    pub working_dir: Option<String>,
    /// User that commands run as. Recorded, not used: machines run as root.
    pub user: Option<String>,
    /// What a container would run. Recorded, not used.
    pub entrypoint: Vec<String>,
    /// Arguments of it. Recorded, not used.
    pub cmd: Vec<String>,
    /// Architecture, as OCI names it (`amd64`).
    pub architecture: Option<String>,
}

/// The architecture of machines on this host, as OCI names it.
#[cfg(target_arch = "aarch64")]
pub(crate) const ARCHITECTURE: &str = "arm64";
/// The architecture of machines on this host, as OCI names it.
#[cfg(not(target_arch = "aarch64"))]
pub(crate) const ARCHITECTURE: &str = "amd64";
