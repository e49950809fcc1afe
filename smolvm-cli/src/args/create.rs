//! `machine create`, and what it shares with `run`.

use std::path::PathBuf;

use clap::Args;
use smolvm_engine::{Backend, MachineName};

use super::unavailable::UnavailableFlags;
use super::values;

/// What a machine is to be.
#[derive(Debug, Args)]
pub(crate) struct MachineShape {
    /// Image of its disk [default: `debian`, or the only one]
    #[arg(long, value_name = "NAME", conflicts_with = "from")]
    pub(crate) image: Option<String>,
    /// Make it from a saved point: a checkpoint directory, an exported file, or an id in the default
    /// store
    #[arg(long, value_name = "POINT")]
    pub(crate) from: Option<PathBuf>,
    /// Which generation of --from: `~N`, an id, its first 8 or more digits, or a message [default: ~0]
    #[arg(long, value_name = "GENERATION", requires = "from", value_parser = values::generation)]
    pub(crate) at: Option<String>,
    /// Keep host name, machine id and keys of the point
    #[arg(long, requires = "from")]
    pub(crate) keep_identity: bool,
    /// Kernel [default: `default`, or the only one]
    #[arg(long, value_name = "NAME", conflicts_with = "from")]
    pub(crate) kernel: Option<String>,
    /// vCPUs, 1 to 16 [default: 2; 1 on the software CPU]
    #[arg(long, value_name = "N")]
    pub(crate) cpus: Option<u8>,
    /// Memory, 96M to 1T [default: 1G]
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub(crate) mem: Option<u64>,
    /// Size of its disk, at least the image's [default: 8G]
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub(crate) disk: Option<u64>,
    /// CPU profile: v1, v2, v3 restore on other hosts, `host` does not [default: the best of v1 to v3]
    #[arg(long, value_name = "PROFILE")]
    pub(crate) cpu: Option<String>,
    /// What runs its vCPUs: auto, kvm, soft or hvf
    #[arg(
        long,
        value_name = "BACKEND",
        env = "SMOLVM_BACKEND",
        hide_env_values = true,
        default_value = "auto"
    )]
    pub(crate) backend: Backend,
    /// Variable of every command in it (may be repeated)
    #[arg(short, long = "env", value_name = "K=V", value_parser = values::assignment)]
    pub(crate) env: Vec<(String, String)>,
    /// Directory in which commands start [default: the image's, else /root]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    #[command(flatten)]
    pub(crate) unavailable: UnavailableFlags,
}

/// `machine create`.
#[derive(Debug, Args)]
#[command(after_help = "Example: smolvm create agent --image debian --mem 2G")]
pub(crate) struct CreateArgs {
    /// Its name, of a-z 0-9 - _ . [default: made up]
    #[arg(value_name = "NAME", conflicts_with = "name")]
    machine: Option<MachineName>,
    /// The same, spelled out
    #[arg(short, long, value_name = "NAME")]
    name: Option<MachineName>,
    #[command(flatten)]
    pub(crate) shape: MachineShape,
    /// A label to find it by (may be repeated)
    #[arg(long, value_name = "K=V", value_parser = values::assignment)]
    pub(crate) label: Vec<(String, String)>,
}

impl CreateArgs {
    /// The name, what it is to be, and its labels.
    pub(crate) fn split(self) -> (Option<MachineName>, MachineShape, Vec<(String, String)>) {
        (self.machine.or(self.name), self.shape, self.label)
    }
}
