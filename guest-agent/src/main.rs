//! The program that the guest boots as `/init`.

use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    if std::process::id() == 1 {
        guest_agent::init::run();
    }
    let text = b"smolvm's guest agent runs as PID 1 of a machine and nowhere else\n";
    // Without a stderr nobody reads it.
    let _ = std::io::stderr().write_all(text);
    ExitCode::from(2)
}
