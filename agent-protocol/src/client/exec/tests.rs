//! Commands in a guest that does not keep to the rules.

use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::Duration;

use super::*;
use crate::frame::write_message;
use crate::hello::welcome;
use crate::message::ExecInput;

/// Far beyond what any of this takes.
const FOREVER: Duration = Duration::from_secs(60);

fn started(stdin_window: u32) -> (ExecSession<UnixStream, UnixStream>, UnixStream) {
    let (ours, guest) = UnixStream::pair().expect("socket pair");
    let greeting = std::thread::spawn(move || {
        welcome(&mut &guest, &mut &guest).expect("hello");
        let request: Request = read_message(&mut &guest).expect("request");
        assert!(matches!(request, Request::Exec(_)));
        let reply = Reply::Started {
            session: 1,
            pid: 2,
            stdin_window,
        };
        write_message(&mut &guest, &reply).expect("reply");
        guest
    });
    let reader = ours.try_clone().expect("clone");
    let connection = Connection::open(reader, ours).expect("hello");
    let session = connection.exec(ExecRequest::default()).expect("started");
    (session, greeting.join().expect("guest"))
}

/// The agent gives credit and reads nothing: whoever sends stdin is stuck, and that is all.
#[test]
fn signals_and_sizes_never_wait_for_a_guest_that_does_not_read() {
    let (session, _guest) = started(u32::MAX);
    let (writer, reader) = (session.writer, session.reader);
    let feeder = writer.feed_from(std::io::repeat(7));
    let (done, finished) = mpsc::channel();
    let control = writer.clone();
    std::thread::spawn(move || {
        let size = TtySize {
            rows: 1,
            columns: 2,
        };
        for _ in 0..10_000 {
            control.resize(size).expect("noted");
        }
        // Some are taken until the socket is full; if they piled up, this would never end.
        let refused = loop {
            if let Err(error) = control.signal(2) {
                break error;
            }
        };
        done.send(refused).expect("the test waits");
    });
    let refused = finished.recv_timeout(FOREVER).expect("nothing waited");
    assert!(matches!(refused, ClientError::NotTaken));
    drop((reader, writer, _guest));
    assert!(feeder.join().expect("feeder").is_err());
}

#[test]
fn what_a_newer_agent_says_besides_is_passed_over() {
    let (session, guest) = started(0);
    let mut reader = session.reader;
    // A variant with number 99 and no fields.
    let mut frame = vec![5, 0, 0, 0, 0, 0x82, 0x18, 99, 0xa0];
    std::io::Write::write_all(&mut &guest, &frame).expect("sent");
    write_message(&mut &guest, &ExecOutput::Stdout("x".into())).expect("sent");
    assert_eq!(
        reader.next_event().expect("event"),
        ExecEvent::Stdout("x".into())
    );
    // But what is no message at all ends the session.
    frame[5] = 0xff;
    std::io::Write::write_all(&mut &guest, &frame).expect("sent");
    assert!(matches!(reader.next_event(), Err(ClientError::Frame(_))));
}

#[test]
fn input_arrives_in_order_and_the_end_after_it() {
    let (session, guest) = started(10);
    let (writer, reader) = (session.writer, session.reader);
    writer.write_stdin(b"0123456789").expect("credit");
    writer.end_stdin().expect("noted");
    let next = || read_message::<ExecInput>(&mut &guest).expect("input");
    let mut data = Vec::new();
    loop {
        match next() {
            ExecInput::Stdin(bytes) => data.extend_from_slice(&bytes),
            ExecInput::StdinEnd => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(data, b"0123456789");
    // The last holder closes the connection.
    drop(writer);
    drop(reader);
    assert!(read_message::<ExecInput>(&mut &guest).is_err());
}

#[test]
fn the_agents_words_are_cut_and_escaped() {
    let (ours, guest) = UnixStream::pair().expect("socket pair");
    std::thread::spawn(move || {
        welcome(&mut &guest, &mut &guest).expect("hello");
        let words = "\x1b]0;owned\x07\u{9b}2J".repeat(50_000);
        for reply in [
            Reply::NotStarted {
                code: 126,
                message: words.clone(),
            },
            Reply::Error {
                kind: crate::message::ErrorKind::Failed,
                message: words.clone(),
            },
            Reply::Status(crate::message::Status {
                agent_version: words,
                ..Default::default()
            }),
        ] {
            let _: Request = read_message(&mut &guest).expect("request");
            write_message(&mut &guest, &reply).expect("reply");
        }
    });
    let mut connection = Connection::open(&ours, &ours).expect("hello");
    for _ in 0..3 {
        let text = connection.ping().expect_err("refused").to_string();
        assert!(text.len() < 2000, "{} bytes", text.len());
        assert!(!text.chars().any(char::is_control), "{text:?}");
    }
}
