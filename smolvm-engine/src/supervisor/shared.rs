//! What the supervisor's threads share.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use agent_protocol::message::SyncReport;
use rustix::process::{Signal, pidfd_send_signal};

use super::agent::AgentDialer;
use super::booted::Making;
use super::checkpoint::CaptureState;
use crate::channel::control::{AutosaveNote, KeptStatus, Trouble};
use crate::channel::messages::{EndReason, ToVmm};
use crate::channel::{self, ChannelError};
use crate::error_chain::chain;
use crate::machine::MachineDir;

/// How long a VMM that was told to end may take.
const QUIT_PATIENCE: Duration = Duration::from_secs(5);
/// How many may wait for the agent to answer: one that does not could collect any number.
const MAX_PINGS: usize = 8;
/// How long a VMM that is waited for may be stopped by a signal before it is taken to stay so.
pub(super) const STOPPED_PATIENCE: Duration = Duration::from_secs(2);
/// How long the VMM may take to take a message.
const VMM_SEND_PATIENCE: Duration = Duration::from_secs(2);

/// What the supervisor's threads share.
pub(super) struct Shared {
    pub(super) dir: MachineDir,
    /// The home's store.
    pub(super) default_store: PathBuf,
    pub(super) dialer: AgentDialer,
    pub(super) vmm_socket: Mutex<UnixStream>,
    pub(super) backend: String,
    /// The software CPU only interprets.
    pub(super) interpret: bool,
    pub(super) vcpus: u8,
    pub(super) vmm_pid: u32,
    /// The VMM's process, where it is one.
    pub(super) vmm_process: Option<OwnedFd>,
    pub(super) started_unix: u64,
    /// CPU profile by name.
    pub(super) cpu: String,
    /// Whether written pages are tracked.
    pub(super) branchable: bool,
    /// It ends with the process that it was made for.
    pub(super) passing: bool,
    /// It went on at a point, so its kernel believes to be the one that was saved.
    pub(super) restored: bool,
    /// And that was a booted point.
    pub(super) at_booted: bool,
    /// The booted point that is to be made of it, until its guest has booted.
    pub(super) making: Mutex<Option<Making>>,
    /// The guest rebooted since the last capture began.
    pub(super) rebooted: AtomicBool,
    /// Held during a capture, and by whatever else must not happen during one.
    pub(super) capture: Mutex<CaptureState>,
    pub(super) live: Mutex<Live>,
    pub(super) changed: Condvar,
}

/// How far the machine is.
#[derive(Default)]
pub(super) struct Live {
    /// Commands may work in the guest since it booted or went back: a booted point was taken of it, if that was to be, and its time, its
    /// random numbers and its identity are its own, as far as it can be made so.
    pub(super) open: bool,
    pub(super) ready: bool,
    /// Why the guest could not be set up.
    pub(super) trouble: Option<Trouble>,
    /// What is left for the next start.
    pub(super) pending: Vec<String>,
    /// How often it was asked for that what is left be tried again.
    pub(super) retries_wanted: u64,
    /// How many of these have been done.
    pub(super) retries_done: u64,
    /// Threads that have read the guest's log; the last one does.
    pub(super) log_readers: u64,
    pub(super) end: Option<EndReason>,
    /// The run is recorded, files are closed.
    pub(super) finished: bool,
    pub(super) out_of_memory: Option<String>,
    /// Writes of the guest that failed since the host's file system was full, and when the last of them was heard of.
    pub(super) full: Option<(u64, u64)>,
    /// The state that the last undo left.
    pub(super) kept: Option<(String, KeptStatus)>,
    /// Commands that are being answered.
    pub(super) commands: usize,
    /// Those of them that save: they go on after the machine's end.
    pub(super) saves: usize,
    /// How often the schedule of autosaves was set.
    pub(super) autosaves_set: u64,
    /// What became of the last of them.
    pub(super) autosave: Option<AutosaveNote>,
    /// Undos that wait for a save to end.
    pub(super) undos_wanted: usize,
    /// How many wait for the agent to answer.
    pub(super) pings: usize,
    /// The VMM was told to end, or is being killed.
    pub(super) quitting: bool,
    /// How often the guest has reset itself: each boot is set up anew.
    pub(super) resets: u64,
    /// How often since its agent last answered.
    pub(super) resets_unready: u32,
    /// Why this process ends the machine.
    pub(super) verdict: Option<String>,
}

