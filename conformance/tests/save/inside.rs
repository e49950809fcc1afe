//! Looking into points: files out of them, and what differs. The machines need not be there any more.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use sha2::{Digest, Sha256};
use smolvm_engine::progress::Silent;
use smolvm_engine::{CheckpointOptions, chain};

use crate::bed::{Bed, Saved, long, machine};

/// Makes a tree with what is difficult: links, holes, 100 MiB of noise, a directory that gets an index, deep and odd names.
const TREE: &str = r#"
    mkdir -p /root/tree/a/b/c /root/tree/many; cd /root/tree
    i=0; while [ $i -lt 120 ]; do mkdir -p "deep/$i"; cd deep/$i; i=$((i+1)); done; echo bottom > file; cd /root/tree
    head -c 104857600 /dev/urandom > large
    echo small > a/b/small; ln a/b/small a/b/c/again; : > a/empty
    ln -s b/small a/link; ln -s /root/tree/a jump; ln -s nowhere dangling; ln -s "$(printf '%0200d' 0)" long
    python3 - << 'END'
import os
for number in range(3000):
    with open(f"many/a file with a rather long name {number}", "w") as file:
        file.write(str(number))
with open("sparse", "wb") as file:
    for number in range(40):
        file.seek(number * 1000003)
        file.write(os.urandom(1000))
    file.truncate(1 << 30)
open(b"a/odd \xff\n\x1b[31m name", "w").write("odd")
END
    chmod 600 a/b/small; chmod 755 a/empty; mkfifo fifo
"#;

/// Of each file of a tree: kind, permissions, size, links and digest or target, with the path in front.
const LIST: &str = r#"
import hashlib, os, stat, sys
root = b"/root/tree"
for folder, folders, files in os.walk(root):
    for name in folders + files:
        path = os.path.join(folder, name)
        found = os.lstat(path)
        kind, content = stat.S_IFMT(found.st_mode), ""
        if stat.S_ISREG(found.st_mode):
            digest = hashlib.sha256()
            with open(path, "rb") as file:
                while piece := file.read(1 << 20):
                    digest.update(piece)
            content = digest.hexdigest()
        elif stat.S_ISLNK(found.st_mode):
            content = os.readlink(path).hex()
        mode = 0 if stat.S_ISLNK(found.st_mode) else found.st_mode & 0o7777
        size, links = (found.st_size, found.st_nlink) if stat.S_ISREG(found.st_mode) else (0, 0)
        print(os.path.relpath(path, root).hex(), kind, mode, size, links, int(found.st_mtime), content)
"#;

type Listing = BTreeMap<String, String>;

/// What the guest says that its tree is.
fn listed(bed: &Bed, name: &str) -> Listing {
    bed.put(name, "/run/list.py", LIST);
    let lines = bed.exec(name, &["python3", "/run/list.py"]);
    let lines = lines.lines().filter_map(|line| line.split_once(' '));
    lines
        .map(|(path, rest)| (path.to_owned(), rest.to_owned()))
        .collect()
}

/// The same of a tree on this host.
fn found(root: &Path) -> Listing {
    let mut listing = Listing::new();
    let mut left = vec![root.to_owned()];
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(&folder).expect("list") {
            let path = entry.expect("an entry").path();
            let metadata = path.symlink_metadata().expect("metadata");
            let (mut content, mut mode) = (String::new(), metadata.mode() & 0o7777);
            let (mut size, mut links) = (0, 0);
            if metadata.is_dir() {
                left.push(path.clone());
            } else if metadata.is_symlink() {
                mode = 0;
                content = hex(fs::read_link(&path)
                    .expect("a link")
                    .as_os_str()
                    .as_encoded_bytes());
            } else if metadata.is_file() {
                (size, links) = (metadata.size(), metadata.nlink());
                content = digest(&path);
            }
            let name = path.strip_prefix(root).expect("below the root");
            let kind = metadata.mode() & 0o170_000;
            let line = format!(
                "{kind} {mode} {size} {links} {} {content}",
                metadata.mtime()
            );
            let name = hex(name.as_os_str().as_encoded_bytes());
            listing.insert(name, line.trim_end().to_owned());
        }
    }
    listing
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("strings take all");
        text
    })
}

