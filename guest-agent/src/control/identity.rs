//! A machine's own name and keys, written into its file system and kernel.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use agent_protocol::message::{Identity, SshHostKey};
use rustix::mount::mount_bind;
use rustix::process::{Pid, Signal, kill_process};
use rustix::system::sethostname;

use super::ControlError;

/// Longest host name that Linux takes.
const MAX_HOSTNAME_BYTES: usize = 64;
/// Algorithms of SSH host keys.
const SSH_ALGORITHMS: [&str; 3] = ["ed25519", "ecdsa", "rsa"];
/// Files that seed the random pool at boot.
const SEED_FILES: [&str; 3] = [
    "var/lib/systemd/random-seed",
    "var/lib/urandom/random-seed",
    "var/lib/random-seed",
];
/// Directories with leases and ids of DHCP clients.
const DHCP_DIRECTORIES: [&str; 4] = [
    "var/lib/dhcp",
    "var/lib/dhcpcd",
    "var/lib/NetworkManager",
    "run/systemd/netif/leases",
];

/// The system that gets an identity.
pub(crate) struct Root {
    path: PathBuf,
    /// Whether the running kernel and services are told as well.
    live: bool,
}

impl Root {
    /// The running machine.
    pub(crate) fn machine() -> Self {
        Self {
            path: "/".into(),
            live: true,
        }
    }

    /// Applies every field of `identity`, durably; the first failure ends it.
    pub(crate) fn apply(&self, identity: &Identity) -> Result<(), ControlError> {
        check(identity)?;
        if let Some(name) = &identity.hostname {
            self.set_hostname(name)?;
        }
        if let Some(id) = identity.machine_id {
            self.set_machine_id(id)?;
        }
        if let Some(id) = identity.boot_id.filter(|_| self.live) {
            set_boot_id(id)?;
        }
        if let Some(seed) = &identity.random_seed {
            for file in SEED_FILES.map(|file| self.path.join(file)) {
                if file.exists() {
                    write_replacing(&file, seed, 0o600)?;
                }
            }
        }
        if !identity.ssh_host_keys.is_empty() {
            self.set_ssh_keys(&identity.ssh_host_keys)?;
        }
        if identity.forget_dhcp {
            for directory in DHCP_DIRECTORIES {
                self.forget_leases(&self.path.join(directory))?;
            }
        }
        self.sync()
    }

    /// Makes all of it durable at once: a sync of each file would wait for the host's disk a dozen times.
    fn sync(&self) -> Result<(), ControlError> {
        let failed = |source: io::Error| ControlError::File {
            step: "sync",
            path: self.path.clone(),
            source,
        };
        let root = fs::File::open(&self.path).map_err(failed)?;
        rustix::fs::syncfs(root).map_err(|error| failed(error.into()))
    }

    fn set_hostname(&self, name: &str) -> Result<(), ControlError> {
        if self.live {
            sethostname(name.as_bytes()).map_err(ControlError::system("set the host name"))?;
        }
        let etc = self.path.join("etc");
        write_replacing(&etc.join("hostname"), format!("{name}\n").as_bytes(), 0o644)?;
        let hosts = etc.join("hosts");
        let old = match fs::read(&hosts) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => DEFAULT_HOSTS.into(),
            Err(source) => {
                return Err(ControlError::File {
                    step: "read",
                    path: hosts,
                    source,
                });
            }
        };
        write_replacing(&hosts, hosts_with(&old, name).as_bytes(), 0o644)
    }

    fn set_machine_id(&self, id: [u8; 16]) -> Result<(), ControlError> {
        let text = format!("{}\n", hex(id));
        write_replacing(&self.path.join("etc/machine-id"), text.as_bytes(), 0o444)?;
        // Most often a link to the other file.
        let dbus = self.path.join("var/lib/dbus/machine-id");
        if fs::symlink_metadata(&dbus).is_ok_and(|meta| meta.is_file()) {
            write_replacing(&dbus, text.as_bytes(), 0o444)?;
        }
        Ok(())
    }

    fn set_ssh_keys(&self, keys: &[SshHostKey]) -> Result<(), ControlError> {
        let directory = self.path.join("etc/ssh");
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()), // no server
            Err(source) => {
                return Err(ControlError::File {
                    step: "list",
                    path: directory,
                    source,
                });
            }
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with("ssh_host_") && name.contains("_key") {
                remove(&entry.path())?;
            }
        }
        for key in keys {
            let private = directory.join(format!("ssh_host_{}_key", key.algorithm));
            let public = directory.join(format!("ssh_host_{}_key.pub", key.algorithm));
            write_replacing(&private, &key.private_key, 0o600)?;
            write_replacing(&public, &key.public_key, 0o644)?;
        }
        if self.live {
            reload_ssh_server();
        }
        Ok(())
    }

    fn forget_leases(&self, directory: &Path) -> Result<(), ControlError> {
        // A directory that is not there holds no lease.
        let Ok(entries) = fs::read_dir(directory) else {
            return Ok(());
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let of_dhcp = [".lease", ".leases", "duid", "secret_key"];
            if of_dhcp.iter().any(|part| name.contains(part)) && entry.path().is_file() {
                remove(&entry.path())?;
            }
        }
        Ok(())
    }
}

