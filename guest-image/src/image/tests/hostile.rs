//! Archives that mean harm or are broken.

use super::*;

fn entry_error(result: Result<Image, ImageError>) -> (String, EntryError) {
    match result {
        Err(ImageError::Entry {
            archive,
            entry,
            source,
        }) => {
            assert!(archive.ends_with(".tar"), "{archive}");
            (entry, source)
        }
        other => panic!("expected an entry error, got {other:?}"),
    }
}

#[test]
fn paths_that_climb_out_are_refused_by_name() {
    for path in ["../evil", "a/../../evil", "/../evil"] {
        let place = Place::new();
        let mut tar = TarBuilder::default();
        tar.file("fine", b"").file(path, b"x");
        let (entry, source) = entry_error(place.import("a.tar", &tar.finish()));
        assert_eq!(entry, path);
        assert!(matches!(source, EntryError::Tree(TreeError::Traversal)));
        assert!(!place.dir.path().join("evil").exists());
        assert!(list(&place.home()).unwrap().is_empty());
    }
}

#[test]
fn links_to_the_outside_stay_inside() {
    if !have_e2fsprogs() {
        return;
    }
    let place = Place::new();
    let outside = place.dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let mut tar = TarBuilder::default();
    tar.symlink("link", outside.to_str().unwrap())
        .file("link/evil", b"x");
    tar.symlink("up", "../../../..").file("up/etc/evil", b"x");
    let disk = place.raw(&place.import("a.tar", &tar.finish()).unwrap());
    disk.check();
    assert_eq!(
        fs::read_dir(&outside).unwrap().count(),
        0,
        "the host was not touched"
    );
    assert_eq!(disk.cat("/etc/evil"), b"x");
    assert_eq!(disk.cat(&format!("{}/evil", outside.display())), b"x");
}

#[test]
fn bad_entries_are_refused_by_name() {
    type Make = fn(&mut TarBuilder) -> &mut TarBuilder;
    let cases: [(Make, &str); 6] = [
        (|tar| tar.file("f", b"").file("f/x", b""), "f/x"),
        (|tar| tar.hard_link("h", "missing"), "h"),
        (
            |tar| tar.symlink("a", "b").symlink("b", "a").file("a/x", b""),
            "a/x",
        ),
        (|tar| tar.symlink("s", ""), "s"),
        (|tar| tar.file("x", b"").xattr("user.big", &[0; 5000]), "x"),
        (|tar| tar.file(&format!("n/{}", "n".repeat(256)), b""), "n/"),
    ];
    for (make, name) in cases {
        let mut tar = TarBuilder::default();
        make(&mut tar);
        let (entry, _) = entry_error(Place::new().import("a.tar", &tar.finish()));
        assert!(entry.starts_with(name), "{entry}");
    }
}

#[test]
fn control_characters_in_names_are_made_harmless() {
    let mut tar = TarBuilder::default();
    tar.hard_link("\x1b[2Jx", "missing");
    let (entry, _) = entry_error(Place::new().import("a.tar", &tar.finish()));
    assert_eq!(entry, "\\u{1b}[2Jx");
}

#[test]
fn a_cut_or_changed_archive_is_an_error() {
    let mut tar = TarBuilder::default();
    tar.file("a", &noise(3000)).file("b", b"b");
    let whole = tar.finish();
    for len in [1, 511, 512, 600, 3584, 4000, whole.len() - 1024] {
        let place = Place::new();
        let error = place.import("a.tar", &whole[..len]).unwrap_err();
        let expected = matches!(
            error,
            ImageError::Archive { .. } | ImageError::UnknownSource { .. }
        );
        assert!(expected, "{len}: {error:?}");
        assert_eq!(
            fs::read_dir(place.home().join("images")).unwrap().count(),
            0
        );
    }
    let mut changed = whole.clone();
    changed[3584 + 3] ^= 0x40;
    let error = Place::new().import("a.tar", &changed).unwrap_err();
    assert!(matches!(
        error,
        ImageError::Archive {
            source: TarError::Header { .. },
            ..
        }
    ));
    let packed = zstd::encode_all(&whole[..], 1).unwrap();
    assert!(
        Place::new()
            .import("a.tar.zst", &packed[..packed.len() - 3])
            .is_err()
    );
}

