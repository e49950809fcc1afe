//! The emulated host's initramfs: busybox, kernel modules and a start script.

use std::fs;
use std::path::Path;

use super::cpio::Archive;
use super::kernel::Kernel;
use crate::error::{Error, Result};

/// Modules that the emulated host needs; their dependencies are added.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_mmio",
    "virtio_blk",
    "virtio_console",
    "virtio_rng",
    "kvm_amd",
    "tun",
];

const BUSYBOX: &str = "/bin/busybox";

/// Names the dynamic loader in a program that needs one.
const INTERPRETER: &[u8] = b"/lib64/ld-linux-x86-64.so";

/// The start script, PID 1 until the root file system is there.
const INIT: &str = include_str!("init.sh");

/// Builds the initramfs.
pub fn build(kernel: &Kernel) -> Result<Vec<u8>> {
    with_busybox(kernel, MODULES, INIT).map(Archive::finish)
}

/// An initramfs with busybox, a start script, and modules below `/modules`, where `order` lists
/// them in the order to load.
pub fn with_busybox(kernel: &Kernel, modules: &[&str], init: &str) -> Result<Archive> {
    let busybox = fs::read(Path::new(BUSYBOX)).map_err(|source| Error::Start {
        program: BUSYBOX.to_owned(),
        hint: "install it with: apt-get install busybox-static".to_owned(),
        source,
    })?;
    if busybox
        .windows(INTERPRETER.len())
        .any(|bytes| bytes == INTERPRETER)
    {
        return Err(Error::Module {
            module: BUSYBOX.to_owned(),
            problem: "is dynamically linked; apt-get install busybox-static".to_owned(),
        });
    }
    let mut archive = Archive::default();
    for folder in ["bin", "dev", "proc", "sys", "root", "modules"] {
        archive.folder(folder);
    }
    archive.executable("bin/busybox", &busybox);
    archive.executable("init", init.as_bytes());
    let mut order = String::new();
    for (name, bytes) in kernel.modules_in_order(modules)? {
        archive.file(&format!("modules/{name}.ko"), &bytes);
        order.push_str(&name);
        order.push('\n');
    }
    archive.file("modules/order", order.as_bytes());
    Ok(archive)
}
