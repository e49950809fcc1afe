//! Commands as a client sees them.

mod common;

use std::io::Write;
use std::time::{Duration, Instant};

use agent_protocol::client::{ClientError, ExecEvent};
use agent_protocol::codec::Bytes;
use agent_protocol::message::{EnvVar, ExecRequest, Outcome, TtySize};
use common::{Machine, Noise, command, eventually, finish, runs, sh};

fn not_started(machine: &Machine, request: ExecRequest) -> (u8, String) {
    match machine.connect().exec(request) {
        Err(ClientError::NotStarted { code, message }) => (code, message),
        other => panic!("started: {other:?}"),
    }
}

#[test]
fn streams_are_separate_and_exact() {
    let machine = Machine::new();
    let script = "printf 'a\\0b\\377'; printf 'err\\n' >&2; printf c; exit 7";
    let (outcome, out, err) = machine.sh(script);
    assert_eq!(outcome, Outcome::Exited { code: 7 });
    assert_eq!(out, b"a\0b\xffc");
    assert_eq!(err, b"err\n");
}

#[test]
fn codes_are_those_of_a_shell() {
    let machine = Machine::new();
    assert_eq!(machine.sh("exit 255").0.exit_code(), 255);
    assert_eq!(machine.sh("kill -KILL $$").0.exit_code(), 137);
    assert_eq!(machine.sh("kill -TERM $$").0.exit_code(), 143);
    assert_eq!(not_started(&machine, command(&["no-such-program"])).0, 127);
    assert_eq!(not_started(&machine, command(&["/no/such/program"])).0, 127);
    assert_eq!(not_started(&machine, command(&["/etc/passwd"])).0, 126);
    assert_eq!(not_started(&machine, command(&["/etc"])).0, 126);
    assert_eq!(not_started(&machine, command(&[""])).0, 127);
    let (code, message) = not_started(
        &machine,
        ExecRequest {
            directory: Some(Bytes::from("/no/such")),
            ..sh("true")
        },
    );
    assert_eq!(code, 126);
    assert!(message.contains("/no/such"), "{message}");
    let request = ExecRequest {
        user: Some("nobody-here".into()),
        ..sh("true")
    };
    assert_eq!(not_started(&machine, request).0, 126);
}

#[test]
fn a_script_without_interpreter_line_is_run_by_the_shell() {
    use std::os::unix::fs::PermissionsExt;
    let machine = Machine::new();
    let directory = tempfile::tempdir().expect("temporary directory");
    let script = directory.path().join("plain");
    std::fs::write(&script, "echo plain $1\n").expect("write");
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).expect("chmod");
    let request = ExecRequest {
        directory: Some(Bytes::from(directory.path().to_str().expect("UTF-8"))),
        ..command(&["./plain", "words"])
    };
    let (outcome, out, _) = finish(machine.start(request));
    assert_eq!(
        (outcome.exit_code(), out.as_slice()),
        (0, b"plain words\n".as_slice())
    );
}

#[test]
fn environment_directory_and_empty_stdin() {
    let machine = Machine::new();
    let variable = |name: &str, value: &str| EnvVar {
        name: name.into(),
        value: value.into(),
    };
    let request = ExecRequest {
        env: vec![
            variable("K", "first"),
            variable("K", "a b\n"),
            variable("HOME", "/elsewhere"),
        ],
        directory: Some(Bytes::from("/usr/bin")),
        ..sh("printf '%s|%s|%s|%s' \"$K\" \"$HOME\" \"$PATH\" \"$PWD\"; cat; env | wc -l")
    };
    let (_, out, _) = finish(machine.start(request));
    let out = String::from_utf8(out).expect("text");
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/run/smolvm/bin";
    assert!(
        out.starts_with(&format!("a b\n|/elsewhere|{path}|/usr/bin")),
        "{out}"
    );
    let bad = ExecRequest {
        env: vec![variable("A=B", "x")],
        ..sh("true")
    };
    assert_eq!(not_started(&machine, bad).0, 126);
    // As an image may have it.
    let nameless = ExecRequest {
        env: vec![variable("", "x")],
        ..command(&["cat", "/proc/self/environ"])
    };
    let (_, out, _) = finish(machine.start(nameless));
    let mut entries = out.split(|&byte| byte == 0);
    assert!(entries.any(|entry| entry == b"=x"));
}

