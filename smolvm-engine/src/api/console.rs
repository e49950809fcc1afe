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

impl Engine {
    /// Gives a machine's log to `sink`: its serial console and the output of detached commands, all
    /// starts one after the other. With `follow` it goes on until the machine has ended, or `sink`
    /// fails. A machine that was never started has an empty log.
    ///
    /// # Errors
    ///
    /// [`EngineError::NoMachine`]; [`EngineError::Io`], also for an error of `sink`.
    pub fn read_console(
        &self,
        name: &MachineName,
        follow: bool,
        sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), EngineError> {
        let mut log = LogReader::new(self.console_log(name)?);
        loop {
            // Asked before reading: what is written before the end is then read after it.
            let goes_on = follow && self.dir(name).is_running()?;
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

    /// Passes on what is new. `last`: nothing comes after this.
    fn read_new(
        &mut self,
        last: bool,
        sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), FileError> {
        if self.file.is_none() {
            self.file = match File::open(&self.path) {
                Ok(file) => Some(file),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(FileError::at("open", &self.path)(error)),
            };
        }
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
