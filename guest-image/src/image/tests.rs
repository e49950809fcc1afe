//! Imports of generated sources, judged by reading the file system back with
//! e2fsprogs, and hostile or damaged ones.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::*;
use crate::progress::Silent;

mod archive;
mod hostile;
mod layered;

use archive::TarBuilder;

/// A place for a home and sources.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    /// Imports `bytes` as the archive `name`.
    fn import(&self, name: &str, bytes: &[u8]) -> Result<Image, ImageError> {
        import(&self.home(), "i", &self.file(name, bytes), &Silent)
    }

    /// The raw disk of an image, from its chunks.
    fn raw(&self, image: &Image) -> Disk {
        let path = self.dir.path().join(format!("{}.raw", image.name()));
        let mut file = File::create(&path).unwrap();
        let chunks = image.chunks();
        let mut buffer = vec![0; CHUNK_BYTES];
        let map = image.map().unwrap();
        for id in map.chunks() {
            if id.is_zero() {
                file.seek(SeekFrom::Current(CHUNK_BYTES as i64)).unwrap();
            } else {
                assert_eq!(chunks.get(id, &mut buffer).unwrap(), CHUNK_BYTES);
                file.write_all(&buffer).unwrap();
            }
        }
        file.set_len(map.size_bytes()).unwrap();
        assert_eq!(map.size_bytes(), image.info().size_bytes);
        Disk { path }
    }
}

/// A raw ext4 file system, looked at with e2fsprogs.
struct Disk {
    path: PathBuf,
}

/// Whether e2fsprogs is there; says so if not.
fn have_e2fsprogs() -> bool {
    let found = Command::new("debugfs").arg("-V").output().is_ok();
    if !found {
        // The harness shows this with the test's output.
        let mut out = std::io::stderr();
        writeln!(out, "skipped: e2fsprogs is not installed").unwrap();
    }
    found
}

impl Disk {
    /// e2fsck finds nothing.
    fn check(&self) {
        let output = Command::new("e2fsck")
            .arg("-fn")
            .arg(&self.path)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        assert!(!text.contains("Fix?"), "{text}");
    }

    /// The output of one debugfs command.
    fn debugfs(&self, request: &str) -> Vec<u8> {
        let mut command = Command::new("debugfs");
        command.args(["-R", request]).arg(&self.path);
        command.output().unwrap().stdout
    }

    fn text(&self, request: &str) -> String {
        String::from_utf8_lossy(&self.debugfs(request)).into_owned()
    }

    fn cat(&self, path: &str) -> Vec<u8> {
        self.debugfs(&format!("cat {path}"))
    }

    fn exists(&self, path: &str) -> bool {
        self.text(&format!("stat {path}")).contains("Inode:")
    }
}

/// Bytes that no hole or repetition resembles.
fn noise(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new().finalize_xof().fill(&mut bytes);
    bytes
}

