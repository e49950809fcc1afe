//! Import of small made-up kernels, and of Debian's where it is at hand.

use std::fs;
use std::path::{Path, PathBuf};

use super::modules::tests::module_object;
use super::*;
use crate::progress::Silent;

const VERSION: &str = "6.1.0-test";

/// An ELF kernel with a PVH note.
fn vmlinux() -> Vec<u8> {
    let mut out = vec![0; 64 + 2 * 56];
    out[..6].copy_from_slice(b"\x7fELF\x02\x01");
    out[16..20].copy_from_slice(&[2, 0, 62, 0]);
    out[24..32].copy_from_slice(&0x100_0000u64.to_le_bytes());
    out[32..40].copy_from_slice(&64u64.to_le_bytes());
    out[54..58].copy_from_slice(&[56, 0, 2, 0]);
    let note = b"\x04\0\0\0\x04\0\0\0\x12\0\0\0Xen\0\0\0\0\x01";
    let at = out.len() as u64;
    for (header, kind, len) in [(64, 1u32, 4u64), (120, 4, note.len() as u64)] {
        out[header..header + 4].copy_from_slice(&kind.to_le_bytes());
        out[header + 8..header + 16].copy_from_slice(&at.to_le_bytes());
        out[header + 32..header + 40].copy_from_slice(&len.to_le_bytes());
    }
    out.extend_from_slice(note);
    out
}

/// A root directory with a kernel.
fn root(dir: &Path) -> PathBuf {
    let root = dir.join("root");
    let modules = root.join("lib/modules").join(VERSION);
    fs::create_dir_all(modules.join("kernel")).unwrap();
    fs::create_dir_all(root.join("boot")).unwrap();
    fs::write(
        root.join("boot").join(format!("vmlinuz-{VERSION}")),
        vmlinux(),
    )
    .unwrap();
    fs::write(
        modules.join("modules.builtin"),
        "kernel/ext4.ko\nkernel/virtio_mmio.ko\n",
    )
    .unwrap();
    let blk = module_object("depends=virtio\0");
    fs::write(
        modules.join("kernel/virtio_blk.ko.zst"),
        zstd::encode_all(&blk[..], 1).unwrap(),
    )
    .unwrap();
    for (name, info) in [
        ("virtio", "depends=\0"),
        ("vmw_vsock_virtio_transport", "depends=\0"),
    ] {
        fs::write(
            modules.join(format!("kernel/{name}.ko")),
            module_object(info),
        )
        .unwrap();
    }
    root
}

#[test]
fn modules_that_need_too_much_memory_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let root = root(dir.path());
    let modules = root.join("lib/modules").join(VERSION).join("kernel");
    let name = |number: u32| format!("m{number}");
    // Small on disk, each needs the next one.
    for number in 0..12 {
        let info = format!("depends={}\0", name(number + 1));
        let mut object = module_object(&info);
        object.resize(20 << 20, 0);
        let packed = zstd::encode_all(&object[..], 1).unwrap();
        fs::write(modules.join(format!("{}.ko.zst", name(number))), packed).unwrap();
    }
    let blk = module_object("depends=m0\0");
    fs::remove_file(modules.join("virtio_blk.ko.zst")).unwrap();
    fs::write(modules.join("virtio_blk.ko"), blk).unwrap();
    let home = dir.path().join("home");
    let source = KernelSource::detect(&root).unwrap();
    let error = import(&home, "k", &source, &Silent).unwrap_err();
    assert!(matches!(error, KernelError::TooMuch { .. }), "{error:?}");
}

#[test]
fn imports_a_root_directory() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    let source = KernelSource::detect(&root(dir.path())).unwrap();
    let kernel = import(&home, "k", &source, &Silent).unwrap();
    assert_eq!(kernel.info().version, VERSION);
    assert_eq!(kernel.info().entry, Entry::Pvh);
    assert_eq!(
        kernel.info().modules,
        ["virtio", "virtio_blk", "vmw_vsock_virtio_transport"]
    );
    assert!(kernel.info().cmdline.contains("cryptomgr.notests"));
    assert_eq!(kernel.vmlinux().unwrap(), vmlinux());
    let again = import(&home, "k", &source, &Silent).unwrap_err();
    assert!(matches!(again, KernelError::Exists { .. }));
    assert_eq!(Kernel::default_of(&home).unwrap().name(), "k");
    import(&home, "other", &source, &Silent).unwrap();
    assert!(matches!(
        Kernel::default_of(&home),
        Err(KernelError::NoDefault { .. })
    ));
    import(&home, "default", &source, &Silent).unwrap();
    assert_eq!(Kernel::default_of(&home).unwrap().name(), "default");
    remove(&home, "default").unwrap();
    assert!(matches!(
        remove(&home, "default"),
        Err(KernelError::NotFound { .. })
    ));
    assert_eq!(list(&home).unwrap().len(), 2);
}

