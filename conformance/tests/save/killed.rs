//! Processes killed at any moment of a capture, a publication or a restore: nothing that was promised
//! is lost, nothing half done is left.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Child;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use smolvm_engine::{MachineState, chain};

use crate::bed::{Bed, Saved, kill, long};

/// Moments that differ from run to run do not change what must hold; their order is fixed.
struct Moments(u64);

impl Moments {
    fn next(&mut self, within: Duration) -> Duration {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        within.mul_f64((self.0 % 1000) as f64 / 1000.0)
    }
}

/// Who is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Victim {
    Supervisor,
    Vmm,
    Command,
}

impl Victim {
    pub(crate) const ALL: [Self; 3] = [Self::Supervisor, Self::Vmm, Self::Command];

    pub(crate) fn kill(self, bed: &Bed, name: &str, command: &mut Child) {
        match self {
            Self::Supervisor => bed.supervisors(name).into_iter().for_each(kill),
            Self::Vmm => bed.vmms(name).into_iter().for_each(kill),
            // It may have ended by itself.
            Self::Command => drop(command.kill()),
        }
    }
}

/// A guest that counts durably; joined, the last number that it said.
pub(crate) fn counting(bed: &Bed, name: &str) -> JoinHandle<u64> {
    let mut child = bed.spawn(name, &["python3", "/root/writer.py"]);
    let output = BufReader::new(child.stdout.take().expect("its output"));
    std::thread::spawn(move || {
        let last = output.lines().map_while(Result::ok).last();
        let _ = child.wait();
        last.map_or(0, |line| line.parse().expect("a number"))
    })
}

pub(crate) fn count(bed: &Bed, name: &str) -> u64 {
    // Killed early enough, nothing was counted yet.
    let script = "if test -s /root/count; then cat /root/count; else echo 0; fi";
    bed.sh(name, script).parse().expect("a number")
}

