//! Trees as a guest that is not ours would send them: nothing leads out of the target.

use std::fs::{self};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use agent_protocol::codec::Bytes;
use agent_protocol::message::CopyReport;
use agent_protocol::tree::{
    Metadata, Ownership, ReceiveError, SpecialKind, TreeItem, TreeReceiver,
};

fn meta(mode: u32) -> Metadata {
    Metadata {
        mode,
        ..Metadata::default()
    }
}

fn directory(name: &[u8]) -> TreeItem {
    TreeItem::Directory {
        name: name.into(),
        meta: meta(0o755),
    }
}

fn file(name: &[u8]) -> TreeItem {
    TreeItem::File {
        name: name.into(),
        meta: meta(0o644),
        link: None,
    }
}

fn data(offset: u64) -> TreeItem {
    TreeItem::Data {
        offset,
        data: Bytes::from("evil"),
    }
}

fn end(size_bytes: u64) -> TreeItem {
    TreeItem::FileEnd { size_bytes }
}

fn apply(target: &Path, items: Vec<TreeItem>) -> Result<CopyReport, ReceiveError> {
    let mut receiver = TreeReceiver::new(target, Ownership::Mine);
    for item in items {
        receiver.apply(item)?;
    }
    Ok(receiver.finish())
}

#[test]
fn nothing_leads_out_of_the_target() {
    let place = tempfile::tempdir().expect("temporary directory");
    let at = |name: &str| place.path().join(name);
    fs::create_dir(at("outside")).expect("directory");
    fs::create_dir(at("target")).expect("directory");
    symlink(at("outside"), at("target/way-out")).expect("symlink");
    let long = vec![b'x'; 256];
    for name in [&b".."[..], b".", b"", b"a/b", b"/etc", b"a\0b", &long] {
        for item in [directory(name), file(name)] {
            let items = vec![directory(b"top"), item];
            let result = apply(&at("target"), items);
            assert!(
                matches!(result, Err(ReceiveError::Invalid { .. })),
                "{name:?}: {result:?}"
            );
        }
    }
    // Through a link that was there, and through one that the stream makes.
    let made = TreeItem::Symlink {
        name: "made".into(),
        meta: meta(0o777),
        target: Bytes::from(at("outside").as_os_str().as_bytes()),
    };
    let inside = |name: &str| {
        vec![
            directory(name.as_bytes()),
            file(b"f"),
            data(0),
            end(4),
            TreeItem::EndDirectory,
        ]
    };
    let mut items = vec![directory(b"")];
    items.extend(inside("way-out"));
    items.push(made);
    items.extend(inside("made"));
    items.extend([TreeItem::EndDirectory, TreeItem::End]);
    let report = apply(&at("target"), items).expect("the rest is made");
    assert_eq!(report.problem_count, 2, "{report:?}");
    assert_eq!(fs::read_dir(at("outside")).expect("list").count(), 0);
}

#[test]
fn privileges_of_the_guest_mean_nothing_here() {
    let place = tempfile::tempdir().expect("temporary directory");
    let target = place.path().join("target");
    let device = TreeItem::Special {
        name: "disk".into(),
        meta: meta(0o666),
        kind: SpecialKind::BlockDevice,
        major: 254,
        minor: 0,
    };
    let program = TreeItem::File {
        name: "root-shell".into(),
        meta: meta(0o6755),
        link: None,
    };
    let items = vec![
        directory(b"t"),
        device,
        program,
        end(0),
        TreeItem::EndDirectory,
        TreeItem::End,
    ];
    let report = apply(&target, items).expect("the rest is made");
    assert_eq!(report.problem_count, 1);
    let mode = fs::metadata(target.join("root-shell"))
        .expect("stat")
        .mode();
    assert_eq!(mode & 0o7777, 0o755);
    assert!(!target.join("disk").exists());
}

