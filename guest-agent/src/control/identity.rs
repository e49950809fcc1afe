//! A machine's own name and keys, written into its file system and kernel.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use agent_protocol::codec::Id;
use agent_protocol::message::{Identity, SshHostKey, StepOutcome, StepReport};
use rustix::mount::mount_bind;
use rustix::process::{Pid, Signal, kill_process};
use rustix::system::sethostname;

use super::ControlError;
use super::disk::DiskThread;
use super::place::{Placed, Placer};

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
/// How long the disk may take for all files together. A frozen file system never answers; a host that
/// is busy may take many seconds for each sync.
const DISK_TIME: Duration = Duration::from_secs(60);

/// The system that gets an identity.
pub(crate) struct Root<'a> {
    path: PathBuf,
    placer: Placer<'a>,
}

impl<'a> Root<'a> {
    /// The running machine, whose kernel and services are told as well.
    pub(crate) fn machine(disk: &'a DiskThread) -> Self {
        Self::new("/".into(), disk, true)
    }

    fn new(path: PathBuf, disk: &'a DiskThread, live: bool) -> Self {
        let placer = Placer {
            disk,
            deadline: Instant::now() + DISK_TIME,
            live,
        };
        Self { path, placer }
    }

    /// Applies every field of `identity`; each step is tried, whatever became of the others.
    ///
    /// # Errors
    /// When the request is not valid; nothing is done then.
    pub(crate) fn apply(&self, identity: &Identity) -> Result<Vec<StepReport>, ControlError> {
        check(identity)?;
        let mut steps = Steps::default();
        if let Some(name) = &identity.hostname {
            steps.note("host name", self.set_hostname(name));
        }
        if let Some(id) = identity.machine_id {
            steps.note("machine id", self.set_machine_id(id));
        }
        if let Some(id) = identity.boot_id.filter(|_| self.placer.live) {
            steps.note("boot id", set_boot_id(id).map(|()| Placed::OnDisk));
        }
        if let Some(seed) = &identity.random_seed {
            // The kernel's pool has its own new seed: this is only for the next boot.
            steps.note_for_next_boot("random seed", self.set_random_seed(seed));
        }
        if !identity.ssh_host_keys.is_empty() {
            steps.note("SSH host keys", self.set_ssh_keys(&identity.ssh_host_keys));
        }
        if identity.forget_dhcp {
            steps.note_for_next_boot("DHCP leases", self.forget_leases());
        }
        steps.note_for_next_boot("sync", self.sync());
        Ok(steps.0)
    }

    /// Makes all of it durable at once.
    fn sync(&self) -> io::Result<Placed> {
        let path = self.path.clone();
        self.placer.disk.run(self.placer.deadline, move || {
            Ok(rustix::fs::syncfs(fs::File::open(path)?)?)
        })?;
        Ok(Placed::OnDisk)
    }

    fn set_hostname(&self, name: &str) -> io::Result<Placed> {
        if self.placer.live {
            sethostname(name.as_bytes())?;
        }
        let etc = self.path.join("etc");
        let hostname = format!("{name}\n");
        let first = self.place(&etc.join("hostname"), hostname.as_bytes(), 0o644)?;
        let hosts = etc.join("hosts");
        let old = match fs::read(&hosts) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => DEFAULT_HOSTS.into(),
            Err(error) => return Err(about(&hosts)(error)),
        };
        let second = self.place(&hosts, hosts_with(&old, name).as_bytes(), 0o644)?;
        Ok(worse(first, second))
    }

    fn set_machine_id(&self, id: Id) -> io::Result<Placed> {
        let text = format!("{}\n", hex(id));
        let placed = self.place(&self.path.join("etc/machine-id"), text.as_bytes(), 0o444)?;
        // Most often a link to the other file.
        let dbus = self.path.join("var/lib/dbus/machine-id");
        if fs::symlink_metadata(&dbus).is_ok_and(|meta| meta.is_file()) {
            return Ok(worse(placed, self.place(&dbus, text.as_bytes(), 0o444)?));
        }
        Ok(placed)
    }

    fn set_random_seed(&self, seed: &[u8]) -> io::Result<Placed> {
        let mut placed = Placed::OnDisk;
        for file in SEED_FILES.map(|file| self.path.join(file)) {
            if file.exists() {
                placed = worse(placed, self.place(&file, seed, 0o600)?);
            }
        }
        Ok(placed)
    }

    fn set_ssh_keys(&self, keys: &[SshHostKey]) -> io::Result<Placed> {
        let directory = self.path.join("etc/ssh");
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Placed::OnDisk), // no server
            Err(error) => return Err(about(&directory)(error)),
        };
        let mut files = Vec::new();
        for key in keys {
            let name = format!("ssh_host_{}_key", key.algorithm);
            files.push((
                directory.join(format!("{name}.pub")),
                &key.public_key,
                0o644,
            ));
            files.push((directory.join(name), &key.private_key, 0o600));
        }
        let mut placed = Placed::OnDisk;
        for entry in entries.flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            let is_key = name.starts_with("ssh_host_") && name.contains("_key");
            if is_key && !files.iter().any(|(file, ..)| *file == path) {
                let removed = self.placer.remove(&path).map_err(about(&path))?;
                placed = worse(placed, removed);
            }
        }
        for (path, contents, mode) in files {
            placed = worse(placed, self.place(&path, contents, mode)?);
        }
        if self.placer.live {
            reload_ssh_server();
        }
        Ok(placed)
    }

    fn forget_leases(&self) -> io::Result<Placed> {
        let mut placed = Placed::OnDisk;
        for directory in DHCP_DIRECTORIES.map(|directory| self.path.join(directory)) {
            // A directory that is not there holds no lease.
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                let (path, name) = (entry.path(), entry.file_name());
                let name = name.to_string_lossy();
                let of_dhcp = [".lease", ".leases", "duid", "secret_key"];
                if of_dhcp.iter().any(|part| name.contains(part)) && path.is_file() {
                    let removed = self.placer.remove(&path).map_err(about(&path))?;
                    placed = worse(placed, removed);
                }
            }
        }
        Ok(placed)
    }

    fn place(&self, path: &Path, contents: &[u8], mode: u32) -> io::Result<Placed> {
        let placed = self.placer.place(path, contents, mode);
        match placed.map_err(about(path))? {
            Placed::UntilBoot(why) => Ok(Placed::UntilBoot(about(path)(why))),
            placed => Ok(placed),
        }
    }
}

