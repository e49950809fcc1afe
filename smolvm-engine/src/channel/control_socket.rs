//! The control socket of a machine; its path may be longer than socket addresses allow.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

/// Longest path that fits into a socket address everywhere (macOS has 104 bytes with the zero).
const MAX_SOCKET_PATH_BYTES: usize = 103;

/// Listens at `path`, replacing what an earlier process left there.
pub(crate) fn listen(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = with_short_path(path, UnixListener::bind)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Connects to the socket at `path`. A process that takes no connections is waited for, for at most `patience`.
pub(crate) fn connect(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    with_short_path(path, |path| {
        Ok(rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?)
    })?;
    set_socket_timeout(&socket, Timeout::Send, None)?;
    Ok(socket.into())
}

/// Calls `use_path` with `path`, or with an equal one that is short enough: through a descriptor of
/// its directory.
fn with_short_path<T>(
    path: &Path,
    use_path: impl FnOnce(PathBuf) -> io::Result<T>,
) -> io::Result<T> {
    if path.as_os_str().len() <= MAX_SOCKET_PATH_BYTES {
        return use_path(path.to_owned());
    }
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let directory = File::open(directory)?;
    let short = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name);
    use_path(short)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_paths_work() {
        let directory = tempfile::tempdir().unwrap();
        let deep = directory.path().join("x".repeat(100)).join("y".repeat(60));
        std::fs::create_dir_all(&deep).unwrap();
        let path = deep.join("control.sock");
        let listener = listen(&path).unwrap();
        connect(&path, Duration::from_secs(10)).unwrap();
        listener.accept().unwrap();
        drop(listener);
        listen(&path).unwrap();
    }
}
