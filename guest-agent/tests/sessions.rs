//! Sessions: clients that die, lose their transport, let go, misbehave or are many.

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use agent_protocol::client::{ClientError, ExecEvent, LogReader};
use agent_protocol::codec::Bytes;
use agent_protocol::frame::{read_message, write_message};
use agent_protocol::hello::greet;
use agent_protocol::message::{
    ErrorKind, ExecInput, ExecRequest, Identity, LogOutput, MAX_REQUEST_BYTES, Outcome, Reply,
    Request, SessionStatus,
};
use common::{Machine, command, eventually, runs, sh};
use rustix::process::{Pid, Signal, kill_process};

/// Starts a command that tells its pid and waits; the session after that.
fn started(machine: &Machine, request: ExecRequest) -> (common::Session, u32) {
    let mut session = machine.start(request);
    let pid = session.pid;
    assert!(matches!(
        session.reader.next_event(),
        Ok(ExecEvent::Stdout(_))
    ));
    (session, pid)
}

fn no_session_is_left(machine: &Machine) {
    eventually("all sessions are over", || {
        let status = machine.connect().status().expect("status");
        status.sessions.is_empty()
    });
}

#[test]
fn a_client_that_dies_ends_the_group() {
    let machine = Machine::new();
    for request in [
        sh("sleep 1000 & echo; wait"),
        sh("trap '' TERM HUP; echo; while :; do sleep 0.1; done"),
        ExecRequest {
            stdin: true,
            ..sh("echo; cat; sleep 1000")
        },
    ] {
        let (session, pid) = started(&machine, request);
        drop(session);
        eventually("the command is gone", || !runs(pid));
        no_session_is_left(&machine);
    }
}

#[test]
fn a_transport_reset_ends_nothing() {
    let machine = Machine::new();
    let directory = tempfile::tempdir().expect("temporary directory");
    let mark = directory.path().join("mark");
    let script = format!(
        "echo; sleep 0.5; head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2; echo ok > {}",
        mark.display()
    );
    let mut stream = machine.dial();
    let mut reader = stream.try_clone().expect("clone");
    greet(&mut reader, &mut stream).expect("hello");
    write_message(&mut stream, &Request::Exec(sh(&script))).expect("sent");
    let reply: Reply = read_message(&mut reader).expect("reply");
    let Reply::Started { pid, .. } = reply else {
        panic!("{reply:?}")
    };
    // A socket that is closed with unread bytes gives its peer ECONNRESET, as vsock does after a
    // restore.
    std::thread::sleep(Duration::from_millis(200));
    drop((stream, reader));
    eventually("the command goes on to its end", || mark.exists());
    eventually("it is reaped", || !runs(pid));
}

/// The log as far as it goes until it holds `what`.
fn log_until(reader: &mut LogReader<UnixStream>, what: &str) -> String {
    let mut text = String::new();
    while !text.contains(what) {
        match reader.next_output().expect("the log goes on") {
            LogOutput::Lines(lines) => text.push_str(&String::from_utf8_lossy(&lines)),
            LogOutput::Lost { bytes } => text.push_str(&format!("[{bytes} lost]\n")),
        }
    }
    text
}

fn detached(machine: &Machine, script: &str) -> u64 {
    let request = ExecRequest {
        detach: true,
        ..sh(script)
    };
    machine.start(request).session
}

#[test]
fn a_detached_command_writes_to_the_log() {
    let machine = Machine::new();
    let number = detached(
        &machine,
        "echo to-log; printf 'unended' >&2; sleep 0.2; exit 9",
    );
    let ended = || {
        let status = machine.connect().status().expect("status");
        let mut sessions = status.sessions.into_iter();
        sessions.find(|s| s.session == number).expect("remembered")
    };
    assert!(ended().detached);
    eventually("it ends", || ended().outcome.is_some());
    assert_eq!(ended().outcome.map(Outcome::exit_code), Some(9));
    // Kept until somebody reads it.
    let name = format!("exec {number}");
    let mut reader = machine.connect().log().expect("log");
    let text = log_until(&mut reader, &format!("{name}: ended with code 9\n"));
    for line in ["to-log", "unended"] {
        assert!(text.contains(&format!("{name}: {line}\n")), "{text}");
    }
    // Another reader takes over; the first one's connection ends.
    let mut other = machine.connect().log().expect("log");
    detached(&machine, "echo again");
    assert!(log_until(&mut other, "ended with").contains(": again\n"));
    assert!(reader.next_output().is_err());
    assert_eq!(machine.log.text(), "", "nothing goes to the console");
}