fn digest(path: &Path) -> String {
    let mut file = fs::File::open(path).expect("open");
    let (mut hasher, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer).expect("read") {
            0 => return hex(&hasher.finalize()),
            length => hasher.update(&buffer[..length]),
        }
    }
}

fn assert_same(context: &str, found: &Listing, expected: &Listing) {
    let keys = |listing: &Listing| listing.keys().cloned().collect::<Vec<_>>();
    assert!(
        expected.len() > 3000,
        "{context}: only {} files",
        expected.len()
    );
    assert_eq!(keys(found), keys(expected), "{context}");
    for (path, line) in expected {
        assert_eq!(&found[path], line.trim_end(), "{context}: {path}");
    }
}

/// Saves until the point says that the guest had listed its processes and written its disk: on a busy host it may be late.
/// Returns how often: so many generations it is to the point before.
fn save_whole(bed: &Bed, name: &str, file: &str) -> usize {
    for saves in 1..=20 {
        bed.save(name, file);
        let saved = Saved::open(&bed.path(file));
        let record = saved.point.record();
        if record.processes.is_some() && record.disks_written {
            return saves;
        }
        fs::remove_dir_all(bed.path(file)).expect("remove");
    }
    panic!("the guest never wrote its disk in time");
}

fn copy(bed: &Bed, from: &str, to: &str) -> Result<String, String> {
    bed.run(["machine", "cp", from, to])
}

