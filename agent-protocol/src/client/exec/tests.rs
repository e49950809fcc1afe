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

/// Fails after its first word, and before that has nothing now and then.
struct Failing(std::collections::VecDeque<std::io::Result<&'static [u8]>>);

impl Read for Failing {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let word = self.0.pop_front().unwrap_or(Ok(b""))?;
        buffer[..word.len()].copy_from_slice(word);
        Ok(word.len())
    }
}

#[test]
fn input_that_cannot_be_read_is_not_the_end_of_input() {
    let (session, guest) = started(1000);
    let busy = || Err(ErrorKind::WouldBlock.into());
    let broken = Err(ErrorKind::IsADirectory.into());
    let source = Failing([busy(), Ok(&b"word"[..]), busy(), broken].into());
    let agent = std::thread::spawn(move || {
        let mut said = Vec::new();
        while let Ok(message) = read_message::<ExecInput>(&mut &guest) {
            said.push(message);
        }
        said
    });
    let ended = session.run(Some(source), &mut std::io::sink(), &mut std::io::sink());
    match ended {
        Err(ClientError::Input(error)) => assert_eq!(error.kind(), ErrorKind::IsADirectory),
        other => panic!("{other:?}"),
    }
    let said = agent.join().expect("agent");
    assert_eq!(said, [ExecInput::Stdin(Bytes::from("word"))]);
}

/// A guest that answers the hello and nothing more, and one that starts the command and hangs.
#[test]
fn a_command_of_a_guest_that_hangs_is_late() {
    use crate::client::TimedStream;
    for starts in [false, true] {
        let (ours, guest) = UnixStream::pair().expect("socket pair");
        let agent = std::thread::spawn(move || {
            welcome(&mut &guest, &mut &guest).expect("hello");
            let _: Request = read_message(&mut &guest).expect("request");
            if starts {
                let reply = Reply::Started {
                    session: 1,
                    pid: 2,
                    stdin_window: 0,
                };
                write_message(&mut &guest, &reply).expect("reply");
                let output = ExecOutput::Stdout(Bytes::from("so far"));
                write_message(&mut &guest, &output).expect("sent");
            }
            // Until the client gives up.
            let _ = std::io::copy(&mut &guest, &mut std::io::sink());
        });
        let (reader, writer, deadline) = TimedStream::pair(ours).expect("pair");
        let connection = Connection::open(reader, writer).expect("hello");
        deadline.set_with_patience(Duration::from_millis(50), Duration::from_millis(200));
        let mut out = Vec::new();
        let ended = connection
            .exec(ExecRequest::default())
            .and_then(|session| session.run(None::<&[u8]>, &mut out, &mut std::io::sink()));
        assert!(matches!(ended, Err(ClientError::Late)), "{ended:?}");
        assert_eq!(out, if starts { &b"so far"[..] } else { b"" });
        agent.join().expect("agent");
    }
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
