//! Ending machines: in order where they obey, by force where they do not.

use std::fs::File;
use std::time::{Duration, Instant};

use durable_files::LockHolder;

use super::Engine;
use crate::api::EngineError;
use crate::channel::control::{Control, ControlReply};
use crate::machine::{MachineDir, MachineDirError, RecordedState};
use crate::name::MachineName;

/// How long a supervisor may take to end a machine once the guest's time is over: it kills a VMM that does not obey.
const FORCE_PATIENCE: Duration = Duration::from_secs(30);
/// How long a supervisor that ends may say nothing before it is killed.
const SILENCE: Duration = Duration::from_secs(5);
/// How long killed processes may take to be gone.
const KILL_PATIENCE: Duration = Duration::from_secs(30);
/// How long another command that works on the machine is waited for before it loses its machine.
const OPERATION_PATIENCE: Duration = Duration::from_secs(10);

/// How to stop a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StopOptions {
    /// How long the guest may take to end by itself.
    pub timeout: Duration,
    /// Give up what a pause saved, which makes a machine that is paused a stopped one.
    pub discard: bool,
}

impl StopOptions {
    /// With this timeout.
    pub fn with_timeout(timeout: Duration) -> Self {
        Self {
            timeout,
            ..Self::default()
        }
    }

    /// Gives up what a pause saved, or not.
    #[must_use]
    pub fn with_discard(mut self, discard: bool) -> Self {
        self.discard = discard;
        self
    }
}

impl Default for StopOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(10),
            discard: false,
        }
    }
}

/// What [`Engine::stop`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped {
    /// It did not run.
    pub was_stopped: bool,
    /// The guest did not end by itself.
    pub forced: bool,
    /// It was paused: what was in its memory is given up.
    pub discarded: bool,
}

impl Engine {
    /// Stops a machine: in order if the guest obeys in time, else by force. A save that has its moment is waited for.
    ///
    /// # Errors
    ///
    /// [`EngineError::WrongState`] for a machine that is paused, unless its memory is to be given up.
    pub fn stop(&self, name: &MachineName, options: StopOptions) -> Result<Stopped, EngineError> {
        let dir = self.dir(name);
        self.read(name)?;
        let _operation = self.lock_to_end(name, &dir)?;
        let file = self.read(name)?;
        if !dir.is_running()? {
            let discarded = matches!(file.state, RecordedState::Paused { .. });
            if discarded {
                self.discard_pause(name, &dir, options.discard)?;
            }
            return Ok(Stopped {
                was_stopped: true,
                forced: false,
                discarded,
            });
        }
        let forced = self.end(name, &dir, options.timeout)?;
        Ok(Stopped {
            was_stopped: false,
            forced,
            discarded: false,
        })
    }

    /// Ends a machine's processes at once, also while another call starts or stops it. Returns whether
    /// there was anything to end.
    pub fn force_off(&self, name: &MachineName) -> bool {
        self.control(name, &Control::Stop { timeout_ms: 0 }).is_ok()
    }

    /// Waits for, then holds, the lock of who changes the machine from outside.
    ///
    /// # Errors
    ///
    /// [`EngineError::NoMachine`] where it went meanwhile; who holds the lock is stopped.
    pub(super) fn lock_operation(
        &self,
        name: &MachineName,
        dir: &MachineDir,
    ) -> Result<File, EngineError> {
        dir.lock_operation().map_err(|error| went(name, error))
    }

    /// The lock of who starts, ends or deletes the machine. Another command that holds it and does not come to an end,
    /// such as a start whose guest never answers, loses its machine. One that is stopped while the machine is ready is named instead.
    pub(super) fn lock_to_end(
        &self,
        name: &MachineName,
        dir: &MachineDir,
    ) -> Result<File, EngineError> {
        let lock = |dir: &MachineDir| {
            let lock = dir.lock_operation_within(OPERATION_PATIENCE);
            lock.map_err(|error| went(name, error))
        };
        loop {
            if let Some(lock) = lock(dir)? {
                return Ok(lock);
            }
            match self.live_status(name) {
                // An undo, which saves its state, or an end that waits for a save.
                Some(status) if status.ready || status.ended => {}
                _ => break,
            }
            let operator = dir.operator();
            match &operator {
                Some(holder) if holder.is_stopped => return Err(operated(name, operator)),
                Some(holder) => tracing::warn!("waiting for {holder}, which works on {name}"),
                None => {}
            }
        }
        self.end(name, dir, Duration::ZERO)?;
        lock(dir)?.ok_or_else(|| operated(name, dir.operator()))
    }

