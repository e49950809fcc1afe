//! Small archives that name much: what an import holds is measured, not believed.
//!
//! One test, since the memory of a process is measured.

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::OnceLock;

use guest_image::image::{self, ImageError};
use guest_image::progress::Silent;
use guest_image::{BudgetError, Limits};

const MIB: u64 = 1 << 20;
/// What the imports below may hold.
const LIMIT_BYTES: u64 = 32 * MIB;
/// What an import takes besides: buffers, decoders, the allocator's reserve.
const BESIDES_BYTES: u64 = 48 * MIB;

/// How large the process was before the first attack: the allocator keeps what the others took.
static FIRST_SIZE: OnceLock<u64> = OnceLock::new();

/// Writes a tar archive, compressed.
struct Archive(zstd::stream::write::Encoder<'static, File>);

impl Archive {
    fn create(path: &Path) -> Self {
        let file = File::create(path).unwrap();
        Self(zstd::stream::write::Encoder::new(file, 1).unwrap())
    }

    fn record(&mut self, name: &str, kind: u8, size: u64, change: impl Fn(&mut [u8; 512])) {
        let mut header = [0u8; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[100..107].copy_from_slice(b"0000755");
        for at in [108, 116] {
            header[at..at + 7].copy_from_slice(b"0000000");
        }
        header[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
        header[136..147].copy_from_slice(b"00000000000");
        header[156] = kind;
        header[257..265].copy_from_slice(b"ustar  \0");
        change(&mut header);
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        self.0.write_all(&header).unwrap();
    }

    fn entry(&mut self, name: &str, kind: u8) {
        self.record(name, kind, 0, |_| ());
    }

    fn data(&mut self, name: &str, kind: u8, bytes: &[u8]) {
        self.record(name, kind, bytes.len() as u64, |_| ());
        self.0.write_all(bytes).unwrap();
        let padding = bytes.len().next_multiple_of(512) - bytes.len();
        self.0.write_all(&vec![0; padding]).unwrap();
    }

    fn symlink(&mut self, name: &str, target: &[u8]) {
        self.data("././@LongLink", b'K', target);
        self.entry(name, b'2');
    }

    fn xattr(&mut self, name: &str, value: &[u8]) {
        let body = [b"SCHILY.xattr.user.x=", value, b"\n"].concat();
        let digits = |length: usize| length.to_string().len() + 1;
        let mut length = body.len() + 1;
        while length != body.len() + digits(length) {
            length = body.len() + digits(length);
        }
        let record = [format!("{length} ").as_bytes(), &body].concat();
        self.data("pax", b'x', &record);
        self.entry(name, b'0');
    }

    /// A sparse file without any data, in the old form of GNU tar.
    fn hole(&mut self, name: &str, size: u64) {
        self.record(name, b'S', 0, |header| {
            header[483..495].copy_from_slice(format!("{size:012o}").as_bytes());
        });
    }

    fn finish(mut self) {
        self.0.write_all(&[0; 1024]).unwrap();
        self.0.finish().unwrap();
    }
}

/// A line of `/proc/self/status` in bytes.
fn status(key: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(key)).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}

/// Runs `work` and returns by how much the process was larger meanwhile, at most, than `before`.
fn growth(before: u64, work: impl FnOnce()) -> u64 {
    // Resets the high-water mark.
    fs::write("/proc/self/clear_refs", "5").unwrap();
    work();
    status("VmHWM:").saturating_sub(before)
}

/// The budget's error among the causes.
fn ran_out(error: &ImageError) -> Option<BudgetError> {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref::<BudgetError>() {
            return Some(*found);
        }
        // The entry's error stands for the tree's.
        if let Some(image::TreeError::Budget(found)) = error.downcast_ref() {
            return Some(*found);
        }
        if let Some(image::EntryError::Tree(image::TreeError::Budget(found))) = error.downcast_ref()
        {
            return Some(*found);
        }
        cause = error.source();
    }
    None
}

fn attack(
    name: &str,
    limits: Limits,
    make: impl FnOnce(&mut Archive),
) -> Result<image::Image, ImageError> {
    let before = *FIRST_SIZE.get_or_init(|| status("VmRSS:"));
    let place = tempfile::tempdir().unwrap();
    let source = place.path().join("attack.tar.zst");
    let mut archive = Archive::create(&source);
    make(&mut archive);
    archive.finish();
    let mut result = None;
    let grown = growth(before, || {
        let home = place.path().join("home");
        result = Some(image::import_within(&home, "x", &source, limits, &Silent));
    });
    let mib = grown / MIB;
    let mut out = io::stderr();
    writeln!(out, "{name}: {mib} MiB more at most").unwrap();
    assert!(
        grown < LIMIT_BYTES + BESIDES_BYTES,
        "{name}: grew by {mib} MiB"
    );
    result.unwrap()
}

#[test]
fn small_archives_cannot_take_much_memory_or_work() {
    let limits = Limits::default().with_memory_bytes(LIMIT_BYTES);
    let memory = Some(BudgetError::Memory { limit_mib: 32 });

    let error = attack("symbolic links of 4 KiB", limits, |archive| {
        for number in 0..15_000 {
            archive.symlink(&format!("{number}"), &[b'a'; 4000]);
        }
    });
    assert_eq!(ran_out(&error.unwrap_err()), memory);

    let error = attack("attributes of 3.5 KiB", limits, |archive| {
        for number in 0..15_000 {
            archive.xattr(&format!("{number}"), &[b'a'; 3500]);
        }
    });
    assert_eq!(ran_out(&error.unwrap_err()), memory);

    let error = attack("names", limits, |archive| {
        for number in 0..150_000 {
            archive.entry(&format!("{number}"), b'0');
        }
    });
    assert_eq!(ran_out(&error.unwrap_err()), memory);

    let error = attack("link targets of 1 MiB", limits, |archive| {
        for number in 0..150 {
            archive.symlink(&format!("{number}"), &vec![b'a'; 1 << 20]);
        }
    });
    assert!(matches!(error, Err(ImageError::Entry { .. })));

    // Each of these would take a minute if its zeros were read.
    attack("holes of 60 GiB", limits, |archive| {
        for number in 0..2_000 {
            archive.hole(&format!("{number}"), 60 << 30);
        }
    })
    .unwrap();

    let few_steps = limits.with_steps(2_000_000);
    let error = attack("paths through links", few_steps, |archive| {
        let detour = "./".repeat(1000);
        archive.symlink("0", b".");
        for number in 1..30 {
            let target = format!("{detour}{}", number - 1);
            archive.symlink(&format!("{number}"), target.as_bytes());
        }
        for number in 0..1_000 {
            archive.entry(&format!("29/x{number}"), b'0');
        }
    });
    let error = error.unwrap_err();
    assert_eq!(ran_out(&error), Some(BudgetError::Steps), "{error:?}");
}
