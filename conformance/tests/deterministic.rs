//! Whole guests that repeat themselves: Debian's kernel, the agent, files on the disk, a point.
//!
//! Needs the binary `$SMOLVM` (to make a point) and a prepared home `$SMOLVM_HOME`. By default one guest
//! with two vCPUs is run twice; with `SMOLVM_LONG=1` also one with one vCPU, other seeds, and a point.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use smolvm_engine::process::ProcessModel;
use smolvm_engine::progress::Silent;
use smolvm_engine::{
    CheckpointOptions, CreateFromOptions, CreateOptions, DeterministicError, DeterministicMachine,
    Engine, EngineError, EngineOptions, ExecOptions, Home, MachineDigest, MachineName, PointSource,
    StartOptions, chain,
};

/// Instructions at which machines are compared: all commands are through by then.
const LATE: u64 = 30_000_000_000;

/// What the guests do: processes, pipes, files, time, and the kernel's random numbers.
const SCRIPT: &str = "
    date --iso-8601=ns; cat /proc/uptime /proc/interrupts
    for n in 1 2 3; do dd if=/dev/urandom of=/root/random-$n bs=64k count=4 2>&1 | grep -c out & done
    wait
    sync; sleep 0.2
    cat /root/random-* | sha256sum; cat /proc/sys/kernel/random/uuid /etc/machine-id";

fn long() -> bool {
    std::env::var("SMOLVM_LONG").is_ok_and(|value| value == "1")
}

struct Bed {
    engine: Engine,
    /// The same, whose machines are interpreted.
    interpreting: Engine,
    _folder: tempfile::TempDir,
}

impl Bed {
    /// A home of the test's own over the prepared one; `None`, and the test is skipped, without one.
    fn open(test: &str) -> Option<Self> {
        if std::env::var(conformance::skip::REQUIRE_KVM).is_ok_and(|value| value == "1") {
            conformance::skip::because(
                test,
                "this is about the software CPU, not for the emulated host",
            );
            return None;
        }
        let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
        let (Some(smolvm), Some(prepared)) = (variable("SMOLVM"), variable("SMOLVM_HOME")) else {
            conformance::skip::because(test, "$SMOLVM and $SMOLVM_HOME are not set");
            return None;
        };
        let folder = tempfile::tempdir().expect("a folder");
        for part in ["images", "kernels"] {
            let target = prepared.join(part);
            std::os::unix::fs::symlink(target, folder.path().join(part)).expect("a link");
        }
        let model = ProcessModel::Processes { program: smolvm };
        let options = EngineOptions::new(Home::at(folder.path()), model);
        let options = options.with_booted_points(false);
        let open = |options| Engine::open(options).expect("an engine");
        Some(Self {
            engine: open(options.clone()),
            interpreting: open(options.with_translation(false)),
            _folder: folder,
        })
    }

    fn create(&self, name: &str, cpus: u8) {
        let mut create = CreateOptions {
            name: Some(machine(name)),
            ..CreateOptions::default()
        };
        create.spec.cpus = Some(cpus);
        create.spec.memory_bytes = 256 << 20;
        self.engine.create(create).expect("create");
    }

    fn run(&self, name: &str, seed: u64) -> DeterministicMachine {
        Self::run_with(&self.engine, name, seed)
    }

    fn run_with(engine: &Engine, name: &str, seed: u64) -> DeterministicMachine {
        let run = engine.run_deterministic(&machine(name), seed);
        run.unwrap_or_else(|error| panic!("{name}: {}", chain(&error)))
    }

    /// Starts a machine, runs the script in it and goes on to `LATE`.
    fn whole_run(&self, name: &str, seed: u64) -> (String, [MachineDigest; 2]) {
        Self::whole_run_of(self.run(name, seed))
    }

    fn whole_run_of(mut machine: DeterministicMachine) -> (String, [MachineDigest; 2]) {
        let said = sh(&mut machine, SCRIPT);
        let early = machine.digest().expect("a digest");
        assert!(early.instructions < LATE, "{early:?}");
        machine.run_until(LATE).expect("it runs on");
        (said, [early, machine.digest().expect("a digest")])
    }
}

