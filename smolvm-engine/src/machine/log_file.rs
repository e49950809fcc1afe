//! Logs of a machine that do not grow without bound: of too much the newest part is kept.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// A log that is longer is cut, in bytes.
const MAX_LOG_BYTES: u64 = 16 << 20;
/// What is kept then.
const KEPT_BYTES: u64 = 8 << 20;

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
        let written = self.file.write(bytes)?;
        trim(&self.file, self.max_bytes, self.kept_bytes)?;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Cuts a log of more than `max_bytes` to whole lines of at most `kept_bytes`, where lines are not longer than that.
fn trim(mut file: &File, max_bytes: u64, kept_bytes: u64) -> io::Result<()> {
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
