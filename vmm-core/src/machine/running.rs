use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use snapshot_format::StateRecord;

use super::builder::{BuiltMachine, MachineError};
use super::stop_at::StopAt;
use super::vcpu_thread::{self, Rendezvous};
use crate::VcpuIndex;
use crate::cpu_state::VcpuState;
use crate::hypervisor::{VcpuKick, VcpuStop};
use crate::power::PowerEvent;
use crate::ram::GuestRam;
use crate::tracker::DirtyTracker;
use crate::unit::UnitError;
use crate::virtio::Balloon;
use crate::x86::msr;

/// What ended, or shall end, a run of the machine. All vCPUs stop when one is reported.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MachineEvent {
    /// The guest switched itself off.
    PowerOff,
    /// The guest asked to be reset.
    Reset,
    /// A vCPU shut down by a triple fault.
    TripleFault(VcpuIndex),
    /// The hypervisor cannot go on with a vCPU.
    VcpuFailed(VcpuIndex, String),
    /// Memory that was needed cannot be had; [`GuestRam::lost`] says what.
    MemoryLost,
    /// The instruction count of [`RunningMachine::run_until`] came; the machine can run on.
    CountReached,
}

/// Told that [`RunningMachine::next_event`] has something; on the thread of a vCPU, it must not wait.
pub type EventListener = Box<dyn Fn() + Send + Sync>;

/// Where events come together; shared with the power registers and the vCPU threads.
pub(super) struct Events {
    sender: Sender<MachineEvent>,
    listener: Option<EventListener>,
    rendezvous: Arc<Rendezvous>,
    kickers: Mutex<Vec<Arc<dyn VcpuKick>>>,
}

impl Events {
    pub(super) fn new(
        rendezvous: Arc<Rendezvous>,
        listener: Option<EventListener>,
    ) -> (Arc<Self>, Receiver<MachineEvent>) {
        let (sender, receiver) = channel();
        let events = Self {
            sender,
            listener,
            rendezvous,
            kickers: Mutex::default(),
        };
        (Arc::new(events), receiver)
    }

    pub(super) fn add_kicker(&self, kicker: Arc<dyn VcpuKick>) {
        lock(&self.kickers).push(kicker);
    }

    /// Reports an event and asks all vCPUs to stop; does not wait for them.
    pub(super) fn report(&self, event: MachineEvent) {
        // Without a receiver the machine is being dropped.
        let _ = self.sender.send(event);
        self.stop_vcpus();
        if let Some(listener) = &self.listener {
            listener();
        }
    }

    pub(super) fn report_power(&self, event: PowerEvent) {
        self.report(match event {
            PowerEvent::Reset => MachineEvent::Reset,
            PowerEvent::Crash => MachineEvent::TripleFault(VcpuIndex(0)),
            _ => MachineEvent::PowerOff,
        });
    }

    pub(super) fn report_stop(&self, index: VcpuIndex, stop: VcpuStop) {
        self.report(match stop {
            VcpuStop::TripleFault => MachineEvent::TripleFault(index),
            VcpuStop::PowerOff => MachineEvent::PowerOff,
            VcpuStop::Reset => MachineEvent::Reset,
            VcpuStop::Failed(reason) => MachineEvent::VcpuFailed(index, reason),
            // The memory tells by itself.
            VcpuStop::MemoryLost | VcpuStop::Kicked => return,
        });
    }