#[test]
fn streams_that_break_the_rules_are_refused() {
    let place = tempfile::tempdir().expect("temporary directory");
    let far = u64::MAX - 1;
    let bad_mode = TreeItem::File {
        name: "f".into(),
        meta: meta(0o10_000),
        link: None,
    };
    let cases = [
        vec![data(0)],
        vec![end(0)],
        vec![TreeItem::EndDirectory],
        vec![directory(b"d"), TreeItem::End],
        vec![file(b"f"), file(b"g")],
        vec![file(b"f"), TreeItem::End],
        vec![file(b"f"), data(far)],
        vec![file(b"f"), end(far)],
        vec![file(b"f"), end(0), file(b"g")],
        vec![bad_mode],
    ];
    for items in cases {
        let shown = format!("{items:?}");
        let result = apply(&place.path().join("t"), items);
        assert!(
            matches!(result, Err(ReceiveError::Invalid { .. })),
            "{shown}: {result:?}"
        );
        let _ = fs::remove_dir_all(place.path().join("t"));
        let _ = fs::remove_file(place.path().join("t"));
    }
    let deep = (0..300).map(|_| directory(b"d")).collect();
    assert!(matches!(
        apply(&place.path().join("deep"), deep),
        Err(ReceiveError::Invalid { .. })
    ));
    assert_eq!(
        fs::read_dir(place.path()).expect("list").count(),
        1,
        "temporary files are left"
    );
}

mod hostile {
    //! Whatever a stream does, nothing appears outside the target.

    use super::*;
    use proptest::prelude::*;

    fn name() -> impl Strategy<Value = Bytes> {
        prop_oneof![
            8 => prop::sample::select(vec!["a", "b", "c", "link"]).prop_map(Bytes::from),
            1 => prop::sample::select(vec!["..", ".", "", "a/b", "/x", "../../x"]).prop_map(Bytes::from),
            1 => prop::collection::vec(any::<u8>(), 0..300).prop_map(Bytes::from),
        ]
    }

    fn item() -> impl Strategy<Value = TreeItem> {
        let metadata = || {
            (0u32..0o20_000, any::<i32>()).prop_map(|(mode, seconds)| Metadata {
                mode: if mode > 0o7777 { mode } else { mode | 0o700 },
                mtime_seconds: seconds.into(),
                ..Metadata::default()
            })
        };
        let target = prop::sample::select(vec!["..", "../outside", "/", "a"]).prop_map(Bytes::from);
        prop_oneof![
            3 => (name(), metadata()).prop_map(|(name, meta)| TreeItem::Directory { name, meta }),
            2 => Just(TreeItem::EndDirectory),
            3 => (name(), metadata(), prop::option::of(0u64..4))
                .prop_map(|(name, meta, link)| TreeItem::File { name, meta, link }),
            3 => (0u64..100_000, prop::collection::vec(any::<u8>(), 0..100))
                .prop_map(|(offset, data)| TreeItem::Data { offset, data: data.into() }),
            4 => (0u64..100_000).prop_map(|size_bytes| TreeItem::FileEnd { size_bytes }),
            1 => Just(TreeItem::FileBroken { message: "broken".into() }),
            2 => (name(), metadata(), target)
                .prop_map(|(name, meta, target)| TreeItem::Symlink { name, meta, target }),
            2 => (name(), 0u64..4).prop_map(|(name, link)| TreeItem::HardLink { name, link }),
            1 => Just(TreeItem::Problem { message: "x".repeat(5000) }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
        #[test]
        fn streams_stay_inside(items in prop::collection::vec(item(), 0..60)) {
            let place = tempfile::tempdir().expect("temporary directory");
            fs::create_dir(place.path().join("outside")).expect("directory");
            fs::create_dir(place.path().join("target")).expect("directory");
            let mut receiver = TreeReceiver::new(&place.path().join("target"), Ownership::Mine);
            receiver.apply(directory(b"top")).expect("good");
            for item in items {
                // Most streams break a rule somewhere; what counts is what they leave.
                if receiver.apply(item).is_err() {
                    break;
                }
            }
            drop(receiver);
            prop_assert_eq!(fs::read_dir(place.path().join("outside")).expect("list").count(), 0);
            prop_assert_eq!(fs::read_dir(place.path()).expect("list").count(), 2);
            prop_assert_eq!(fs::read_dir(place.path().join("target")).expect("list").count(), 1);
        }
    }
}