impl Live {
    /// The guest is one that nobody has set up yet.
    pub(super) fn forget_set_up(&mut self) {
        self.open = false;
        self.ready = false;
        self.trouble = None;
        self.pending.clear();
    }
}

/// A command that is being answered: the process does not end before.
pub(super) struct CommandGuard(Arc<Shared>);

impl Drop for CommandGuard {
    fn drop(&mut self) {
        self.0.change(|live| live.commands -= 1);
    }
}

/// Somebody who waits for the agent to answer.
pub(super) struct PingGuard(Arc<Shared>);

impl Drop for PingGuard {
    fn drop(&mut self) {
        self.0.change(|live| live.pings -= 1);
    }
}

/// An undo that waits for its turn.
pub(super) struct UndoGuard(Arc<Shared>);

impl Drop for UndoGuard {
    fn drop(&mut self) {
        self.0.change(|live| live.undos_wanted -= 1);
    }
}

/// A save that goes on.
pub(super) struct SaveGuard(Arc<Shared>);

impl Drop for SaveGuard {
    fn drop(&mut self) {
        self.0.change(|live| live.saves -= 1);
    }
}

impl Shared {
    /// Tells the VMM something short.
    pub(super) fn tell_vmm(
        &self,
        message: &ToVmm,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        let socket = self
            .vmm_socket
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        channel::send_within(&socket, message, descriptors, VMM_SEND_PATIENCE)
    }

    /// Lets the guest write its page cache out, as far as it comes within `patience`, and list its
    /// processes. Best effort: the page cache is part of the memory that is saved.
    pub(super) fn sync_guest(&self, patience: Duration) -> Option<SyncReport> {
        if !self.is_ready() {
            return None;
        }
        let deadline = Instant::now() + patience;
        let synced = self
            .dialer
            .connect(patience, || self.has_ended())
            .and_then(|mut agent| {
                let left = deadline.saturating_duration_since(Instant::now());
                // The guest needs some of it to answer.
                agent.call("sync", left, |agent| agent.sync(left * 3 / 4))
            });
        synced
            .inspect_err(|error| {
                tracing::debug!(error = %chain(error), "the guest did not sync in time");
            })
            .ok()
    }

    /// Notes that the machine is being saved: the process does not end before, whatever becomes of the machine.
    pub(super) fn begin_save(self: &Arc<Self>) -> SaveGuard {
        self.change(|live| live.saves += 1);
        SaveGuard(self.clone())
    }