    fn stop_vcpus(&self) {
        self.rendezvous.request_stop();
        for kicker in lock(&self.kickers).iter() {
            kicker.kick();
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A machine whose vCPUs run (or have ended, which [`next_event`](Self::next_event) says).
///
/// Dropping it stops the vCPUs and ends all its threads.
pub struct RunningMachine {
    pub(super) built: BuiltMachine,
    events: Receiver<MachineEvent>,
    /// Set once an event ended the run: the vCPUs do not run again.
    pub(super) ended: bool,
    /// The event that did, if a pause found it: the next one to be given out.
    found: Option<MachineEvent>,
    /// It was left at rest: so are its devices.
    stays: bool,
}

impl RunningMachine {
    /// Lets a machine run for the first time; a deterministic one waits for
    /// [`run_until`](Self::run_until).
    pub(super) fn start(
        built: BuiltMachine,
        events: Receiver<MachineEvent>,
    ) -> Result<Self, MachineError> {
        let machine = Self {
            built,
            events,
            ended: false,
            stays: false,
            found: None,
        };
        machine.run()?;
        Ok(machine)
    }

    /// The next event, if one comes within `timeout`; `None` also while a vCPU still runs. A
    /// deterministic machine gives its events to [`run_until`](Self::run_until).
    pub fn next_event(&mut self, timeout: Duration) -> Option<MachineEvent> {
        if let Some(event) = self.found.take() {
            return Some(event);
        }
        match self.events.recv_timeout(timeout) {
            Ok(event) => {
                self.ended = true;
                // Whoever reported it asked for that, but a pause meanwhile may have let them run again.
                self.built.events.stop_vcpus();
                self.built.rendezvous.wait_parked();
                Some(event)
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => None,
        }
    }

    /// Stops all vCPUs, then brings all devices to rest. The machine runs again when the returned
    /// value is dropped, or by [`PausedMachine::resume`].
    ///
    /// # Errors
    ///
    /// [`MachineError::Ended`] when the guest has ended: [`next_event`](Self::next_event) says how, and nothing runs
    /// again.
    pub fn pause(&mut self) -> Result<PausedMachine<'_>, MachineError> {
        self.built.events.stop_vcpus();
        self.built.rendezvous.wait_parked();
        // Events come from vCPUs: none comes any more.
        if let Ok(event) = self.events.try_recv() {
            self.ended = true;
            self.found = Some(event);
            return Err(MachineError::Ended);
        }
        if !std::mem::take(&mut self.stays) {
            for slot in &self.built.slots {
                slot.quiesce();
            }
        }
        Ok(PausedMachine {
            machine: self,
            resumed: false,
        })
    }

    /// Lets a deterministic machine run until so many instructions were retired since it was built,
    /// or until an event that ends it; that is returned. On return no vCPU runs.
    ///
    /// The vCPUs stop between two instructions, at the count or a little behind it: at the same
    /// instruction each time.
    pub fn run_until(&mut self, count: u64) -> Result<MachineEvent, MachineError> {
        let stop_at = self.built.stop_at.as_ref();
        let stop_at = stop_at.ok_or(MachineError::NotDeterministic)?;
        if self.ended {
            return Err(MachineError::Ended);
        }
        for slot in &self.built.slots {
            if slot.takes_host_input() {
                slot.serve_now();
            }
        }
        stop_at.plan(count);
        vcpu_thread::run_all(&self.built.vcpus, &self.built.rendezvous)?;
        // A sender lives in `built`: there is always an answer.
        let event = self.events.recv().map_err(|_| MachineError::Ended)?;
        self.built.rendezvous.wait_parked();
        stop_at.cancel();
        self.ended = event != MachineEvent::CountReached;
        Ok(event)
    }

    /// Instructions that a deterministic machine has retired, and idle time in instructions.
    pub fn instruction_count(&self) -> Option<u64> {
        self.built.stop_at.as_ref().map(StopAt::count)
    }

    /// The guest's memory.
    pub fn ram(&self) -> &GuestRam {
        &self.built.ram
    }

    /// The guest's written pages.
    pub fn tracker(&self) -> &DirtyTracker {
        &self.built.tracker
    }

    /// The balloon.
    pub fn balloon(&self) -> &Arc<Balloon> {
        &self.built.balloon
    }

    /// Gives input to the serial console; returns how many bytes were taken.
    pub fn console_input(&self, data: &[u8]) -> usize {
        self.built.serial.inject(data)
    }

    /// Waits until all console output so far was given to its sink.
    pub fn flush_console(&self) {
        self.built.serial.flush();
    }

    /// Drops the events of a past that is no more.
    pub(super) fn forget_events(&mut self) {
        self.found = None;
        while self.events.try_recv().is_ok() {}
    }

    fn run(&self) -> Result<(), MachineError> {
        if !self.built.ram.is_complete() && !self.built.vm.checks_presence() {
            return Err(MachineError::MemoryAbsent);
        }
        for slot in &self.built.slots {
            slot.resume();
        }
        if self.built.stop_at.is_some() {
            return Ok(());
        }
        Ok(vcpu_thread::run_all(
            &self.built.vcpus,
            &self.built.rendezvous,
        )?)
    }
}

impl Drop for RunningMachine {
    fn drop(&mut self) {
        self.built.events.stop_vcpus();
        self.built.rendezvous.wait_parked();
    }
}

/// A machine at rest: no vCPU runs, no device has anything in flight.
pub struct PausedMachine<'a> {
    pub(super) machine: &'a mut RunningMachine,
    resumed: bool,
}

impl PausedMachine<'_> {
    /// Reads the state of every unit: vCPUs, clock, interrupt controller, devices.
    pub fn save(&self) -> Result<Vec<StateRecord>, MachineError> {
        let built = &self.machine.built;
        let mut records = vec![built.record.to_record()];
        let states: Result<Vec<_>, _> = built.vcpus.iter().map(|vcpu| vcpu.save()).collect();
        let mut states = states?;
        // After the TSCs, of whose moment it is.
        if let Some(clock) = built.vm.x86_clock() {
            records.push(clock.save()?.to_record());
        }
        align_tscs(&mut states);
        for (index, state) in (0..).zip(&states) {
            records.push(state.to_record(VcpuIndex(index)));
        }
        for unit in built.units() {
            records.push(unit.save()?);
        }
        Ok(records)
    }

    /// The guest's memory, which does not change until the machine runs again.
    pub fn ram(&self) -> &GuestRam {
        self.machine.ram()
    }

    /// The guest's written pages.
    pub fn tracker(&self) -> &DirtyTracker {
        self.machine.tracker()
    }

    /// Leaves the machine at rest: it stands until it was paused again, and runs on after that.
    pub fn stay(mut self) {
        self.resumed = true;
        self.machine.stays = true;
    }

    /// Lets devices, then vCPUs run again. A machine that had ended stays at rest.
    pub fn resume(mut self) -> Result<(), MachineError> {
        self.resumed = true;
        if self.machine.ended {
            // Its devices are at rest already when it is paused next.
            self.machine.stays = true;
            return Ok(());
        }
        self.machine.run()
    }
}

impl Drop for PausedMachine<'_> {
    fn drop(&mut self) {
        if !self.resumed && self.machine.ended {
            self.machine.stays = true;
        } else if !self.resumed
            && let Err(error) = self.machine.run()
        {
            tracing::error!(%error, "the machine does not run again after a pause");
        }
    }
}

