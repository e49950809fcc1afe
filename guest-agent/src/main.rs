//! The program that the guest boots as `/init`, and that its processes call as `smolvm-branch-ready`.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use guest_agent::ready;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    // First: in a container it may be PID 1, too.
    if ready::called_as(arguments.next().as_deref()) {
        return ready::run(Path::new(ready::SOCKET), arguments);
    }
    if std::process::id() == 1 {
        guest_agent::init::run();
    }
    let text = b"smolvm's guest agent runs as PID 1 of a machine and nowhere else\n";
    // Without a stderr nobody reads it.
    let _ = std::io::stderr().write_all(text);
    ExitCode::from(2)
}
