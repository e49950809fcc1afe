//! The program that a workload calls.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

use super::{ANNOUNCE, ANNOUNCE_PARENT, CALL, INDEX_VARIABLE, NAME_VARIABLE};

/// The name under which the agent's program is this tool.
pub const NAME: &str = "smolvm-branch-ready";
/// How often an agent is looked for that was killed and comes back.
const RETRIES: u32 = 100;
/// Pause between two of them.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Longest answer in bytes.
const MAX_ANSWER_BYTES: u64 = 4096;

const HELP: &str = "\
Waits until this machine is branched; goes on in each branch, never here.

Usage: smolvm-branch-ready [CMD [ARG]...]
       smolvm-branch-ready --announce [CMD [ARG]...]

In a branch CMD is run with SMOLVM_BRANCH_INDEX (0, 1, ...) and SMOLVM_BRANCH_NAME set;
without CMD both are printed for a shell:

  eval \"$(smolvm-branch-ready)\"

--announce says that CMD, or without it the script that runs this, will call it later:
`smolvm branch --count` and `--hold` wait for that.
";

/// Whether the program was started under the tool's name.
#[must_use]
pub fn called_as(program: Option<&OsStr>) -> bool {
    program.is_some_and(|program| Path::new(program).file_name() == Some(OsStr::new(NAME)))
}

/// What goes wrong, for whoever called.
enum Refusal {
    /// With 2: it was called wrongly.
    Usage(String),
    /// With 1.
    Failed(String),
    /// With 126 or 127: CMD cannot be run.
    Command(u8, String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Usage(text) | Self::Failed(text) | Self::Command(_, text)) = self;
        f.write_str(text)
    }
}

/// Does what the arguments, without the program's name, ask for, with the agent that listens at `socket`.
pub fn run(socket: &Path, arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let refusal = match obey(socket, arguments.collect()) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(refusal) => refusal,
    };
    // Without a stderr nobody reads it.
    let _ = writeln!(io::stderr(), "{NAME}: {refusal}");
    ExitCode::from(match refusal {
        Refusal::Usage(_) => 2,
        Refusal::Failed(_) => 1,
        Refusal::Command(code, _) => code,
    })
}

fn obey(socket: &Path, arguments: Vec<OsString>) -> Result<(), Refusal> {
    let mut words = arguments.into_iter().peekable();
    let first = words.peek().map(|word| word.as_bytes().to_vec());
    match first.as_deref() {
        Some(b"--help" | b"-h") => print(HELP),
        Some(b"--announce") => {
            words.next();
            announce(socket, words.collect())
        }
        Some(b"--") => {
            words.next();
            call(socket, words.collect())
        }
        Some([b'-', ..]) => Err(Refusal::Usage(
            "there is no such option; see smolvm-branch-ready --help".to_owned(),
        )),
        _ => call(socket, words.collect()),
    }
}

fn announce(socket: &Path, command: Vec<OsString>) -> Result<(), Refusal> {
    let byte = if command.is_empty() {
        ANNOUNCE_PARENT
    } else {
        ANNOUNCE
    };
    match ask(socket, byte)?.as_str() {
        "ok" if command.is_empty() => Ok(()),
        "ok" => Err(become_command(&command, &[])),
        answer => Err(unexpected(answer)),
    }
}

fn call(socket: &Path, command: Vec<OsString>) -> Result<(), Refusal> {
    let answer = ask(socket, CALL)?;
    let place = answer.strip_prefix("go ").and_then(|place| {
        let (index, name) = place.split_once(' ')?;
        let good = index.parse::<u32>().is_ok() && super::is_branch_name(name);
        good.then_some((index, name))
    });
    let (index, name) = place.ok_or_else(|| unexpected(&answer))?;
    if command.is_empty() {
        return print(&format!(
            "{INDEX_VARIABLE}={index}\n{NAME_VARIABLE}={name}\nexport {INDEX_VARIABLE} {NAME_VARIABLE}\n"
        ));
    }
    let place = [(INDEX_VARIABLE, index), (NAME_VARIABLE, name)];
    Err(become_command(&command, &place))
}

/// Becomes the command; returns only why not.
fn become_command(command: &[OsString], variables: &[(&str, &str)]) -> Refusal {
    let Some((program, arguments)) = command.split_first() else {
        return Refusal::Usage("which command?".to_owned());
    };
    let mut command = Command::new(program);
    let command = command.args(arguments).envs(variables.iter().copied());
    let error = command.exec();
    let code = match error.kind() {
        io::ErrorKind::NotFound => 127,
        _ => 126,
    };
    let program = program.to_string_lossy();
    Refusal::Command(code, format!("cannot run {program}: {error}"))
}

/// Says the byte and waits for the answer. An agent that is killed meanwhile is asked anew once it is back.
fn ask(socket: &Path, byte: u8) -> Result<String, Refusal> {
    let mut tries = 0;
    loop {
        let asked = ask_once(socket, byte);
        match asked {
            Ok(answer) if answer.ends_with('\n') => {
                let answer = answer.trim_end();
                return match answer.strip_prefix("no ") {
                    Some(reason) => Err(Refusal::Failed(reason.to_owned())),
                    None => Ok(answer.to_owned()),
                };
            }
            // It took the call, however long ago.
            Ok(_) => tries = 0,
            Err(error) if tries == RETRIES || error.kind() == io::ErrorKind::PermissionDenied => {
                let socket = socket.display();
                return Err(Refusal::Failed(format!(
                    "smolvm's agent does not answer at {socket}: {error}"
                )));
            }
            Err(_) => tries += 1,
        }
        thread::sleep(RETRY_PAUSE);
    }
}

fn ask_once(socket: &Path, byte: u8) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    let mut answer = String::new();
    // What fails after the connection was taken is the agent's end, or its refusal of more.
    let _ = stream.write_all(&[byte]);
    let mut answers = BufReader::new(stream.take(MAX_ANSWER_BYTES));
    let _ = answers.read_line(&mut answer);
    Ok(answer)
}

fn unexpected(answer: &str) -> Refusal {
    Refusal::Failed(format!("smolvm's agent answered {answer:?}"))
}

fn print(text: &str) -> Result<(), Refusal> {
    let mut out = io::stdout();
    let printed = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    printed.map_err(|error| Refusal::Failed(format!("cannot write to stdout: {error}")))
}
