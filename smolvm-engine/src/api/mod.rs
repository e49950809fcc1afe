//! The engine: machines of one home.

mod archive;
mod autosave;
mod branch;
mod branch_release;
mod checkpoint;
mod console;
mod control;
mod copy;
mod create;
mod create_from;
mod delete_point;
mod deterministic;
pub mod doctor;
mod end;
pub(crate) mod error;
mod exec;
mod info;
mod look;
mod pause;
mod phases;
mod place;
mod power;
pub mod process;
mod prune;
mod stored;
mod tree;
mod undo;
mod undo_target;
mod usage;
mod verify;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use durable_files::OsBackend;

use self::control::STATUS_PATIENCE;
use self::info::describe;
use self::process::ProcessModel;
use crate::file_error::FileError;
use crate::home::Home;
use crate::machine::{MachineDir, MachineFile, RecordedState};
use crate::name::MachineName;

pub use self::archive::{Archived, ExportOptions};
pub use self::autosave::LastAutosave;
pub use self::branch::{BranchChild, BranchOptions, Branched, MAX_BRANCH_CHILDREN, READY_TIMEOUT};
pub use self::branch_release::BranchReleased;
pub use self::checkpoint::{Checkpoint, CheckpointOptions, LogEntry};
pub use self::console::LogPart;
pub use self::control::AgentConnection;
pub use self::create::CreateOptions;
pub use self::create_from::{CreateFromOptions, PointSource};
pub use self::deterministic::{
    DeterministicError, DeterministicMachine, ExecOutput, MachineDigest,
};
pub use self::end::{StopOptions, Stopped};
pub use self::error::{EngineError, ErrorCode};
pub use self::exec::{ExecOptions, ExecSession, ExecWriter};
pub use self::info::{HostFull, LeftState, MachineInfo, MachineState, Saving};
pub use self::look::{DiffSummary, PointCopy, PointName};
pub use self::pause::Paused;
pub use self::power::{StartOptions, Started};
pub use self::prune::{JudgedPoint, PruneOptions, Pruned};
pub use self::tree::Family;
pub use self::undo::{KeptState, UndoOptions, Undone};
pub use self::usage::{DiskBytes, DiskUsage, UsageOf, Used, UsedByPoint};
pub use self::verify::{
    Problem, RepairSource, Repaired, Verification, VerifiedPoint, VerifyLevel, VerifyOptions,
    VerifySource,
};
pub use crate::machine::DEFAULT_HISTORY;

/// How long the processes of a machine may take to be gone after they answer no more.
const END_PAUSE: Duration = Duration::from_millis(300);
/// How a machine is, as far as that can be told.
type Asked = Result<MachineInfo, EngineError>;

/// Machines that are asked at once how they are.
const ASKED_AT_ONCE: usize = 1024;

/// Where an engine works and how it runs machines.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EngineOptions {
    /// The home.
    pub home: Home,
    /// How machines are run.
    pub process_model: ProcessModel,
    /// Name of the machine that is meant where none is named.
    pub default_machine: Option<String>,
    /// The first start of a machine from an image goes on at the cached booted point of one of its kind, and the first boot of
    /// a kind leaves one behind. Without, each boots for itself.
    pub booted_points: bool,
    /// The software CPU translates code that runs often, where the host lets it; without, it interprets all of it. Guests do
    /// the same either way.
    pub translation: bool,
}

impl EngineOptions {
    /// This home, and machines that run so.
    pub fn new(home: Home, process_model: ProcessModel) -> Self {
        Self {
            home,
            process_model,
            default_machine: None,
            booted_points: true,
            translation: true,
        }
    }

    /// Uses booted points, or not.
    #[must_use]
    pub fn with_booted_points(mut self, booted_points: bool) -> Self {
        self.booted_points = booted_points;
        self
    }

    /// Lets the software CPU of machines that it starts translate code, or not.
    #[must_use]
    pub fn with_translation(mut self, translation: bool) -> Self {
        self.translation = translation;
        self
    }

    /// With a machine that is meant where none is named.
    #[must_use]
    pub fn with_default_machine(mut self, name: Option<String>) -> Self {
        self.default_machine = name;
        self
    }

    /// The home that the environment names, machines as processes of the calling program. The machine that
    /// `SMOLVM_MACHINE_NAME` names is meant where none is. Booted points are not used where `SMOLVM_BOOTED_POINTS` is `off`,
    /// and the software CPU only interprets where `SMOLVM_TRANSLATION` is.
    pub fn from_environment() -> Result<Self, EngineError> {
        let program = std::env::current_exe()
            .map_err(FileError::at("find", Path::new("the running program")))?;
        let model = ProcessModel::Processes { program };
        let named = std::env::var("SMOLVM_MACHINE_NAME").ok();
        let named = named.filter(|name| !name.is_empty());
        let on = |name| std::env::var_os(name).is_none_or(|word| word != "off");
        Ok(Self::new(Home::from_environment()?, model)
            .with_default_machine(named)
            .with_booted_points(on("SMOLVM_BOOTED_POINTS"))
            .with_translation(on("SMOLVM_TRANSLATION")))
    }
}

