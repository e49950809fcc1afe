//! Commands in the peer's guest, through its second serial line.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use super::error::PeerError;

/// What `init.sh` says when the shell is there.
const READY: &[u8] = b"bench-ready\n";
/// Most that a command may print.
const MAX_OUTPUT_BYTES: usize = 1 << 20;

/// A shell that reads from a stream and writes to it, one command at a time.
pub(crate) struct Shell<S = UnixStream> {
    stream: S,
    received: Vec<u8>,
    commands: u32,
}

impl<S: Read + Write> Shell<S> {
    /// A shell that says when it is there.
    pub(crate) fn starting(stream: S) -> Result<Self, PeerError> {
        let mut shell = Self::waiting(stream);
        shell.receive_until(|bytes| {
            let at = bytes.windows(READY.len()).position(|w| w == READY)?;
            Some(((), at + READY.len()))
        })?;
        Ok(shell)
    }

    /// A shell that waits for commands already.
    pub(crate) fn waiting(stream: S) -> Self {
        Self {
            stream,
            received: Vec::new(),
            commands: 0,
        }
    }

    /// Runs a script in a shell of its own and returns what it printed.
    pub(crate) fn sh(&mut self, script: &str) -> Result<String, PeerError> {
        self.run(&format!("sh -c {}", quoted(script)))
    }

    /// Runs one program and returns what it printed.
    pub(crate) fn run(&mut self, command: &str) -> Result<String, PeerError> {
        self.commands += 1;
        let mark = format!("bench-end-{}", self.commands);
        let line = format!("{command} < /dev/null; printf '\\n{mark} %s\\n' $?\n");
        self.stream
            .write_all(line.as_bytes())
            .map_err(PeerError::host("send a command to its guest"))?;
        let (output, code) = self.receive_until(|bytes| answer(bytes, &mark))?;
        if code == 0 {
            return Ok(output);
        }
        Err(PeerError::Failed {
            command: command.to_owned(),
            code,
            output,
        })
    }

    /// Receives until this finds what it looks for, and where it ends.
    fn receive_until<T>(
        &mut self,
        find: impl Fn(&[u8]) -> Option<(T, usize)>,
    ) -> Result<T, PeerError> {
        let mut buffer = vec![0; 64 << 10];
        loop {
            if let Some((found, end)) = find(&self.received) {
                self.received.drain(..end);
                return Ok(found);
            }
            let length = self
                .stream
                .read(&mut buffer)
                .map_err(PeerError::host("read what its guest says"))?;
            self.received.extend_from_slice(&buffer[..length]);
            if length == 0 || self.received.len() > MAX_OUTPUT_BYTES {
                return Err(PeerError::Ended {
                    messages: String::from_utf8_lossy(&self.received).into_owned(),
                });
            }
        }
    }
}

/// Output and exit code in front of a mark, and where the mark's line ends.
fn answer(bytes: &[u8], mark: &str) -> Option<((String, u8), usize)> {
    let mark = format!("\n{mark} ");
    let mark = mark.as_bytes();
    let at = bytes.windows(mark.len()).position(|w| w == mark)?;
    let rest = &bytes[at + mark.len()..];
    let length = rest.iter().position(|byte| *byte == b'\n')?;
    let code = std::str::from_utf8(&rest[..length]).ok()?.parse().ok()?;
    let output = String::from_utf8_lossy(&bytes[..at]).trim().to_owned();
    Some(((output, code), at + mark.len() + length + 1))
}

/// A value quoted for the shell.
fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_complete_with_its_line() {
        let whole = b"a\nb\n\nbench-end-12 7\nmore";
        let (found, end) = answer(whole, "bench-end-12").unwrap();
        assert_eq!(found, ("a\nb".to_owned(), 7));
        assert_eq!(&whole[end..], b"more");
        for length in 0..end {
            assert_eq!(answer(&whole[..length], "bench-end-12"), None, "{length}");
        }
        assert_eq!(answer(whole, "bench-end-1"), None);
        assert_eq!(answer(b"\nbench-end-1 many\n", "bench-end-1"), None);
    }

    /// What `init.sh` ends in, on a socket instead of a serial line.
    fn real_shell() -> (Shell, std::process::Child) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let output = std::os::fd::OwnedFd::from(theirs.try_clone().unwrap());
        let child = std::process::Command::new("sh")
            .stdin(std::os::fd::OwnedFd::from(theirs))
            .stdout(output)
            .spawn()
            .unwrap();
        (Shell::waiting(ours), child)
    }

    #[test]
    fn a_shell_answers_each_command() {
        let (mut shell, mut child) = real_shell();
        assert_eq!(shell.sh("echo \"it's\" $((1 + 1)); cat").unwrap(), "it's 2");
        assert_eq!(shell.run("/bin/cat").unwrap(), "");
        assert_eq!(shell.sh("printf 'one\ntwo'").unwrap(), "one\ntwo");
        match shell.sh("echo no; exit 3").unwrap_err() {
            PeerError::Failed { code, output, .. } => assert_eq!((code, &*output), (3, "no")),
            other => panic!("{other}"),
        }
        drop(shell);
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn a_shell_that_goes_away_is_an_error() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"noise\nbench-ready\n").unwrap();
        let mut shell = Shell::starting(ours).unwrap();
        drop(theirs);
        assert!(shell.run("true").is_err());
    }
}
