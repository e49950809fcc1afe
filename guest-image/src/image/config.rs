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

/// Most bytes that an image may say about how it is used.
const MAX_CONFIG_BYTES: usize = 1 << 20;
/// Most strings in which it may say so.
const MAX_CONFIG_STRINGS: usize = 16_384;

impl ImageConfig {
    /// The environment as names and values, without what no process can have.
    pub fn environment(&self) -> impl Iterator<Item = (&str, &str)> {
        self.env.iter().filter_map(|entry| variable(entry))
    }

    /// Refuses what the files that it gets into could not hold.
    pub(crate) fn check_size(&self) -> Result<(), &'static str> {
        let single = [&self.working_dir, &self.user, &self.architecture];
        let lists = [&self.env, &self.entrypoint, &self.cmd];
        let strings = single
            .into_iter()
            .flatten()
            .chain(lists.into_iter().flatten());
        let (count, bytes) = strings.fold((0, 0), |(count, bytes), text| {
            (count + 1, bytes + text.len())
        });
        if count > MAX_CONFIG_STRINGS || bytes > MAX_CONFIG_BYTES {
            return Err("its environment and commands are larger than 1 MiB");
        }
        Ok(())
    }
}

/// Name and value of an entry `NAME=value`; `None` for what is no variable.
pub(crate) fn variable(entry: &str) -> Option<(&str, &str)> {
    let (name, value) = entry.split_once('=')?;
    (!name.is_empty() && !entry.contains('\0')).then_some((name, value))
}

/// The architecture of machines on this host, as OCI names it.
#[cfg(target_arch = "aarch64")]
pub(crate) const ARCHITECTURE: &str = "arm64";
/// The architecture of machines on this host, as OCI names it.
#[cfg(not(target_arch = "aarch64"))]
pub(crate) const ARCHITECTURE: &str = "amd64";
