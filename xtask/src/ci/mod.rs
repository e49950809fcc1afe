//! `cargo xtask ci`: every check of the project in order, with one line of totals at the end.
//!
//! A step that fails does not stop the later ones. Steps that are Rust's test harness count their
//! tests; any other step counts as one.

pub mod cross;
pub mod direct;
mod stream;

use std::process::Command;
use std::time::Instant;

use crate::boots;
use crate::cargo::{self, Workspace};
use crate::error::{Error, Result};
use crate::output;
use crate::totals::Totals;
use crate::vmtest::{self, LONG, Outcome};

/// A step that hangs is ended after this time.
const STEP_LIMIT_SECONDS: u32 = 30 * 60;

/// What to run.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Also what takes more than two minutes
    #[arg(long)]
    long: bool,
    /// Run only this step (may be repeated)
    #[arg(long = "only", value_name = "STEP", value_parser = names())]
    only: Vec<String>,
    /// Leave this step out (may be repeated)
    #[arg(long = "skip", value_name = "STEP", value_parser = names())]
    skip: Vec<String>,
}

struct Step {
    name: &'static str,
    run: fn(&Workspace, &Options) -> Result<Totals>,
}

const STEPS: &[Step] = &[
    Step {
        name: "fmt",
        run: |workspace, _| check(workspace, &["fmt", "--all", "--check"], &[]),
    },
    Step {
        name: "clippy",
        run: |workspace, _| {
            let arguments = ["clippy", "--workspace", "--all-targets", "--", "-Dwarnings"];
            check(workspace, &arguments, &[])
        },
    },
    Step {
        name: "docs",
        run: |workspace, _| {
            let arguments = ["doc", "--workspace", "--no-deps"];
            check(workspace, &arguments, &[("RUSTDOCFLAGS", "-Dwarnings")])
        },
    },
    Step {
        name: "tests",
        run: |workspace, options| {
            let arguments = [&["test"], cargo::ALL_TESTS.as_slice()].concat();
            harness(workspace, options, &arguments)
        },
    },
    Step {
        name: "doctests",
        run: |workspace, options| harness(workspace, options, &["test", "--workspace", "--doc"]),
    },
    Step {
        name: "examples",
        run: direct::examples,
    },
    Step {
        name: "cross",
        run: |workspace, _| cross::run(workspace),
    },
    Step {
        name: "vmtest",
        // Some end-to-end tests take minutes each on doubly emulated processors.
        run: |_, options| match options.long {
            true => emulated(&["--timeout=21600", "--job-timeout=7200"]),
            false => emulated(&["--short"]),
        },
    },
    Step {
        name: "vmtest-one-cpu",
        run: |_, _| emulated(&["--cpus=1", "--short", "clock"]),
    },
    Step {
        name: "software-cpu",
        run: direct::end_to_end,
    },
    Step {
        name: "boots",
        run: |workspace, _| boots::run(workspace),
    },
];

fn names() -> clap::builder::PossibleValuesParser {
    STEPS
        .iter()
        .map(|step| step.name)
        .collect::<Vec<_>>()
        .into()
}

impl Options {
    fn wants(&self, step: &Step) -> bool {
        let named = |list: &[String]| list.iter().any(|name| name == step.name);
        (self.only.is_empty() || named(&self.only)) && !named(&self.skip)
    }

    /// What is given to tests besides the environment.
    fn environment(&self) -> &'static [(&'static str, &'static str)] {
        if self.long { &[(LONG, "1")] } else { &[] }
    }
}

/// Runs the steps and returns their totals.
pub fn run(options: &Options) -> Result<Totals> {
    let workspace = Workspace::read()?;
    let mut totals = Totals::default();
    let mut summary = Vec::new();
    let on_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
    for step in STEPS.iter().filter(|step| options.wants(step)) {
        output::line(format_args!("== {}", step.name));
        let started = Instant::now();
        let result = (step.run)(&workspace, options).unwrap_or_else(|error| {
            output::error(&error);
            Totals::one(false)
        });
        let result = if on_ci { must_run(result) } else { result };
        let line = format!(
            "{:16} {result} ({:.1} s)",
            step.name,
            started.elapsed().as_secs_f64()
        );
        output::line(format_args!("== {line}"));
        summary.push(line);
        totals.add(result);
    }
    output::line("");
    for line in summary {
        output::line(line);
    }
    Ok(totals)
}

/// The result of a step on a machine that is there to run it (`CI=true`): one of which nothing ran has failed.
fn must_run(result: Totals) -> Totals {
    if result.passed + result.failed > 0 || result.skipped == 0 {
        return result;
    }
    output::line("with CI=true a step that is skipped has failed");
    Totals {
        failed: result.skipped,
        skipped: 0,
        ..result
    }
}

/// A cargo command in the repository, ended if it hangs.
fn cargo_command(workspace: &Workspace, arguments: &[&str]) -> Command {
    let cargo = cargo::cargo();
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", &STEP_LIMIT_SECONDS.to_string()]);
    command.arg(cargo.get_program());
    command.args(arguments);
    command.current_dir(&workspace.root);
    command
}

/// A step that is a cargo command which succeeds or fails as a whole.
fn check(
    workspace: &Workspace,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> Result<Totals> {
    let mut command = cargo_command(workspace, arguments);
    command.envs(environment.iter().copied());
    let status = stream::run(command, |_| {})?;
    Ok(Totals::one(status.success()))
}

/// A step that is one or more runs of Rust's test harness under cargo.
fn harness(workspace: &Workspace, options: &Options, arguments: &[&str]) -> Result<Totals> {
    let mut command = cargo_command(workspace, arguments);
    command.arg("--no-fail-fast");
    command.envs(options.environment().iter().copied());
    stream::harness(command)
}

/// A step in the emulated host.
fn emulated(arguments: &[&str]) -> Result<Totals> {
    match vmtest::run(&vmtest::Options::of(arguments))? {
        Outcome::Tests(totals) => Ok(totals),
        Outcome::Code(code) => Err(Error::Failed(format!("vmtest ended with {code}, which"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_of_which_nothing_ran_fails_where_it_must_run() {
        let skipped = Totals {
            skipped: 2,
            ..Totals::default()
        };
        assert_eq!(must_run(skipped).failed, 2);
        let some = Totals {
            passed: 1,
            ..skipped
        };
        assert_eq!(must_run(some), some);
        assert_eq!(must_run(Totals::default()), Totals::default());
    }
}