#[test]
fn files_come_out_of_points_as_the_guest_had_them() {
    let Some(bed) = Bed::open("files_come_out_of_points_as_the_guest_had_them") else {
        return;
    };
    bed.boot("source", &[]);
    bed.sh("source", TREE);
    let first = listed(&bed, "source");
    bed.sh("source", "sync");
    // What was not synced is written by the agent before the pause; what lies in memory only never is.
    bed.sh(
        "source",
        "echo unsynced > /root/unsynced; echo memory > /run/memory",
    );
    save_whole(&bed, "source", "1.checkpoint");
    bed.sh(
        "source",
        "cd /root/tree; rm -r many deep; head -c 5000000 /dev/urandom | dd of=large bs=1M seek=20 conv=notrunc 2> /dev/null; \
         chmod 644 a/b/small; echo more >> a/b/small; mv a moved; sync",
    );
    let first_is = save_whole(&bed, "source", "2.checkpoint");
    let in_first = |path: &str| format!("2.checkpoint@~{first_is}:{path}");
    // One in the default store, without a directory of its own.
    let kept = bed
        .engine
        .checkpoint(&machine("source"), &CheckpointOptions::default(), &Silent);
    let kept = kept.unwrap_or_else(|error| panic!("{}", chain(&error)));
    let export = [
        "machine",
        "checkpoint-export",
        "2.checkpoint",
        "-o",
        "2.tar",
    ];
    bed.run(export).expect("export");

    // While it runs, by its own name.
    let of_machine = format!("source@~{}:/root/tree", first_is + 1);
    copy(&bed, &of_machine, "by-machine").expect("copy");
    assert_same(&of_machine, &found(&bed.path("by-machine")), &first);
    fs::remove_dir_all(bed.path("by-machine")).expect("remove");
    copy(&bed, "source@~0:/root/tree/moved/b/small", "small").expect("copy");
    assert_eq!(
        fs::read_to_string(bed.path("small")).expect("read"),
        "small\nmore\n"
    );

    bed.delete("source");
    fs::remove_dir_all(bed.path("1.checkpoint")).expect("remove");
    fs::remove_dir_all(bed.path("store")).expect("remove");
    for from in ["2.checkpoint@~", "./2.checkpoint@", "2.tar@~"] {
        copy(&bed, &format!("{from}{first_is}:/root/tree"), "out").expect("copy");
        assert_same(from, &found(&bed.path("out")), &first);
        let sparse = bed.path("out/sparse").metadata().expect("metadata");
        assert!(
            sparse.blocks() * 512 < 4 << 20,
            "{} blocks",
            sparse.blocks()
        );
        fs::remove_dir_all(bed.path("out")).expect("remove");
    }
    let id = &kept.short_id;
    copy(&bed, &format!("{id}@{id}:/root/tree/large"), "large").expect("copy");
    copy(&bed, "2.checkpoint:/root/tree/large", "again").expect("copy");
    assert_eq!(digest(&bed.path("large")), digest(&bed.path("again")));
    copy(&bed, &in_first("/root/tree/large"), "before").expect("copy");
    let mut before = fs::File::open(bed.path("before")).expect("open");
    before.seek(SeekFrom::Start(20 << 20)).expect("seek");
    let length = fs::metadata(bed.path("large")).expect("metadata").len();
    assert_eq!(length, 104_857_600);
    assert_ne!(digest(&bed.path("before")), digest(&bed.path("large")));

    // Links on the way lead where the guest would go; the last one is copied as a link.
    copy(&bed, &in_first("/root/tree/jump/b/small"), "linked").expect("copy");
    assert_eq!(
        fs::read_to_string(bed.path("linked")).expect("read"),
        "small\n"
    );
    copy(&bed, &in_first("/root/tree/jump"), "jump").expect("copy");
    assert_eq!(
        fs::read_link(bed.path("jump")).expect("a link"),
        Path::new("/root/tree/a")
    );
    copy(&bed, &in_first("/root/unsynced"), "unsynced").expect("copy");
    assert_eq!(
        fs::read_to_string(bed.path("unsynced")).expect("read"),
        "unsynced\n"
    );
    for (place, why) in [
        (&*in_first("/run/memory"), "no such file"),
        (&*in_first("/root/tree/nothing"), "no such file"),
        (&*in_first("/root/unsynced/x"), "not a directory"),
        ("2.checkpoint@~99:/root", "~99"),
        ("nothing.checkpoint:/root", "nothing.checkpoint"),
    ] {
        let error = copy(&bed, place, "none").expect_err("not there");
        assert!(error.to_lowercase().contains(why), "{place}: {error}");
        assert!(bed.path("none").symlink_metadata().is_err(), "{place}");
    }
    let error = copy(&bed, "./large", "2.checkpoint@~0:/root/").expect_err("never changed");
    assert!(error.contains("never changed"), "{error}");
}

