//! `machine run`: a machine for one command.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use smolvm_engine::{Engine, EngineError, LogPart, MachineName, StartOptions};

use super::create::Plan;
use super::session::{self, Foreground};
use super::{exec, terminal};
use crate::args::RunArgs;
use crate::failure::Failure;
use crate::interrupt::{Answer, Signal, Watch};
use crate::output::Printer;

/// Bytes of the random part of a machine's name.
const NAME_BYTES: usize = 6;

/// Lines of a console that are shown when its machine did not come up, and their bytes.
const TAIL_LINES: usize = 20;
const MAX_TAIL_BYTES: usize = 4 << 10;

/// `machine run`.
pub(crate) fn run(engine: &Engine, printer: &Printer, args: RunArgs) -> Result<ExitCode, Failure> {
    let plan = Plan::new(Some(passing_name()?), args.shape, Vec::new())?;
    // However this process ends, the machine ends with it.
    let engine = &engine.clone().with_passing_machines();
    let passing = Passing::new(engine);
    let _watch = passing.clone().watch()?;
    let result = passing.create(plan).and_then(|name| {
        let spinner = printer.spinner("starting a machine");
        engine.start(&name, StartOptions::default())?;
        drop(spinner);
        let options = exec::options(args.command);
        session::run(engine, printer, &name, options, &passing.foreground)
    });
    passing.wait_if_ending();
    let result = result.map_err(|failure| passing.keep_evidence(printer, failure));
    if let Err(error) = passing.delete() {
        printer.warning(&format!(
            "the machine was not deleted: {}",
            smolvm_engine::chain(&error)
        ));
    }
    result
}

fn passing_name() -> Result<MachineName, Failure> {
    let mut random = [0; NAME_BYTES];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Failure::host("make up a name")(error.into()))?;
    let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("run-{digits}").parse()?)
}

/// The last bytes of a console.
#[derive(Default)]
struct ConsoleTail {
    bytes: Vec<u8>,
}

impl ConsoleTail {
    fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let surplus = self.bytes.len().saturating_sub(MAX_TAIL_BYTES);
        self.bytes.drain(..surplus);
    }

    fn show(&self, printer: &Printer) {
        let text = String::from_utf8_lossy(&self.bytes);
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        let lines = &lines[lines.len().saturating_sub(TAIL_LINES)..];
        if lines.is_empty() {
            return;
        }
        if printer.is_json() {
            let text = lines.join("\n");
            printer.warning(&format!("the machine's console ended with:\n{text}"));
            return;
        }
        printer.note("The machine's console ended with:");
        for line in lines {
            printer.note(&format!("  {line}"));
        }
    }
}

/// The machine of this command, deleted by whoever ends it: we, or a signal.
#[derive(Clone)]
struct Passing {
    engine: Engine,
    foreground: Foreground,
    /// Locked while the machine is made.
    machine: Arc<Mutex<Option<MachineName>>>,
    /// A signal ends us: its thread does the rest.
    ending: Arc<AtomicBool>,
}

impl Passing {
    fn new(engine: &Engine) -> Self {
        Self {
            engine: engine.clone(),
            foreground: Foreground::default(),
            machine: Arc::default(),
            ending: Arc::default(),
        }
    }

    fn watch(self) -> Result<Watch, Failure> {
        Watch::start(move |signal| self.receive(signal))
    }

    fn receive(&self, signal: Signal) -> Answer {
        let Some(number) = self.foreground.receive(signal) else {
            return Answer::GoOn;
        };
        self.ending.store(true, Ordering::Release);
        terminal::restore();
        // A start that is under way holds the machine: end it first.
        let machine = self.name();
        if let Some(name) = machine {
            self.engine.force_off(&name);
        }
        match self.delete() {
            Ok(()) => Answer::End(number),
            Err(error) => {
                Printer::new(false).warning(&format!(
                    "the machine was not deleted: {}",
                    smolvm_engine::chain(&error)
                ));
                Answer::End(number)
            }
        }
    }

    fn name(&self) -> Option<MachineName> {
        let machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        machine.clone()
    }

    fn create(&self, plan: Plan) -> Result<MachineName, Failure> {
        let mut machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        if self.ending.load(Ordering::Acquire) {
            drop(machine);
            self.wait_if_ending();
            return Err(Failure::Partly {
                what: "interrupted".to_owned(),
            });
        }
        let made = plan.make(&self.engine)?;
        *machine = Some(made.name.clone());
        Ok(made.name)
    }

    fn delete(&self) -> Result<(), EngineError> {
        let Some(name) = self.name() else {
            return Ok(());
        };
        match self.engine.delete(&name, true) {
            // The other one of us was faster.
            Err(EngineError::NoMachine { .. }) => Ok(()),
            result => result,
        }
    }

    /// Shows the end of the console of a machine that did not come up, which is about to be deleted. What the
    /// failure says of the machine does not hold any more then.
    fn keep_evidence(&self, printer: &Printer, failure: Failure) -> Failure {
        let Some(name) = self.name() else {
            return failure;
        };
        let unheard = matches!(
            failure,
            Failure::Engine(EngineError::NotStarted { .. } | EngineError::AgentSilent { .. })
        );
        if unheard {
            let mut tail = ConsoleTail::default();
            let read = self
                .engine
                .read_console(&name, LogPart::default(), &mut |bytes| {
                    tail.add(bytes);
                    Ok(())
                });
            match read {
                Ok(()) => tail.show(printer),
                Err(error) => printer.warning(&format!(
                    "its console cannot be shown: {}",
                    smolvm_engine::chain(&error)
                )),
            }
        }
        Failure::Passing {
            failure: Box::new(failure),
            machine: name,
        }
    }

    /// Lets a signal's thread end the process, where it is about to.
    fn wait_if_ending(&self) {
        while self.ending.load(Ordering::Acquire) {
            thread::sleep(Duration::from_secs(1));
        }
    }
}
