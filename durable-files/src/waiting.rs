//! Waiting for locks, and who holds them.
//!
//! A lock of a process that works is waited for. One of a process that a signal has stopped may be held for ever: that is an error which
//! names the process ([`LockHeld`]).

use std::fmt;
use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::backend::{FileBackend, LockGuard, LockMode};

/// Longest pause between two attempts to take a lock.
const TRY_PAUSE: Duration = Duration::from_millis(10);
/// Pause between two looks at who holds a lock that is waited for.
const LOOK_PAUSE: Duration = Duration::from_millis(500);
/// How often in a row a process must be found stopped, each time holding the lock, before it is taken to stay so.
const STOPPED_LOOKS: u32 = 8;
/// How long a lock is waited for before that is told.
const SILENT: Duration = Duration::from_secs(10);
/// Longest command line of a process that is told.
#[cfg(target_os = "linux")]
const MAX_COMMAND_CHARS: usize = 120;

/// A process that holds a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockHolder {
    /// Its id.
    pub pid: u32,
    /// Its command line, or what is known of it.
    pub command: String,
    /// A signal or a debugger has stopped it.
    pub is_stopped: bool,
}

impl LockHolder {
    /// What makes it give the lock back.
    #[must_use]
    pub fn way_out(&self) -> String {
        let pid = self.pid;
        match self.is_stopped {
            true => {
                format!("let it go on with: kill -CONT {pid}; or end it with: kill -KILL {pid}")
            }
            false => format!("if it does not come to an end, end it with: kill {pid}"),
        }
    }
}

impl fmt::Display for LockHolder {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "process {}", self.pid)?;
        if !self.command.is_empty() {
            write!(to, " ({})", self.command)?;
        }
        match self.is_stopped {
            true => to.write_str(", which is stopped"),
            false => Ok(()),
        }
    }
}

/// A lock that was waited for in vain. It comes inside an [`io::Error`]; [`Self::in_error`] finds it there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} holds its lock", match holder { Some(holder) => holder.to_string(), None => "another process".to_owned() })]
pub struct LockHeld {
    /// Who holds it, where that can be seen.
    pub holder: Option<LockHolder>,
}

impl LockHeld {
    /// This, as the error of an operation.
    #[must_use]
    pub fn into_error(self) -> io::Error {
        io::Error::new(io::ErrorKind::ResourceBusy, self)
    }