/// `exec -d -- sh -c './server &'`: the command is over at once, its server has a log.
#[test]
fn what_a_detached_command_leaves_writes_to_the_log_too() {
    let machine = Machine::new();
    let directory = tempfile::tempdir().expect("temporary directory");
    let go = directory.path().join("go");
    let script = format!(
        "(until test -e {0}; do sleep 0.05; done; echo serving; printf last >&2) & echo begun",
        go.display()
    );
    let number = detached(&machine, &script);
    let name = format!("exec {number}");
    let mut reader = machine.connect().log().expect("log");
    let text = log_until(&mut reader, &format!("{name}: ended with code 0\n"));
    assert!(text.contains(&format!("{name}: begun\n")), "{text}");
    let status = machine.connect().status().expect("status");
    let session = status.sessions.iter().find(|s| s.session == number);
    assert!(session.expect("remembered").outcome.is_some());
    std::fs::write(go, "").expect("write");
    let text = log_until(&mut reader, &format!("{name}: last\n"));
    assert!(text.contains(&format!("{name}: serving\n")), "{text}");
}

/// The agent may be killed, with all else in the guest, and is started again.
#[test]
fn a_number_is_given_once_whatever_becomes_of_the_agent() {
    use guest_agent::agent::{Agent, Config};
    let place = tempfile::tempfile().expect("file");
    let mut numbers = Vec::new();
    for _ in 0..3 {
        let agent = Agent::new(Config {
            owns_machine: false,
            log: Box::new(std::io::sink()),
            numbers: Some(place.try_clone().expect("clone")),
        });
        let agent = agent.expect("agent");
        for _ in 0..2 {
            let (ours, theirs) = UnixStream::pair().expect("socket pair");
            agent.accept(theirs.into());
            let stream = ours.try_clone().expect("clone");
            let client = agent_protocol::client::Connection::open(stream, ours).expect("hello");
            numbers.push(client.exec(sh("true")).expect("started").session);
        }
    }
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
}

#[test]
fn a_log_that_nobody_reads_keeps_the_newest_and_holds_nobody_up() {
    let machine = Machine::new();
    let number = detached(&machine, "seq -f 'line %.0f of a log' 200000");
    eventually("it ends without a reader", || {
        let status = machine.connect().status().expect("status");
        let ended = |s: &SessionStatus| s.session == number && s.outcome.is_some();
        status.sessions.iter().any(ended)
    });
    let mut reader = machine.connect().log().expect("log");
    let text = log_until(&mut reader, "ended with code 0\n");
    assert!(text.starts_with('['), "what was lost is said first");
    assert!(text.contains("line 200000 of a log\n"));
    assert!(text.len() < 3 << 20, "{} bytes were kept", text.len());
}

#[test]
fn a_reader_gets_all_of_a_log_however_long() {
    let machine = Machine::new();
    let mut reader = machine.connect().log().expect("log");
    let number = detached(&machine, "seq -f 'line %.0f of a log' 200000");
    let text = log_until(&mut reader, "ended with code 0\n");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 200_001);
    assert_eq!(lines[0], format!("exec {number}: line 1 of a log"));
    assert_eq!(
        lines[199_999],
        format!("exec {number}: line 200000 of a log")
    );
}

/// Whatever commands use up: control calls, and room for the other kinds of session.
#[test]
fn full_rooms_leave_room_for_the_others() {
    let machine = Machine::new();
    let mut background = 0;
    let refused = loop {
        let request = ExecRequest {
            detach: true,
            ..command(&["sleep", "1000"])
        };
        match machine.connect().exec(request) {
            Ok(session) => background = session.pid.max(background),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(&refused, ClientError::Agent { kind: ErrorKind::Busy, message } if message.contains("detached")),
        "{refused:?}"
    );
    assert_eq!(machine.sh("echo works").1, b"works\n");
    let mut client = machine.connect();
    client.ping().expect("ping");
    let status = client.status().expect("status");
    assert!(status.sessions.len() >= 1024, "{}", status.sessions.len());
    client.sync(Duration::from_millis(200)).expect("sync");
    for session in status.sessions {
        let pid = i32::try_from(session.pid).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("pid"), Signal::KILL).expect("killed");
    }
    eventually("there is room again", || {
        let request = ExecRequest {
            detach: true,
            ..command(&["true"])
        };
        machine.connect().exec(request).is_ok()
    });
}

/// Connections that say nothing are many, and no thread each.
#[test]
fn silent_connections_do_not_keep_others_out() {
    let machine = Machine::new();
    let silent: Vec<UnixStream> = (0..600).map(|_| machine.dial()).collect();
    let mut half: Vec<UnixStream> = (0..600).map(|_| machine.dial()).collect();
    for stream in &mut half {
        // The agent may have closed it already, to make room.
        let _ = stream.write_all(b"SMOL");
    }
    machine.connect().ping().expect("ping");
    assert_eq!(machine.sh("echo works").1, b"works\n");
    drop((silent, half));
}

#[test]
fn a_request_that_is_not_known_is_answered_and_the_connection_goes_on() {
    let machine = Machine::new();
    let mut stream = machine.dial();
    let mut reader = stream.try_clone().expect("clone");
    greet(&mut reader, &mut stream).expect("hello");
    // Number 99 without fields.
    stream
        .write_all(&[5, 0, 0, 0, 0, 0x82, 0x18, 99, 0xa0])
        .expect("sent");
    let reply: Reply = read_message(&mut reader).expect("reply");
    assert!(
        matches!(
            reply,
            Reply::Error {
                kind: ErrorKind::Unsupported,
                ..
            }
        ),
        "{reply:?}"
    );
    write_message(&mut stream, &Request::Ping).expect("sent");
    assert_eq!(
        read_message::<Reply>(&mut reader).expect("reply"),
        Reply::Ok
    );
}

