//! Every decoder on good, damaged and random input.

use agent_protocol::codec::{Bytes, Wire};
use agent_protocol::frame::push_frame;
use agent_protocol::fuzz;
use agent_protocol::hello::Hello;
use agent_protocol::message::{
    Activity, CopyIn, CopyReport, EnvVar, ErrorKind, ExecInput, ExecOutput, ExecRequest, Identity,
    LogOutput, Outcome, Owner, Process, Processes, Reply, Request, SessionStatus, SshHostKey,
    Status, StepOutcome, StepReport, SyncReport, TtySize,
};
use agent_protocol::tree::{Metadata, SpecialKind, TreeItem};
use proptest::prelude::*;

const DECODERS: [fn(&[u8]); 8] = [
    fuzz::request,
    fuzz::reply,
    fuzz::exec_input,
    fuzz::exec_output,
    fuzz::log_output,
    fuzz::tree_item,
    fuzz::hello,
    fuzz::frames,
];

fn requests() -> Vec<Request> {
    let exec = ExecRequest {
        argv: vec!["sh".into(), "-c".into(), b"\xff\0".into()],
        env: vec![EnvVar {
            name: "K".into(),
            value: "V".into(),
        }],
        directory: Some("/root".into()),
        user: Some("ana:users".into()),
        stdin: true,
        tty: Some(TtySize {
            rows: 24,
            columns: 80,
        }),
        timeout_ms: Some(u64::MAX),
        detach: false,
        make_directory: true,
    };
    let identity = Identity {
        hostname: Some("try-a".into()),
        machine_id: Some([1; 16].into()),
        boot_id: Some([2; 16].into()),
        random_seed: Some(Bytes(vec![3; 512])),
        ssh_host_keys: vec![SshHostKey {
            algorithm: "ed25519".into(),
            private_key: "private".into(),
            public_key: "public".into(),
        }],
        forget_dhcp: true,
    };
    vec![
        Request::Exec(exec),
        Request::Exec(ExecRequest::default()),
        Request::CopyIn(CopyIn {
            target: "/a".into(),
            name: "a".into(),
            owner: Some(Owner { uid: 1, gid: 2 }),
        }),
        Request::CopyOut {
            source: "/a".into(),
        },
        Request::Ping,
        Request::Sync { timeout_ms: 200 },
        Request::PowerOff { grace_ms: 1 },
        Request::Reboot { grace_ms: 2 },
        Request::SetClock {
            unix_nanos: u64::MAX,
        },
        Request::Reseed {
            seed: Bytes(vec![9; 64]),
            restore_id: [4; 16].into(),
        },
        Request::SetIdentity(identity),
        Request::ResizeRoot,
        Request::Status,
        Request::Log,
        Request::Release {
            index: 7,
            name: "try-7".into(),
        },
        Request::AwaitReady,
    ]
}

fn replies() -> Vec<Reply> {
    let kinds = [
        ErrorKind::Unsupported,
        ErrorKind::Invalid,
        ErrorKind::Busy,
        ErrorKind::NotFound,
        ErrorKind::TimedOut,
        ErrorKind::Failed,
    ];
    let session = |outcome| SessionStatus {
        session: 1,
        pid: 2,
        program: "sh".into(),
        detached: true,
        outcome,
    };
    let mut replies: Vec<Reply> = kinds
        .into_iter()
        .map(|kind| Reply::Error {
            kind,
            message: "déjà".into(),
        })
        .collect();
    replies.extend([
        Reply::Ok,
        Reply::Started {
            session: 1,
            pid: 2,
            stdin_window: 3,
        },
        Reply::NotStarted {
            code: 127,
            message: "gone".into(),
        },
        Reply::Copied(CopyReport {
            entries: 1,
            data_bytes: 2,
            problems: vec!["p".into()],
            problem_count: 3,
        }),
        Reply::Resized {
            size_bytes: 1 << 33,
        },
        Reply::Status(Status {
            agent_version: "1".into(),
            uptime_ms: 5,
            waiting: 1,
            announced: vec![7, u32::MAX],
            sessions: vec![session(None), session(Some(Outcome::TimedOut))],
        }),
        Reply::Released { count: 2 },
        Reply::Synced(SyncReport {
            written: true,
            processes: Processes {
                list: vec![Process {
                    pid: 2,
                    ppid: 1,
                    comm: b"a\xff".into(),
                    state: b'S',
                }],
                unlisted: 9,
            },
            activity: Some(Activity {
                threads: 4,
                cpu_nanos: 1 << 40,
                sessions: 6,
            }),
        }),
        Reply::Steps(
            [
                StepOutcome::Done,
                StepOutcome::UntilBoot,
                StepOutcome::Failed,
            ]
            .map(|outcome| StepReport {
                step: "host name".into(),
                outcome,
                reason: "why".into(),
            })
            .into(),
        ),
    ]);
    replies
}

fn streams() -> (Vec<ExecInput>, Vec<ExecOutput>) {
    let inputs = vec![
        ExecInput::Stdin("in".into()),
        ExecInput::StdinEnd,
        ExecInput::Resize(TtySize {
            rows: 1,
            columns: 2,
        }),
        ExecInput::Signal { number: -1 },
    ];
    let outputs = vec![
        ExecOutput::Stdout("out".into()),
        ExecOutput::Stderr("err".into()),
        ExecOutput::StdinCredit { bytes: 1 },
        ExecOutput::Exit(Outcome::Exited { code: 1 }),
        ExecOutput::Exit(Outcome::Signaled { number: 9 }),
        ExecOutput::Exit(Outcome::TimedOut),
    ];
    (inputs, outputs)
}

