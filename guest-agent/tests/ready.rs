//! Processes that wait until the machine is branched, and what the host hears of them.

mod common;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use agent_protocol::client::ClientError;
use agent_protocol::message::{ErrorKind as Kind, Status};
use common::{Machine, eventually};
use guest_agent::ready;

/// Connections that one user may have who is not root, of all that there may be.
const OF_USER: usize = 64;
const OF_ROOT: usize = 256;

struct Bed {
    machine: Machine,
    _directory: tempfile::TempDir,
    socket: PathBuf,
}

impl Bed {
    fn new() -> Self {
        let machine = Machine::new();
        let directory = tempfile::tempdir().expect("temporary directory");
        let socket = directory.path().join("run/branch.sock");
        let listener = ready::listen(&socket).expect("listens");
        machine.agent.hear_waiting(listener);
        Self {
            machine,
            _directory: directory,
            socket,
        }
    }

    fn say(&self, bytes: &[u8]) -> UnixStream {
        let mut stream = UnixStream::connect(&self.socket).expect("connects");
        stream.write_all(bytes).expect("said");
        stream
    }

    fn status(&self) -> Status {
        self.machine.connect().status().expect("status")
    }

    fn wait_for_callers(&self, count: usize) {
        eventually("so many to wait", || {
            self.status().waiting as usize == count
        });
    }

    /// A process that says the byte from a child of its own, hears the answer, and lives on until it is killed.
    fn announce(&self, byte: char) -> Announcer {
        let script = "import os, socket, sys, time\n\
            child = os.fork() if sys.argv[2] == 'p' else 0\n\
            if child == 0:\n\
            \ts = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.send(sys.argv[2].encode())\n\
            \tprint(s.makefile().readline(), end='', flush=True)\n\
            \tif sys.argv[2] == 'p': os._exit(0)\n\
            time.sleep(1000)";
        let mut python = Command::new("python3");
        python.args(["-c", script]).arg(&self.socket);
        python.arg(byte.to_string()).stdout(Stdio::piped());
        Announcer(python.spawn().expect("python3"))
    }
}

struct Announcer(Child);

impl Announcer {
    fn answer(&mut self) -> String {
        let mut bytes = Vec::new();
        let out = self.0.stdout.as_mut().expect("stdout");
        while bytes.last() != Some(&b'\n') {
            let mut byte = [0];
            assert_eq!(out.read(&mut byte).expect("read"), 1, "{bytes:?}");
            bytes.push(byte[0]);
        }
        String::from_utf8(bytes).expect("text")
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("collected");
    }
}

/// The answer; none where the agent hung up.
fn read(stream: UnixStream) -> String {
    let mut line = String::new();
    match BufReader::new(stream).read_line(&mut line) {
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        read => drop(read.expect("read")),
    }
    line
}

#[test]
fn callers_wait_until_they_are_told() {
    let bed = Bed::new();
    let (first, second, gone) = (bed.say(b"c"), bed.say(b"c"), bed.say(b"c"));
    bed.wait_for_callers(3);
    drop(gone);
    bed.wait_for_callers(2);
    let mut host = bed.machine.connect();
    for name in ["", "a b", "x;reboot", "a/b", "a\n", &"x".repeat(64)] {
        let refused = host.release(0, name).expect_err("no name");
        let invalid = Kind::Invalid;
        assert!(matches!(refused, ClientError::Agent { kind, .. } if kind == invalid));
    }
    assert_eq!(host.release(3, "try-3").expect("told"), 2);
    for caller in [first, second] {
        assert_eq!(read(caller), "go 3 try-3\n");
    }
    // Who calls later waits anew.
    let later = bed.say(b"c");
    bed.wait_for_callers(1);
    assert_eq!(host.release(0, "a.b_c-1").expect("told"), 1);
    assert_eq!(read(later), "go 0 a.b_c-1\n");
    assert_eq!(host.release(0, "x").expect("nobody"), 0);
}