    /// Ends a machine that runs, and its processes; returns whether the guest had to be forced.
    pub(super) fn end(
        &self,
        name: &MachineName,
        dir: &MachineDir,
        timeout: Duration,
    ) -> Result<bool, EngineError> {
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let stop = Control::Stop { timeout_ms };
        let reply = self.control_within(name, &stop, timeout.saturating_add(FORCE_PATIENCE));
        let forced = match reply {
            Ok((ControlReply::Stopped { forced }, _)) => forced,
            Ok((ControlReply::Failed { message, hint }, _)) => {
                return Err(EngineError::Refused {
                    name: name.clone(),
                    reason: message,
                    hint,
                });
            }
            Ok(_) => false,
            // A supervisor that ends, was killed or is stopped: the lock tells when all is gone.
            Err(_) => true,
        };
        self.wait_for_end(name, dir)?;
        Ok(forced)
    }

    /// Waits until the processes of a machine that ends by itself are gone. Those that say nothing are killed.
    ///
    /// # Errors
    ///
    /// [`EngineError::Refused`] where its supervisor answers and knows of no end: it did not take what it was asked for.
    pub(super) fn wait_for_own_end(
        &self,
        name: &MachineName,
        dir: &MachineDir,
    ) -> Result<(), EngineError> {
        let begin = Instant::now();
        while !dir.wait_until_free(Duration::from_millis(200))? {
            match self.live_status(name) {
                Some(status) if !status.ended && begin.elapsed() >= SILENCE => {
                    return Err(EngineError::Refused {
                        name: name.clone(),
                        reason: "its supervisor did not answer, and the machine runs on".to_owned(),
                        hint: Some(format!(
                            "its log may tell why: {}",
                            dir.process_log().display()
                        )),
                    });
                }
                None if begin.elapsed() >= SILENCE => return self.wait_for_end(name, dir),
                _ => {}
            }
        }
        Ok(())
    }

    /// Waits until the processes of a machine that was told to end are gone. Those that say nothing are killed.
    pub(super) fn wait_for_end(
        &self,
        name: &MachineName,
        dir: &MachineDir,
    ) -> Result<(), EngineError> {
        let begin = Instant::now();
        let mut heard = begin;
        while !dir.wait_until_free(Duration::from_millis(200))? {
            // One that has ended publishes a save, which may take any time.
            let ends = self
                .live_status(name)
                .is_some_and(|status| status.ended || begin.elapsed() < FORCE_PATIENCE);
            if ends {
                heard = Instant::now();
            }
            if heard.elapsed() < SILENCE {
                continue;
            }
            dir.kill_holders();
            if !dir.wait_until_free(KILL_PATIENCE)? {
                return Err(EngineError::Refused {
                    name: name.clone(),
                    reason: "its processes do not end, not even by force".to_owned(),
                    hint: None,
                });
            }
            // Nobody recorded it, and this end is none of the machine's own.
            let change = dir.change(|machine| {
                if matches!(machine.state, RecordedState::Running { .. }) {
                    machine.state = RecordedState::Stopped;
                }
            });
            change.visible()?;
        }
        Ok(())
    }
}

/// A machine that was deleted or renamed before its lock was ours.
fn went(name: &MachineName, error: MachineDirError) -> EngineError {
    match error {
        MachineDirError::Gone { .. } => EngineError::NoMachine { name: name.clone() },
        error => error.into(),
    }
}

/// Another command holds the machine's operation lock for good.
fn operated(name: &MachineName, holder: Option<LockHolder>) -> EngineError {
    let who = holder.as_ref().map(|holder| format!(": {holder}"));
    EngineError::Refused {
        name: name.clone(),
        reason: format!(
            "another command works on it and does not come to an end{}",
            who.unwrap_or_default()
        ),
        hint: holder.map(|holder| holder.way_out()),
    }
}
