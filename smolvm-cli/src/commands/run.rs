//! `machine run`: a machine for one command.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use smolvm_engine::{Engine, EngineError, MachineName, StartOptions};

use super::create::Plan;
use super::session::{self, Foreground};
use super::{exec, terminal};
use crate::args::RunArgs;
use crate::failure::{self, Failure};
use crate::interrupt::{Answer, Signal, Watch};
use crate::output::Printer;

/// Bytes of the random part of a machine's name.
const NAME_BYTES: usize = 6;

/// `machine run`.
pub(crate) fn run(engine: &Engine, printer: &Printer, args: RunArgs) -> Result<ExitCode, Failure> {
    let plan = Plan::new(Some(passing_name()?), args.shape, Vec::new())?;
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
            Ok(()) => Answer::Exit(failure::interrupted(number)),
            Err(error) => {
                Printer::new(false).warning(&format!(
                    "the machine was not deleted: {}",
                    smolvm_engine::chain(&error)
                ));
                Answer::Exit(failure::interrupted(number))
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

    /// Lets a signal's thread end the process, where it is about to.
    fn wait_if_ending(&self) {
        while self.ending.load(Ordering::Acquire) {
            thread::sleep(Duration::from_secs(1));
        }
    }
}