/// What users have and what is not understood is refused by name, with the
/// way out, also inside of a compression and on standard input.
#[test]
fn foreign_files_are_refused_by_name() {
    let mut ext4 = vec![0; 1 << 16];
    ext4[0x438..0x43a].copy_from_slice(&[0x53, 0xef]);
    let padded = |magic: &[u8]| {
        let mut bytes = magic.to_vec();
        bytes.resize(4096, 1);
        bytes
    };
    let cases = [
        (ext4, "ext4 file system", "mount"),
        (vec![0; 10240], "zero bytes", "tar -C"),
        (padded(b"QFI\xfb"), "qcow2 disk image", "virt-tar-out"),
        (padded(b"hsqs"), "squashfs", "unsquashfs"),
        (padded(b"PK\x03\x04"), "zip archive", "unzip"),
        (padded(b"BZh9"), "bzip2", "bunzip2"),
    ];
    let place = Place::new();
    for (bytes, name, way_out) in cases {
        let packed = zstd::encode_all(&bytes[..], 1).unwrap();
        let stream = import_stream(&place.home(), "i", &bytes[..], &Silent);
        for result in [
            place.import("x", &bytes),
            place.import("x", &packed),
            stream,
        ] {
            let error = result.unwrap_err();
            let hint = error.hint().unwrap();
            assert!(error.to_string().contains(name), "{error}");
            assert!(hint.contains(way_out) && hint.contains("smolvm "), "{hint}");
        }
    }
    assert!(names(&place.home()).unwrap().is_empty());
}

#[test]
fn pipes_and_directories_in_archives_have_a_way_out() {
    let place = Place::new();
    let pipe = place.dir.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        0o600.into(),
        0,
    )
    .unwrap();
    let error = import(&place.home(), "i", &pipe, &Silent).unwrap_err();
    assert!(error.hint().unwrap().contains("NAME - <"), "{error:?}");
    let mut tar = TarBuilder::default();
    tar.file("mine/oci-layout", b"{}")
        .file("mine/index.json", b"{}");
    let error = place.import("a.tar", &tar.finish()).unwrap_err();
    assert!(error.to_string().contains("`mine`"), "{error}");
}

#[test]
fn an_archive_comes_in_from_a_stream() {
    let place = Place::new();
    let mut tar = TarBuilder::default();
    tar.file("a", b"hello");
    let bytes = tar.finish();
    let packed = zstd::encode_all(&bytes[..], 1).unwrap();
    for (name, bytes) in [("plain", bytes), ("packed", packed)] {
        let image = import_stream(&place.home(), name, &bytes[..], &Silent).unwrap();
        assert_eq!(image.info().source, "standard input");
        if have_e2fsprogs() {
            assert_eq!(place.raw(&image).cat("/a"), b"hello");
        }
    }
}

#[test]
fn foreign_attributes_are_left_out_and_told() {
    let place = Place::new();
    let mut tar = TarBuilder::default();
    tar.file("a", b"")
        .xattr("com.apple.provenance", b"x")
        .file("b", b"")
        .xattr("com.apple.provenance", b"x")
        .xattr("user.kept", b"y");
    let image = place.import("a.tar", &tar.finish()).unwrap();
    let info = Image::open(&place.home(), "i").unwrap().info().clone();
    assert_eq!(image.info(), &info);
    let told: Vec<_> = info.left_out.kinds().collect();
    assert_eq!(told, [("com.apple.provenance", 2)]);
    if have_e2fsprogs() {
        let disk = place.raw(&image);
        disk.check();
        assert!(disk.text("ea_list /b").contains("user.kept"));
    }
}

