//! Machines that go on from a running one.

use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use durable_files::{OsBackend, PublishError, Staging};

use super::phases::Phases;
use super::power::not_ready;
use crate::api::Engine;
use crate::api::checkpoint::{Checkpoint, CheckpointOptions, saved};
use crate::api::error::EngineError;
use crate::channel;
use crate::channel::branch::{Begin, BranchDone, BranchRequest};
use crate::channel::control::{Control, ControlReply, StartReport};
use crate::machine::{
    BranchPlace, BranchWord, MachineDir, MachineFile, RecordedState, with_hostname,
};
use crate::name::MachineName;
use crate::phase::Phase;
use crate::progress::Progress;
use crate::save::record;
use crate::supervisor::unix_now;

/// Most children of one branch.
pub const MAX_BRANCH_CHILDREN: usize = 64;
/// How long processes that have announced themselves are waited for, unless said otherwise.
pub const READY_TIMEOUT: Duration = Duration::from_secs(600);
/// Children that are started at once. The kernel bounds the descriptors that are on their way between a user's processes, and each
/// child is given those of all layers of memory, twice.
const MAX_STARTING: usize = 8;
/// The state of a child as long as nobody has run it.
const CUT_OFF: &str = "the branch that made it was cut off before it ran";

/// How to branch.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BranchOptions {
    /// The names of the children, all of them free.
    pub names: Vec<MachineName>,
    /// Save the instant at which they begin, too; it becomes the head of all of them, and of the source.
    pub checkpoint: Option<CheckpointOptions>,
    /// Processes that wait in `smolvm-branch-ready` do so in the children, too, until [`Engine::branch_release`].
    pub hold: bool,
    /// Wait for processes of the guest that have announced themselves and do not wait yet, this long at most.
    pub ready_timeout: Option<Duration>,
}

impl BranchOptions {
    /// Children of these names.
    pub fn new(names: Vec<MachineName>) -> Self {
        Self {
            names,
            checkpoint: None,
            hold: false,
            ready_timeout: None,
        }
    }

    /// So many children, `PREFIX-0` and so on. They wait for what has announced itself, up to [`READY_TIMEOUT`].
    ///
    /// # Errors
    ///
    /// [`EngineError::Name`]: such a name is not allowed.
    pub fn numbered(prefix: &str, count: usize) -> Result<Self, EngineError> {
        let names =
            (0..count.min(MAX_BRANCH_CHILDREN + 1)).map(|index| format!("{prefix}-{index}"));
        let names: Result<Vec<MachineName>, _> = names.map(|name| name.parse()).collect();
        Ok(Self {
            ready_timeout: Some(READY_TIMEOUT),
            ..Self::new(names?)
        })
    }
}

/// What [`Engine::branch`] did.
#[derive(Debug)]
#[non_exhaustive]
pub struct Branched {
    /// The children: they run, and their agents answer.
    pub children: Vec<BranchChild>,
    /// Those that did not come up. They are gone again.
    pub failed: Vec<(MachineName, EngineError)>,
    /// How long the source stood still.
    pub paused: Duration,
    /// How long everything took.
    pub took: Duration,
    /// The point of the instant, if one was asked for.
    pub saved: Option<Checkpoint>,
}

/// A machine that went on from another.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BranchChild {
    /// Its name.
    pub name: MachineName,
    /// The backend in use.
    pub backend: String,
    /// As [`Started::pending`](crate::Started::pending).
    pub pending: Vec<String>,
}