const DEFAULT_HOSTS: &str = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n";

fn check(identity: &Identity) -> Result<(), ControlError> {
    if let Some(name) = &identity.hostname {
        let good = name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.');
        if name.is_empty() || name.len() > MAX_HOSTNAME_BYTES || !good {
            return Err(ControlError::Invalid {
                what: "that is no host name",
            });
        }
    }
    for key in &identity.ssh_host_keys {
        if !SSH_ALGORITHMS.contains(&key.algorithm.as_str()) {
            return Err(ControlError::Invalid {
                what: "unknown algorithm of an SSH host key",
            });
        }
    }
    Ok(())
}

/// The hosts file with the machine's own line, 127.0.1.1 as Debian has it, naming `name`.
fn hosts_with(old: &str, name: &str) -> String {
    let mut text = String::with_capacity(old.len() + name.len());
    for line in old
        .lines()
        .filter(|line| !line.trim_start().starts_with("127.0.1.1"))
    {
        text.push_str(line);
        text.push('\n');
    }
    text.push_str("127.0.1.1\t");
    text.push_str(name);
    text.push('\n');
    text
}

/// 32 lower-case hexadecimal digits.
pub(crate) fn hex(id: [u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The kernel keeps its boot id, so another file is mounted over it.
fn set_boot_id(id: [u8; 16]) -> Result<(), ControlError> {
    let directory = Path::new("/run/smolvm");
    fs::create_dir_all(directory).map_err(ControlError::system("make /run/smolvm"))?;
    let digits = hex(id);
    let groups = [
        &digits[..8],
        &digits[8..12],
        &digits[12..16],
        &digits[16..20],
        &digits[20..],
    ];
    let file = directory.join("boot-id");
    let text = format!("{}\n", groups.join("-"));
    // In place: a file that is mounted over another must stay the same one.
    let mut open = OpenOptions::new();
    open.write(true).create(true).truncate(true).mode(0o444);
    open.open(&file)
        .and_then(|mut out| out.write_all(text.as_bytes()))
        .map_err(|source| ControlError::File {
            step: "write",
            path: file.clone(),
            source,
        })?;
    let target = "/proc/sys/kernel/random/boot_id";
    if fs::read_to_string(target).is_ok_and(|now| now == text) {
        return Ok(()); // mounted by an earlier call
    }
    mount_bind(&file, target).map_err(ControlError::system("show the new boot id"))
}

/// The server reads its keys when it starts, and starts again on SIGHUP.
fn reload_ssh_server() {
    let pid = fs::read_to_string("/run/sshd.pid").ok();
    let pid = pid
        .and_then(|text| text.trim().parse().ok())
        .and_then(Pid::from_raw);
    let Some(pid) = pid else { return };
    let name = fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()));
    if name.is_ok_and(|name| name.trim() == "sshd") {
        // It may have ended just now.
        let _ = kill_process(pid, Signal::HUP);
    }
}

fn remove(path: &Path) -> Result<(), ControlError> {
    fs::remove_file(path).map_err(|source| ControlError::File {
        step: "remove",
        path: path.to_owned(),
        source,
    })
}