#[test]
fn a_plain_archive_keeps_everything() {
    if !have_e2fsprogs() {
        return;
    }
    let place = Place::new();
    let big = noise(5_000_017);
    let long_target = "t".repeat(200);
    let long_path = format!("{}/{}", "d".repeat(150), "f".repeat(200));
    let mut tar = TarBuilder::default();
    tar.dir("usr", 0o755);
    tar.file("usr/big", &big)
        .mode(0o4755)
        .owner(70_000, 80_000)
        .mtime(1_234_567_890);
    tar.file("usr/small", b"small")
        .xattr("user.note", b"v")
        .xattr(
            "security.capability",
            &[1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        );
    tar.file("usr/many", b"")
        .xattr("user.a", &noise(900))
        .xattr("user.b", &noise(700));
    tar.hard_link("usr/other", "usr/small");
    tar.symlink("short", "usr/small")
        .symlink("long", &long_target);
    tar.device("null", b'3', 1, 3)
        .device("disk", b'4', 259, 70_000)
        .device("pipe", b'6', 0, 0);
    tar.file(&long_path, b"deep");
    for number in 0..600 {
        tar.file(&format!("dir/a-name-of-some-length-{number}"), b"x");
    }
    let image = place.import("a.tar", &tar.finish()).unwrap();
    assert_eq!(image.info().size_bytes % (128 << 20), 0);
    let disk = place.raw(&image);
    disk.check();
    assert!(disk.cat("/usr/big") == big);
    let stat = disk.text("stat /usr/big");
    assert!(stat.contains("Mode:  04755"), "{stat}");
    assert!(stat.contains("User: 70000   Group: 80000"), "{stat}");
    assert!(stat.contains("mtime: 0x499602d2"), "{stat}");
    assert!(disk.text("stat /usr/small").contains("Links: 2"));
    assert_eq!(disk.cat("/usr/other"), b"small");
    assert!(
        disk.text("ea_get /usr/small user.note")
            .contains("user.note (1) = \"v\"")
    );
    assert_eq!(
        disk.text("ea_list /usr/small")
            .matches("security.capability")
            .count(),
        1
    );
    let value = place.dir.path().join("value");
    disk.debugfs(&format!("ea_get -f {} /usr/many user.a", value.display()));
    assert!(fs::read(value).unwrap() == noise(900));
    assert!(
        disk.text("stat /short")
            .contains("Fast link dest: \"usr/small\"")
    );
    assert!(disk.text("stat /long").contains("Size: 200"));
    assert!(
        disk.text("stat /null")
            .contains("Device major/minor number: 01:03")
    );
    assert!(
        disk.text("stat /disk")
            .contains("Device major/minor number: 259:70000")
    );
    assert!(disk.text("stat /pipe").contains("Type: FIFO"));
    assert_eq!(disk.cat(&format!("/{long_path}")), b"deep");
    assert_eq!(
        disk.text("ls -p /dir")
            .matches("a-name-of-some-length")
            .count(),
        600
    );
}

#[test]
fn the_file_system_can_grow_and_has_a_journal() {
    if !have_e2fsprogs() {
        return;
    }
    let place = Place::new();
    let disk = place.raw(&place.import("a.tar", &archive::one_file()).unwrap());
    let features = disk.text("features");
    for feature in ["has_journal", "resize_inode", "metadata_csum", "extent"] {
        assert!(features.contains(feature), "{features}");
    }
    for size in ["8G", "64G"] {
        let output = Command::new("resize2fs")
            .arg(&disk.path)
            .arg(size)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        disk.check();
    }
}

#[test]
fn sparse_files_stay_sparse_in_every_tar_form() {
    let have_tar = Command::new("tar").arg("--version").output().is_ok();
    if !have_e2fsprogs() || !have_tar {
        return;
    }
    for (number, form) in [
        "--format=gnu",
        "--sparse-version=0.0",
        "--sparse-version=0.1",
        "--sparse-version=1.0",
    ]
    .into_iter()
    .enumerate()
    {
        let place = Place::new();
        let root = place.dir.path().join("root");
        fs::create_dir(&root).unwrap();
        let file = File::create(root.join("sparse")).unwrap();
        // More pieces than fit into one header of the oldest form.
        for piece in 0..40 {
            std::os::unix::fs::FileExt::write_all_at(&file, b"data", piece * (1 << 20)).unwrap();
        }
        file.set_len(200 << 20).unwrap();
        fs::write(root.join("z-after"), "after").unwrap();
        let archive = place.dir.path().join("a.tar");
        let mut tar = Command::new("tar");
        if number > 0 {
            tar.arg("--format=pax");
        }
        tar.arg("--sparse")
            .arg(form)
            .arg("-C")
            .arg(&root)
            .arg("-cf")
            .arg(&archive)
            .arg(".");
        assert!(tar.status().unwrap().success());
        let image = import(&place.home(), "i", &archive, &Silent).unwrap();
        assert_eq!(image.info().size_bytes, 128 << 20, "{form}");
        let disk = place.raw(&image);
        disk.check();
        assert!(
            disk.text("stat /sparse").contains("Size: 209715200"),
            "{form}"
        );
        let out = place.dir.path().join("out");
        disk.debugfs(&format!("dump /sparse {}", out.display()));
        let mut out = File::open(out).unwrap();
        for piece in 0..40 {
            let mut bytes = [0; 8];
            out.seek(SeekFrom::Start(piece << 20)).unwrap();
            out.read_exact(&mut bytes).unwrap();
            assert_eq!(&bytes, b"data\0\0\0\0", "{form}");
        }
        assert_eq!(disk.cat("/z-after"), b"after", "{form}");
    }
}

#[test]
fn a_directory_is_taken_as_it_is() {
    if !have_e2fsprogs() {
        return;
    }
    let place = Place::new();
    let root = place.dir.path().join("root");
    fs::create_dir_all(root.join("etc")).unwrap();
    fs::write(root.join("etc/hostname"), "h").unwrap();
    fs::set_permissions(root.join("etc/hostname"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::hard_link(root.join("etc/hostname"), root.join("same")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", root.join("outside")).unwrap();
    let image = import(&place.home(), "i", &root, &Silent).unwrap();
    let disk = place.raw(&image);
    disk.check();
    assert_eq!(disk.cat("/same"), b"h");
    let stat = disk.text("stat /etc/hostname");
    assert!(
        stat.contains("Mode:  0640") && stat.contains("Links: 2"),
        "{stat}"
    );
    assert!(
        disk.text("stat /outside")
            .contains("Fast link dest: \"/etc/passwd\"")
    );
    assert!(disk.exists("/proc") && disk.exists("/lost+found"));
    assert!(
        disk.cat("/etc/hosts")
            .starts_with(b"127.0.0.1\tlocalhost\n")
    );
}

#[test]
fn images_carry_no_identity() {
    if !have_e2fsprogs() {
        return;
    }
    let place = Place::new();
    let mut tar = TarBuilder::default();
    tar.file("etc/machine-id", b"0123456789abcdef0123456789abcdef\n");
    tar.file(
        "var/lib/dbus/machine-id",
        b"0123456789abcdef0123456789abcdef\n",
    );
    tar.file("var/lib/systemd/random-seed", b"seed");
    tar.file("etc/ssh/ssh_host_rsa_key", b"key")
        .file("etc/ssh/ssh_host_rsa_key.pub", b"key");
    tar.file("etc/ssh/sshd_config", b"config");
    let disk = place.raw(&place.import("a.tar", &tar.finish()).unwrap());
    disk.check();
    assert!(disk.text("stat /etc/machine-id").contains("Size: 0"));
    assert_eq!(disk.cat("/etc/ssh/sshd_config"), b"config");
    for gone in [
        "/var/lib/dbus/machine-id",
        "/var/lib/systemd/random-seed",
        "/etc/ssh/ssh_host_rsa_key",
        "/etc/ssh/ssh_host_rsa_key.pub",
    ] {
        assert!(!disk.exists(gone), "{gone}");
    }
}

#[test]
fn the_same_source_gives_the_same_image_in_any_compression() {
    let place = Place::new();
    let mut tar = TarBuilder::default();
    tar.file("a", &noise(100_000)).symlink("b", "a");
    let plain = tar.finish();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&plain).unwrap();
    let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 1);
    xz.write_all(&plain).unwrap();
    let packed = [
        gzip.finish().unwrap(),
        xz.finish().unwrap(),
        zstd::encode_all(&plain[..], 1).unwrap(),
    ];
    let map = place.import("plain", &plain).unwrap().map().unwrap();
    for (number, bytes) in packed.iter().enumerate() {
        let path = place.file("packed", bytes);
        let image = import(&place.home(), &format!("p{number}"), &path, &Silent).unwrap();
        assert_eq!(image.map().unwrap(), map);
    }
}

#[test]
fn the_library_lists_finds_and_removes() {
    let place = Place::new();
    let home = place.home();
    assert!(list(&home).unwrap().is_empty());
    assert!(matches!(
        Image::default_of(&home),
        Err(ImageError::NoDefault { .. })
    ));
    let source = place.file("a.tar", &archive::one_file());
    import(&home, "one", &source, &Silent).unwrap();
    let taken = import(&home, "one", &source, &Silent).unwrap_err();
    assert!(matches!(taken, ImageError::Exists { .. }) && taken.hint().is_some());
    assert_eq!(Image::default_of(&home).unwrap().name(), "one");
    import(&home, "two", &source, &Silent).unwrap();
    assert!(matches!(
        Image::default_of(&home),
        Err(ImageError::NoDefault { .. })
    ));
    import(&home, "debian", &source, &Silent).unwrap();
    assert_eq!(Image::default_of(&home).unwrap().name(), "debian");
    let entries = fs::read_dir(home.join("images/one")).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    files.sort();
    assert_eq!(files, ["image.json", "map", "packs"], "no raw file is kept");
    remove(&home, "debian").unwrap();
    assert!(matches!(
        remove(&home, "debian"),
        Err(ImageError::NotFound { .. })
    ));
    assert!(matches!(
        remove(&home, "../images"),
        Err(ImageError::NotFound { .. })
    ));
    assert_eq!(list(&home).unwrap().len(), 2);
    for name in ["", "A", "../x", "x/y", ".x"] {
        assert!(matches!(
            import(&home, name, &source, &Silent),
            Err(ImageError::BadName { .. })
        ));
    }
}

#[test]
fn damage_of_a_stored_image_is_found() {
    let place = Place::new();
    let image = place.import("a.tar", &archive::one_file()).unwrap();
    let dir = place.home().join("images/i");
    let mut map = fs::read(dir.join("map")).unwrap();
    map[40] ^= 1;
    fs::write(dir.join("map"), map).unwrap();
    assert!(matches!(image.map(), Err(ImageError::Damaged { .. })));
    fs::write(dir.join("image.json"), "{").unwrap();
    assert!(matches!(
        list(&place.home()),
        Err(ImageError::BadDescription { .. })
    ));
}

/// The real thing: mmdebstrap, the network and some minutes.
#[test]
#[ignore = "runs mmdebstrap, which downloads packages for minutes"]
fn builds_debian() {
    let place = Place::new();
    let image = build(&place.home(), "debian", &[], &Silent).unwrap();
    let disk = place.raw(&image);
    disk.check();
    for path in [
        "/usr/bin/python3",
        "/usr/bin/sqlite3",
        "/usr/bin/git",
        "/usr/sbin/sshd",
    ] {
        assert!(disk.exists(path), "{path}");
    }
    for path in [
        "/etc/ssh/ssh_host_ed25519_key",
        "/etc/hostname",
        "/etc/resolv.conf",
    ] {
        assert!(!disk.exists(path), "{path}");
    }
    assert!(
        !Path::new(&place.home())
            .join("images/debian/store")
            .exists()
    );
}
