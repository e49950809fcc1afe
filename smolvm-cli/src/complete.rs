//! What a shell offers at the tab key: machines, images, points, and paths in machines.
//!
//! The scripts that `smolvm completions` prints call this program again, with the words typed so far. What the description of the
//! command line ([`args`]) says of an argument decides what is offered for it. Nothing is changed, nothing waits long, and where
//! something goes wrong nothing is offered: there is nobody to tell.

use std::any::TypeId;
use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::Shells;
use smolvm_engine::{
    Engine, EngineOptions, ExecOptions, LogEntry, MachineName, MachineState, format_utc, image,
};

use crate::args::{self, Place};

/// The variable by which a script says that it wants completions, and for which shell.
const ASKED: &str = "COMPLETE";
/// Most points that are offered: the newest.
const MAX_POINTS: usize = 30;
/// Most entries of a directory in a guest that are offered.
const MAX_PATHS: usize = 500;
/// How long a guest may take to list a directory.
const GUEST_PATIENCE: Duration = Duration::from_secs(1);

/// Answers a completion script, if one asks. Then this process has nothing else to do.
pub(crate) fn answer_if_asked() {
    CompleteEnv::with_factory(describe).var(ASKED).complete();
}

/// The script for a shell; `None` for one that is not known.
pub(crate) fn script(shell: &str) -> Option<io::Result<Vec<u8>>> {
    let shells = Shells::builtins();
    let shell = shells.completer(shell)?;
    let mut script = Vec::new();
    let written = shell.write_registration(ASKED, "smolvm", "smolvm", "smolvm", &mut script);
    Some(written.map(|()| script))
}

/// The command line, with what is offered for each argument.
fn describe() -> clap::Command {
    with_values(args::describe())
}

fn with_values(command: clap::Command) -> clap::Command {
    let name = command.get_name().to_owned();
    command
        .mut_args(|arg| with_value(&name, arg))
        .mut_subcommands(with_values)
}

fn with_value(command: &str, arg: clap::Arg) -> clap::Arg {
    let kind = arg.get_value_parser().type_id();
    let completer = match (command, arg.get_id().as_str()) {
        // A name that is to be new.
        ("create", "machine" | "name") | ("branch", "name") => return arg,
        (_, "to" | "at") => ArgValueCompleter::new(points),
        ("checkpoint-log", "point") => ArgValueCompleter::new(machines_or_paths),
        (_, "backend") => ArgValueCompleter::new(backends),
        (_, "image") => ArgValueCompleter::new(images),
        ("exec" | "run", "command") => ArgValueCompleter::new(first_word),
        _ if kind == TypeId::of::<MachineName>() => ArgValueCompleter::new(machines),
        _ if kind == TypeId::of::<Place>() => ArgValueCompleter::new(places),
        _ => return arg,
    };
    arg.add(completer)
}

fn engine() -> Option<Engine> {
    Engine::open(EngineOptions::from_environment().ok()?).ok()
}

/// Those of `all` that begin as what was typed.
fn beginning(typed: &OsStr, all: impl IntoIterator<Item = String>) -> Vec<CompletionCandidate> {
    let Some(typed) = typed.to_str() else {
        return Vec::new();
    };
    let fits = all.into_iter().filter(|text| text.starts_with(typed));
    fits.map(CompletionCandidate::new).collect()
}

fn machine_names() -> Vec<String> {
    let names = engine().and_then(|engine| engine.machine_names().ok());
    let names = names.into_iter().flatten();
    names.map(|name| name.to_string()).collect()
}

fn machines(typed: &OsStr) -> Vec<CompletionCandidate> {
    beginning(typed, machine_names())
}

fn machines_or_paths(typed: &OsStr) -> Vec<CompletionCandidate> {
    let mut offered = machines(typed);
    offered.extend(host_paths(typed));
    offered
}

fn images(typed: &OsStr) -> Vec<CompletionCandidate> {
    let images = engine().and_then(|engine| image::names(engine.home().root()).ok());
    beginning(typed, images.into_iter().flatten())
}

fn backends(typed: &OsStr) -> Vec<CompletionCandidate> {
    beginning(typed, ["auto", "hvf", "kvm", "soft"].map(str::to_owned))
}

/// For `exec`, whose first word may be a machine; the words after it are the guest's.
fn first_word(typed: &OsStr) -> Vec<CompletionCandidate> {
    let words = Words::typed();
    match words.before().and_then(OsStr::to_str) {
        Some("exec") => machines(typed),
        Some("run") => images(typed),
        _ => Vec::new(),
    }
}