#[test]
fn a_host_waits_only_for_processes_that_announced_themselves() {
    let bed = Bed::new();
    bed.machine.connect().await_ready().expect("nobody did");
    let mut announcer = bed.announce('p');
    assert_eq!(announcer.answer(), "ok\n");
    assert_eq!(bed.status().announced, [announcer.0.id()]);
    let host = bed.machine.connect();
    let waits = std::thread::spawn(move || host.await_ready());
    let mut other = bed.announce('a');
    assert_eq!(other.answer(), "ok\n");
    // One that calls and has not announced itself is nobody's.
    let stranger = bed.say(b"c");
    bed.wait_for_callers(1);
    assert_eq!(bed.status().announced.len(), 2);
    assert!(!waits.is_finished());
    drop(announcer);
    eventually("the end to be seen", || bed.status().announced.len() == 1);
    assert!(!waits.is_finished());
    drop(other);
    waits.join().expect("thread").expect("all are gone");
    drop(stranger);
    // This process announces itself, and calls.
    let announced = bed.say(b"a");
    assert!(
        read(announced).starts_with("no "),
        "it is the agent's own here"
    );
}

#[test]
fn an_announced_process_is_ready_when_a_descendant_calls() {
    let bed = Bed::new();
    let socket = bed.socket.to_str().expect("text").to_owned();
    let script = "import os, socket, sys, time\n\
        def say(byte):\n\
        \ts = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.send(byte); return s\n\
        say(b'a').makefile().readline()\n\
        print('announced', flush=True)\n\
        sys.stdin.readline()\n\
        if os.fork() == 0:\n\
        \tif os.fork() == 0:\n\
        \t\tprint(say(b'c').makefile().readline(), end='', flush=True)\n\
        \telse: os.wait()\n\
        else: os.wait()";
    let mut python = Command::new("python3");
    python.args(["-c", script, &socket]);
    let python = python.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut workload = Announcer(python.spawn().expect("python3"));
    assert_eq!(workload.answer(), "announced\n");
    let host = bed.machine.connect();
    let waits = std::thread::spawn(move || host.await_ready());
    assert_eq!(bed.status().announced, [workload.0.id()]);
    let mut stdin = workload.0.stdin.take().expect("stdin");
    stdin.write_all(b"\n").expect("told");
    waits.join().expect("thread").expect("it is ready");
    assert_eq!(bed.machine.connect().release(1, "b").expect("told"), 1);
    assert_eq!(workload.answer(), "go 1 b\n");
}

#[test]
fn what_a_process_sends_does_no_harm() {
    let bed = Bed::new();
    for rubbish in [&b"x"[..], b"cc", b"c\n", b"\0", &[0xff; 5000]] {
        assert_eq!(read(bed.say(rubbish)), "", "{rubbish:?}");
    }
    let mut talks_on = bed.say(b"c");
    bed.wait_for_callers(1);
    talks_on.write_all(b"more").expect("sent");
    bed.wait_for_callers(0);
    // More than there is room for: the others are told, and the host is served all the same.
    let mut many: Vec<_> = (0..2 * OF_ROOT).map(|_| bed.say(b"c")).collect();
    let root = rustix::process::geteuid().is_root();
    let room = if root { OF_ROOT } else { OF_USER };
    for refused in many.split_off(room) {
        assert!(read(refused).starts_with("no "));
    }
    bed.wait_for_callers(room);
    let mut host = bed.machine.connect();
    assert_eq!(host.release(0, "x").expect("told"), room as u32);
    for told in many {
        assert_eq!(read(told), "go 0 x\n");
    }
    // Hosts have a limit, too, which ends when they leave.
    let mut announcer = bed.announce('a');
    assert_eq!(announcer.answer(), "ok\n");
    let hosts: Vec<_> = (0..17).map(|_| bed.machine.connect()).collect();
    let waits: Vec<_> = hosts
        .into_iter()
        .map(|host| std::thread::spawn(move || host.await_ready()))
        .collect();
    eventually("one too many", || {
        waits.iter().any(|wait| wait.is_finished())
    });
    drop(announcer);
    let failed = waits
        .into_iter()
        .filter_map(|wait| wait.join().expect("thread").err());
    let busy =
        |error: ClientError| matches!(error, ClientError::Agent { kind, .. } if kind == Kind::Busy);
    assert_eq!(failed.map(busy).collect::<Vec<_>>(), [true]);
}

#[test]
fn the_program_is_the_tool_under_its_second_name() {
    let tool = |argument: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_guest-agent"));
        command.arg0("/somewhere/smolvm-branch-ready").arg(argument);
        command.output().expect("it starts")
    };
    let help = tool("--help");
    let text = String::from_utf8_lossy(&help.stdout).into_owned();
    assert!(
        help.status.success() && text.contains("SMOLVM_BRANCH_INDEX"),
        "{text}"
    );
    let wrong = tool("--nonsense");
    assert_eq!(wrong.status.code(), Some(2));
    assert!(wrong.stdout.is_empty() && !wrong.stderr.is_empty());
}
