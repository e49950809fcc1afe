//! What becomes of saved points: `machine checkpoint-delete`, `machine checkpoint-prune`.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::Args;
use smolvm_engine::Retention;

/// `machine checkpoint-delete`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples: smolvm machine checkpoint-delete c4c23a7c6d3a\n          \
    smolvm machine checkpoint-delete ./before.checkpoint -f"
)]
pub(crate) struct CheckpointDeleteArgs {
    /// The id of a point that a store keeps, or the beginning of one; or a checkpoint
    #[arg(value_name = "ID|X.checkpoint")]
    pub(crate) point: PathBuf,
    /// Store that keeps the point [default: the one in $SMOLVM_HOME]
    #[arg(long, value_name = "DIR")]
    pub(crate) store: Option<PathBuf>,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) force: bool,
}

/// `machine checkpoint-prune`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: smolvm machine checkpoint-prune --keep-last 10 --keep-daily 7 --dry-run"
)]
pub(crate) struct CheckpointPruneArgs {
    /// The store [default: the one in $SMOLVM_HOME]
    #[arg(long, value_name = "DIR")]
    pub(crate) store: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) keep: RetentionArgs,
    /// Change nothing, say what would be done
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Which points stay.
#[derive(Debug, Args)]
pub(crate) struct RetentionArgs {
    /// Keep so many of the newest
    #[arg(long, value_name = "N")]
    keep_last: Option<NonZeroU32>,
    /// Keep the newest of each hour, for N hours that have one
    #[arg(long, value_name = "N")]
    keep_hourly: Option<NonZeroU32>,
    /// The same by days, in UTC
    #[arg(long, value_name = "N")]
    keep_daily: Option<NonZeroU32>,
    /// The same by weeks, which begin on Monday
    #[arg(long, value_name = "N")]
    keep_weekly: Option<NonZeroU32>,
}

impl RetentionArgs {
    /// The rule; empty if nothing was given.
    pub(crate) fn rule(&self) -> Retention {
        Retention {
            last: self.keep_last,
            hourly: self.keep_hourly,
            daily: self.keep_daily,
            weekly: self.keep_weekly,
        }
    }
}