/// What became of each step.
#[derive(Default)]
struct Steps(Vec<StepReport>);

impl Steps {
    fn note(&mut self, step: &str, placed: io::Result<Placed>) {
        let (outcome, reason) = match placed {
            Ok(Placed::OnDisk) => (StepOutcome::Done, String::new()),
            Ok(Placed::UntilBoot(why)) => (StepOutcome::UntilBoot, why.to_string()),
            Err(error) => (StepOutcome::Failed, error.to_string()),
        };
        let step = step.into();
        self.0.push(StepReport {
            step,
            outcome,
            reason,
        });
    }

    /// A step that matters from the next boot on, where it is tried again.
    fn note_for_next_boot(&mut self, step: &str, placed: io::Result<Placed>) {
        self.note(step, placed.or_else(|why| Ok(Placed::UntilBoot(why))));
    }
}

/// Names the file in an error.
fn about(path: &Path) -> impl Fn(io::Error) -> io::Error + '_ {
    move |error| {
        io::Error::new(
            error.kind(),
            format!("cannot write {}: {error}", path.display()),
        )
    }
}

/// The first of two that is not on the disk.
fn worse(first: Placed, second: Placed) -> Placed {
    match first {
        Placed::OnDisk => second,
        Placed::UntilBoot(_) => first,
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
pub(crate) fn hex(id: Id) -> String {
    id.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The kernel keeps its boot id, so another file is mounted over it.
fn set_boot_id(id: Id) -> io::Result<()> {
    let directory = Path::new("/run/smolvm");
    fs::create_dir_all(directory)?;
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
        .map_err(about(&file))?;
    let target = "/proc/sys/kernel/random/boot_id";
    if fs::read_to_string(target).is_ok_and(|now| now == text) {
        return Ok(()); // mounted by an earlier call
    }
    Ok(mount_bind(&file, target)?)
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use agent_protocol::codec::Bytes;

    fn disk() -> DiskThread {
        DiskThread::start().expect("thread")
    }

    fn system(disk: &DiskThread) -> (tempfile::TempDir, Root<'_>) {
        let directory = tempfile::tempdir().expect("temporary directory");
        let root = Root::new(directory.path().into(), disk, false);
        for made in ["etc/ssh", "var/lib/dbus", "var/lib/systemd", "var/lib/dhcp"] {
            fs::create_dir_all(directory.path().join(made)).expect("directory");
        }
        (directory, root)
    }

    #[test]
    fn everything_that_names_a_machine_is_replaced() {
        let disk = disk();
        let (directory, root) = system(&disk);
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
            machine_id: Some([0xab; 16].into()),
            boot_id: None,
            random_seed: Some(Bytes::from("seed")),
            ssh_host_keys: vec![SshHostKey {
                algorithm: "ed25519".into(),
                private_key: Bytes::from("private"),
                public_key: Bytes::from("public"),
            }],
            forget_dhcp: true,
        };
        for _ in 0..2 {
            let steps = root.apply(&identity).expect("apply");
            assert!(
                steps.iter().all(|step| step.outcome == StepOutcome::Done),
                "{steps:?}"
            );
        }
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
        let disk = disk();
        let (directory, root) = system(&disk);
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
    fn a_failed_step_is_named_and_the_others_are_done() {
        let disk = disk();
        let (directory, root) = system(&disk);
        let at = |path: &str| directory.path().join(path);
        // A directory stands where the machine id goes.
        fs::create_dir(at("etc/machine-id")).expect("directory");
        fs::write(at("etc/ssh/ssh_host_rsa_key"), "old").expect("write");
        let identity = Identity {
            hostname: Some("new".into()),
            machine_id: Some([1; 16].into()),
            ssh_host_keys: vec![SshHostKey {
                algorithm: "ed25519".into(),
                private_key: Bytes::from("private"),
                public_key: Bytes::from("public"),
            }],
            ..Identity::default()
        };
        let steps = root.apply(&identity).expect("tried");
        let outcome = |name: &str| {
            let step = steps.iter().find(|step| step.step == name);
            step.map(|step| (step.outcome, step.reason.clone()))
                .expect("a step")
        };
        assert_eq!(outcome("host name").0, StepOutcome::Done);
        assert_eq!(outcome("SSH host keys").0, StepOutcome::Done);
        let (failed, reason) = outcome("machine id");
        assert_eq!(failed, StepOutcome::Failed);
        assert!(reason.contains("etc/machine-id"), "{reason}");
        assert_eq!(
            fs::read_to_string(at("etc/hostname")).expect("read"),
            "new\n"
        );
        assert!(!at("etc/ssh/ssh_host_rsa_key").exists());
    }
}