fn machine(name: &str) -> MachineName {
    name.parse().expect("a name")
}

fn sh(machine: &mut DeterministicMachine, script: &str) -> String {
    let options = ExecOptions {
        argv: ["sh", "-euc", script].map(Into::into).to_vec(),
        ..ExecOptions::default()
    };
    let output = machine.exec(options);
    let output = output.unwrap_or_else(|error| panic!("{script}: {}", chain(&error)));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.outcome.exit_code(), 0, "{text}{complaint}");
    text
}

/// Keeps all of the host's processors busy while `work` is done.
fn beside_busy_loops<T>(work: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let result = work();
        done.store(true, Ordering::Relaxed);
        result
    })
}

#[test]
fn a_booted_guest_repeats_itself() {
    let Some(bed) = Bed::open("a_booted_guest_repeats_itself") else {
        return;
    };
    for cpus in if long() { vec![2, 1] } else { vec![2] } {
        let name = format!("guest-{cpus}");
        bed.create(&name, cpus);
        let first = bed.whole_run(&name, 1);
        assert!(first.0.contains("2025-01-01T00:00:"), "{}", first.0);
        assert_ne!(first.1[0].disk_writes, first.1[1].disk_writes);
        let second = beside_busy_loops(|| bed.whole_run(&name, 1));
        assert_eq!(second, first, "{cpus} vCPUs");
        let third = Bed::whole_run_of(Bed::run_with(&bed.interpreting, &name, 1));
        assert_eq!(third, first, "{cpus} vCPUs, interpreted");
        if long() {
            let other = bed.whole_run(&name, 2);
            assert_ne!(other.0, first.0);
            assert_ne!(other.1[1].memory, first.1[1].memory);
        }
    }
}

#[test]
fn what_would_depend_on_the_host_is_refused() {
    let Some(bed) = Bed::open("what_would_depend_on_the_host_is_refused") else {
        return;
    };
    bed.create("guest", 1);
    let mut guest = bed.run("guest", 1);
    let again = bed.engine.run_deterministic(&machine("guest"), 1);
    assert!(matches!(
        again.err(),
        Some(DeterministicError::Engine(EngineError::WrongState { .. }))
    ));
    let options = ExecOptions {
        argv: vec!["cat".into()],
        stdin: true,
        ..ExecOptions::default()
    };
    let refused = guest.exec(options);
    assert!(matches!(refused, Err(DeterministicError::Input)));
    let off = guest.exec(ExecOptions {
        argv: ["sh", "-c", "echo b > /proc/sysrq-trigger"]
            .map(Into::into)
            .to_vec(),
        ..ExecOptions::default()
    });
    assert!(off.is_err(), "the guest reset itself: {off:?}");
    let ended = guest.run_until(u64::MAX);
    assert!(
        matches!(ended, Err(DeterministicError::Machine(_))),
        "{ended:?}"
    );
}

#[test]
fn a_point_goes_on_alike() {
    const NAME: &str = "a_point_goes_on_alike";
    if !long() {
        return conformance::skip::because(NAME, "two boots more: with SMOLVM_LONG=1");
    }
    let Some(bed) = Bed::open(NAME) else {
        return;
    };
    bed.create("source", 2);
    let start = bed
        .engine
        .start(&machine("source"), StartOptions::default());
    start.expect("start");
    let point = bed
        .engine
        .checkpoint(&machine("source"), &CheckpointOptions::default(), &Silent)
        .expect("checkpoint");
    bed.engine.delete(&machine("source"), true).expect("delete");
    let mut from = CreateFromOptions::new(PointSource::Id(point.id));
    from.name = Some(machine("copy"));
    bed.engine.create_from(from).expect("create from");
    let run = || {
        let mut machine = bed.run("copy", 1);
        let said = sh(&mut machine, SCRIPT);
        (said, machine.digest().expect("a digest"))
    };
    let first = run();
    assert_eq!(run(), first);
}
