//! Logs of a machine that do not grow without bound: of too much the newest part is kept.
//!
//! Several processes append to a log. Who cuts it holds its lock alone, who appends shares it, so that nothing is lost that is
//! appended while another one cuts.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags, flock};

/// A log that is longer is cut, in bytes.
const MAX_LOG_BYTES: u64 = 16 << 20;
/// What is kept then.
const KEPT_BYTES: u64 = 8 << 20;
/// How often somebody who appends looks for the end of a cut, and the pause between: one who cuts may be stopped by a signal.
const LOOKS: u32 = 50;
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Opens a log for appending; makes it where it is missing, for this user only. Nothing but a file is opened, and
/// no link followed.
pub(crate) fn open_log(path: &Path) -> io::Result<File> {
    let no_link = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = File::options()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(no_link.bits() as i32)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    trim(&file, MAX_LOG_BYTES, KEPT_BYTES)?;
    Ok(file)
}

/// A log that is cut when it gets too long. Others may append to it, too.
pub(crate) struct BoundedLog {
    file: File,
    max_bytes: u64,
    kept_bytes: u64,
}

impl BoundedLog {
    /// A log in a file that was opened for reading and appending.
    pub(crate) fn new(file: File) -> Self {
        Self {
            file,
            max_bytes: MAX_LOG_BYTES,
            kept_bytes: KEPT_BYTES,
        }
    }
}

impl Write for BoundedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = {
            let _lock = lock_shared(&self.file);
            (&self.file).write(bytes)?
        };
        // What was written is there; a log that cannot be cut goes on.
        if let Err(error) = trim(&self.file, self.max_bytes, self.kept_bytes) {
            tracing::debug!(%error, "a log is not cut");
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A lock that ends with this.
struct Locked<'a>(&'a File);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // It has been taken, and nothing else can fail.
        let _ = flock(self.0, FlockOperation::Unlock);
    }
}

/// Waits until nobody cuts the log, but not for one who does not get on.
fn lock_shared(file: &File) -> Option<Locked<'_>> {
    for _ in 0..LOOKS {
        match flock(file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => return Some(Locked(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(LOOK_AGAIN),
            // The file system has no locks.
            Err(_) => return None,
        }
    }
    None
}

/// Cuts a log of more than `max_bytes` to whole lines of at most `kept_bytes`, where lines are not longer than that. While others
/// append or cut, it stays as it is: the next one who appends looks again.
fn trim(mut file: &File, max_bytes: u64, kept_bytes: u64) -> io::Result<()> {
    if file.metadata()?.len() <= max_bytes {
        return Ok(());
    }
    let _lock = match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Some(Locked(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(()),
        Err(_) => None,
    };
    // Another one may have cut it meanwhile.
    let length = file.metadata()?.len();
    if length <= max_bytes {
        return Ok(());
    }
    let mut kept = vec![0; usize::try_from(kept_bytes).unwrap_or(usize::MAX)];
    file.read_exact_at(&mut kept, length - kept_bytes)?;
    let line = kept.iter().position(|byte| *byte == b'\n');
    let from = line.map_or(0, |newline| newline + 1);
    file.set_len(0)?;
    file.write_all(&kept[from..])
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn the_newest_lines_of_a_long_log_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut log = BoundedLog {
            file: open_log(&path).unwrap(),
            max_bytes: 1000,
            kept_bytes: 500,
        };
        for number in 0..1000 {
            writeln!(log, "line {number}").unwrap();
            assert!(fs::metadata(&path).unwrap().len() <= 1000);
        }
        let text = fs::read_to_string(&path).unwrap();
        let first: u32 = text.lines().next().unwrap()[5..].parse().unwrap();
        let expected = (first..1000).map(|number| format!("line {number}\n"));
        assert_eq!(text, expected.collect::<String>());
        assert!(text.len() > 400);
    }

    /// Each line comes once, in the order of its writer, up to the newest of each.
    #[test]
    fn nothing_is_lost_or_doubled_when_several_append_and_cut() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        const LINES: u32 = 3000;
        std::thread::scope(|scope| {
            for writer in ["a", "b", "c"] {
                let file = open_log(&path).unwrap();
                scope.spawn(move || {
                    let mut log = BoundedLog {
                        file,
                        max_bytes: 10_000,
                        kept_bytes: 5_000,
                    };
                    for number in 0..LINES {
                        log.write_all(format!("{writer} {number}\n").as_bytes())
                            .unwrap();
                    }
                });
            }
        });
        let text = fs::read_to_string(&path).unwrap();
        assert!((4_000..20_000).contains(&text.len()), "{}", text.len());
        for writer in ["a", "b", "c"] {
            let numbers = text.lines().filter_map(|line| line.strip_prefix(writer));
            let numbers: Vec<u32> = numbers.map(|line| line.trim().parse().unwrap()).collect();
            if let Some(first) = numbers.first() {
                assert_eq!(numbers, (*first..LINES).collect::<Vec<_>>(), "{writer}");
            }
        }
    }

    #[test]
    fn a_log_is_for_its_user_only_and_no_link() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        open_log(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let link = directory.path().join("link");
        symlink(directory.path().join("elsewhere"), &link).unwrap();
        assert!(open_log(&link).is_err());
        assert!(!directory.path().join("elsewhere").exists());
        let fifo = directory.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        assert!(open_log(&fifo).is_err());
    }
}
