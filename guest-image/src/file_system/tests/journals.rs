//! Journals, written by hand and judged by what e2fsck makes of them.

use super::*;

const MAGIC: u32 = 0xc03b_3998;
const BLOCK: usize = 1024;
/// Blocks of the journal that mke2fs makes for so small a disk.
const JOURNAL_BLOCKS: usize = 1024;

const REVOKE: u32 = 0x1;
const WIDE: u32 = 0x2;
const SUMS_2: u32 = 0x8;
const SUMS_3: u32 = 0x10;

/// A part of a transaction.
enum Part {
    /// New contents of blocks.
    Blocks(Vec<(u64, Vec<u8>)>),
    /// Blocks whose earlier copies do not count.
    Revoke(Vec<u64>),
    Commit,
}

/// A disk whose journal can be written.
struct Dirty {
    bytes: Vec<u8>,
    /// Where each block of the journal lies.
    places: Vec<u64>,
    features: u32,
    /// Where the log goes on.
    next: usize,
    sequence: u32,
}

fn put(block: &mut [u8], at: usize, value: u32) {
    block[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

fn sum(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

impl Dirty {
    /// A disk that needs its journal, which begins at block `start` of it.
    fn new(clean: &[u8], places: &[u64], features: u32, start: usize, sequence: u32) -> Self {
        let mut dirty = Self {
            bytes: clean.to_vec(),
            places: places.to_vec(),
            features: features | REVOKE,
            next: start,
            sequence,
        };
        // The file system says so, with its checksum.
        let superblock = &mut dirty.bytes[1024..2048];
        superblock[0x60] |= 4;
        let checksum = sum(!0, &superblock[..0x3fc]);
        superblock[0x3fc..].copy_from_slice(&checksum.to_le_bytes());
        let mut head = dirty.block(0).to_vec();
        put(&mut head, 0x18, sequence);
        put(&mut head, 0x1c, start as u32);
        put(&mut head, 0x28, dirty.features);
        let has_sums = dirty.has_sums();
        head[0x50] = if has_sums { 4 } else { 0 };
        put(&mut head, 0xfc, 0);
        let checksum = sum(!0, &head);
        put(&mut head, 0xfc, if has_sums { checksum } else { 0 });
        dirty.write(0, &head);
        dirty
    }

    fn block(&self, index: usize) -> &[u8] {
        &self.bytes[self.places[index] as usize * BLOCK..][..BLOCK]
    }

    fn write(&mut self, index: usize, block: &[u8]) {
        self.bytes[self.places[index] as usize * BLOCK..][..BLOCK].copy_from_slice(block);
    }

    fn append(&mut self, block: &[u8]) {
        self.write(self.next, block);
        self.next = if self.next + 1 == JOURNAL_BLOCKS {
            1
        } else {
            self.next + 1
        };
    }

    fn seed(&self) -> u32 {
        sum(!0, &self.block(0)[0x30..0x40])
    }

    fn head(&self, kind: u32) -> Vec<u8> {
        let mut block = vec![0; BLOCK];
        put(&mut block, 0, MAGIC);
        put(&mut block, 4, kind);
        put(&mut block, 8, self.sequence);
        block
    }

    fn has_sums(&self) -> bool {
        self.features & (SUMS_2 | SUMS_3) != 0
    }

    fn sealed(&self, mut block: Vec<u8>, at: usize) -> Vec<u8> {
        if self.has_sums() {
            let checksum = sum(self.seed(), &block);
            put(&mut block, at, checksum);
        }
        block
    }

    fn add(&mut self, part: &Part) {
        match part {
            Part::Commit => {
                let commit = self.sealed(self.head(2), 16);
                self.append(&commit);
                self.sequence = self.sequence.wrapping_add(1);
            }
            Part::Revoke(blocks) => {
                let mut block = self.head(5);
                let mut end = 16;
                for revoked in blocks {
                    if self.features & WIDE != 0 {
                        put(&mut block, end, (revoked >> 32) as u32);
                        end += 4;
                    }
                    put(&mut block, end, *revoked as u32);
                    end += 4;
                }
                put(&mut block, 12, end as u32);
                let block = self.sealed(block, BLOCK - 4);
                self.append(&block);
            }
            Part::Blocks(blocks) => self.add_blocks(blocks),
        }
    }

    fn add_blocks(&mut self, blocks: &[(u64, Vec<u8>)]) {
        let mut descriptor = self.head(1);
        let mut at = 12;
        let mut copies = Vec::new();
        for (index, (to, content)) in blocks.iter().enumerate() {
            let mut copy = content.clone();
            let mut flags = u32::from(index > 0) * 2 + u32::from(index + 1 == blocks.len()) * 8;
            if copy.starts_with(&MAGIC.to_be_bytes()) {
                copy[..4].fill(0);
                flags |= 1;
            }
            let checksum = sum(sum(self.seed(), &self.sequence.to_be_bytes()), &copy);
            put(&mut descriptor, at, *to as u32);
            if self.features & SUMS_3 != 0 {
                put(&mut descriptor, at + 4, flags);
                put(&mut descriptor, at + 12, checksum);
                at += 16;
            } else {
                let low = if self.has_sums() {
                    checksum & 0xffff
                } else {
                    0
                };
                put(&mut descriptor, at + 4, low << 16 | flags);
                at += 8;
                at += if self.features & WIDE != 0 { 4 } else { 0 };
                at += if self.features & SUMS_2 != 0 { 2 } else { 0 };
            }
            // The first names the journal.
            at += if index == 0 { 16 } else { 0 };
            copies.push(copy);
        }
        let descriptor = self.sealed(descriptor, BLOCK - 4);
        self.append(&descriptor);
        for copy in copies {
            self.append(&copy);
        }
    }

    /// What a file holds.
    fn read(&self, path: &str) -> Result<Vec<u8>, FileSystemError> {
        let files = FileSystem::open(Memory::new(&self.bytes))?;
        let inode = files.resolve(path.as_bytes())?;
        let mut content = vec![0; inode.size_bytes as usize];
        files.reader(&inode)?.read(0, &mut content)?;
        Ok(content)
    }
}

/// A clean disk with a file, the blocks of that, and those of the journal.
fn clean(place: &Path) -> Option<(Vec<u8>, Vec<u64>, Vec<u64>)> {
    let (root, image) = (place.join("root"), place.join("image"));
    fs::create_dir(&root).unwrap();
    fs::write(root.join("file"), noise(1, 6 * BLOCK)).unwrap();
    made_by_mke2fs(&root, &image, &["-b", "1024"], 8)?;
    let blocks = |request: &str| -> Option<Vec<u64>> {
        let text = tool("debugfs", &["-R", request], &image)?;
        Some(
            text.split_whitespace()
                .map(|word| word.parse().unwrap())
                .collect(),
        )
    };
    let (file, journal) = (blocks("blocks /file")?, blocks("blocks <8>")?);
    assert_eq!(journal.len(), JOURNAL_BLOCKS);
    Some((fs::read(&image).unwrap(), file, journal))
}

/// What e2fsck makes of a disk.
fn replayed(place: &Path, dirty: &Dirty) -> Dirty {
    let image = place.join("replayed");
    fs::write(&image, &dirty.bytes).unwrap();
    let said = tool("e2fsck", &["-fy"], &image).unwrap();
    assert!(said.contains("recovering journal"), "{said}");
    Dirty {
        bytes: fs::read(&image).unwrap(),
        places: dirty.places.clone(),
        ..*dirty
    }
}

#[test]
fn a_journal_is_replayed_as_e2fsck_does() {
    let place = tempfile::tempdir().unwrap();
    let Some((bytes, file, journal)) = clean(place.path()) else {
        return;
    };
    let block = |seed: u64| noise(100 + seed, BLOCK);
    let escaped = [&MAGIC.to_be_bytes()[..], &block(7)[4..]].concat();
    let log = [
        Part::Blocks(vec![
            (file[0], block(0)),
            (file[1], block(1)),
            (file[2], block(2)),
        ]),
        Part::Commit,
        Part::Revoke(vec![file[1], file[2]]),
        Part::Blocks(vec![(file[3], escaped.clone())]),
        Part::Commit,
        Part::Blocks(vec![(file[0], block(4)), (file[2], block(5))]),
        Part::Commit,
        // Not whole: as if it were not there.
        Part::Revoke(vec![file[0]]),
        Part::Blocks(vec![(file[4], block(6))]),
    ];
    let original = noise(1, 6 * BLOCK);
    let mut expected = original.clone();
    for (index, content) in [(0, &block(4)), (2, &block(5)), (3, &escaped)] {
        expected[index * BLOCK..][..BLOCK].copy_from_slice(content);
    }
    for features in [0, WIDE, SUMS_2, SUMS_2 | WIDE, SUMS_3, SUMS_3 | WIDE] {
        // From the front, around the end, and with numbers that go around, too.
        for (start, sequence) in [
            (1, 7),
            (JOURNAL_BLOCKS - 1, 7),
            (JOURNAL_BLOCKS - 6, u32::MAX),
        ] {
            let mut dirty = Dirty::new(&bytes, &journal, features, start, sequence);
            assert_eq!(dirty.read("/file").unwrap(), original);
            log.iter().for_each(|part| dirty.add(part));
            let context = format!("features {features:#x} from {start}");
            let replayed = replayed(place.path(), &dirty);
            assert!(
                replayed.read("/file").unwrap() == expected,
                "e2fsck, {context}"
            );
            assert!(dirty.read("/file").unwrap() == expected, "{context}");
        }
    }
}

#[test]
fn a_copy_that_is_not_what_was_written_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let Some((bytes, file, journal)) = clean(place.path()) else {
        return;
    };
    let mut dirty = Dirty::new(&bytes, &journal, SUMS_3, 1, 1);
    dirty.add(&Part::Blocks(vec![(file[0], noise(9, BLOCK))]));
    dirty.add(&Part::Commit);
    assert!(dirty.read("/file").is_ok());
    let mut copy = dirty.block(2).to_vec();
    copy[500] ^= 1;
    dirty.write(2, &copy);
    let error = dirty.read("/file").unwrap_err();
    let is_named = matches!(&error, FileSystemError::Damaged { what } if *what == "the journal");
    assert!(is_named, "{error}");
}

#[test]
fn a_log_that_bites_its_tail_ends() {
    let place = tempfile::tempdir().unwrap();
    let Some((bytes, file, journal)) = clean(place.path()) else {
        return;
    };
    let original = noise(1, 6 * BLOCK);
    let mut dirty = Dirty::new(&bytes, &journal, 0, 1, 1);
    // One transaction that never ends fills all of it.
    for _ in 0..JOURNAL_BLOCKS / 2 {
        dirty.add(&Part::Blocks(vec![(file[0], noise(9, BLOCK))]));
    }
    assert!(dirty.read("/file").unwrap() == original);
    // And one with nothing but revocations, each as full as can be.
    let mut dirty = Dirty::new(&bytes, &journal, 0, 1, 1);
    for _ in 0..JOURNAL_BLOCKS {
        dirty.add(&Part::Revoke(vec![file[0]; 252]));
    }
    assert!(dirty.read("/file").unwrap() == original);
}
