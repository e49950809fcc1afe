//! Sessions: clients that die, lose their transport, let go, misbehave or are many.

mod common;

use std::io::{Read, Write};
use std::time::Duration;

use agent_protocol::client::{ClientError, ExecEvent};
use agent_protocol::codec::Bytes;
use agent_protocol::frame::{MAX_FRAME_BYTES, read_message, write_message};
use agent_protocol::hello::greet;
use agent_protocol::message::{ErrorKind, ExecInput, ExecRequest, Outcome, Reply, Request};
use common::{Machine, eventually, runs, sh};

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

#[test]
fn a_detached_command_writes_to_the_log() {
    let machine = Machine::new();
    let script = "echo to-log; printf 'unended' >&2; sleep 0.2; exit 9";
    let session = machine.start(ExecRequest {
        detach: true,
        ..sh(script)
    });
    let number = session.session;
    drop(session);
    let ended = || {
        let status = machine.connect().status().expect("status");
        status
            .sessions
            .into_iter()
            .find(|s| s.session == number)
            .expect("remembered")
    };
    assert!(ended().detached);
    eventually("it ends", || ended().outcome.is_some());
    assert_eq!(ended().outcome.map(Outcome::exit_code), Some(9));
    let name = format!("exec {number}");
    for line in ["to-log", "unended"] {
        assert!(
            machine.log.text().contains(&format!("{name}: {line}\n")),
            "{}",
            machine.log.text()
        );
    }
    eventually("its end is in the log", || {
        machine
            .log
            .text()
            .contains(&format!("{name} ended with code 9"))
    });
}

#[test]
fn control_calls_follow_each_other() {
    let machine = Machine::new();
    let mut client = machine.connect();
    client.ping().expect("ping");
    client.sync(Duration::from_secs(60)).expect("sync");
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
        client.reseed(&[1; 64], [2; 16]),
        client.set_identity(&agent_protocol::message::Identity::default()),
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
        (MAX_FRAME_BYTES as u32 + 1).to_le_bytes().to_vec(),
        vec![1, 0, 0, 0, 99],
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