#[test]
fn the_initramfs_is_what_cpio_unpacks() {
    let dir = tempfile::tempdir().unwrap();
    let source = KernelSource::Root(root(dir.path()));
    let kernel = import(dir.path(), "k", &source, &Silent).unwrap();
    let bytes = kernel.initramfs(b"agent").unwrap();
    assert_eq!(bytes, kernel.initramfs(b"agent").unwrap());
    let entries = read_cpio(&bytes);
    let find = |name: &str| entries.iter().find(|(n, ..)| n == name).unwrap();
    assert_eq!(
        (find("init").1, &find("init").2[..]),
        (0o100_755, &b"agent"[..])
    );
    assert_eq!(find("dev/console").1, 0o020_600);
    assert_eq!(
        find("modules/order").2,
        b"virtio.ko\nvirtio_blk.ko\nvmw_vsock_virtio_transport.ko\n"
    );
    assert_eq!(
        find("modules/virtio_blk.ko").2,
        module_object("depends=virtio\0")
    );
}

/// Names, modes and contents of a newc archive, read by the book.
fn read_cpio(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
    let mut entries = Vec::new();
    let mut at = 0usize;
    loop {
        assert_eq!(&bytes[..6], b"070701");
        let field = |n: usize| {
            u32::from_str_radix(
                std::str::from_utf8(&bytes[6 + 8 * n..14 + 8 * n]).unwrap(),
                16,
            )
            .unwrap() as usize
        };
        let (mode, size, name_bytes) = (field(1), field(6), field(11));
        let name = String::from_utf8(bytes[110..110 + name_bytes - 1].to_vec()).unwrap();
        if name == "TRAILER!!!" {
            return entries;
        }
        let data = (110 + name_bytes).next_multiple_of(4);
        entries.push((name, mode as u32, bytes[data..data + size].to_vec()));
        let next = (data + size).next_multiple_of(4);
        at += next;
        assert!(at.is_multiple_of(4));
        bytes = &bytes[next..];
    }
}

#[test]
fn refusals_name_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    let root = root(dir.path());
    let source = KernelSource::Root(root.clone());
    for name in ["", "../k", "K"] {
        let error = import(&home, name, &source, &Silent).unwrap_err();
        assert!(matches!(error, KernelError::BadName { .. }) && error.hint().is_some());
    }
    let modules = root.join("lib/modules").join(VERSION).join("kernel");
    fs::remove_file(modules.join("virtio.ko")).unwrap();
    let error = import(&home, "k", &source, &Silent).unwrap_err();
    assert!(matches!(error, KernelError::MissingModule { module, .. } if module == "virtio"));
    fs::write(modules.join("virtio.ko"), "rubbish").unwrap();
    let error = import(&home, "k", &source, &Silent).unwrap_err();
    assert!(matches!(error, KernelError::BadModule { .. }));
    fs::write(
        root.join("boot").join(format!("vmlinuz-{VERSION}")),
        "rubbish",
    )
    .unwrap();
    let error = import(&home, "k", &source, &Silent).unwrap_err();
    assert!(matches!(error, KernelError::BadImage { .. }));
    let error = import(&home, "k", &KernelSource::Root(home.clone()), &Silent).unwrap_err();
    assert!(matches!(error, KernelError::NoKernel { .. }));
    assert!(list(&home).unwrap().is_empty());
    assert_eq!(
        fs::read_dir(home.join("kernels")).unwrap().count(),
        0,
        "nothing left"
    );
}

#[test]
fn damage_is_found_when_used() {
    let dir = tempfile::tempdir().unwrap();
    let source = KernelSource::Root(root(dir.path()));
    let kernel = import(dir.path(), "k", &source, &Silent).unwrap();
    fs::write(kernel.vmlinux_path(), "x").unwrap();
    assert!(matches!(kernel.vmlinux(), Err(KernelError::Damaged { .. })));
    fs::write(dir.path().join("kernels/k/modules.cpio"), "x").unwrap();
    assert!(matches!(
        kernel.initramfs(b""),
        Err(KernelError::Damaged { .. })
    ));
    fs::write(dir.path().join("kernels/k/kernel.json"), "x").unwrap();
    assert!(matches!(list(dir.path()), Err(KernelError::Damaged { .. })));
}

/// Debian's own kernel package; needs apt and the network.
#[test]
#[ignore = "downloads a kernel package with apt"]
fn imports_debians_kernel() {
    let home = tempfile::tempdir().unwrap();
    let kernel = import_debian(home.path(), "default", &Silent).unwrap();
    assert_eq!(kernel.info().entry, Entry::Pvh);
    let modules = &kernel.info().modules;
    let position = |name: &str| modules.iter().position(|m| m == name);
    assert!(position("virtio_ring").unwrap() < position("virtio_blk").unwrap());
    assert!(position("vsock").unwrap() < position("vmw_vsock_virtio_transport").unwrap());
    let entries = read_cpio(&kernel.initramfs(b"agent").unwrap());
    assert_eq!(entries.len(), modules.len() + 5);
}