#[test]
fn users_and_groups() {
    if !rustix::process::geteuid().is_root() {
        // Seen with --nocapture; as root, where the agent lives, it runs.
        let _ = writeln!(std::io::stderr(), "skipped: changing the user needs root");
        return;
    }
    let machine = Machine::new();
    let id = |user: &str| {
        let script = "id -u; id -g; id -G; echo $HOME";
        let request = ExecRequest {
            user: Some(user.into()),
            ..sh(script)
        };
        String::from_utf8(finish(machine.start(request)).1).expect("text")
    };
    assert_eq!(id("65534:7"), "65534\n7\n7\n/nonexistent\n");
    assert_eq!(id("4242"), "4242\n4242\n4242\n/\n");
    assert!(id("root").starts_with("0\n0\n0"));
    let closed = tempfile::tempdir().expect("temporary directory");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(closed.path(), mode).expect("chmod");
    let request = ExecRequest {
        user: Some("4242".into()),
        directory: Some(Bytes::from(closed.path().to_str().expect("UTF-8"))),
        ..sh("true")
    };
    let (code, message) = not_started(&machine, request);
    assert_eq!(code, 126);
    assert!(message.contains("cannot enter"), "{message}");
    let request = ExecRequest {
        user: Some("4242".into()),
        directory: None,
        ..sh("pwd")
    };
    assert_eq!(finish(machine.start(request)).1, b"/\n");
}

#[test]
fn a_hundred_mebibytes_both_ways() {
    const BYTES: usize = 100 << 20;
    let machine = Machine::new();
    let session = machine.start(ExecRequest {
        stdin: true,
        ..command(&["cat"])
    });
    let (writer, mut reader) = (session.writer, session.reader);
    let feeder = std::thread::spawn(move || {
        let mut noise = Noise::new(7);
        let mut left = BYTES;
        while left > 0 {
            let piece = noise.bytes(left.min(1 << 20));
            writer.write_stdin(&piece).expect("taken");
            left -= piece.len();
        }
        writer.end_stdin().expect("taken");
    });
    let (mut noise, mut kept, mut seen) = (Noise::new(7), Vec::new(), 0);
    loop {
        match reader.next_event().expect("alive") {
            ExecEvent::Stdout(data) => {
                while kept.len() < data.len() {
                    kept.extend(noise.bytes(1 << 20));
                }
                assert!(
                    kept[..data.len()] == data[..],
                    "bytes from {seen} on differ"
                );
                kept.drain(..data.len());
                seen += data.len();
            }
            ExecEvent::Stderr(data) => panic!("cat complains: {data:?}"),
            ExecEvent::Exit(outcome) => {
                assert_eq!(outcome.exit_code(), 0);
                break;
            }
        }
    }
    assert_eq!(seen, BYTES);
    feeder.join().expect("feeder");
}

#[test]
fn stdin_that_nobody_reads_holds_up_nothing() {
    let machine = Machine::new();
    let request = ExecRequest {
        stdin: true,
        ..sh("echo ready; sleep 1000")
    };
    let session = machine.start(request);
    let (writer, mut reader) = (session.writer, session.reader);
    let stuck = writer.clone();
    let stuck = std::thread::spawn(move || stuck.write_stdin(&vec![0; 8 << 20]));
    assert_eq!(
        reader.next_event().expect("output"),
        ExecEvent::Stdout(Bytes::from("ready\n"))
    );
    writer.signal(15).expect("sent");
    let end = reader.next_event().expect("end");
    assert_eq!(end, ExecEvent::Exit(Outcome::Signaled { number: 15 }));
    assert!(matches!(
        stuck.join().expect("thread"),
        Err(ClientError::Ended)
    ));
}

#[test]
fn output_that_nobody_reads_holds_only_the_command_back() {
    let machine = Machine::new();
    let session = machine.start(sh("head -c 20000000 /dev/zero; echo done >&2"));
    std::thread::sleep(Duration::from_millis(200));
    let (outcome, out, err) = finish(session);
    assert_eq!(
        (outcome.exit_code(), out.len(), err.as_slice()),
        (0, 20_000_000, &b"done\n"[..])
    );
}

