//! What the peer's machines boot: smolvm's kernel, initramfs and image, as QEMU takes them.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;
use smolvm_engine::Engine;
use smolvm_engine::image::{CHUNK_BYTES, Image};
use smolvm_engine::kernel::Kernel;

use super::error::PeerError;
use super::process::{MONITOR_SOCKET, Process};

/// Has a shell and what it needs, in one static program.
pub(super) const BUSYBOX: &str = "/bin/busybox";
/// PID 1 in the initramfs.
const INIT: &str = include_str!("init.sh");
/// Where the shell lies in the initramfs, beside what smolvm's has.
const SHELL_FOLDER: &str = "bench";

/// Files of the peer's folder; each machine's own folder lies in it.
pub(super) const VMLINUX: &str = "vmlinux";
pub(super) const INITRD: &str = "initrd";
const BASE: &str = "root.raw";
/// A machine's disk, in its own folder.
pub(super) const DISK: &str = "root.qcow2";

/// Writes kernel, initramfs and root disk of the home's defaults into a folder and returns the
/// kernel's command line.
pub(super) fn prepare(engine: &Engine, folder: &Path) -> Result<String, PeerError> {
    let home = engine.home().root();
    let kernel = Kernel::default_of(home)?;
    fs::copy(kernel.vmlinux_path(), folder.join(VMLINUX))
        .map_err(PeerError::host("copy the kernel"))?;
    let mut initrd = kernel.initramfs(smolvm_engine::GUEST_AGENT)?;
    // The kernel unpacks one archive after the other.
    initrd.extend(shell_archive(folder).map_err(PeerError::host("pack a shell"))?);
    fs::write(folder.join(INITRD), initrd).map_err(PeerError::host("write its initramfs"))?;
    write_disk(&Image::default_of(home)?, &folder.join(BASE))?;
    Ok(format!(
        "{} rdinit=/{SHELL_FOLDER}/init",
        kernel.info().cmdline
    ))
}

/// An archive with busybox and the start script; busybox makes it.
fn shell_archive(folder: &Path) -> io::Result<Vec<u8>> {
    let content = folder.join(SHELL_FOLDER);
    fs::create_dir_all(&content)?;
    fs::copy(BUSYBOX, content.join("busybox"))?;
    fs::write(content.join("init"), INIT)?;
    for file in ["busybox", "init"] {
        fs::set_permissions(content.join(file), fs::Permissions::from_mode(0o755))?;
    }
    let mut archiver = Command::new(BUSYBOX)
        .args(["cpio", "-o", "-H", "newc", "-R", "0:0"])
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let names = format!("{SHELL_FOLDER}\n{SHELL_FOLDER}/busybox\n{SHELL_FOLDER}/init\n");
    if let Some(mut input) = archiver.stdin.take() {
        input.write_all(names.as_bytes())?;
    }
    let output = archiver.wait_with_output()?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(io::Error::other(format!("cpio: {}", output.status))),
    }
}

/// Writes an image's disk as a raw file, sparse.
fn write_disk(image: &Image, path: &Path) -> Result<(), PeerError> {
    let (map, chunks) = (image.map()?, image.chunks());
    let write = || -> io::Result<()> {
        let file = File::create(path)?;
        file.set_len(map.size_bytes())?;
        let mut chunk = vec![0; CHUNK_BYTES];
        for (number, id) in map.chunks().iter().enumerate() {
            if !id.is_zero() {
                let length = chunks.get(id, &mut chunk).map_err(io::Error::other)?;
                file.write_all_at(&chunk[..length], number as u64 * CHUNK_BYTES as u64)?;
            }
        }
        Ok(())
    };
    write().map_err(PeerError::host("write its root disk"))
}

/// Makes an empty disk over the root disk in a machine's folder. QEMU's own tool for that is in
/// another package.
pub(super) fn create_disk(folder: &Path, size_bytes: u64) -> Result<(), PeerError> {
    let monitor = format!("unix:{MONITOR_SOCKET},server=on,wait=off");
    let arguments = [
        "-M",
        "none",
        "-nodefaults",
        "-display",
        "none",
        "-qmp",
        &monitor,
    ];
    let mut process = Process::start(folder, &arguments.map(str::to_owned))?;
    let mut monitor = process.monitor()?;
    monitor.create_block_device(&json!({"driver": "file", "filename": DISK, "size": 0}))?;
    let node = json!({"driver": "file", "node-name": "file", "filename": DISK});
    monitor.command("blockdev-add", &node)?;
    monitor.create_block_device(&json!({
        "driver": "qcow2",
        "file": "file",
        "size": size_bytes,
        "backing-file": format!("../{BASE}"),
        "backing-fmt": "raw",
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::process::QEMU;

    #[test]
    fn the_shell_archive_has_what_the_kernel_runs() {
        if !Path::new(BUSYBOX).exists() {
            return conformance::skip::because("shell_archive", "busybox-static is not installed");
        }
        let folder = tempfile::tempdir().unwrap();
        let archive = shell_archive(folder.path()).unwrap();
        assert!(archive.starts_with(b"070701"));
        for wanted in [INIT.as_bytes(), b"bench/init\0", b"bench/busybox\0"] {
            assert!(archive.windows(wanted.len()).any(|bytes| bytes == wanted));
        }
    }

    #[test]
    fn qemu_makes_a_disk_over_another() {
        if Command::new(QEMU).arg("--version").output().is_err() {
            return conformance::skip::because("create_disk", "QEMU is not installed");
        }
        let folder = tempfile::tempdir().unwrap();
        create_disk(folder.path(), 64 << 20).unwrap();
        let disk = fs::read(folder.path().join(DISK)).unwrap();
        assert!(disk.starts_with(b"QFI\xfb"));
        // Its size lies at byte 24 of the header, most significant byte first.
        assert_eq!(disk[24..32], (64u64 << 20).to_be_bytes());
        assert!(disk.windows(11).any(|bytes| bytes == b"../root.raw"));
        // Nothing is left in the way of the next one.
        fs::remove_file(folder.path().join(DISK)).unwrap();
        create_disk(folder.path(), 64 << 20).unwrap();
    }
}
