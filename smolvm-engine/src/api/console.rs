//! A machine's log, read as it grows.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::api::{Engine, EngineError};
use crate::file_error::FileError;
use crate::name::MachineName;

/// Pause between two looks at a log that does not grow.
const LOOK_AGAIN: Duration = Duration::from_millis(150);
/// Bytes read at once.
const BLOCK_BYTES: usize = 64 << 10;
/// How much of what was passed on tells where that ended, after the log was cut.
const TAIL_BYTES: usize = 256;
/// Most of the log that is searched for it: more than a log has.
const MAX_SEARCHED_BYTES: u64 = 32 << 20;
/// Looks after which it is taken to be gone.
const LOOKS_WITHOUT: u32 = 3;

/// Which part of a machine's log is read: by default all there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LogPart {
    /// Also what comes until the machine has ended.
    pub follow: bool,
    /// Of what is there, only so many of the last lines.
    pub last_lines: Option<u64>,
}

impl Engine {
    /// Gives a machine's log to `sink`: its serial console and the output of detached commands, all
    /// starts one after the other, until the end or until `sink` fails. A machine that was never started has an empty log.
    ///
    /// # Errors
    ///
    /// [`EngineError::NoMachine`]; [`EngineError::Io`], also for an error of `sink`.
    pub fn read_console(
        &self,
        name: &MachineName,
        part: LogPart,
        sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), EngineError> {
        let mut log = LogReader::new(self.console_log(name)?);
        if let Some(lines) = part.last_lines {
            log.skip_to_last(lines)?;
        }
        loop {
            // Asked before reading: what is written before the end is then read after it.
            let goes_on = part.follow && self.dir(name).is_running()?;
            log.read_new(!goes_on, sink)?;
            if !goes_on {
                return Ok(());
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}

/// A log that is read while it grows, and is cut to its newest part now and then.
struct LogReader {
    path: PathBuf,
    file: Option<File>,
    /// How much of the file was passed on.
    position: u64,
    /// The last of what was passed on.
    tail: Vec<u8>,
    /// Looks since that was found in the file.
    looks_without: u32,
}

impl LogReader {
    fn new(path: PathBuf) -> Self {
        Self {
            path,
            file: None,
            position: 0,
            tail: Vec::new(),
            looks_without: 0,
        }
    }

    /// The log, once there is one.
    fn open(&mut self) -> Result<Option<&File>, FileError> {
        if self.file.is_none() {
            self.file = match File::open(&self.path) {
                Ok(file) => Some(file),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(FileError::at("open", &self.path)(error)),
            };
        }
        Ok(self.file.as_ref())
    }

    /// Passes over all but the last lines of what is there.
    fn skip_to_last(&mut self, lines: u64) -> Result<(), FileError> {
        let Some(file) = self.open()? else {
            return Ok(());
        };
        let begin = begin_of_last(file, lines).and_then(|begin| {
            let before = begin.min(TAIL_BYTES as u64);
            let mut tail = vec![0; before as usize];
            file.read_exact_at(&mut tail, begin - before)?;
            Ok((begin, tail))
        });
        (self.position, self.tail) = match begin {
            Ok(found) => found,
            // Cut just now: what it has now is the newest.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => (0, Vec::new()),
            Err(error) => return Err(FileError::at("read", &self.path)(error)),
        };
        Ok(())
    }

    /// Passes on what is new. `last`: nothing comes after this.
    fn read_new(
        &mut self,
        last: bool,
        sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), FileError> {
        self.open()?;
        let Some(file) = &self.file else {
            return Ok(());
        };
        let place = find_place(file, self.position, &self.tail);
        match place.map_err(FileError::at("read", &self.path))? {
            Some(position) => self.position = position,
            // It may be in the middle of being cut.
            None if self.looks_without < LOOKS_WITHOUT && !last => {
                self.looks_without += 1;
                return Ok(());
            }
            // More than is kept came in between.
            None => self.position = 0,
        }
        self.looks_without = 0;
        let mut block = vec![0; BLOCK_BYTES];
        loop {
            let count = file.read_at(&mut block, self.position);
            let count = count.map_err(FileError::at("read", &self.path))?;
            if count == 0 {
                return Ok(());
            }
            sink(&block[..count]).map_err(FileError::at("pass on", &self.path))?;
            self.position += count as u64;
            self.tail.extend_from_slice(&block[..count]);
            let surplus = self.tail.len().saturating_sub(TAIL_BYTES);
            self.tail.drain(..surplus);
        }
    }
}

/// Where the last lines of a file begin; the last one may lack its line feed.
fn begin_of_last(file: &File, lines: u64) -> io::Result<u64> {
    let length = file.metadata()?.len();
    if lines == 0 {
        return Ok(length);
    }
    let mut block = vec![0; BLOCK_BYTES];
    let (mut found, mut end) = (0, length);
    while end > 0 {
        let begin = end.saturating_sub(BLOCK_BYTES as u64);
        let part = &mut block[..(end - begin) as usize];
        file.read_exact_at(part, begin)?;
        for (at, byte) in part.iter().enumerate().rev() {
            let after = begin + at as u64 + 1;
            // That at the very end ends the last line.
            if *byte == b'\n' && after < length {
                found += 1;
                if found == lines {
                    return Ok(after);
                }
            }
        }
        end = begin;
    }
    Ok(0)
}

/// Where in the file `tail` ends, which did so at `position` before: there still, or elsewhere since the file was cut. `None`: it is
/// not there.
fn find_place(file: &File, position: u64, tail: &[u8]) -> io::Result<Option<u64>> {
    if tail.is_empty() {
        return Ok(Some(position));
    }
    let length = file.metadata()?.len();
    let mut there = vec![0; tail.len()];
    if let Some(begin) = position.checked_sub(tail.len() as u64)
        && position <= length
        && file.read_exact_at(&mut there, begin).is_ok()
        && there == tail
    {
        return Ok(Some(position));
    }
    let begin = length.saturating_sub(MAX_SEARCHED_BYTES);
    let mut content = Vec::new();
    let mut reader = file;
    reader.seek(SeekFrom::Start(begin))?;
    reader.take(MAX_SEARCHED_BYTES).read_to_end(&mut content)?;
    // The last such place: of lines that repeat, none is told twice.
    let found = content.windows(tail.len()).rposition(|part| part == tail);
    Ok(found.map(|at| begin + (at + tail.len()) as u64))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_last_lines_are_read_from_where_they_begin() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let last = |content: &[u8], lines| {
            fs::write(&path, content).unwrap();
            let mut log = LogReader::new(path.clone());
            log.skip_to_last(lines).unwrap();
            let mut heard = Vec::new();
            let sink = &mut |bytes: &[u8]| {
                heard.extend_from_slice(bytes);
                Ok(())
            };
            log.read_new(false, sink).unwrap();
            // What comes later is not lost.
            fs::write(&path, [content, b"more"].concat()).unwrap();
            log.read_new(true, sink).unwrap();
            String::from_utf8(heard).unwrap()
        };
        assert_eq!(last(b"a\nb\nc\n", 2), "b\nc\nmore");
        assert_eq!(last(b"a\nb\nc", 2), "b\ncmore");
        assert_eq!(last(b"a\nb\n", 0), "more");
        assert_eq!(last(b"a\nb", 0), "more");
        assert_eq!(last(b"a\nb\n", 9), "a\nb\nmore");
        assert_eq!(last(b"", 3), "more");
        assert_eq!(last(b"\n\n", 1), "\nmore");
        let long = format!("{}\n{}\n", "x".repeat(BLOCK_BYTES), "y".repeat(BLOCK_BYTES));
        assert_eq!(last(long.as_bytes(), 1).len(), BLOCK_BYTES + 5);
        // A log that does not exist yet.
        let mut log = LogReader::new(directory.path().join("none"));
        log.skip_to_last(3).unwrap();
    }

    #[test]
    fn no_line_of_a_log_that_is_cut_comes_twice() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut log = LogReader::new(path.clone());
        let mut heard = Vec::new();
        let mut read = |log: &mut LogReader, last| {
            log.read_new(last, &mut |bytes| {
                heard.extend_from_slice(bytes);
                Ok(())
            })
            .unwrap();
        };
        let lines = |from: u32, to: u32| -> String {
            (from..to)
                .map(|number| format!("line {number}\n"))
                .collect()
        };
        read(&mut log, false);
        fs::write(&path, lines(0, 500)).unwrap();
        read(&mut log, false);
        // Cut, and already longer than before.
        fs::write(&path, lines(400, 1500)).unwrap();
        read(&mut log, false);
        // Cut, and for a moment empty.
        fs::write(&path, "").unwrap();
        read(&mut log, false);
        fs::write(&path, lines(1400, 1600)).unwrap();
        read(&mut log, false);
        // More than is kept came in between: what is there is told.
        fs::write(&path, lines(3000, 3100)).unwrap();
        read(&mut log, true);
        let expected = lines(0, 1600) + &lines(3000, 3100);
        assert_eq!(String::from_utf8(heard).unwrap(), expected);
    }
}