/// A command may end while its last bytes are in its terminal and the agent has no room for them: nobody
/// reads until then. How much that is depends on the kernel's buffers, so it is found by trying.
#[test]
fn a_terminals_output_is_whole_however_late_it_is_read() {
    let machine = Machine::new();
    let tty = Some(TtySize {
        rows: 24,
        columns: 80,
    });
    let mut written = 200_000;
    let mut ended_by_itself = true;
    while ended_by_itself {
        written += 12_000;
        let script = format!("stty -opost; head -c {written} /dev/zero; printf END");
        let session = machine.start(ExecRequest { tty, ..sh(&script) });
        let pid = session.pid;
        // One that is still there after this long waits for us. That ends the search and nothing else.
        let until = Instant::now() + Duration::from_millis(500);
        ended_by_itself = loop {
            if !runs(pid) {
                break true;
            }
            if Instant::now() > until {
                break false;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        // Far longer than a terminal has to be quiet.
        std::thread::sleep(Duration::from_millis(100));
        let (outcome, out, _) = finish(session);
        assert_eq!(outcome.exit_code(), 0);
        assert!(out.ends_with(b"END"), "{} of {written} bytes", out.len());
        assert_eq!(out.len(), written + 3);
    }
}

#[test]
fn a_process_in_the_background_holds_nothing_up_and_goes_on() {
    let machine = Machine::new();
    let directory = tempfile::tempdir().expect("temporary directory");
    let mark = directory.path().join("mark");
    // Writes far more than a pipe holds after the command's own end.
    let script = format!(
        "echo $$; (sleep 0.3; head -c 1000000 /dev/zero; echo late >&2; echo alive > {}; sleep 1000) & \
         echo $!; echo end",
        mark.display()
    );
    let start = Instant::now();
    let (outcome, out, _) = machine.sh(&script);
    assert!(
        start.elapsed() < Duration::from_secs(100),
        "waited for the background"
    );
    assert_eq!(outcome.exit_code(), 0);
    let out = String::from_utf8(out).expect("text");
    let words: Vec<&str> = out.split_whitespace().collect();
    assert_eq!(words.len(), 3, "{out:?}");
    eventually("the process writes on", || mark.exists());
    let pid: u32 = words[1].parse().expect("pid");
    assert!(runs(pid));
    let group = rustix::process::Pid::from_raw(words[0].parse().expect("pid")).expect("pid");
    rustix::process::kill_process_group(group, rustix::process::Signal::KILL).expect("kill");
}

#[test]
fn a_timeout_ends_the_whole_group() {
    let machine = Machine::new();
    let script = "trap '' TERM; echo $$; sleep 1000 & echo $!; wait; sleep 1000";
    let request = ExecRequest {
        timeout_ms: Some(300),
        ..sh(script)
    };
    let (outcome, out, _) = finish(machine.start(request));
    assert_eq!(outcome, Outcome::TimedOut);
    assert_eq!(outcome.exit_code(), 124);
    let out = String::from_utf8(out).expect("text");
    for pid in out.split_whitespace() {
        let pid = pid.parse().expect("pid");
        eventually("the group is gone", || !runs(pid));
    }
    let quick = ExecRequest {
        timeout_ms: Some(60_000),
        ..sh("exit 3")
    };
    assert_eq!(finish(machine.start(quick)).0.exit_code(), 3);
}

#[test]
fn a_terminal_has_a_size_and_an_end() {
    let machine = Machine::new();
    let tty = Some(TtySize {
        rows: 24,
        columns: 80,
    });
    let script = "test -t 0 && test -t 1 && test -t 2 && echo tty; stty size; \
                  trap 'stty size; exit 5' WINCH; echo go; while :; do sleep 0.05; done";
    let session = machine.start(ExecRequest { tty, ..sh(script) });
    let (writer, mut reader) = (session.writer, session.reader);
    let mut text = String::new();
    let mut resized = false;
    let outcome = loop {
        match reader.next_event().expect("alive") {
            ExecEvent::Stdout(data) => text.push_str(&String::from_utf8_lossy(&data)),
            ExecEvent::Stderr(data) => panic!("stderr on a terminal: {data:?}"),
            ExecEvent::Exit(outcome) => break outcome,
        }
        if text.contains("go") && !resized {
            writer
                .resize(TtySize {
                    rows: 50,
                    columns: 132,
                })
                .expect("sent");
            resized = true;
        }
    };
    assert_eq!(outcome.exit_code(), 5);
    assert_eq!(text, "tty\r\n24 80\r\ngo\r\n50 132\r\n");
}

#[test]
fn a_terminal_takes_input_and_control_characters() {
    let machine = Machine::new();
    let tty = Some(TtySize {
        rows: 24,
        columns: 80,
    });
    let session = machine.start(ExecRequest {
        tty,
        stdin: true,
        ..sh("stty -echo; echo go; cat; echo bye")
    });
    let (writer, mut reader) = (session.writer, session.reader);
    let mut text = String::new();
    let mut sent = false;
    loop {
        match reader.next_event().expect("alive") {
            ExecEvent::Stdout(data) => text.push_str(&String::from_utf8_lossy(&data)),
            ExecEvent::Stderr(data) => panic!("stderr on a terminal: {data:?}"),
            ExecEvent::Exit(outcome) => {
                assert_eq!(outcome.exit_code(), 0);
                break;
            }
        }
        if text.contains("go") && !sent {
            writer.write_stdin(b"one\ntwo").expect("taken");
            writer.end_stdin().expect("sent");
            sent = true;
        }
    }
    assert_eq!(text, "go\r\none\r\ntwobye\r\n");
    // Ctrl-C goes to the foreground of the terminal. No shell here: one that is about to start a
    // command would first wait for it.
    let session = machine.start(ExecRequest {
        tty,
        stdin: true,
        ..command(&["cat"])
    });
    let (writer, mut reader) = (session.writer, session.reader);
    writer.write_stdin(b"hi\n").expect("taken");
    let mut text = String::new();
    let outcome = loop {
        match reader.next_event().expect("alive") {
            ExecEvent::Stdout(data) => text.push_str(&String::from_utf8_lossy(&data)),
            ExecEvent::Stderr(data) => panic!("stderr on a terminal: {data:?}"),
            ExecEvent::Exit(outcome) => break outcome,
        }
        if text == "hi\r\nhi\r\n" {
            writer.write_stdin(b"\x03").expect("taken");
        }
    };
    assert_eq!(outcome.exit_code(), 130);
}

/// Without stdin a reader of the terminal finds its end, as one of an empty stdin does.
#[test]
fn a_terminal_that_nobody_types_on_has_an_end() {
    let machine = Machine::new();
    let tty = Some(TtySize {
        rows: 24,
        columns: 80,
    });
    let request = ExecRequest {
        tty,
        ..sh("cat; echo over")
    };
    let session = machine.start(request);
    // What is typed all the same is not taken, and no fault.
    session.writer.write_stdin(b"typed\n").expect("sent");
    let (outcome, out, _) = finish(session);
    assert_eq!((outcome.exit_code(), &out[..]), (0, &b"over\r\n"[..]));
}

/// Linux takes 2 MiB in all, in any number of words.
#[test]
fn long_command_lines() {
    let machine = Machine::new();
    let count = |words: Vec<String>| {
        let mut request = sh("echo $#");
        request.argv.push("sh".into());
        request.argv.extend(words.iter().map(Bytes::from));
        let (_, out, _) = finish(machine.start(request));
        String::from_utf8(out).expect("text")
    };
    assert_eq!(count(vec!["x".repeat(100_000); 11]), "11\n");
    let many = (0..70_000).map(|number| format!("f{number}")).collect();
    assert_eq!(count(many), "70000\n");
    // Beyond what Linux takes: its own words.
    let mut request = sh("true");
    request.argv.extend(vec![Bytes(vec![b'x'; 100_000]); 70]);
    let (code, message) = not_started(&machine, request);
    assert_eq!(code, 126);
    assert!(message.contains("Argument list too long"), "{message}");
    // Beyond what the protocol takes: said before anything is sent.
    let mut request = sh("true");
    request.argv.push(Bytes(vec![b'x'; 9 << 20]));
    let error = machine.connect().exec(request).expect_err("too long");
    assert!(error.to_string().contains("at most 8388608"), "{error}");
}

#[test]
fn a_directory_is_made_only_when_asked_for() {
    let machine = Machine::new();
    let place = tempfile::tempdir().expect("temporary directory");
    let directory = place.path().join("app/src");
    let request = |make_directory| ExecRequest {
        directory: Some(Bytes::from(directory.to_str().expect("UTF-8"))),
        make_directory,
        ..command(&["pwd"])
    };
    assert_eq!(not_started(&machine, request(false)).0, 126);
    assert!(!directory.exists());
    let (_, out, _) = finish(machine.start(request(true)));
    assert_eq!(out, format!("{}\n", directory.display()).as_bytes());
    std::fs::remove_dir(&directory).expect("removed");
    std::fs::write(&directory, "a file in its place").expect("write");
    assert_eq!(not_started(&machine, request(true)).0, 126);
}