/// Works on the machines of one home. Cheap to clone; any number may work on one home at once.
#[derive(Debug, Clone)]
pub struct Engine {
    options: EngineOptions,
    /// Locks of the machines that were made for this process, where they are.
    passing: Option<Arc<Mutex<Vec<File>>>>,
}

impl Engine {
    /// An engine over a home, which need not exist.
    ///
    /// # Errors
    ///
    /// [`EngineError::Home`] when the home is not this user's alone.
    pub fn open(options: EngineOptions) -> Result<Self, EngineError> {
        options.home.check()?;
        Ok(Self {
            options,
            passing: None,
        })
    }

    /// The same engine, which uses booted points, or not.
    #[must_use]
    pub fn with_booted_points(mut self, booted_points: bool) -> Self {
        self.options.booted_points = booted_points;
        self
    }

    /// The same engine, whose new machines are for this process alone: once its last clone is gone, or the process is, however
    /// that ended, they are stopped, and removed by the next command that makes or starts a machine.
    #[must_use]
    pub fn with_passing_machines(mut self) -> Self {
        self.passing = Some(Arc::default());
        self
    }

    /// The home.
    pub fn home(&self) -> &Home {
        &self.options.home
    }

    /// The names of all machines, sorted. Changes nothing.
    pub fn machine_names(&self) -> Result<Vec<MachineName>, EngineError> {
        let machines = self.home().machines();
        let names = guest_image::names_in(&machines)?;
        Ok(names
            .into_iter()
            .filter_map(|name| name.parse().ok())
            .filter(|name| !self.is_cut_off(name))
            .collect())
    }

    /// Whether that is a machine of a process that is gone, or a branch which never came up, and will not: whoever made it was
    /// killed. One that was stopped or paused is a machine to somebody.
    fn is_cut_off(&self, name: &MachineName) -> bool {
        let dir = self.dir(name);
        let never_up = || {
            let file = dir.read().ok().flatten();
            file.is_some_and(|file| {
                if file.passing && matches!(dir.has_owner(), Ok(false)) {
                    return true;
                }
                let is_nobodys = matches!(
                    file.state,
                    RecordedState::Failed { .. } | RecordedState::Running { .. }
                );
                is_nobodys && file.branch.is_some_and(|branch| !branch.up)
            })
        };
        // It may have come up and ended meanwhile.
        never_up() && matches!(dir.is_running(), Ok(false)) && never_up()
    }

    /// Removes what killed commands left: machines that were for them alone, branches that never came up. Whatever cannot be removed is left for the next time.
    pub(crate) fn remove_cut_off(&self) -> Result<(), EngineError> {
        let machines = self.home().machines();
        for name in guest_image::names_in(&machines)? {
            let Ok(name) = name.parse() else { continue };
            if !self.is_cut_off(&name) {
                continue;
            }
            let dir = self.dir(&name);
            // Whoever makes it may be about to remove it.
            let removed = dir.lock_operation_within(Duration::ZERO).map(|operation| {
                let still = operation.is_some() && self.is_cut_off(&name);
                still.then(|| {
                    durable_files::remove_whole(Arc::new(OsBackend), &machines, name.as_str())
                })
            });
            match removed {
                Ok(None | Some(Ok(_))) => {}
                Ok(Some(Err(error))) => {
                    tracing::warn!(%error, %name, "a machine that was cut off is kept")
                }
                Err(error) => tracing::debug!(%error, %name, "a machine that was cut off is gone"),
            }
        }
        Ok(())
    }

