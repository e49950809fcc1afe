//! What the agent and the guest are doing.

use minicbor::{Decode, Encode};

use super::Outcome;
use crate::codec::{Bytes, bounded_list};

/// Most commands in [`Status`].
pub const MAX_LISTED_SESSIONS: usize = 4096;
/// Most processes that have announced themselves.
pub const MAX_ANNOUNCED: usize = 64;
/// Most processes in [`Processes`].
pub const MAX_PROCESSES: usize = 1024;
/// Longest name of a process in bytes; Linux has 15, and more for some kernel threads.
pub const MAX_PROCESS_NAME_BYTES: usize = 64;

/// State of the agent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Encode, Decode)]
#[cbor(map)]
pub struct Status {
    /// Version of the agent's program.
    #[n(0)]
    pub agent_version: String,
    /// Milliseconds since the guest booted, suspended time included.
    #[n(1)]
    pub uptime_ms: u64,
    /// Commands that run, and detached ones that ended lately.
    #[cbor(
        n(2),
        default,
        decode_with = "bounded_list::<_, _, MAX_LISTED_SESSIONS>"
    )]
    pub sessions: Vec<SessionStatus>,
    /// How many processes wait in `smolvm-branch-ready`.
    #[cbor(n(3), default)]
    pub waiting: u32,
    /// Processes that have announced that they will, and do not yet.
    #[cbor(n(4), default, decode_with = "bounded_list::<_, _, MAX_ANNOUNCED>")]
    pub announced: Vec<u32>,
}

/// One command in [`Status`].
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct SessionStatus {
    /// Number given in [`Reply::Started`](super::Reply::Started).
    #[n(0)]
    pub session: u64,
    /// Its process id.
    #[n(1)]
    pub pid: u32,
    /// The program.
    #[n(2)]
    pub program: Bytes,
    /// Whether it was started detached.
    #[n(3)]
    pub detached: bool,
    /// `None` while it runs.
    #[n(4)]
    pub outcome: Option<Outcome>,
}

/// Answer to [`Request::Sync`](super::Request::Sync).
#[derive(Debug, Clone, PartialEq, Eq, Default, Encode, Decode)]
#[cbor(map)]
pub struct SyncReport {
    /// Whether everything was written within the time given.
    #[n(0)]
    pub written: bool,
    /// What ran meanwhile.
    #[n(1)]
    pub processes: Processes,
    /// What has run so far; absent where that could not be counted in time.
    #[n(2)]
    pub activity: Option<Activity>,
}

/// All that has run in the guest, the agent and the kernel's own threads left out. Nothing has run between two moments
/// at which it is the same: whatever was born and has ended meanwhile had a parent that ran, or the agent began it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Encode, Decode)]
#[cbor(map)]
pub struct Activity {
    /// Threads that there are.
    #[n(0)]
    pub threads: u64,
    /// The time for which they had a CPU, in nanoseconds.
    #[n(1)]
    pub cpu_nanos: u64,
    /// Commands and copies that the agent has begun or ended.
    #[n(2)]
    pub sessions: u64,
}

/// The guest's processes, kernel threads left out, by process id.
#[derive(Debug, Clone, PartialEq, Eq, Default, Encode, Decode)]
#[cbor(map)]
pub struct Processes {
    /// At most [`MAX_PROCESSES`].
    #[cbor(n(0), decode_with = "bounded_list::<_, _, MAX_PROCESSES>")]
    pub list: Vec<Process>,
    /// How many more there were, for which time or room was lacking; kernel threads may be among them.
    #[cbor(n(1), default)]
    pub unlisted: u32,
}

/// One process.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Process {
    /// Process id.
    #[n(0)]
    pub pid: u32,
    /// That of its parent, 0 for the first one.
    #[n(1)]
    pub ppid: u32,
    /// Its name as the kernel has it (`comm`): any bytes, at most [`MAX_PROCESS_NAME_BYTES`].
    #[n(2)]
    pub comm: Bytes,
    /// One letter as in `/proc/PID/stat`: `R`, `S`, `D`, `Z`, `T`, …
    #[n(3)]
    pub state: u8,
}