/// As many as fit a piece that the agent reads, all unknown: each is answered, and none of them costs
/// the agent more than the one before.
#[test]
fn many_requests_that_are_not_known_are_no_danger() {
    let machine = Machine::new();
    let mut stream = machine.dial();
    let mut reader = stream.try_clone().expect("clone");
    greet(&mut reader, &mut stream).expect("hello");
    let unknown = [5, 0, 0, 0, 0, 0x82, 0x18, 99, 0xa0];
    const COUNT: usize = 7000;
    let writer = std::thread::spawn(move || {
        stream.write_all(&unknown.repeat(COUNT)).expect("sent");
        stream
    });
    for _ in 0..COUNT {
        let reply: Reply = read_message(&mut reader).expect("reply");
        assert!(matches!(reply, Reply::Error { .. }), "{reply:?}");
    }
    let mut stream = writer.join().expect("writer");
    write_message(&mut stream, &Request::Ping).expect("sent");
    let reply: Reply = read_message(&mut reader).expect("reply");
    assert_eq!(reply, Reply::Ok);
}

#[test]
fn control_calls_follow_each_other() {
    let machine = Machine::new();
    let mut client = machine.connect();
    client.ping().expect("ping");
    let report = client.sync(Duration::from_secs(60)).expect("sync");
    assert!(report.written);
    let own = std::process::id();
    let process = report
        .processes
        .list
        .iter()
        .find(|process| process.pid == own);
    let process = process.expect("this process is listed");
    assert!(process.ppid > 0 && !process.comm.is_empty(), "{process:?}");
    assert_eq!(client.agent(), agent_protocol::hello::Hello::OURS);
    let status = client.status().expect("status");
    assert!(
        status.uptime_ms > 0 && status.sessions.is_empty(),
        "{status:?}"
    );
    // This agent does not own the machine: it must not touch it.
    for result in [
        client.power_off(Duration::ZERO),
        client.reboot(Duration::ZERO),
        client.set_clock_to_now(),
        client.reseed(&[1; 64], [2; 16]).map(|_| ()),
        client.set_identity(&Identity::default()).map(|_| ()),
        client.resize_root().map(|_| ()),
    ] {
        let invalid = matches!(
            result,
            Err(ClientError::Agent {
                kind: ErrorKind::Invalid,
                ..
            })
        );
        assert!(invalid, "{result:?}");
    }
    client.ping().expect("still there");
}

#[test]
fn hostile_clients_end_only_themselves() {
    let machine = Machine::new();
    // No hello.
    let mut stream = machine.dial();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("sent");
    let mut rest = Vec::new();
    // Refused: an end of file, or a reset because the rest was not read.
    let _ = stream.read_to_end(&mut rest);
    assert_eq!(rest, b"");
    // A frame beyond the cap, and one that is no message.
    for frame in [
        (MAX_REQUEST_BYTES as u32 + 1).to_le_bytes().to_vec(),
        vec![1, 0, 0, 0, 99],
        vec![3, 0, 0, 0, 0, 0x82, 0xff],
    ] {
        let mut stream = machine.dial();
        let mut reader = stream.try_clone().expect("clone");
        greet(&mut reader, &mut stream).expect("hello");
        stream.write_all(&frame).expect("sent");
        assert_eq!(stream.read_to_end(&mut rest).expect("closed"), 0);
    }
    // More stdin than there is credit for: taken for dead.
    let mut stream = machine.dial();
    let mut reader = stream.try_clone().expect("clone");
    greet(&mut reader, &mut stream).expect("hello");
    let request = ExecRequest {
        stdin: true,
        ..sh("sleep 1000")
    };
    write_message(&mut stream, &Request::Exec(request)).expect("sent");
    let reply: Reply = read_message(&mut reader).expect("reply");
    let Reply::Started { pid, .. } = reply else {
        panic!("{reply:?}")
    };
    let flood = ExecInput::Stdin(Bytes(vec![0; 64 << 10]));
    while write_message(&mut stream, &flood).is_ok() {}
    eventually("the command is gone", || !runs(pid));
    machine.connect().ping().expect("the agent is well");
}

#[test]
fn many_sessions_do_not_cross() {
    let machine = Machine::new();
    std::thread::scope(|scope| {
        for worker in 0..8 {
            let machine = &machine;
            scope.spawn(move || {
                for round in 0..12 {
                    let word = format!("{worker}-{round}");
                    let (outcome, out, err) = machine.sh(&format!("echo {word}; echo {word} >&2"));
                    assert_eq!(outcome.exit_code(), 0);
                    assert_eq!(out, format!("{word}\n").as_bytes());
                    assert_eq!(err, out);
                }
            });
        }
    });
    no_session_is_left(&machine);
}