    /// All machines, sorted by name; one that cannot be read hides none of the others. Changes nothing; one that is being deleted may be
    /// missing. Takes about three seconds at most, whatever one of them does.
    ///
    /// # Errors
    ///
    /// The home cannot be read.
    #[allow(clippy::type_complexity)] // reason: a name and what is known by it; an alias would say less
    pub fn machines(
        &self,
    ) -> Result<Vec<(MachineName, Result<MachineInfo, EngineError>)>, EngineError> {
        let names = self.machine_names()?;
        let until = Instant::now() + STATUS_PATIENCE;
        let mut machines = Vec::new();
        // At once, as far as that is no burden: none waits for another that does not answer, and all have the same time.
        for names in names.chunks(ASKED_AT_ONCE) {
            let asked: Vec<_> = std::thread::scope(|scope| {
                let ask = |name| {
                    let thread = std::thread::Builder::new();
                    let spawned =
                        thread.spawn_scoped(scope, move || self.look_at_until(name, true, until));
                    // Where there is no thread for it, it is asked here.
                    spawned.map_err(|_| Box::new(self.look_at_until(name, true, until)))
                };
                let asked: Vec<_> = names.iter().map(ask).collect();
                let answer = |asked: Result<ScopedJoinHandle<'_, Asked>, Box<Asked>>| match asked {
                    Ok(thread) => thread.join(),
                    Err(answer) => Ok(*answer),
                };
                asked.into_iter().map(answer).collect()
            });
            for (name, machine) in names.iter().zip(asked) {
                match machine {
                    Ok(Err(EngineError::NoMachine { .. })) => {}
                    Ok(result) => machines.push((name.clone(), result)),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
        }
        Ok(machines)
    }

    /// One machine. Changes nothing, and takes at most three seconds whatever the machine does.
    pub fn machine(&self, name: &MachineName) -> Result<MachineInfo, EngineError> {
        self.look_at(name, true)
    }

    /// What is known about a machine; `ping`: whether its agent answers, too.
    fn look_at(&self, name: &MachineName, ping: bool) -> Result<MachineInfo, EngineError> {
        self.look_at_until(name, ping, Instant::now() + STATUS_PATIENCE)
    }

    /// As [`Self::look_at`]; its supervisor is asked up to a moment.
    fn look_at_until(
        &self,
        name: &MachineName,
        ping: bool,
        until: Instant,
    ) -> Result<MachineInfo, EngineError> {
        let dir = self.dir(name);
        let file = self.read(name)?;
        let mut running = dir.is_running()?;
        let live = if running {
            self.ask_status_until(name, ping, until)
        } else {
            None
        };
        if running && live.is_none() {
            // It may have ended just now: its lock is free in a moment then.
            running = !dir.wait_until_free(END_PAUSE)?;
        }
        if live.as_ref().is_some_and(|live| live.ended) {
            // What is left of it publishes a save. Until its end is recorded it is ending.
            running = matches!(self.read(name)?.state, RecordedState::Running { .. });
        }
        // Between reading the file and looking at the lock the machine may have ended.
        let file = if running { file } else { self.read(name)? };
        Ok(describe(file, running, live))
    }

    /// The machine that is meant: the one named, else [`EngineOptions::default_machine`], else the only one.
    pub fn resolve(&self, name: Option<MachineName>) -> Result<MachineName, EngineError> {
        if let Some(name) = name {
            return Ok(name);
        }
        if let Some(name) = &self.options.default_machine {
            return Ok(name.parse()?);
        }
        let mut names = self.machine_names()?;
        match (names.pop(), names.len()) {
            (Some(only), 0) => Ok(only),
            (None, _) => Err(EngineError::WhichMachine { count: 0 }),
            (Some(_), more) => Err(EngineError::WhichMachine { count: more + 1 }),
        }
    }

    /// Deletes a machine with all that is its own. One that runs is stopped by force if `force`.
    pub fn delete(&self, name: &MachineName, force: bool) -> Result<(), EngineError> {
        self.remove_cut_off()?;
        let dir = self.dir(name);
        match self.read(name) {
            // What cannot be read can still be removed.
            Err(EngineError::MachineDir(_)) if force => {}
            result => drop(result?),
        }
        let _operation = self.lock_to_delete(name, &dir, force)?;
        if dir.is_running()? {
            if !force {
                return Err(EngineError::WrongState {
                    operation: "delete",
                    name: name.clone(),
                    state: MachineState::Running.word().to_owned(),
                });
            }
            self.end(name, &dir, Duration::ZERO)?;
        }
        let machines = self.home().machines();
        if !durable_files::remove_whole(Arc::new(OsBackend), &machines, name.as_str())? {
            return Err(EngineError::NoMachine { name: name.clone() });
        }
        Ok(())
    }

    fn lock_to_delete(
        &self,
        name: &MachineName,
        dir: &MachineDir,
        force: bool,
    ) -> Result<File, EngineError> {
        if force {
            return self.lock_to_end(name, dir);
        }
        self.lock_operation(name, dir)
    }

    /// Gives a machine another name, whatever its state: one that runs goes on, with all that it does. Its host name stays what it is,
    /// and so do the names that points have noted.
    pub fn rename(&self, name: &MachineName, to: &MachineName) -> Result<(), EngineError> {
        let dir = self.dir(name);
        self.read(name)?;
        if name == to {
            return Err(EngineError::Invalid {
                what: format!("{name} has that name already"),
                hint: None,
            });
        }
        let _operation = self.lock_operation(name, &dir)?;
        if self.read(name)?.passing {
            return Err(EngineError::Invalid {
                what: format!(
                    "{name} ends with the command that it runs, which knows it by its name"
                ),
                hint: None,
            });
        }
        let taken = || EngineError::NameTaken {
            name: name.clone(),
            to: to.clone(),
        };
        if self.dir(to).exists() {
            return Err(taken());
        }
        // What the file says counts from the moment that its directory has the name, and not before.
        let mut former = Vec::new();
        let change = dir.change(|file| {
            former = file.former_names.clone();
            file.rename(name, to);
        });
        change.visible()?;
        let target = self.home().machine(to);
        let (cwd, flags) = (rustix::fs::CWD, rustix::fs::RenameFlags::NOREPLACE);
        if let Err(error) = rustix::fs::renameat_with(cwd, dir.path(), cwd, &target, flags) {
            // It never had the name.
            let change = dir.change(|file| {
                file.name = name.clone();
                file.former_names = former;
            });
            change.visible()?;
            return Err(match error {
                rustix::io::Errno::EXIST => taken(),
                error => FileError::at("rename to", &target)(error).into(),
            });
        }
        Ok(crate::machine::sync_directory(&self.home().machines())?)
    }

    /// The file that holds the serial console's output.
    pub fn console_log(&self, name: &MachineName) -> Result<PathBuf, EngineError> {
        self.read(name)?;
        Ok(self.dir(name).console_log())
    }

    pub(crate) fn dir(&self, name: &MachineName) -> MachineDir {
        MachineDir::new(self.home().machine(name))
    }

    pub(crate) fn read(&self, name: &MachineName) -> Result<MachineFile, EngineError> {
        let file = self.dir(name).read()?;
        let never_up = |file: &MachineFile| file.branch.is_some_and(|branch| !branch.up);
        if file.as_ref().is_some_and(never_up) && self.is_cut_off(name) {
            return Err(EngineError::NoMachine { name: name.clone() });
        }
        file.ok_or_else(|| EngineError::NoMachine { name: name.clone() })
    }

    pub(crate) fn require_running(
        &self,
        name: &MachineName,
        operation: &'static str,
    ) -> Result<(), EngineError> {
        let info = self.look_at(name, false)?;
        if info.state == MachineState::Running {
            return Ok(());
        }
        let word = info.state.word();
        let state = match info.state.reason() {
            Some(reason) => format!("{word} ({reason})"),
            None => word.to_owned(),
        };
        Err(EngineError::WrongState {
            operation,
            name: name.clone(),
            state,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::sync::Barrier;

    use super::*;
    use crate::channel::control::{Control, ControlReply, LiveStatus};
    use crate::channel::{receive, send};

    /// More than are asked at a time by anybody who asks in small groups.
    const MACHINES: usize = 70;

    fn status() -> LiveStatus {
        LiveStatus {
            ready: true,
            answers: true,
            ended: false,
            trouble: None,
            pending: Vec::new(),
            backend: "soft".to_owned(),
            translates: None,
            vcpus: 1,
            vmm_pid: 0,
            started_unix: 1,
            out_of_memory: None,
            full: None,
            kept: None,
            autosave: None,
        }
    }

    /// Supervisors that answer when all were asked: who asks only some of them at a time hears none.
    #[test]
    fn no_machine_waits_for_another_to_answer() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::at(directory.path());
        home.ensure().unwrap();
        let mut locks = Vec::new();
        let all_asked = Barrier::new(MACHINES);
        std::thread::scope(|scope| {
            for number in 0..MACHINES {
                let name: MachineName = format!("m{number:02}").parse().unwrap();
                let dir = MachineDir::new(home.machine(&name));
                std::fs::create_dir(dir.path()).unwrap();
                let mut file = MachineFile::for_tests();
                file.name = name;
                dir.write_first(&file).unwrap();
                locks.push(dir.lock_running().unwrap());
                let listener = UnixListener::bind(dir.control_socket()).unwrap();
                let all_asked = &all_asked;
                scope.spawn(move || {
                    let (socket, _): (UnixStream, _) = listener.accept().unwrap();
                    receive::<Control>(&socket).unwrap();
                    all_asked.wait();
                    // Who asked may have given up.
                    let _ = send(&socket, &ControlReply::Status(status()), &[]);
                });
            }
            let options = EngineOptions::new(home, ProcessModel::Threads);
            let machines = Engine::open(options).unwrap().machines().unwrap();
            assert_eq!(machines.len(), MACHINES);
            for (name, machine) in machines {
                let machine = machine.unwrap();
                assert_eq!((&machine.name, machine.ready), (&name, true));
            }
        });
    }
}
