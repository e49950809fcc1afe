//! A machine's log, read as it grows.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::time::Duration;

use crate::api::{Engine, EngineError};
use crate::file_error::FileError;
use crate::name::MachineName;

/// Pause between two looks at a log that does not grow.
const LOOK_AGAIN: Duration = Duration::from_millis(150);
/// Bytes read at once.
const BLOCK_BYTES: usize = 64 << 10;

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
        let path = self.console_log(name)?;
        let mut block = vec![0; BLOCK_BYTES];
        let mut file: Option<File> = None;
        loop {
            // Asked before reading: what is written before the end is then read after it.
            let goes_on = follow && self.dir(name).is_running()?;
            if file.is_none() {
                file = match File::open(&path) {
                    Ok(file) => Some(file),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                    Err(error) => return Err(FileError::at("open", &path)(error).into()),
                };
            }
            if let Some(file) = &mut file {
                let length = file.metadata().map_err(FileError::at("read", &path))?.len();
                let position = file.stream_position();
                if position.is_ok_and(|position| position > length) {
                    // It was cut to its newest part.
                    file.rewind().map_err(FileError::at("read", &path))?;
                }
                loop {
                    let count = file
                        .read(&mut block)
                        .map_err(FileError::at("read", &path))?;
                    if count == 0 {
                        break;
                    }
                    sink(&block[..count]).map_err(FileError::at("pass on", &path))?;
                }
            }
            if !goes_on {
                return Ok(());
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}
