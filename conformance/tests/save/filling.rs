//! Machines whose memory still comes from a point, while they are saved, go back or end.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use smolvm_engine::MachineState;
use smolvm_engine::phase::Phase;

use crate::bed::{Bed, Saved};
use crate::phases::start;

/// How often a test looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// By when something must have happened that needs nothing but a few messages; the memory never comes before.
const PATIENCE: Duration = Duration::from_secs(100);

/// A point, and the memory of machines that begin there, which comes only when it is let go.
struct Held<'a> {
    bed: &'a Bed,
    hold: PathBuf,
    held: PathBuf,
}

impl<'a> Held<'a> {
    fn new(bed: &'a Bed) -> Self {
        bed.run(["machine", "create", "--name", "source", "--mem", "256M"])
            .expect("create");
        start(bed, "source", "source");
        bed.sh(
            "source",
            "echo 1 > /proc/sys/kernel/sysrq; echo early > /run/file; head -c 20000000 /dev/urandom > /run/random",
        );
        bed.save("source", "point.checkpoint");
        bed.delete("source");
        let phase = Phase::FillBegun;
        Self {
            bed,
            hold: phase.hold_file(&bed.holds()),
            held: phase.held_file(&bed.holds()),
        }
    }

    /// Runs a machine whose memory does not come but where it is used.
    fn run(&self, name: &str) {
        fs::write(&self.hold, "").expect("hold");
        self.bed
            .run([
                "machine",
                "create",
                "--name",
                name,
                "--from",
                "point.checkpoint",
            ])
            .expect("create");
        start(self.bed, name, name);
        assert!(self.held.exists(), "memory is not held");
    }

    fn let_go(&self) {
        fs::remove_file(&self.hold).expect("let go");
        fs::remove_file(&self.held).expect("remove");
    }

    /// Begins a command that has to wait for memory.
    fn begin(&self, arguments: &str) -> Child {
        let mut command = self.bed.command(arguments.split(' '));
        let command = command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut command = command.spawn().expect("smolvm starts");
        std::thread::sleep(Duration::from_secs(2));
        let ended = command.try_wait().expect("try to wait");
        assert!(
            ended.is_none(),
            "{arguments} did not wait for memory: {ended:?}"
        );
        command
    }
}

/// Waits for the end of a command that memory would keep for ever; its success and what it said.
fn end_of(mut command: Child, context: &str) -> (bool, String) {
    let since = Instant::now();
    while command.try_wait().expect("try to wait").is_none() {
        assert!(since.elapsed() < PATIENCE, "{context}: it does not end");
        std::thread::sleep(LOOK_AGAIN);
    }
    let output = command.wait_with_output().expect("it ends");
    (
        output.status.success(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[test]
fn a_save_that_waits_for_memory_hears_what_happens() {
    let Some(bed) = Bed::open("a_save_that_waits_for_memory_hears_what_happens") else {
        return;
    };
    let held = Held::new(&bed);
    held.run("off");
    let save = held.begin("machine checkpoint --name off -o off.checkpoint");
    bed.run([
        "machine",
        "exec",
        "--name",
        "off",
        "-d",
        "--",
        "sh",
        "-c",
        "echo o > /proc/sysrq-trigger",
    ])
    .expect("exec");
    let (saved, said) = end_of(save, "power-off");
    assert!(!saved && !bed.path("off.checkpoint").exists(), "{said}");
    // The VMM ends when its threads do, which are held.
    held.let_go();
    let since = Instant::now();
    while bed.state("off") != MachineState::Stopped {
        assert!(since.elapsed() < PATIENCE, "{:?}", bed.state("off"));
        std::thread::sleep(LOOK_AGAIN);
    }
    bed.delete("off");

    held.run("killed");
    let mut save = held.begin("machine checkpoint --name killed -o killed.checkpoint");
    save.kill().expect("kill");
    save.wait().expect("it ends");
    // The next one is no worse off, and a `stop` ends it at once.
    let save = held.begin("machine checkpoint --name killed -o killed.checkpoint");
    let stop = bed.command("machine stop --name killed".split(' ')).spawn();
    let (saved, said) = end_of(save, "stop");
    assert!(!saved && !bed.path("killed.checkpoint").exists(), "{said}");
    held.let_go();
    assert!(end_of(stop.expect("smolvm starts"), "the stop").0);
    assert_eq!(bed.state("killed"), MachineState::Stopped);
}

#[test]
fn a_save_and_an_undo_that_wait_for_memory_are_done_when_it_is_there() {
    let Some(bed) = Bed::open("a_save_and_an_undo_that_wait_for_memory_are_done_when_it_is_there")
    else {
        return;
    };
    let held = Held::new(&bed);
    held.run("saved");
    bed.sh("saved", "echo late > /run/file");
    let save = held.begin("machine checkpoint --name saved -o saved.checkpoint");
    held.let_go();
    let (saved, said) = end_of(save, "save");
    assert!(saved, "{said}");
    Saved::open(&bed.path("saved.checkpoint")).verify();
    let sum = bed.sh("saved", "md5sum < /run/random");
    bed.restore("copy", "saved.checkpoint", None);
    assert_eq!(
        bed.sh("copy", "cat /run/file; md5sum < /run/random"),
        format!("late\n{sum}")
    );
    bed.delete("copy");
    bed.delete("saved");

    held.run("undone");
    bed.sh("undone", "echo late > /run/file");
    let before = bed.vmms("undone");
    let undo = held.begin("machine undo --name undone --discard");
    held.let_go();
    let (done, said) = end_of(undo, "undo");
    assert!(done, "{said}");
    assert_eq!(bed.vmms("undone"), before, "in place");
    assert_eq!(
        bed.sh("undone", "cat /run/file; md5sum < /run/random"),
        format!("early\n{sum}")
    );
}
