//! The smolvm command: arguments in, a call into the engine, its answer out.
//!
//! Raw arguments ([`args`]) become typed options, those become a call of the engine ([`commands`]), and
//! what came of it is printed in one place ([`output`]). What another program could want is in
//! `smolvm-engine`.

mod args;
mod commands;
mod complete;
mod failure;
mod interrupt;
mod output;

use std::process::ExitCode;

fn main() -> ExitCode {
    output::log::start();
    // Machines run as further processes of this program.
    if let Some(code) = smolvm_engine::process::run_if_asked(std::env::args_os().skip(1)) {
        return code;
    }
    complete::answer_if_asked();
    match args::parse(std::env::args_os()) {
        Ok(cli) => {
            let printer = output::Printer::new(cli.json);
            let code = match commands::run(cli.command, &printer) {
                Ok(code) => code,
                Err(failure) => printer.failure(&failure),
            };
            interrupt::die_of_what_was_passed_on(code);
            code
        }
        Err(refusal) => output::refusal(refusal),
    }
}
