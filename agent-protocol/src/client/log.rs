//! The output of detached commands, as the agent passes it on.

use std::io::{Read, Write};

use super::{ClientError, Connection, unexpected};
use crate::frame::read_message;
use crate::message::{LogOutput, Reply, Request};

/// Reads the agent's log until the connection ends.
#[derive(Debug)]
pub struct LogReader<R> {
    reader: R,
}

impl<R: Read, W: Write> Connection<R, W> {
    /// Asks for the output of detached commands. Whoever asks last gets it; the connection of a reader
    /// before ends.
    ///
    /// # Errors
    /// As [`Connection::call`].
    pub fn log(mut self) -> Result<LogReader<R>, ClientError> {
        match self.call(&Request::Log)? {
            Reply::Ok => Ok(LogReader {
                reader: self.reader,
            }),
            other => unexpected(&other),
        }
    }
}

impl<R: Read> LogReader<R> {
    /// Waits for more output. Commands wait while nobody asks.
    ///
    /// # Errors
    /// [`ClientError::Frame`] when the connection ends.
    pub fn next_output(&mut self) -> Result<LogOutput, ClientError> {
        loop {
            match read_message(&mut self.reader) {
                Err(error) if error.is_unknown_kind() => {}
                other => return Ok(other?),
            }
        }
    }
}