/// Gives all vCPUs the same TSC: they were read one after the other, but the guest's TSCs are
/// synchronized, and a difference would be seen as time that runs backwards.
fn align_tscs(states: &mut [VcpuState]) {
    let mut newest = 0;
    for state in states.iter() {
        if let VcpuState::X86(state) = state {
            newest = state
                .msr(msr::TSC)
                .map_or(newest, |value| newest.max(value));
        }
    }
    for state in states {
        if let VcpuState::X86(state) = state {
            state.set_msr(msr::TSC, newest);
        }
    }
}

/// Checks that `records` and the machine's units match one to one, by name.
pub(super) fn match_units(records: &[StateRecord], expected: &[String]) -> Result<(), UnitError> {
    let mismatch = |unit: &str, problem| UnitError::Mismatch {
        unit: unit.to_owned(),
        problem,
    };
    for unit in expected {
        match records.iter().filter(|record| record.unit == *unit).count() {
            0 => return Err(mismatch(unit, "missing")),
            1 => {}
            _ => return Err(mismatch(unit, "there twice")),
        }
    }
    match records
        .iter()
        .find(|record| !expected.contains(&record.unit))
    {
        Some(foreign) => Err(mismatch(&foreign.unit, "left over")),
        None => Ok(()),
    }
}
