//! `smolvm-branch-ready`: processes that wait until the machine is branched.
//!
//! The tool is the agent's own program under a second name. It says to the agent, over a socket that every process of the
//! guest may use, what it is about, with one byte; the answer is one line. In the machine that is branched it waits for ever.
//! In a branch, which has it in its memory, the host has the agent tell it which one that is.
//!
//! | byte | meaning | answer |
//! |---|---|---|
//! | `c` | wait | `go INDEX NAME`, when there is one |
//! | `a` | this process will call | `ok` |
//! | `p` | the process that started this one will call | `ok` |
//!
//! Instead of an answer there may be `no REASON`. Who sends anything else, or more, is not heard.

mod tool;
mod waiting;

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

pub use tool::{NAME, called_as, run};
pub(crate) use waiting::Waiting;

/// Where the tool is found.
pub(crate) const TOOLS: &str = "/run/smolvm/bin";
/// Where the agent listens for it.
pub const SOCKET: &str = "/run/smolvm/branch.sock";

/// Waits for the branch.
pub(crate) const CALL: u8 = b'c';
/// Will call.
pub(crate) const ANNOUNCE: u8 = b'a';
/// Its parent will call.
pub(crate) const ANNOUNCE_PARENT: u8 = b'p';

/// Environment variable with the place among the machines of the branch.
const INDEX_VARIABLE: &str = "SMOLVM_BRANCH_INDEX";
/// Environment variable with the machine's name.
const NAME_VARIABLE: &str = "SMOLVM_BRANCH_NAME";

/// A socket there that every user may connect to, in place of what an earlier agent left.
///
/// # Errors
/// What the file system says.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    fs::set_permissions(path, Permissions::from_mode(0o666))?;
    Ok(listener)
}

/// Whether `name` may be a branch's: it is printed for a shell.
pub(crate) fn is_branch_name(name: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=agent_protocol::message::MAX_BRANCH_NAME_BYTES).contains(&name.len())
        && name.bytes().all(good)
}