#[test]
fn a_diff_says_what_changed_between_points() {
    let Some(bed) = Bed::open("a_diff_says_what_changed_between_points") else {
        return;
    };
    bed.boot("source", &[]);
    bed.sh(
        "source",
        "mkdir -p /srv/a /srv/gone/deep; cd /srv; echo 1 > a/same; echo 1 > a/changed; echo 1 > a/mode; echo 1 > a/time; \
         echo 1 > gone/deep/file; ln -s a b; head -c 3000000 /dev/urandom > large; cp large twin; sync",
    );
    bed.sh(
        "source",
        "setsid sleep 4242 < /dev/null > /dev/null 2>&1 & until pgrep -fx 'sleep 4242' > /dev/null; do :; done",
    );
    save_whole(&bed, "source", "1.checkpoint");
    bed.sh(
        "source",
        "cd /srv; echo 2 > a/changed; chmod 700 a/mode; touch a/time; rm -r gone; ln -sfn /etc b; mkdir new; echo 1 > new/file; \
         printf x | dd of=large bs=1 seek=1500000 conv=notrunc 2> /dev/null; cp twin copy; mv copy twin; \
         pkill sleep; while pgrep -x sleep > /dev/null; do :; done; sync; \
         setsid tail -f /dev/null < /dev/null > /dev/null 2>&1 & until pgrep -fx 'tail -f /dev/null' > /dev/null; do :; done",
    );
    let one_is = save_whole(&bed, "source", "2.checkpoint");
    bed.sh("source", "cd /srv; rm new/file; rmdir new; mkdir new; rm a/same; mkdir a/same; chown 7:8 a/mode; sync");
    let two_is = save_whole(&bed, "source", "3.checkpoint");
    let diff = |from: &str, to: &str| -> Vec<String> {
        let output = bed
            .run(["machine", "checkpoint-diff", from, to])
            .expect("diff");
        output.lines().map(str::to_owned).collect()
    };
    /// The lines about files, without those about processes and the summary.
    fn files(lines: &[String]) -> Vec<&str> {
        let is_file = |line: &&str| ["A ", "M ", "D "].iter().any(|sign| line.starts_with(sign));
        lines.iter().map(String::as_str).filter(is_file).collect()
    }
    let between = |lines: &[String], sign: char, command: &str| {
        let is_it = |line: &String| line.starts_with(sign) && line.ends_with(command);
        lines.iter().filter(|line| is_it(line)).count()
    };

    let one_two = diff("1.checkpoint", "2.checkpoint");
    assert_eq!(
        files(&one_two),
        [
            "M /srv/a/changed",
            "M /srv/a/mode",
            "M /srv/b",
            "D /srv/gone/",
            "D /srv/gone/deep/",
            "D /srv/gone/deep/file",
            "M /srv/large",
            "A /srv/new/",
            "A /srv/new/file",
        ]
    );
    assert_eq!(between(&one_two, '-', " sleep"), 1, "{one_two:?}");
    assert_eq!(between(&one_two, '+', " tail"), 1, "{one_two:?}");
    let summary = one_two.last().expect("a summary");
    assert!(
        summary.starts_with("2 added, 4 changed, 3 removed · memory "),
        "{summary}"
    );
    assert!(summary.chars().count() <= 80, "{summary}");

    // The same by other names, while it runs.
    for from in ["source@~", "3.checkpoint@~"] {
        let (one, two) = (two_is + one_is, two_is);
        assert_eq!(
            diff(&format!("{from}{one}"), &format!("{from}{two}")),
            one_two
        );
    }
    let two_three = [
        "M /srv/a/mode",
        "D /srv/a/same",
        "A /srv/a/same/",
        "D /srv/new/file",
    ];
    assert_eq!(files(&diff("2.checkpoint", "3.checkpoint")), two_three);
    let two = format!("source@~{two_is}");
    assert_eq!(files(&diff(&two, "source")), two_three);
    let one_three = diff("1.checkpoint", "3.checkpoint");
    assert!(
        files(&one_three).contains(&"A /srv/new/")
            && !files(&one_three).contains(&"A /srv/new/file")
    );
    let back = diff("2.checkpoint", "1.checkpoint");
    assert!(files(&back).contains(&"A /srv/gone/deep/file"), "{back:?}");
    assert_eq!(between(&back, '+', " sleep"), 1, "{back:?}");
    let same = diff("2.checkpoint", "2.checkpoint");
    assert_eq!(
        same,
        ["0 added, 0 changed, 0 removed · memory 0 B, disk 0 B · processes: 0"]
    );

    let arguments = [
        "--json",
        "machine",
        "checkpoint-diff",
        "1.checkpoint",
        "2.checkpoint",
    ];
    let output = bed.run(arguments).expect("diff");
    let objects: Vec<&str> = output.lines().collect();
    assert_eq!(objects.len(), one_two.len());
    assert!(
        objects
            .iter()
            .all(|line| line.starts_with("{\"v\":1,") && line.ends_with('}'))
    );
    assert!(
        output.contains("\"path\":\"/srv/a/mode\",\"type\":\"file\",\"what\":[\"mode\"]"),
        "{output}"
    );
    bed.delete("source");
}