/// Points, newest first: of the machine that is named, or else all of the default store.
fn points(typed: &OsStr) -> Vec<CompletionCandidate> {
    let Some(typed) = typed.to_str() else {
        return Vec::new();
    };
    let entries = engine().map(|engine| log(&engine)).unwrap_or_default();
    let offered = entries
        .iter()
        .filter(|entry| entry.short_id.starts_with(typed));
    let offer = |entry: &LogEntry| {
        let told = format!(
            "{}  {}  {}",
            format_utc(entry.taken_unix),
            entry.machine,
            entry.message
        );
        CompletionCandidate::new(&entry.short_id).help(Some(told.trim_end().to_owned().into()))
    };
    offered.take(MAX_POINTS).map(offer).collect()
}

fn log(engine: &Engine) -> Vec<LogEntry> {
    let own = Words::typed().machine(engine);
    let own = own.and_then(|name| engine.machine_log(&name).ok());
    own.filter(|log| !log.is_empty()).unwrap_or_else(|| {
        let mut log = engine.store_log(None, None).unwrap_or_default();
        log.retain(|entry| !entry.gone);
        log.reverse();
        log
    })
}

/// `NAME:/path` and paths of this host.
fn places(typed: &OsStr) -> Vec<CompletionCandidate> {
    let text = typed.to_str().unwrap_or_default();
    if let Some((name, path)) = text.split_once(':')
        && let Ok(name) = name.parse()
    {
        return guest_paths(&name, path);
    }
    let names = machine_names().into_iter().map(|name| format!("{name}:/"));
    let mut offered = beginning(typed, names);
    offered.extend(host_paths(typed));
    offered
}

fn host_paths(typed: &OsStr) -> Vec<CompletionCandidate> {
    use clap_complete::engine::{PathCompleter, ValueCompleter};
    PathCompleter::any().complete(typed)
}

/// What lies in the directory that was typed so far. Whatever the guest does, this ends soon.
fn guest_paths(name: &MachineName, typed: &str) -> Vec<CompletionCandidate> {
    let (sender, receiver) = mpsc::channel();
    let machine = name.clone();
    let directory = typed
        .rfind('/')
        .map_or("/", |slash| &typed[..=slash])
        .to_owned();
    let asked = directory.clone();
    let list = move || {
        // Nobody hears it if it took too long.
        let _ = sender.send(list_in_guest(&machine, &asked));
    };
    if thread::Builder::new().spawn(list).is_err() {
        return Vec::new();
    }
    let listed = receiver.recv_timeout(GUEST_PATIENCE).ok().flatten();
    let entries = listed.unwrap_or_default();
    let paths = entries.lines().take(MAX_PATHS);
    let whole = paths.map(|entry| format!("{name}:{directory}{entry}"));
    beginning(OsStr::new(&format!("{name}:{typed}")), whole)
}

/// The entries of a directory in a machine that runs, one a line, directories with a slash.
fn list_in_guest(name: &MachineName, directory: &str) -> Option<String> {
    let engine = engine()?;
    if engine.machine(name).ok()?.state != MachineState::Running {
        return None;
    }
    let options = ExecOptions {
        argv: ["ls", "-1Ap", "--", directory].map(OsString::from).into(),
        timeout: Some(GUEST_PATIENCE),
        ..ExecOptions::default()
    };
    let session = engine.exec(name, options).ok()?;
    let mut listed = Bounded(Vec::new());
    session
        .run(None::<&[u8]>, &mut listed, &mut io::sink())
        .ok()?;
    String::from_utf8(listed.0).ok()
}

/// Takes what a guest says, up to a limit.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        const MAX_BYTES: usize = 256 << 10;
        if self.0.len() + bytes.len() > MAX_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The words of the command line that is completed, and which of them.
struct Words {
    words: Vec<OsString>,
    index: usize,
}

impl Words {
    /// As the script passes them on: behind `--`; the last one where it does not say which.
    fn typed() -> Self {
        let words: Vec<OsString> = std::env::args_os()
            .skip_while(|word| word != "--")
            .skip(1)
            .collect();
        let last = words.len().saturating_sub(1);
        let index = std::env::var("_CLAP_COMPLETE_INDEX").ok();
        let index = index.and_then(|index| index.parse().ok()).unwrap_or(last);
        Self { words, index }
    }

    /// The word before the one that is completed.
    fn before(&self) -> Option<&OsStr> {
        let at = self.index.checked_sub(1)?;
        self.words.get(at).map(OsString::as_os_str)
    }

    /// The machine that was typed, if one was.
    fn machine(&self, engine: &Engine) -> Option<MachineName> {
        let names = engine.machine_names().ok()?;
        let typed = self
            .words
            .get(2..self.index)?
            .iter()
            .filter_map(|word| word.to_str());
        typed
            .filter_map(|word| word.parse().ok())
            .find(|name| names.contains(name))
    }
}
