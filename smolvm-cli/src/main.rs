//! The smolvm command.

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(code) = smolvm_engine::process::run_if_asked(std::env::args_os().skip(1)) {
        return code;
    }
    ExitCode::from(2)
}