/// Replaces `path` by a file with these contents in one step, which the caller makes durable. A link
/// there is replaced, not followed; a file that is a mount point is written in place.
pub(crate) fn write_replacing(path: &Path, contents: &[u8], mode: u32) -> Result<(), ControlError> {
    let failed = |source| ControlError::File {
        step: "write",
        path: path.to_owned(),
        source,
    };
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".smolvm-new");
    let temporary = PathBuf::from(temporary);
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let mut open = OpenOptions::new();
    open.write(true).create_new(true).mode(0o600);
    let written = open.open(&temporary).and_then(|mut file| {
        file.write_all(contents)?;
        file.set_permissions(Permissions::from_mode(mode))
    });
    let replaced = written.and_then(|()| match fs::rename(&temporary, path) {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            fs::remove_file(&temporary)?;
            fs::write(path, contents)
        }
        other => other,
    });
    replaced.map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_protocol::codec::Bytes;

    fn system() -> (tempfile::TempDir, Root) {
        let directory = tempfile::tempdir().expect("temporary directory");
        let root = Root {
            path: directory.path().into(),
            live: false,
        };
        for made in ["etc/ssh", "var/lib/dbus", "var/lib/systemd", "var/lib/dhcp"] {
            fs::create_dir_all(directory.path().join(made)).expect("directory");
        }
        (directory, root)
    }

    #[test]
    fn everything_that_names_a_machine_is_replaced() {
        let (directory, root) = system();
        let at = |path: &str| directory.path().join(path);
        fs::write(at("etc/hosts"), "127.0.0.1 localhost\n127.0.1.1\told\n").expect("write");
        fs::write(at("etc/machine-id"), "").expect("write");
        fs::write(at("var/lib/dbus/machine-id"), "old\n").expect("write");
        fs::write(at("etc/ssh/ssh_host_rsa_key"), "old").expect("write");
        fs::write(at("etc/ssh/sshd_config"), "kept").expect("write");
        fs::write(at("var/lib/systemd/random-seed"), "old").expect("write");
        fs::write(at("var/lib/dhcp/dhclient.eth0.leases"), "old").expect("write");
        let identity = Identity {
            hostname: Some("try-a".into()),
            machine_id: Some([0xab; 16]),
            boot_id: None,
            random_seed: Some(Bytes::from("seed")),
            ssh_host_keys: vec![SshHostKey {
                algorithm: "ed25519".into(),
                private_key: Bytes::from("private"),
                public_key: Bytes::from("public"),
            }],
            forget_dhcp: true,
        };
        root.apply(&identity).expect("apply");
        root.apply(&identity).expect("a second time");
        let read = |path: &str| fs::read_to_string(at(path)).expect("read");
        assert_eq!(read("etc/hostname"), "try-a\n");
        assert_eq!(read("etc/hosts"), "127.0.0.1 localhost\n127.0.1.1\ttry-a\n");
        assert_eq!(read("etc/machine-id"), format!("{}\n", "ab".repeat(16)));
        assert_eq!(read("var/lib/dbus/machine-id"), read("etc/machine-id"));
        assert_eq!(read("etc/ssh/ssh_host_ed25519_key"), "private");
        let mode = |path: &str| fs::metadata(at(path)).expect("stat").permissions().mode();
        assert_eq!(mode("etc/ssh/ssh_host_ed25519_key") & 0o7777, 0o600);
        assert_eq!(mode("etc/ssh/ssh_host_ed25519_key.pub") & 0o7777, 0o644);
        assert!(!at("etc/ssh/ssh_host_rsa_key").exists());
        assert_eq!(read("etc/ssh/sshd_config"), "kept");
        assert_eq!(read("var/lib/systemd/random-seed"), "seed");
        assert!(!at("var/lib/urandom").exists());
        assert!(!at("var/lib/dhcp/dhclient.eth0.leases").exists());
    }

    #[test]
    fn bad_names_and_algorithms_change_nothing() {
        let (directory, root) = system();
        for name in ["", "a/b", "a b", "a\nb", &"x".repeat(65)] {
            let identity = Identity {
                hostname: Some(name.into()),
                ..Identity::default()
            };
            assert!(root.apply(&identity).is_err(), "{name:?}");
        }
        let key = SshHostKey {
            algorithm: "../../../tmp/x".into(),
            private_key: Bytes::default(),
            public_key: Bytes::default(),
        };
        let identity = Identity {
            hostname: Some("good".into()),
            ssh_host_keys: vec![key],
            ..Identity::default()
        };
        assert!(root.apply(&identity).is_err());
        assert!(!directory.path().join("etc/hostname").exists());
    }

    #[test]
    fn a_failed_step_is_named() {
        let (directory, root) = system();
        fs::remove_dir_all(directory.path().join("etc")).expect("remove");
        let identity = Identity {
            machine_id: Some([1; 16]),
            ..Identity::default()
        };
        let error = root.apply(&identity).expect_err("no etc");
        assert!(error.to_string().contains("etc/machine-id"), "{error}");
    }
}
