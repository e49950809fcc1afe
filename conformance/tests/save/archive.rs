//! Points as one file.

use std::fs;
use std::process::Stdio;

use smolvm_engine::progress::Silent;
use smolvm_engine::{EngineError, ExportOptions, PointSource, chain};

use crate::bed::Bed;

#[test]
fn an_exported_point_is_restored_where_nothing_else_is_left() {
    let Some(bed) = Bed::open("an_exported_point_is_restored_where_nothing_else_is_left") else {
        return;
    };
    bed.boot("source", &[]);
    for number in 1..=3 {
        bed.sh(
            "source",
            &format!("echo {number} > /run/memory; echo {number} > /root/disk"),
        );
        bed.save("source", &format!("{number}.checkpoint"));
    }
    bed.delete("source");
    let run = |arguments: &[&str]| bed.run(arguments.iter().copied());
    let export = ["machine", "checkpoint-export", "3.checkpoint"];
    run(&[&export[..], &["-o", "all.tar"]].concat()).expect("export");
    run(&[
        &export[..],
        &["-o", "one.tar", "--at", "~1", "--history", "0"],
    ]
    .concat())
    .expect("export of an earlier one");
    let error = run(&[&export[..], &["-o", "all.tar"]].concat()).expect_err("it exists");
    assert!(error.contains("exists already"), "{error}");

    // The same bytes go through a pipe, and out of it.
    let mut piped = bed
        .command(export.into_iter().chain(["-o", "-"]))
        .stdout(Stdio::piped())
        .spawn()
        .expect("export starts");
    let imported = bed
        .command([
            "machine",
            "checkpoint-import",
            "-",
            "-o",
            "piped.checkpoint",
        ])
        .stdin(piped.stdout.take().expect("its output"))
        .output()
        .expect("import runs");
    assert!(imported.status.success(), "{imported:?}");
    assert!(piped.wait().expect("export ends").success());

    for name in ["1.checkpoint", "2.checkpoint", "3.checkpoint", "store"] {
        fs::remove_dir_all(bed.path(name)).expect("remove");
    }
    let restored = |file: &str, at: Option<&str>| {
        bed.restore("restored", file, at);
        let found = bed.sh("restored", "cat /run/memory /root/disk");
        bed.delete("restored");
        found
    };
    assert_eq!(restored("piped.checkpoint", Some("~2")), "1\n1");
    fs::remove_dir_all(bed.path("piped.checkpoint")).expect("remove");
    run(&["machine", "checkpoint-import", "one.tar"]).expect("import");
    assert_eq!(restored("one.checkpoint", None), "2\n2");
    assert!(
        bed.create_from("restored", "one.checkpoint", Some("~1"))
            .is_err()
    );
    // A file is as good as a checkpoint.
    run(&[
        "machine", "create", "--name", "straight", "--from", "all.tar",
    ])
    .expect("create");
    fs::remove_file(bed.path("one.tar")).expect("remove");
    bed.start("straight").expect("start");
    assert_eq!(bed.sh("straight", "cat /run/memory"), "3");
    bed.delete("straight");

    // One flipped bit, wherever: nothing appears, nothing is left.
    let whole = fs::read(bed.path("all.tar")).expect("read");
    for part in [1, 3, 5] {
        let mut damaged = whole.clone();
        let at = whole.len() * part / 6;
        damaged[at] ^= 1;
        fs::write(bed.path("damaged.tar"), &damaged).expect("write");
        let error = run(&["machine", "checkpoint-import", "damaged.tar"]).expect_err("damaged");
        assert!(
            error.contains("cannot be restored") || error.contains("damaged"),
            "{error}"
        );
        assert!(!bed.path("damaged.checkpoint").exists());
        fs::write(bed.path("damaged.tar"), &whole[..at]).expect("write");
        run(&["machine", "checkpoint-import", "damaged.tar"]).expect_err("cut off");
    }
    let left = fs::read_dir(bed.path("")).expect("list");
    let left = left.map(|entry| entry.expect("an entry").file_name());
    let hidden: Vec<_> = left
        .filter(|name| name.to_string_lossy().starts_with('.'))
        .collect();
    assert!(hidden.is_empty(), "{hidden:?}");
    let options = ExportOptions::new(PointSource::Id("00000000".to_owned()));
    let error = bed.engine.export(&options, &mut std::io::sink(), &Silent);
    let error: EngineError = error.expect_err("no such point");
    assert!(!chain(&error).is_empty());
}