impl Engine {
    /// Lets new machines go on from the present instant of a running one, all from the same one. They share its memory until they
    /// write, and nothing else: the source, which stands still for a moment, may go at any time. Returns when all of them can be
    /// worked in.
    ///
    /// # Errors
    ///
    /// [`EngineError::WrongState`], [`EngineError::NotBranchable`], [`EngineError::MachineExists`]; [`EngineError::Refused`] with what
    /// failed. There are no new machines then. Where only some do not come up, the [answer](Branched::failed) names them.
    pub fn branch(
        &self,
        source: &MachineName,
        options: &BranchOptions,
        progress: &dyn Progress,
    ) -> Result<Branched, EngineError> {
        let begin = Instant::now();
        self.require_running(source, "branch")?;
        if !self.read(source)?.branchable {
            return Err(EngineError::NotBranchable {
                name: source.clone(),
            });
        }
        self.check_children(&options.names)?;
        if let Some(limit) = options.ready_timeout {
            self.await_ready(source, limit, progress)?;
        }
        let checkpoint = options.checkpoint.as_ref();
        let checkpoint = checkpoint.map(|options| self.checkpoint_request(options));
        let checkpoint = checkpoint.transpose()?;
        let machines = self.home().machines();
        let staged = options.names.iter();
        let staged = staged.map(|_| Staging::create(Arc::new(OsBackend), &machines));
        let staged: Vec<Staging> = staged.collect::<Result<_, _>>()?;
        let request = BranchRequest {
            children: staged.iter().map(|dir| dir.path().to_owned()).collect(),
            checkpoint,
        };
        let (done, descriptors) = self.freeze(source, request, progress)?;
        let common = Common {
            engine: self,
            source,
            done: &done,
            descriptors: &descriptors,
            hold: options.hold,
        };
        let mut waiting = (0..).zip(options.names.iter().zip(staged));
        let mut outcomes = Vec::new();
        loop {
            let wave: Vec<_> = waiting.by_ref().take(MAX_STARTING).collect();
            if wave.is_empty() {
                break;
            }
            std::thread::scope(|scope| {
                let bring_up = |(index, (name, staging))| {
                    let common = &common;
                    scope.spawn(move || common.bring_up(index, name, staging))
                };
                let threads: Vec<_> = wave.into_iter().map(bring_up).collect();
                outcomes.extend(threads.into_iter().map(|thread| thread.join()));
            });
        }
        let (mut children, mut failed) = (Vec::new(), Vec::new());
        for (name, outcome) in options.names.iter().zip(outcomes) {
            match outcome {
                Ok(Ok(child)) => children.push(child),
                Ok(Err(error)) => failed.push((name.clone(), error)),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(Branched {
            children,
            failed,
            paused: Duration::from_micros(done.pause_micros),
            took: begin.elapsed(),
            saved: done.saved.map(saved),
        })
    }

    fn check_children(&self, names: &[MachineName]) -> Result<(), EngineError> {
        let invalid = |what: String| EngineError::Invalid {
            what,
            hint: Some(format!(
                "one branch makes 1 to {MAX_BRANCH_CHILDREN} machines of different names"
            )),
        };
        if names.is_empty() || names.len() > MAX_BRANCH_CHILDREN {
            return Err(invalid(format!("a branch into {} machines", names.len())));
        }
        let mut seen = HashSet::new();
        for name in names {
            if !seen.insert(name) {
                return Err(invalid(format!("two machines of the name {name}")));
            }
            self.choose_name(Some(name))?;
        }
        Ok(())
    }

    /// Has the source's supervisor fill the children's directories.
    fn freeze(
        &self,
        source: &MachineName,
        request: BranchRequest,
        progress: &dyn Progress,
    ) -> Result<(BranchDone, Vec<OwnedFd>), EngineError> {
        let mut phases = Phases::new(progress);
        let request = Control::Branch(request);
        let reply = self.long_work(source, &request, &mut |phase, done, total| {
            phases.report(phase, done, total);
        });
        drop(phases);
        let (reason, hint) = match reply? {
            (ControlReply::Branched(done), descriptors) => return Ok((*done, descriptors)),
            (ControlReply::Failed { message, hint }, _) => (message, hint),
            (other, _) => (format!("unexpected answer {other:?}"), None),
        };
        Err(EngineError::Refused {
            name: source.clone(),
            reason,
            hint,
        })
    }
}

/// What all children of a branch have in common.
struct Common<'a> {
    engine: &'a Engine,
    source: &'a MachineName,
    done: &'a BranchDone,
    descriptors: &'a [OwnedFd],
    hold: bool,
}

impl Common<'_> {
    /// Gives a child its name and runs it. One that does not come up is removed.
    fn bring_up(
        &self,
        index: u32,
        name: &MachineName,
        mut staging: Staging,
    ) -> Result<BranchChild, EngineError> {
        let machine = self.machine_file(index, name);
        record::check_limits(&machine).map_err(super::create::beyond_limit)?;
        let staged = MachineDir::new(staging.path().to_owned());
        staged.write_first(&machine)?;
        // Both are held under the name, too: nobody else starts it, and it is never seen to stand.
        let _operation = staged.lock_operation()?;
        let lock = staged.lock_running()?;
        match staging.publish_as(name.as_str()) {
            Ok(_) => {}
            Err(PublishError::Taken) => {
                return Err(EngineError::MachineExists { name: name.clone() });
            }
            Err(PublishError::File(error) | PublishError::Unknown(error)) => {
                return Err(error.into());
            }
        }
        Phase::ChildCreated.reached();
        let dir = self.engine.dir(name);
        let report = self.engine.launch_as(name, &dir, move |socket| {
            let mut all = vec![lock.descriptor()];
            all.extend(self.descriptors.iter().map(AsFd::as_fd));
            channel::send(socket, &Begin::AsChild(self.done.child.clone()), &all)
        });
        let error = match report {
            Ok(StartReport::Ready { backend, pending }) => {
                return Ok(BranchChild {
                    name: name.clone(),
                    backend,
                    pending,
                });
            }
            Ok(StartReport::NotReady(trouble)) => not_ready(name.clone(), trouble),
            Ok(StartReport::Failed { message, hint }) => EngineError::NotStarted {
                name: name.clone(),
                reason: message,
                hint,
            },
            Err(error) => error,
        };
        self.engine.remove_child(name, &dir)?;
        Err(error)
    }

