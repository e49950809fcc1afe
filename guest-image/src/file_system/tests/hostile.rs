//! Disks with anything in them: they are read or refused, and that ends.

use super::*;

/// Disks that are tried.
const CASES: u64 = 1000;

/// Numbers that follow from a seed.
struct Dice(blake3::OutputReader);

impl Dice {
    fn new(seed: u64) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&seed.to_le_bytes());
        Self(hasher.finalize_xof())
    }

    fn below(&mut self, limit: usize) -> usize {
        let mut bytes = [0; 8];
        self.0.fill(&mut bytes);
        (u64::from_le_bytes(bytes) % limit as u64) as usize
    }
}

/// Everything that can be asked of a disk; how many files there were. A panic, a hang or a read beyond its end fails the test.
fn ask_everything(disk: Memory<'_>) -> usize {
    let Ok(files) = FileSystem::open(disk) else {
        return 0;
    };
    let all = read_all(&files);
    for path in [
        "/a/winding/again",
        "/many/x/../../jump/small",
        "/long/",
        "/loop",
    ] {
        let Ok(inode) = files.resolve(path.as_bytes()) else {
            continue;
        };
        let length = files.target(&inode).map_or(0, |target| target.len());
        assert!(length as u64 <= MAX_TARGET_BYTES);
    }
    all.values().filter(|one| one.content.is_some()).count()
}

fn small_disk(journal: bool) -> Option<Vec<u8>> {
    let place = tempfile::tempdir().unwrap();
    let (root, image) = (place.path().join("root"), place.path().join("image"));
    make_tree(&root, false);
    let options: &[&str] = match journal {
        true => &["-b", "1024"],
        false => &["-b", "1024", "-O", "^has_journal"],
    };
    made_by_mke2fs(&root, &image, options, 8)?;
    Some(fs::read(&image).unwrap())
}

#[test]
fn flipped_bytes_neither_panic_nor_hang() {
    let Some(bytes) = small_disk(false) else {
        return;
    };
    let whole = ask_everything(Memory::new(&bytes));
    assert!(whole > 100, "{whole}");
    // What is zero is mostly not read, and noise is data.
    let is_metadata = |block: &usize| {
        let zeros = bytes[block * 1024..][..1024]
            .iter()
            .filter(|byte| **byte == 0);
        (100..1024).contains(&zeros.count())
    };
    let blocks: Vec<usize> = (0..bytes.len() / 1024).filter(is_metadata).collect();
    let mut differed = 0;
    for seed in 0..CASES {
        let mut dice = Dice::new(seed);
        let mut disk = Memory::new(&bytes);
        for _ in 0..1 + dice.below(8) {
            let at = match dice.below(4) {
                0 => 1024 + dice.below(1024),
                _ => blocks[dice.below(blocks.len())] * 1024 + dice.below(1024),
            };
            let byte = match dice.below(4) {
                0 => 0,
                1 => 0xff,
                2 => bytes[at] ^ 1 << dice.below(8),
                _ => dice.below(256) as u8,
            };
            disk.changed.insert(at as u64, byte);
        }
        differed += usize::from(ask_everything(disk) != whole);
    }
    assert!(differed > CASES as usize / 20, "{differed} of {CASES}");
}

#[test]
fn a_journal_of_anything_neither_panics_nor_hangs() {
    let Some(mut bytes) = small_disk(true) else {
        return;
    };
    bytes[1024 + 0x60] |= 4;
    let magic = 0xc03b_3998u32.to_be_bytes();
    let found = bytes
        .chunks(1024)
        .position(|block| block.starts_with(&magic));
    let journal = found.expect("a journal") * 1024;
    let opened = |disk| usize::from(FileSystem::open(disk).is_ok());
    assert_eq!(opened(Memory::new(&bytes)), 1);
    let mut sound = 0;
    for seed in 0..CASES {
        let mut dice = Dice::new(seed);
        let mut disk = Memory::new(&bytes);
        let mut set = |at: usize, value: u32| {
            for (at, byte) in (at as u64..).zip(value.to_be_bytes()) {
                disk.changed.insert(at, byte);
            }
        };
        let features = [0, 1, 2, 3, 0x8, 0x10, 0x12, 0x20][dice.below(8)];
        set(journal + 0x18, 1);
        set(journal + 0x1c, [1, 1, 2, 1023, 1024][dice.below(5)]);
        set(journal + 0x28, features);
        // A log of heads that mean something, each with anything behind.
        for block in 1..1 + dice.below(12) {
            let at = journal + block * 1024;
            set(at, 0xc03b_3998);
            set(at + 4, [1, 1, 1, 2, 2, 5, 5, 9][dice.below(8)]);
            set(at + 8, 1 + dice.below(3) as u32);
            for word in 3..40 {
                let any = dice.below(9000) as u32;
                let values = [0, 1, 2, 8, 10, 16, 0xffff, u32::MAX, any];
                set(at + 4 * word, values[dice.below(values.len())]);
            }
        }
        sound += opened(disk);
    }
    assert!((1..CASES as usize).contains(&sound), "{sound}");
}

#[test]
fn what_is_no_file_system_is_refused_by_name() {
    let refused = |disk: Memory<'_>| FileSystem::open(disk).err().expect("refused");
    for length in [0, 1024, 2047, 2048, 1 << 20] {
        let error = refused(Memory::new(&vec![0; length]));
        assert!(matches!(error, FileSystemError::NotExt4), "{error}");
    }
    let Some(bytes) = small_disk(true) else {
        return;
    };
    // Cut off.
    let error = refused(Memory::new(&bytes[..bytes.len() / 2]));
    assert!(
        error.to_string().contains("beyond its disk's end"),
        "{error}"
    );
    // Data in inodes.
    let mut disk = Memory::new(&bytes);
    disk.changed.insert(1024 + 0x61, bytes[1024 + 0x61] | 0x80);
    let error = refused(disk);
    assert!(
        matches!(error, FileSystemError::Unsupported { .. }),
        "{error}"
    );
}

/// A tree of extents of which every entry leads to the same block: all ways through it would take years.
#[test]
fn extents_that_lead_nowhere_end() {
    let Some(bytes) = small_disk(false) else {
        return;
    };
    let files = FileSystem::open(Memory::new(&bytes)).unwrap();
    let inode = files.resolve(b"/sparse").unwrap();
    let block = 4000u64;
    let node = |depth: u16, rising: bool| {
        let mut node = vec![0u8; 1024];
        let entries = 84u16;
        for (at, value) in [(0, 0xf30a), (2, entries), (4, entries), (6, depth)] {
            node[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
        for entry in 0..u32::from(entries) {
            let at = 12 + 12 * entry as usize;
            let logical = if rising { entry } else { 0 };
            node[at..at + 4].copy_from_slice(&logical.to_le_bytes());
            node[at + 4..at + 8].copy_from_slice(&(block as u32).to_le_bytes());
        }
        node
    };
    for (depth, rising) in [(4, false), (4, true), (1, true), (0, false)] {
        let mut disk = Memory::new(&bytes);
        for (at, byte) in (block * 1024..).zip(node(depth, rising)) {
            disk.changed.insert(at, byte);
        }
        let files = FileSystem::open(disk).unwrap();
        let mut root = inode.clone();
        root.set_extents_root(&node(depth + 1, rising)[..60]);
        let end = files.extents(&root).map(|extents| extents.last());
        assert!(!matches!(end, Ok(Some(Ok(_)))), "depth {depth}");
    }
}