fn items() -> Vec<TreeItem> {
    let meta = Metadata {
        mode: 0o755,
        uid: 1,
        gid: 2,
        mtime_seconds: -1,
        mtime_nanos: 5,
    };
    let special = |kind| TreeItem::Special {
        name: "s".into(),
        meta,
        kind,
        major: 8,
        minor: 1,
    };
    vec![
        TreeItem::Directory {
            name: "".into(),
            meta,
        },
        TreeItem::EndDirectory,
        TreeItem::File {
            name: "f".into(),
            meta,
            link: Some(7),
        },
        TreeItem::Data {
            offset: 1 << 40,
            data: "data".into(),
        },
        TreeItem::FileEnd {
            size_bytes: 1 << 41,
        },
        TreeItem::FileBroken {
            message: "why".into(),
        },
        TreeItem::Symlink {
            name: "l".into(),
            meta,
            target: "t".into(),
        },
        TreeItem::HardLink {
            name: "h".into(),
            link: 7,
        },
        special(SpecialKind::Fifo),
        special(SpecialKind::CharacterDevice),
        special(SpecialKind::BlockDevice),
        TreeItem::Problem {
            message: "p".into(),
        },
        TreeItem::Abort {
            message: "a".into(),
        },
        TreeItem::End,
    ]
}

fn same<M: Wire + PartialEq + std::fmt::Debug>(messages: &[M]) -> Vec<Vec<u8>> {
    let encode = |message: &M| {
        let bytes = message.encode_payload();
        assert_eq!(&M::decode_payload(&bytes).expect("own encoding"), message);
        if message.as_data().is_some() {
            return bytes; // shorter data is data
        }
        for cut in 0..bytes.len() {
            assert!(
                M::decode_payload(&bytes[..cut]).is_err(),
                "{message:?} cut to {cut} bytes"
            );
        }
        bytes
    };
    messages.iter().map(encode).collect()
}

/// One encoding of each message, a hello, and a stream of frames.
fn corpus() -> Vec<Vec<u8>> {
    let (inputs, outputs) = streams();
    let mut corpus = same(&requests());
    corpus.extend(same(&replies()));
    corpus.extend(same(&inputs));
    corpus.extend(same(&outputs));
    corpus.extend(same(&items()));
    let lines = LogOutput::Lines("line\n".into());
    corpus.extend(same(&[lines, LogOutput::Lost { bytes: 7 }]));
    corpus.push(Hello::OURS.encode().to_vec());
    let mut frames = Vec::new();
    for item in items() {
        push_frame(&item, &mut frames).expect("small");
    }
    corpus.push(frames);
    corpus
}

#[test]
fn every_message_survives_and_no_beginning_of_it_decodes() {
    assert!(corpus().len() > 40);
}

#[test]
fn the_encoding_is_fixed() {
    let exec = ExecRequest {
        argv: vec!["a".into()],
        stdin: true,
        ..ExecRequest::default()
    };
    // Kind 0; an array of the variant's number and a map with one field; in it the struct as a map.
    assert_eq!(
        Request::Exec(exec).encode_payload(),
        [
            0, 0x82, 1, 0xa1, 0, 0xa5, 0, 0x81, 0x41, b'a', 1, 0x80, 4, 0xf5, 7, 0xf4, 8, 0xf4
        ]
    );
    assert_eq!(Request::Ping.encode_payload(), [0, 0x82, 4, 0xa0]);
    assert_eq!(
        ExecOutput::Exit(Outcome::Exited { code: 3 }).encode_payload(),
        [0, 0x82, 4, 0xa1, 0, 0x82, 1, 0xa1, 0, 3]
    );
    assert_eq!(Hello::OURS.encode(), *b"SMOLAGNT\x01\0\x01\0");
    // Data is raw.
    assert_eq!(ExecInput::Stdin("in".into()).encode_payload(), *b"\x01in");
    assert_eq!(
        ExecOutput::Stdout("out".into()).encode_payload(),
        *b"\x02out"
    );
    assert_eq!(
        ExecOutput::Stderr("err".into()).encode_payload(),
        *b"\x03err"
    );
    let data = TreeItem::Data {
        offset: 0x0102,
        data: "d".into(),
    };
    assert_eq!(
        data.encode_payload(),
        [4, 2, 1, 0, 0, 0, 0, 0, 0, b'd'],
        "little-endian offset"
    );
    assert_eq!(LogOutput::Lines("l".into()).encode_payload(), *b"\x05l");
}

/// Data has one encoding: nobody gets past its limits by sending it as a message.
#[test]
fn data_in_a_message_is_refused() {
    // ExecInput::Stdin and TreeItem::Data, in CBOR.
    let stdin = [0, 0x82, 1, 0xa1, 0, 0x41, b'x'];
    assert!(ExecInput::decode_payload(&stdin).is_err());
    let data = [0, 0x82, 4, 0xa2, 0, 0, 1, 0x41, b'x'];
    assert!(TreeItem::decode_payload(&data).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_are_refused_or_survive(data in prop::collection::vec(any::<u8>(), 0..200)) {
        for decoder in DECODERS {
            decoder(&data);
        }
    }

    #[test]
    fn damaged_messages_are_refused_or_survive(
        pick in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        thread_local! {
            static CORPUS: Vec<Vec<u8>> = corpus();
        }
        let mut data = CORPUS.with(|corpus| pick.get(corpus).clone());
        for (at, value) in changes {
            let at = at.index(data.len());
            data[at] = value;
        }
        for length in [data.len(), cut.index(data.len() + 1)] {
            for decoder in DECODERS {
                decoder(&data[..length]);
            }
        }
    }
}