#[test]
fn what_is_no_archive_is_called_so() {
    let place = Place::new();
    for bytes in [&b""[..], b"hello", &noise(4096)] {
        let error = place.import("a.tar", bytes).unwrap_err();
        let unknown = matches!(error, ImageError::UnknownSource { .. } | ImageError::Io(_))
            || matches!(
                &error,
                ImageError::Archive {
                    source: TarError::Truncated { .. },
                    ..
                }
            );
        assert!(unknown, "{error:?}");
    }
    let missing = import(&place.home(), "i", Path::new("/nonexistent/x"), &Silent).unwrap_err();
    assert!(missing.to_string().contains("/nonexistent/x"));
}

#[test]
fn absurd_numbers_are_refused() {
    let header = |change: &dyn Fn(&mut [u8])| {
        let mut tar = TarBuilder::default();
        tar.file("a", b"");
        let mut bytes = tar.finish();
        change(&mut bytes[..512]);
        bytes[148..156].copy_from_slice(b"        ");
        let sum: u32 = bytes[..512].iter().map(|byte| u32::from(*byte)).sum();
        bytes[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        Place::new().import("a.tar", &bytes)
    };
    header(&|_| ()).unwrap();
    // A size of 2^63 - 1, and of 16 GiB of a file that has none.
    assert!(
        header(&|h| h[124..136].copy_from_slice(b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff"))
            .is_err()
    );
    assert!(header(&|h| h[124..136].copy_from_slice(b"200000000000")).is_err());
    // A pax header of 1 GiB; a number that is none; an unknown type.
    assert!(
        header(&|h| {
            h[156] = b'x';
            h[124..136].copy_from_slice(b"10000000000\0");
        })
        .is_err()
    );
    assert!(header(&|h| h[108..116].copy_from_slice(b"99999999")).is_err());
    assert!(header(&|h| h[156] = b'Q').is_err());
}

/// Random changes to an archive end in an image or an error, never otherwise.
#[test]
fn mutated_archives_never_panic() {
    let mut tar = TarBuilder::default();
    tar.dir("d", 0o755)
        .file("d/f", b"content")
        .xattr("user.x", b"y")
        .symlink("l", "d");
    tar.hard_link("h", "d/f").device("n", b'3', 1, 3);
    let whole = tar.finish();
    let random = noise(4 * 2000);
    for round in random.chunks_exact(4) {
        let mut bytes = whole.clone();
        let at = usize::from(u16::from_le_bytes([round[0], round[1]])) % bytes.len();
        bytes[at] = round[2];
        let header = at / 512 * 512;
        if round[3] & 1 == 0 {
            // Keep the checksum right, to get further.
            bytes[header + 148..header + 156].copy_from_slice(b"        ");
            let sum: u32 = bytes[header..header + 512]
                .iter()
                .map(|b| u32::from(*b))
                .sum();
            bytes[header + 148..header + 156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
        let scratch = tempfile::tempdir().unwrap();
        let mut contents = contents::Contents::new(
            scratch.path(),
            crate::budget::Budget::new(Default::default()),
        )
        .unwrap();
        let phase = crate::progress::Phase::begin(&Silent, "", None);
        let result = contents.add_tar(&bytes[..], "x", contents::Whiteouts::Apply, &phase);
        if result.is_ok() {
            let contents::Contents {
                mut tree, spool, ..
            } = contents;
            let image = ext4::Ext4Image::new(&mut tree, &spool).unwrap();
            assert!(image.size_bytes() > 0);
        }
    }
}

/// A header whose size has no next multiple of a record.
#[test]
fn a_size_beyond_all_is_an_error() {
    for kind in [b'V', b'M', b'N'] {
        let mut header = [0; 512];
        header[0] = b'x';
        header[124] = 0x80;
        header[128..136].copy_from_slice(&(u64::MAX - 100).to_be_bytes());
        header[156] = kind;
        header[257..265].copy_from_slice(b"ustar  \0");
        header[148..156].copy_from_slice(b"        ");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let mut bytes = header.to_vec();
        bytes.extend([0; 1024]);
        let mut reader = crate::image::tar::TarReader::new(&bytes[..], false);
        assert!(reader.next_entry().is_err(), "{}", kind as char);
    }
}