/// Makes, changes, moves and removes files and directories without end, many of them at once on their way to the disk.
const LOAD: &str = r#"
import os, random, shutil
random.seed(7)
root = "/root/load"
os.makedirs(root, exist_ok=True)
open("/run/ready", "w").close()
number = 0
while True:
    number += 1
    folder = f"{root}/{random.randrange(12)}"
    if random.random() < 0.02:
        shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(f"{folder}/sub", exist_ok=True)
    name = f"{folder}/{random.choice(['', 'sub/'])}{random.randrange(400):x}-{'n' * random.randrange(60)}"
    with open(name, "ab") as file:
        file.write(os.urandom(random.randrange(30000)))
        if random.random() < 0.2:
            file.truncate(random.randrange(100000))
        if random.random() < 0.1:
            os.fsync(file.fileno())
    if random.random() < 0.3:
        os.replace(name, f"{folder}/renamed-{random.randrange(50)}")
    if random.random() < 0.1:
        try:
            os.symlink("x" * random.randrange(1, 200), f"{folder}/link-{random.randrange(50)}")
        except FileExistsError:
            pass
    if number % 500 == 0:
        os.sync()
"#;

/// Kind, size and content, which debugfs takes over as they are.
fn contents(listing: Listing) -> Listing {
    let content = |line: String| {
        let parts: Vec<&str> = line.split(' ').collect();
        format!("{} {} {}", parts[0], parts[2], parts.get(5).unwrap_or(&""))
    };
    let pairs = listing.into_iter();
    pairs.map(|(path, line)| (path, content(line))).collect()
}

#[test]
fn the_disk_of_a_busy_guest_is_read_as_e2fsck_leaves_it() {
    let test = "the_disk_of_a_busy_guest_is_read_as_e2fsck_leaves_it";
    let Some(bed) = Bed::open(test) else {
        return;
    };
    let e2fs = |program: &str| {
        let mut command = Command::new(program);
        command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
        command
    };
    if e2fs("debugfs").arg("-V").output().is_err() {
        return conformance::skip::because(test, "e2fsprogs is not installed");
    }
    bed.boot("source", &["--disk", "2G"]);
    bed.python("source", LOAD, "");
    let (mut dirty, mut files) = (0, 0);
    for round in 0..if long() { 30 } else { 6 } {
        bed.sh("source", "sleep 3");
        let file = format!("{round}.checkpoint");
        bed.save("source", &file);
        let (disk, theirs) = (bed.path("disk.img"), bed.path("theirs"));
        Saved::open(&bed.path(&file)).write_disk(&disk);
        let checked = e2fs("e2fsck")
            .arg("-fy")
            .arg(&disk)
            .output()
            .expect("e2fsck runs");
        dirty +=
            usize::from(String::from_utf8_lossy(&checked.stdout).contains("recovering journal"));
        fs::create_dir(&theirs).expect("make");
        let mut dump = e2fs("debugfs");
        dump.arg("-R")
            .arg(format!("rdump /root/load {}", theirs.display()));
        assert!(
            dump.arg(&disk)
                .output()
                .expect("debugfs runs")
                .status
                .success()
        );
        copy(&bed, &format!("{file}@~0:/root/load"), "ours").expect("copy");
        let ours = contents(found(&bed.path("ours")));
        assert!(
            ours == contents(found(&theirs.join("load"))),
            "round {round}"
        );
        files += ours.len();
        fs::remove_dir_all(&theirs).expect("remove");
        fs::remove_dir_all(bed.path("ours")).expect("remove");
        fs::remove_dir_all(bed.path(&file)).expect("remove");
        fs::remove_file(&disk).expect("remove");
    }
    assert!(
        dirty > 0 && files > 1000,
        "{dirty} of the disks were dirty, {files} files"
    );
    bed.delete("source");
}