    /// The child as it is before it runs.
    fn machine_file(&self, index: u32, name: &MachineName) -> MachineFile {
        let mut machine = self.done.machine.clone();
        machine.command_line = with_hostname(&machine.command_line, &name.hostname());
        machine.spec.cpus = Some(self.done.vcpus);
        machine.spec.cpu = Some(self.done.cpu.clone());
        MachineFile {
            name: name.clone(),
            created_unix: unix_now(),
            state: RecordedState::Failed {
                reason: CUT_OFF.to_owned(),
            },
            restore: None,
            keep_identity: false,
            has_identity: false,
            identity_since: None,
            starts: 0,
            undos: 0,
            former_names: Vec::new(),
            // Its source may end with a process; nobody ends it.
            passing: false,
            branched_from: Some(self.source.clone()),
            branch: Some(BranchPlace {
                index,
                word: if self.hold {
                    BranchWord::Held
                } else {
                    BranchWord::Due
                },
                up: false,
            }),
            // It saves what it is told to save.
            autosave: None,
            ..machine
        }
    }
}

impl Engine {
    /// Ends and removes a child that did not come up; its operation lock is held.
    fn remove_child(&self, name: &MachineName, dir: &MachineDir) -> Result<(), EngineError> {
        if dir.is_running()? {
            self.end(name, dir, Duration::ZERO)?;
        }
        let machines = self.home().machines();
        durable_files::remove_whole(Arc::new(OsBackend), &machines, name.as_str())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbered_children_have_names() {
        let names =
            |prefix, count| BranchOptions::numbered(prefix, count).map(|options| options.names);
        let made = names("try", 3).unwrap();
        let made: Vec<_> = made.iter().map(MachineName::as_str).collect();
        assert_eq!(made, ["try-0", "try-1", "try-2"]);
        assert!(matches!(names("../x", 1), Err(EngineError::Name(_))));
        // A number beyond the limit costs no more than the limit, and is refused by it later.
        assert_eq!(
            names("x", usize::MAX).unwrap().len(),
            MAX_BRANCH_CHILDREN + 1
        );
    }
}
