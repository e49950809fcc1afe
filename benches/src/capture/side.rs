//! One machine, whatever runs it, through a scenario.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{SHORTEST_WINDOW, Scenario};
use crate::BenchError;

const SCRIPT: &str = include_str!("guest.py");
/// What the ticking process does not count after and before a signal, and some more.
const QUIET: Duration = Duration::from_millis(120);

/// What a save took.
#[derive(Debug, Clone, Copy)]
pub(super) struct SaveCost {
    /// The guest stood still, by the monitor's clock.
    pub(super) paused: Duration,
    /// Until the command was back.
    pub(super) returned: Duration,
    /// Bytes that its processes read and wrote.
    pub(super) io: Io,
    /// Compressed size of what was new, where that is known.
    pub(super) new_bytes: Option<u64>,
}

/// Bytes that processes read and wrote (`/proc/PID/io`).
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Io {
    /// `rchar`: by whatever call.
    pub(super) read: u64,
    /// `write_bytes`: on their way to the disk.
    pub(super) written: u64,
}

impl Io {
    /// What some processes have read and written so far.
    pub(super) fn of(pids: &[u32]) -> std::io::Result<Self> {
        let mut sum = Self::default();
        for pid in pids {
            let text = std::fs::read_to_string(format!("/proc/{pid}/io"))?;
            let value = |name: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(name));
                line.and_then(|value| value.trim().parse::<u64>().ok())
            };
            let (read, written) = (value("rchar:"), value("write_bytes:"));
            let missing = || std::io::Error::other("no such figures in its io");
            sum.read += read.ok_or_else(missing)?;
            sum.written += written.ok_or_else(missing)?;
        }
        Ok(sum)
    }

    /// What came since `before`.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            read: self.read.saturating_sub(before.read),
            written: self.written.saturating_sub(before.written),
        }
    }
}

/// Whatever runs the machine.
pub(super) trait Side {
    /// Runs a shell command in the guest.
    fn sh(&mut self, command: &str) -> Result<String, BenchError>;
    /// Saves it, durably; it runs on.
    fn save(&mut self) -> Result<SaveCost, BenchError>;
    /// Whether the guest's clocks go on while it is saved, so that it sees that it stood.
    fn sees_pauses(&self) -> bool;
    /// Other ways to save or go back than those of all sides; each calls `note` with the name of a figure.
    fn other_ways(&mut self, note: &mut dyn FnMut(&'static str, f64)) -> Result<(), BenchError>;
    /// Goes on as at the last save in new processes, until a command works there: the time for `true`, or for `command`, from
    /// the start of them all.
    fn restore(&mut self, command: &str) -> Result<Duration, BenchError>;
    /// Goes back to the last save under the same name, giving the present state up, until a command works.
    fn go_back(&mut self) -> Result<Duration, BenchError>;
}

/// Values by the name of their figure.
pub(super) type Figures = BTreeMap<&'static str, Vec<f64>>;

/// Takes a machine through a scenario.
pub(super) fn measure(
    side: &mut dyn Side,
    scenario: &Scenario,
    returns: usize,
) -> Result<Figures, BenchError> {
    let mut figures = Figures::new();
    let mut note = |name, value: f64| figures.entry(name).or_default().push(value);
    install(side)?;
    run(side, &format!("fill {}", scenario.used_mib))?;
    let first = side.save()?;
    note("first_save", first.returned.as_secs_f64());
    side.sh("python3 /root/guest.py tick > /dev/null 2>&1 & until test -s /run/tick.pid; do sleep 0.1; done")?;
    let dirty = format!("dirty {} {}", scenario.dirty_mib, scenario.layout.word());
    for _ in 1..scenario.history {
        // Points that are only there.
        run(side, &dirty.replace(&scenario.dirty_mib.to_string(), "1"))?;
        side.save()?;
    }
    for _ in 0..scenario.saves {
        run(side, &dirty)?;
        let (cost, with) = in_window(side, Side::save)?;
        let ((), without) = in_window(side, |_| {
            std::thread::sleep(cost.returned.max(SHORTEST_WINDOW));
            Ok(())
        })?;
        let gap = match side.sees_pauses() {
            true => with,
            false => cost.paused.as_secs_f64() + without,
        };
        note("gap", gap);
        note("jitter", without);
        note("gap_above", (gap - without).max(0.0));
        note("paused", cost.paused.as_secs_f64());
        note("returned", cost.returned.as_secs_f64());
        note("read", cost.io.read as f64);
        note("written", cost.io.written as f64);
        if let Some(new) = cost.new_bytes {
            note("written_by_new", cost.io.written as f64 / new.max(1) as f64);
        }
    }
    side.sh("kill $(cat /run/tick.pid)")?;
    side.other_ways(&mut note)?;
    side.save()?;
    for _ in 0..returns {
        run(side, "dirty 64 contiguous")?;
        note("go_back", side.go_back()?.as_secs_f64());
    }
    for _ in 0..returns {
        note("restore", side.restore("true")?.as_secs_f64());
    }
    Ok(figures)
}

/// Takes a machine with much memory in use to its restore, and to a process there that reads 64 MiB of it.
pub(super) fn measure_in_use(
    side: &mut dyn Side,
    used_mib: u32,
    returns: usize,
) -> Result<Figures, BenchError> {
    let mut figures = Figures::new();
    let mut note = |name, value: f64| figures.entry(name).or_default().push(value);
    install(side)?;
    run(side, &format!("fill {used_mib}"))?;
    let cost = side.save()?;
    note("first_save", cost.returned.as_secs_f64());
    for _ in 0..returns {
        note("restore", side.restore("true")?.as_secs_f64());
        let read = side.restore("head -c 64M /dev/shm/region | wc -c")?;
        note("restore_and_read", read.as_secs_f64());
    }
    Ok(figures)
}

fn install(side: &mut dyn Side) -> Result<(), BenchError> {
    side.sh(&format!(
        "cat > /root/guest.py << 'END'\n{SCRIPT}\nEND\n: > /dev/shm/region"
    ))?;
    Ok(())
}

fn run(side: &mut dyn Side, what: &str) -> Result<String, BenchError> {
    side.sh(&format!("python3 /root/guest.py {what}"))
}

/// Does something while the guest ticks, and returns its longest gap in seconds.
fn in_window<'a, T>(
    side: &mut (dyn Side + 'a),
    work: impl FnOnce(&mut (dyn Side + 'a)) -> Result<T, BenchError>,
) -> Result<(T, f64), BenchError> {
    side.sh("kill -USR1 $(cat /run/tick.pid)")?;
    std::thread::sleep(QUIET);
    let begin = Instant::now();
    let done = work(side)?;
    // So that nothing of the save is close to the signal.
    std::thread::sleep(QUIET.max(SHORTEST_WINDOW.saturating_sub(begin.elapsed())));
    let text = side.sh(
        "rm -f /run/gap; kill -USR1 $(cat /run/tick.pid); until test -s /run/gap; do sleep 0.01; done; cat /run/gap",
    )?;
    let micros: f64 = text.trim().parse().map_err(|_| BenchError::Output {
        what: "the longest gap",
        output: text,
    })?;
    Ok((done, micros / 1e6))
}
