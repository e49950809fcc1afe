//! Page tables of the suite's guests: the first 4 GiB, each address mapped to itself.
//!
//! The first 2 MiB are mapped by 4 KiB pages, the rest by 2 MiB pages. Everything is accessible to
//! user code, writable, executable and already marked as accessed and dirty, so that a walk changes
//! no memory.

use super::TestVm;

/// The top of the tables, for CR3.
pub const ROOT: u64 = 0x10_0000;
const POINTERS: u64 = 0x10_1000;
/// Four tables of 2 MiB pages.
const DIRECTORIES: u64 = 0x10_2000;
/// The table of the first 512 pages.
const FIRST_PAGES: u64 = 0x10_6000;

/// Present, writable, for user code, accessed, dirty.
const FLAGS: u64 = 0x67;
/// A 2 MiB page, in a directory's entry.
const LARGE: u64 = 0x80;

/// Writes to the page: not allowed.
pub const READ_ONLY: u64 = FLAGS & !2;
/// User code: not allowed.
pub const SUPERVISOR: u64 = FLAGS & !4;
/// Fetches: not allowed.
pub const NO_EXECUTE: u64 = FLAGS | 1 << 63;
/// Nothing is allowed.
pub const NOT_PRESENT: u64 = 0;

/// Places the tables.
pub fn place(vm: &TestVm) {
    let table = |at: u64, entries: &mut dyn Iterator<Item = u64>| {
        let bytes: Vec<u8> = entries.flat_map(u64::to_le_bytes).collect();
        vm.place(at, &bytes);
    };
    table(ROOT, &mut [POINTERS | FLAGS].into_iter());
    table(
        POINTERS,
        &mut (0..4).map(|n| (DIRECTORIES + n * 0x1000) | FLAGS),
    );
    let large = (0..2048).map(|n| n << 21 | FLAGS | LARGE);
    table(
        DIRECTORIES,
        &mut [FIRST_PAGES | FLAGS].into_iter().chain(large.skip(1)),
    );
    table(FIRST_PAGES, &mut (0..512).map(|n| n << 12 | FLAGS));
}

/// Gives the page at `gpa` below 2 MiB other flags, one of this module's.
pub fn protect(vm: &TestVm, gpa: u64, flags: u64) {
    set(
        vm,
        gpa,
        if flags == NOT_PRESENT {
            0
        } else {
            gpa & !0xfff | flags
        },
    );
}

fn set(vm: &TestVm, linear: u64, entry: u64) {
    assert!(linear < 2 << 20, "4 KiB pages are there only");
    vm.place(FIRST_PAGES + (linear >> 12) * 8, &entry.to_le_bytes());
}

/// Maps the page at `linear` below 2 MiB to the one at `gpa`, everything allowed.
pub fn alias(vm: &TestVm, linear: u64, gpa: u64) {
    set(vm, linear, gpa & !0xfff | FLAGS);
}