/// Waits until no process of the machine is left.
pub(crate) fn wait_end(bed: &Bed, name: &str) {
    while bed.state(name) == MachineState::Running {
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Names that begin with a dot in the folder, where stagings lie.
pub(crate) fn hidden(bed: &Bed) -> Vec<String> {
    let entries = fs::read_dir(bed.path(".")).expect("the folder");
    let names = entries.map(|entry| {
        entry
            .expect("entry")
            .file_name()
            .to_string_lossy()
            .into_owned()
    });
    names.filter(|name| name.starts_with('.')).collect()
}

#[test]
fn kills_during_a_capture_lose_nothing() {
    let Some(bed) = Bed::open("kills_during_a_capture_lose_nothing") else {
        return;
    };
    bed.boot("source", &["--mem", "256M"]);
    bed.put("source", "/root/writer.py", include_str!("guest/writer.py"));
    let begin = Instant::now();
    bed.save("source", "first.checkpoint");
    let mut within = begin.elapsed();
    let mut moments = Moments(0x9e37_79b9_7f4a_7c15);
    let rounds = if long() { 60 } else { 9 };
    let mut floor = 0;
    for round in 0..rounds {
        let victim = Victim::ALL[round % 3];
        let counted = counting(&bed, "source");
        let checkpoint = [
            "machine",
            "checkpoint",
            "--name",
            "source",
            "--store",
            "store",
            "-o",
            "cut.checkpoint",
        ];
        let mut command = bed.command(checkpoint);
        let mut command = command
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("checkpoint starts");
        std::thread::sleep(moments.next(within));
        victim.kill(&bed, "source", &mut command);
        let said_saved = command.wait().expect("it ends").success();
        let output = bed.path("cut.checkpoint");
        if victim == Victim::Command {
            // The source runs on, with the command that counts.
            assert_eq!(bed.state("source"), MachineState::Running, "round {round}");
            bed.sh("source", "pkill -f '[w]riter.py' || :");
        } else {
            wait_end(&bed, "source");
            let state = bed.state("source");
            assert!(
                matches!(state, MachineState::Failed { .. }),
                "round {round}: {state:?}"
            );
        }
        floor = counted.join().expect("counted").max(floor);
        if said_saved {
            assert!(
                output.exists(),
                "round {round}: saved was said, but it is not there"
            );
        }
        if victim != Victim::Command {
            bed.start("source")
                .unwrap_or_else(|error| panic!("round {round}, {victim:?}: {}", chain(&error)));
        }
        let found = count(&bed, "source");
        assert!(
            found >= floor,
            "round {round}, {victim:?}: {found} on the disk, {floor} was durable"
        );
        // The next checkpoint is whole, and with it what was cut off is cleaned away.
        let begin = Instant::now();
        bed.save("source", "next.checkpoint");
        within = begin.elapsed().max(within / 2);
        assert_eq!(
            hidden(&bed),
            Vec::<String>::new(),
            "round {round}, {victim:?}"
        );
        for name in ["cut.checkpoint", "next.checkpoint"] {
            let path = bed.path(name);
            if path.exists() {
                Saved::open(&path).verify();
            }
        }
        if round % 3 == 2 {
            bed.restore("restored", "next.checkpoint", None);
            assert!(count(&bed, "restored") >= floor, "round {round}");
            bed.delete("restored");
        }
        for name in ["cut.checkpoint", "next.checkpoint"] {
            let path = bed.path(name);
            if path.exists() {
                fs::remove_dir_all(path).expect("remove");
            }
        }
    }
}

#[test]
fn kills_during_a_restore_leave_a_machine_that_works() {
    let Some(bed) = Bed::open("kills_during_a_restore_leave_a_machine_that_works") else {
        return;
    };
    bed.boot("source", &["--mem", "256M"]);
    bed.sh("source", "echo disk > /root/file; echo memory > /run/file");
    bed.save("source", "point.checkpoint");
    bed.delete("source");
    let begin = Instant::now();
    bed.restore("victim", "point.checkpoint", None);
    let within = begin.elapsed();
    bed.delete("victim");
    let mut moments = Moments(0x2545_f491_4f6c_dd1d);
    let rounds = if long() { 60 } else { 9 };
    for round in 0..rounds {
        let victim = Victim::ALL[round % 3];
        if round % 4 == 3 {
            let create = [
                "machine",
                "create",
                "--name",
                "victim",
                "--from",
                "point.checkpoint",
            ];
            let mut command = bed
                .command(create)
                .stdout(std::process::Stdio::null())
                .spawn()
                .expect("create");
            std::thread::sleep(moments.next(within / 4));
            Victim::Command.kill(&bed, "victim", &mut command);
            command.wait().expect("it ends");
            let exists = !bed.engine.machines().expect("list").is_empty();
            if !exists {
                bed.create_from("victim", "point.checkpoint", None)
                    .expect("the name is free");
            }
        } else {
            bed.create_from("victim", "point.checkpoint", None)
                .expect("create");
        }
        let mut command = bed.command(["machine", "start", "--name", "victim"]);
        let mut command = command
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("start starts");
        std::thread::sleep(moments.next(within));
        victim.kill(&bed, "victim", &mut command);
        command.wait().expect("it ends");
        if victim != Victim::Command {
            wait_end(&bed, "victim");
        }
        // Whatever happened: it starts, restored or booted, with the point's disk.
        bed.start("victim")
            .unwrap_or_else(|error| panic!("round {round}, {victim:?}: {}", chain(&error)));
        assert_eq!(
            bed.sh("victim", "cat /root/file"),
            "disk",
            "round {round}, {victim:?}"
        );
        let complaints = bed.complaints("victim");
        assert_eq!(complaints, "", "round {round}, {victim:?}");
        bed.delete("victim");
        let left = fs::read_dir(bed.home().join("machines"))
            .expect("machines")
            .count();
        if round % 4 != 3 {
            assert_eq!(left, 0, "round {round}: something is left of the machine");
        }
    }
}
