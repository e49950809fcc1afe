//! QEMU processes. None outlives the value that stands for it, nor this program.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::error::PeerError;
use super::monitor::Monitor;
use super::shell::Shell;

/// The program.
pub(super) const QEMU: &str = "qemu-system-x86_64";
/// Its sockets and files, relative to its folder.
pub(super) const MONITOR_SOCKET: &str = "monitor.sock";
pub(super) const SHELL_SOCKET: &str = "shell.sock";
pub(super) const CONSOLE: &str = "console";
const MESSAGES: &str = "messages";

/// Silence for so long is a hang: a boot on a busy host takes minutes.
const SILENCE_LIMIT: Duration = Duration::from_secs(600);
/// Pause between two tries to connect.
const CONNECT_INTERVAL: Duration = Duration::from_millis(1);
/// Most of its messages that are shown.
const SHOWN_BYTES: usize = 2000;

/// A process in a folder of its own; killed when this value goes.
pub(crate) struct Process {
    child: Child,
    folder: PathBuf,
}

impl Process {
    /// Starts QEMU in a folder, where its files, sockets and messages lie.
    pub(crate) fn start(folder: &Path, arguments: &[String]) -> Result<Self, PeerError> {
        for socket in [MONITOR_SOCKET, SHELL_SOCKET] {
            match fs::remove_file(folder.join(socket)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(PeerError::host("remove its old sockets")(error));
                }
                _ => {}
            }
        }
        let messages =
            File::create(folder.join(MESSAGES)).map_err(PeerError::host("keep its messages"))?;
        // It dies with this program, however that ends.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", QEMU]).args(arguments);
        command.current_dir(folder).stderr(messages);
        Self::spawn(command, folder)
    }

    fn spawn(mut command: Command, folder: &Path) -> Result<Self, PeerError> {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(PeerError::host("start its process"))?;
        Ok(Self {
            child,
            folder: folder.to_owned(),
        })
    }

    /// Its number.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Connects to its monitor.
    pub(crate) fn monitor(&mut self) -> Result<Monitor, PeerError> {
        let stream = self.connect(MONITOR_SOCKET)?;
        Monitor::open(stream).map_err(|error| self.explained(error))
    }

    /// Connects to the shell of its guest, which says when it is there.
    pub(crate) fn starting_shell(&mut self) -> Result<Shell, PeerError> {
        let stream = self.connect(SHELL_SOCKET)?;
        Shell::starting(stream).map_err(|error| self.explained(error))
    }

    /// Connects to the shell of its guest, which waits for commands.
    pub(crate) fn waiting_shell(&mut self) -> Result<Shell, PeerError> {
        Ok(Shell::waiting(self.connect(SHELL_SOCKET)?))
    }

    fn connect(&mut self, socket: &str) -> Result<UnixStream, PeerError> {
        // Through the folder's descriptor: a socket's path has room for 107 bytes only.
        let folder = File::open(&self.folder).map_err(PeerError::host("open its folder"))?;
        let path = format!("/proc/self/fd/{}/{socket}", folder.as_raw_fd());
        loop {
            match UnixStream::connect(&path) {
                Ok(stream) => {
                    stream
                        .set_read_timeout(Some(SILENCE_LIMIT))
                        .map_err(PeerError::host("limit its silence"))?;
                    return Ok(stream);
                }
                // It may not have made the socket yet, or not listen on it.
                Err(error) if is_early(&error) && !self.has_ended()? => {
                    std::thread::sleep(CONNECT_INTERVAL);
                }
                Err(error) if is_early(&error) => return Err(self.ended()),
                Err(error) => return Err(PeerError::host("connect to it")(error)),
            }
        }
    }

    fn has_ended(&mut self) -> Result<bool, PeerError> {
        let status = self.child.try_wait();
        Ok(status.map_err(PeerError::host("wait for it"))?.is_some())
    }

    /// An error of a connection, or the reason why the process ended.
    fn explained(&mut self, error: PeerError) -> PeerError {
        let broken = matches!(error, PeerError::Ended { .. } | PeerError::Host { .. });
        if broken { self.ended() } else { error }
    }

    fn ended(&self) -> PeerError {
        let messages = [MESSAGES, CONSOLE].map(|name| {
            let bytes = fs::read(self.folder.join(name)).unwrap_or_default();
            let tail = &bytes[bytes.len().saturating_sub(SHOWN_BYTES)..];
            String::from_utf8_lossy(tail).replace('\r', "")
        });
        PeerError::Ended {
            messages: messages.concat(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails only if it has ended already, which is what is wanted.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Whether the other side may yet be there later.
fn is_early(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(program: &str, arguments: &[&str], folder: &Path) -> Process {
        let mut command = Command::new(program);
        command.args(arguments);
        Process::spawn(command, folder).unwrap()
    }

    #[test]
    fn a_process_goes_with_its_value() {
        let folder = tempfile::tempdir().unwrap();
        let running = process("sleep", &["1000"], folder.path());
        let path = PathBuf::from(format!("/proc/{}", running.id()));
        assert!(path.exists());
        drop(running);
        assert!(!path.exists());
    }

    #[test]
    fn a_process_goes_when_a_round_fails() {
        let folder = tempfile::tempdir().unwrap();
        let mut path = PathBuf::new();
        let mut fails = || -> Result<(), PeerError> {
            let running = process("sleep", &["1000"], folder.path());
            path = PathBuf::from(format!("/proc/{}", running.id()));
            Err(running.ended())
        };
        fails().unwrap_err();
        assert!(path.starts_with("/proc") && !path.exists());
    }

    #[test]
    fn one_that_ended_says_why() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(MESSAGES), "no such machine\r\n").unwrap();
        fs::write(folder.path().join(CONSOLE), "Kernel panic").unwrap();
        let mut ended = process("true", &[], folder.path());
        match ended.monitor().map(drop).unwrap_err() {
            PeerError::Ended { messages } => {
                assert_eq!(messages, "no such machine\nKernel panic");
            }
            other => panic!("{other}"),
        }
    }
}