    /// Notes that the agent is asked for an answer; `None` while many others wait for one.
    pub(super) fn begin_ping(self: &Arc<Self>) -> Option<PingGuard> {
        let mut taken = false;
        self.change(|live| {
            taken = live.pings < MAX_PINGS;
            live.pings += usize::from(taken);
        });
        taken.then(|| PingGuard(self.clone()))
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

    /// Notes how setting up the guest ended after so many resets: what is left for the next start, or why
    /// the guest must not be used.
    pub(super) fn set_up_done(&self, resets: u64, outcome: Result<Vec<String>, Trouble>) {
        self.change(|live| {
            // It has been reset meanwhile.
            if live.resets != resets {
                return;
            }
            if outcome.is_ok() {
                live.resets_unready = 0;
            }
            live.open = true;
            live.ready = outcome.is_ok();
            live.trouble = outcome.as_ref().err().cloned();
            live.pending = outcome.unwrap_or_default();
        });
    }

    /// Whether commands may work in the guest. What they leave there before would be in every machine that goes on at a booted
    /// point; what they got would be what others got who went on at the same point.
    pub(super) fn is_open(&self) -> bool {
        let live = self.live();
        live.open || live.end.is_some()
    }

    /// Has what was left undone in the guest tried again, and waits for that.
    pub(super) fn set_up_again(&self) {
        let mut number = 0;
        self.change(|live| {
            live.retries_wanted += 1;
            number = live.retries_wanted;
        });
        let over = |live: &Live| live.retries_done >= number || live.end.is_some();
        while !self.wait(Duration::from_secs(3600), over) {}
    }

    pub(super) fn log_readers(&self) -> u64 {
        self.live().log_readers
    }

    pub(super) fn retries_wanted(&self) -> u64 {
        self.live().retries_wanted
    }

    pub(super) fn trouble(&self) -> Option<Trouble> {
        self.live().trouble.clone()
    }

    pub(super) fn pending(&self) -> Vec<String> {
        self.live().pending.clone()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.live().end.is_some()
    }

    /// Why this process ended the machine, if it did by itself.
    pub(super) fn verdict(&self) -> Option<String> {
        self.live().verdict.clone()
    }

    /// Whether the VMM was told to end.
    pub(super) fn is_quitting(&self) -> bool {
        self.live().quitting
    }

    /// How often the guest has reset itself.
    pub(super) fn resets(&self) -> u64 {
        self.live().resets
    }

    pub(super) fn kept(&self) -> Option<(String, KeptStatus)> {
        self.live().kept.clone()
    }

    pub(super) fn last_autosave(&self) -> Option<AutosaveNote> {
        self.live().autosave.clone()
    }

    pub(super) fn autosaves_set(&self) -> u64 {
        self.live().autosaves_set
    }

    pub(super) fn out_of_memory(&self) -> Option<String> {
        self.live().out_of_memory.clone()
    }

    /// Writes of the guest that did not fit onto the host, and when the last of them was heard of.
    pub(super) fn full(&self) -> Option<(u64, u64)> {
        self.live().full
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
        self.change(|live| live.quitting = true);
        // A VMM that is gone needs no message, one that is stopped hears none.
        let told = !self.is_vmm_stopped() && self.tell_vmm(&ToVmm::Quit, &[]).is_ok();
        if !(told && self.wait_end(QUIT_PATIENCE)) {
            self.kill_vmm();
        }
    }

    /// Kills the VMM. It is a child of this process, which collects it only after this: its id is its own.
    pub(super) fn kill_vmm(&self) {
        self.change(|live| live.quitting = true);
        if let Some(vmm) = &self.vmm_process
            && let Err(error) = pidfd_send_signal(vmm, Signal::KILL)
            && error != rustix::io::Errno::SRCH
        {
            tracing::warn!(%error, "the VMM could not be killed");
        }
    }

    /// Whether a signal has stopped the VMM's process: it says nothing until another one lets it go on.
    pub(super) fn is_vmm_stopped(&self) -> bool {
        // It is a child that is not collected yet: its id is its own.
        self.vmm_pid != 0 && durable_files::is_process_stopped(self.vmm_pid)
    }

    /// Notes that an undo waits: a save that has not reached its moment makes room.
    pub(super) fn begin_undo(self: &Arc<Self>) -> UndoGuard {
        self.change(|live| live.undos_wanted += 1);
        UndoGuard(self.clone())
    }

    /// Whether an undo waits.
    pub(super) fn is_undo_wanted(&self) -> bool {
        self.live().undos_wanted > 0
    }

    /// Ends the machine because of something that its guest did.
    pub(super) fn condemn(&self, verdict: String) {
        tracing::error!(%verdict, "the machine is ended");
        self.change(|live| {
            live.verdict.get_or_insert(verdict);
        });
        self.quit_vmm();
    }
}