    /// What such an error is about.
    #[must_use]
    pub fn in_error(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

/// Takes a lock on an open file, which ends with it. A process that holds it and works is waited for, however long that takes.
///
/// # Errors
/// [`LockHeld`] where a process that is stopped holds it; the system refuses.
pub fn wait_for_lock(file: &File, mode: LockMode) -> io::Result<()> {
    let mut watch = Watch::new();
    let mut pause = Duration::from_millis(1);
    while !try_lock(file, mode)? {
        if let Some(holder) = watch.look(file, mode) {
            let holder = Some(holder);
            return Err(LockHeld { holder }.into_error());
        }
        std::thread::sleep(pause);
        pause = (2 * pause).min(TRY_PAUSE);
    }
    Ok(())
}

/// Takes a lock on an open file; false where somebody else holds it for longer than `patience`, whatever he does.
///
/// # Errors
/// The system refuses.
pub fn lock_within(file: &File, mode: LockMode, patience: Duration) -> io::Result<bool> {
    retry_within(patience, || Ok(try_lock(file, mode)?.then_some(()))).map(|done| done.is_some())
}

/// [`FileBackend::lock_present`] which waits no longer than `patience`; `None` where somebody else holds it longer.
///
/// # Errors
/// As there.
pub fn lock_present_within(
    files: &dyn FileBackend,
    path: &Path,
    mode: LockMode,
    patience: Duration,
) -> io::Result<Option<LockGuard>> {
    retry_within(patience, || files.lock_present(path, mode, false))
}

fn retry_within<T>(
    patience: Duration,
    mut attempt: impl FnMut() -> io::Result<Option<T>>,
) -> io::Result<Option<T>> {
    let begin = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(done) = attempt()? {
            return Ok(Some(done));
        }
        if begin.elapsed() >= patience {
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (2 * pause).min(TRY_PAUSE);
    }
}

fn try_lock(file: &File, mode: LockMode) -> io::Result<bool> {
    let tried = match mode {
        LockMode::Shared => file.try_lock_shared(),
        LockMode::Exclusive => file.try_lock(),
    };
    match tried {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Looks at who holds a lock, now and then.
struct Watch {
    begin: Instant,
    next: Instant,
    told: bool,
    /// The process that was found stopped, and how often in a row.
    stopped: Option<(u32, u32)>,
}

impl Watch {
    fn new() -> Self {
        let begin = Instant::now();
        Self {
            begin,
            next: begin + LOOK_PAUSE,
            told: false,
            stopped: None,
        }
    }

    /// The process that keeps the lock, once it is clear that it does not work.
    fn look(&mut self, file: &File, wanted: LockMode) -> Option<LockHolder> {
        if Instant::now() < self.next {
            return None;
        }
        let holders = lock_holders(file, wanted);
        self.next = Instant::now() + LOOK_PAUSE;
        let stopped = holders.iter().find(|holder| holder.is_stopped);
        self.stopped = match (stopped, self.stopped) {
            (Some(holder), Some((pid, looks))) if holder.pid == pid => Some((pid, looks + 1)),
            (Some(holder), _) => Some((holder.pid, 1)),
            (None, _) => None,
        };
        if self
            .stopped
            .is_some_and(|(_, looks)| looks >= STOPPED_LOOKS)
        {
            return stopped.cloned();
        }
        if !self.told && self.begin.elapsed() >= SILENT {
            self.told = true;
            match holders.first() {
                Some(holder) => tracing::warn!("waiting for {holder}"),
                None => tracing::warn!("waiting for another process"),
            }
        }
        None
    }
}

/// The processes whose locks on a file keep others from a lock of this kind, as far as this host tells.
#[must_use]
pub fn lock_holders(file: &File, wanted: LockMode) -> Vec<LockHolder> {
    #[cfg(target_os = "linux")]
    {
        linux::lock_holders(file, wanted)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (file, wanted);
        Vec::new()
    }
}

/// Whether a signal or a debugger has stopped a process, as far as this host tells: it does nothing until it is let go on.
#[must_use]
pub fn is_process_stopped(pid: u32) -> bool {
    #[cfg(target_os = "linux")]
    {
        linux::is_stopped(pid)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = pid;
        false
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::{self, File};
    use std::io::Read;
    use std::os::unix::fs::MetadataExt;
    use std::path::{Path, PathBuf};

    use super::{LockHolder, MAX_COMMAND_CHARS};
    use crate::backend::LockMode;

    /// Largest `/proc/locks` that is read.
    const MAX_LOCKS_BYTES: u64 = 4 << 20;
    /// Most processes that are told.
    const MAX_HOLDERS: usize = 16;

    pub(super) fn lock_holders(file: &File, wanted: LockMode) -> Vec<LockHolder> {
        let Ok(meta) = file.metadata() else {
            return Vec::new();
        };
        let locks = read(Path::new("/proc/locks"), MAX_LOCKS_BYTES);
        let locks = String::from_utf8_lossy(&locks);
        let mut pids: Vec<u32> = locks
            .lines()
            .filter_map(parse_lock)
            .filter(|lock| lock.inode == meta.ino())
            .filter(|lock| wanted == LockMode::Exclusive || lock.is_exclusive)
            .map(|lock| lock.pid)
            .filter(|pid| has_open(*pid, &meta))
            .collect();
        pids.sort_unstable();
        pids.dedup();
        pids.truncate(MAX_HOLDERS);
        let holder = |pid| LockHolder {
            pid,
            command: command_of(pid),
            is_stopped: is_stopped(pid),
        };
        pids.into_iter().map(holder).collect()
    }

    /// A lock of a whole file.
    #[derive(Debug, PartialEq, Eq)]
    pub(super) struct Lock {
        pub(super) pid: u32,
        pub(super) inode: u64,
        pub(super) is_exclusive: bool,
    }

    /// A line of `/proc/locks` about a lock that is held: `1: FLOCK  ADVISORY  WRITE 5709 fe:00:10010853 0 EOF`. Who waits for one has
    /// an arrow before the kind, and locks of other namespaces have no process.
    pub(super) fn parse_lock(line: &str) -> Option<Lock> {
        let mut words = line.split_whitespace().skip(1);
        if words.next()? != "FLOCK" {
            return None;
        }
        let is_exclusive = words.nth(1)? == "WRITE";
        let pid = words.next()?.parse().ok().filter(|pid| *pid != 0)?;
        // The device is that of the file system below, which is not always the one that the file says.
        let inode = words.next()?.rsplit(':').next()?.parse().ok()?;
        Some(Lock {
            pid,
            inode,
            is_exclusive,
        })
    }

    /// Whether a process has the file open. One that may not be looked into counts as having it.
    fn has_open(pid: u32, file: &fs::Metadata) -> bool {
        let Ok(descriptors) = fs::read_dir(of(pid).join("fd")) else {
            return true;
        };
        descriptors.flatten().any(|entry| {
            let same = |meta: fs::Metadata| (meta.dev(), meta.ino()) == (file.dev(), file.ino());
            fs::metadata(entry.path()).is_ok_and(same)
        })
    }

    /// The command line in one line. It is what the process says of itself, so nothing in it steers a terminal.
    fn command_of(pid: u32) -> String {
        let bytes = read(&of(pid).join("cmdline"), 4 * MAX_COMMAND_CHARS as u64);
        let text = String::from_utf8_lossy(&bytes).replace('\0', " ");
        let harmless = |c: char| if c.is_control() { '?' } else { c };
        let text: String = text.trim().chars().map(harmless).collect();
        match text.char_indices().nth(MAX_COMMAND_CHARS) {
            Some((cut, _)) => format!("{}…", &text[..cut]),
            None => text,
        }
    }

    pub(super) fn is_stopped(pid: u32) -> bool {
        tells_stopped(&read(&of(pid).join("stat"), 4 << 10))
    }

    /// Whether `/proc/PID/stat` tells of a process that a signal or a debugger has stopped. Its name, in parentheses, may hold
    /// anything.
    pub(super) fn tells_stopped(stat: &[u8]) -> bool {
        let name_ends = stat.iter().rposition(|&byte| byte == b')');
        let state = name_ends.and_then(|end| stat.get(end + 2));
        matches!(state, Some(b'T' | b't'))
    }

    fn of(pid: u32) -> PathBuf {
        Path::new("/proc").join(pid.to_string())
    }

    /// What a file of `/proc` says; nothing where it is gone or not ours to read.
    fn read(path: &Path, limit: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        match File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes)) {
            Ok(_) => bytes,
            Err(_) => Vec::new(),
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    use rustix::process::{Pid, Signal, kill_process, kill_process_group};

    use super::*;

    /// A process that holds a lock on a file, in a group of its own.
    struct Holder(Child);

    impl Holder {
        fn new(path: &Path, kind: &str) -> Self {
            let mut command = Command::new("flock");
            command.args([kind, "--close"]).arg(path);
            command.args(["sleep", "1000"]).process_group(0);
            let holder = Self(command.stdin(Stdio::null()).spawn().unwrap());
            let file = File::open(path).unwrap();
            while lock_holders(&file, LockMode::Exclusive).is_empty() {
                std::thread::sleep(Duration::from_millis(5));
            }
            holder
        }

        fn pid(&self) -> Pid {
            Pid::from_child(&self.0)
        }
    }

    impl Drop for Holder {
        fn drop(&mut self) {
            let _ = kill_process_group(self.pid(), Signal::KILL);
            let _ = self.0.wait();
        }
    }

    fn locked(kind: &str) -> (tempfile::TempDir, File, Holder) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        fs::write(&path, b"").unwrap();
        let file = File::open(&path).unwrap();
        let holder = Holder::new(&path, kind);
        (directory, file, holder)
    }

    #[test]
    fn a_stopped_process_is_named_and_not_waited_for() {
        for (kind, mode) in [
            ("--exclusive", LockMode::Shared),
            ("--shared", LockMode::Exclusive),
        ] {
            let (_directory, file, holder) = locked(kind);
            kill_process(holder.pid(), Signal::STOP).unwrap();
            let error = wait_for_lock(&file, mode).unwrap_err();
            let held = LockHeld::in_error(&error).unwrap();
            let found = held.holder.as_ref().unwrap();
            assert_eq!(found.pid, holder.0.id());
            assert!(found.is_stopped && found.command.starts_with("flock"));
            let way_out = found.way_out();
            assert!(way_out.contains(&format!("kill -CONT {}", found.pid)));
            assert!(error.to_string().contains("which is stopped"), "{error}");
        }
    }

    #[test]
    fn a_process_that_works_is_waited_for() {
        let (_directory, file, holder) = locked("--exclusive");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| wait_for_lock(&file, LockMode::Exclusive));
            // For as long as a stopped one would have been given.
            std::thread::sleep(LOOK_PAUSE * (STOPPED_LOOKS + 2));
            assert!(!waits.is_finished());
            drop(holder);
            waits.join().unwrap().unwrap();
        });
    }

    #[test]
    fn nobody_is_waited_for_longer_than_said() {
        let (directory, file, _holder) = locked("--exclusive");
        let patience = Duration::from_millis(50);
        assert!(!lock_within(&file, LockMode::Shared, patience).unwrap());
        let path = directory.path().join("lock");
        let files = &crate::OsBackend;
        let got = lock_present_within(files, &path, LockMode::Shared, patience).unwrap();
        assert!(got.is_none());
        // Shared locks keep no shared one away.
        let (_directory, file, _holder) = locked("--shared");
        assert!(lock_within(&file, LockMode::Shared, patience).unwrap());
    }

    #[test]
    fn lines_about_locks_are_understood() {
        let lock = |pid, inode, is_exclusive| linux::Lock {
            pid,
            inode,
            is_exclusive,
        };
        let parse = linux::parse_lock;
        let line = "1: FLOCK  ADVISORY  WRITE 5709 fe:00:10010853 0 EOF";
        assert_eq!(parse(line), Some(lock(5709, 10_010_853, true)));
        let line = "22: FLOCK  ADVISORY  READ 1 00:1f:7 0 EOF";
        assert_eq!(parse(line), Some(lock(1, 7, false)));
        for other in [
            "1: -> FLOCK  ADVISORY  WRITE 5709 fe:00:10010853 0 EOF",
            "3: POSIX  ADVISORY  WRITE 1 fe:00:1 0 EOF",
            "3: FLOCK  ADVISORY  WRITE 0 fe:00:1 0 EOF",
            "3: FLOCK  ADVISORY  WRITE -1 fe:00:1 0 EOF",
            "3: FLOCK  ADVISORY  WRITE",
            "",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn stopped_processes_are_told_from_others_whatever_their_name() {
        let stopped = linux::tells_stopped;
        assert!(stopped(b"42 (smolvm) T 1 42 42 0 -1"));
        assert!(stopped(b"42 (a) R (b) t 1 42"));
        assert!(!stopped(b"42 (x) T) S 1 42"));
        for cut in [&b""[..], b"42", b"42 (smolvm)", b"42 (smolvm) "] {
            assert!(!stopped(cut));
        }
    }
}
