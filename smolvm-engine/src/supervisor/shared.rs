//! What the supervisor's threads share.

use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::agent::{AgentDialer, AgentError};
use super::capture_route::CaptureRouter;
use super::checkpoint::CaptureState;
use crate::channel;
use crate::channel::messages::{EndReason, ToVmm};
use crate::error_chain::chain;
use crate::machine::MachineDir;

/// How long a VMM that was told to end may take.
const QUIT_PATIENCE: Duration = Duration::from_secs(5);

/// What the supervisor's threads share.
pub(super) struct Shared {
    pub(super) dir: MachineDir,
    pub(super) dialer: AgentDialer,
    pub(super) vmm_socket: Mutex<UnixStream>,
    pub(super) backend: String,
    pub(super) vcpus: u8,
    pub(super) vmm_pid: u32,
    pub(super) started_unix: u64,
    /// CPU profile by name.
    pub(super) cpu: String,
    /// Whether written pages are tracked.
    pub(super) branchable: bool,
    /// It went on at a point, so its kernel believes to be the one that was saved.
    pub(super) restored: bool,
    /// The guest rebooted since the last capture began.
    pub(super) rebooted: AtomicBool,
    /// Held during a capture.
    pub(super) capture: Mutex<CaptureState>,
    /// Where the VMM's messages about captures go.
    pub(super) capture_router: CaptureRouter,
    pub(super) live: Mutex<Live>,
    pub(super) changed: Condvar,
}

/// How far the machine is.
#[derive(Default)]
pub(super) struct Live {
    pub(super) ready: bool,
    /// Why the guest could not be set up.
    pub(super) silent: Option<String>,
    pub(super) end: Option<EndReason>,
    /// The run is recorded, files are closed.
    pub(super) finished: bool,
    pub(super) out_of_memory: Option<String>,
    /// Commands that are being answered.
    pub(super) commands: usize,
}

/// A command that is being answered: the process does not end before.
pub(super) struct CommandGuard(Arc<Shared>);

impl Drop for CommandGuard {
    fn drop(&mut self) {
        self.0.change(|live| live.commands -= 1);
    }
}

impl Shared {
    /// Lets the guest write its page cache out, as far as it comes within `patience`. Best effort: the
    /// page cache is part of the memory that is saved.
    pub(super) fn sync_guest(&self, patience: Duration) {
        if !self.is_ready() {
            return;
        }
        let synced = self
            .dialer
            .connect(patience, patience, || self.has_ended())
            .and_then(|mut agent| {
                agent
                    .sync(patience)
                    .map_err(|source| AgentError::of_call("sync", patience, source))
            });
        if let Err(error) = synced {
            tracing::debug!(error = %chain(&error), "the guest did not sync in time");
        }
    }

    /// Notes that a command is being answered.
    pub(super) fn begin_command(self: &Arc<Self>) -> CommandGuard {
        self.change(|live| live.commands += 1);
        CommandGuard(self.clone())
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_ready(&self) -> bool {
        self.live().ready
    }

    pub(super) fn set_ready(&self) {
        self.change(|live| live.ready = true);
    }

    /// Notes why the guest could not be set up.
    pub(super) fn set_silent(&self, why: String) {
        self.change(|live| live.silent = Some(why));
    }

    pub(super) fn silent(&self) -> Option<String> {
        self.live().silent.clone()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.live().end.is_some()
    }

    pub(super) fn out_of_memory(&self) -> Option<String> {
        self.live().out_of_memory.clone()
    }

    /// Waits until the machine has ended; false after `patience`.
    pub(super) fn wait_end(&self, patience: Duration) -> bool {
        self.wait(patience, |live| live.end.is_some())
    }

    /// Waits until the end is recorded.
    pub(super) fn wait_finished(&self) {
        while !self.wait(Duration::from_secs(3600), |live| live.finished) {}
    }

    /// Waits until the machine is so far; false after `patience`.
    pub(super) fn wait(&self, patience: Duration, until: impl Fn(&Live) -> bool) -> bool {
        let deadline = Instant::now() + patience;
        let mut live = self.live();
        while !until(&live) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            live = self
                .changed
                .wait_timeout(live, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        true
    }

    /// Notes how far the machine is, and wakes who waits for it.
    pub(super) fn change(&self, change: impl FnOnce(&mut Live)) {
        change(&mut self.live());
        self.changed.notify_all();
    }

    /// Ends the VMM, in order if it obeys, else by force.
    pub(super) fn quit_vmm(&self) {
        let socket = self
            .vmm_socket
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // A VMM that is gone needs no message.
        let told = channel::send(&socket, &ToVmm::Quit, &[]).is_ok();
        drop(socket);
        if !(told && self.wait_end(QUIT_PATIENCE)) {
            self.kill_vmm();
        }
    }

    fn kill_vmm(&self) {
        if let Ok(pid) = i32::try_from(self.vmm_pid)
            && let Some(pid) = rustix::process::Pid::from_raw(pid)
            && let Err(error) = rustix::process::kill_process(pid, rustix::process::Signal::KILL)
        {
            tracing::warn!(%error, "the VMM could not be killed");
        }
    }
}
