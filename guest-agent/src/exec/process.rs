//! A started command: its end, and signals to its process group.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use agent_protocol::message::Outcome;
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open,
    test_kill_process_group, waitid,
};

/// A child that leads its own session and process group.
///
/// It is reaped here and nowhere else; until then its number cannot mean another process.
#[derive(Debug)]
pub(crate) struct Process {
    pid: Pid,
    pidfd: OwnedFd,
}

impl Process {
    /// Takes over a child that has just been started.
    pub(crate) fn new(child: &std::process::Child) -> Result<Self, Errno> {
        let raw = i32::try_from(child.id()).map_err(|_| Errno::SRCH)?;
        let pid = Pid::from_raw(raw).ok_or(Errno::SRCH)?;
        Ok(Self {
            pid,
            pidfd: pidfd_open(pid, PidfdFlags::empty())?,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Readable once the process has ended.
    pub(crate) fn ended(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Signals the whole process group.
    pub(crate) fn signal(&self, signal: Signal) {
        // ESRCH: nobody is left, which is as good.
        let _ = kill_process_group(self.pid, signal);
    }

    /// Signals the process group by number; numbers that are no named signal are ignored.
    pub(crate) fn signal_number(&self, number: i32) {
        if let Some(signal) = Signal::from_named_raw(number) {
            self.signal(signal);
        }
    }

    /// Whether any process of the group is left, zombies not yet reaped included.
    pub(crate) fn group_is_alive(&self) -> bool {
        test_kill_process_group(self.pid).is_ok()
    }

    /// Waits until the process has ended, however long that takes, and reaps it.
    pub(crate) fn await_end(&self) {
        let options = WaitIdOptions::EXITED;
        // Whatever it says of the end, there is nothing more to wait for.
        let _ = rustix::io::retry_on_intr(|| waitid(WaitId::PidFd(self.pidfd.as_fd()), options));
    }

    /// Reaps the process if it has ended.
    pub(crate) fn reap(&self) -> Option<Outcome> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let status =
            rustix::io::retry_on_intr(|| waitid(WaitId::PidFd(self.pidfd.as_fd()), options));
        match status {
            Ok(Some(status)) => Some(match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Outcome::Exited {
                    code: code.to_le_bytes()[0],
                },
                (None, Some(number)) => Outcome::Signaled {
                    number: number.to_le_bytes()[0],
                },
                (None, None) => Outcome::Exited { code: u8::MAX },
            }),
            Ok(None) => None,
            // Someone else reaped it: its code is lost, its end is not.
            Err(_) => Some(Outcome::Exited { code: u8::MAX }),
        }
    }
}
