//! The cache of decoded blocks when there is more code than room.

use super::rig::Rig;
use crate::block::CodeCache;
use crate::run::Stop;

/// inc rbx; hlt
const HOT: u64 = 0x10_0000;
/// Many times inc rax; hlt, each in a place of its own.
const COLD: u64 = 0x20_0000;
const COLD_STEP: u64 = 64;
/// Room for about 150 blocks.
const LIMIT: usize = 32 << 10;
/// More than one block takes.
const SLACK: usize = 4 << 10;

fn rig(cold: u64) -> Rig {
    let mut r = Rig::long(HOT);
    r.cache = CodeCache::with_limit(LIMIT);
    r.code(HOT, &[0x48, 0xff, 0xc3, 0xf4]);
    for i in 0..cold {
        r.code(COLD + i * COLD_STEP, &[0x48, 0xff, 0xc0, 0xf4]);
    }
    r
}

fn run_at(r: &mut Rig, rip: u64) {
    r.cpu.rip = rip;
    assert_eq!(r.run(), Stop::Halted);
    assert!(r.cache.used_bytes() <= LIMIT + SLACK);
}

#[test]
fn code_that_is_run_again_and_again_stays_and_the_rest_goes() {
    let mut r = rig(1000);
    for i in 0..1000 {
        run_at(&mut r, HOT);
        run_at(&mut r, COLD + i * COLD_STEP);
        assert!(r.cache.holds(HOT), "after {i} others");
    }
    assert_eq!((r.cpu.regs[3], r.cpu.regs[0]), (1000, 1000));
    let kept = (0..1000).filter(|i| r.cache.holds(COLD + i * COLD_STEP));
    assert!((10..200).contains(&kept.count()));
    assert!(!r.cache.holds(COLD));
}

#[test]
fn more_code_in_use_than_there_is_room_for_runs_right() {
    let mut r = rig(400);
    for round in 1..=4 {
        for i in 0..400 {
            run_at(&mut r, COLD + i * COLD_STEP);
        }
        assert_eq!(r.cpu.regs[0], round * 400);
    }
}

#[test]
fn changed_code_is_seen_after_its_page_lost_all_blocks() {
    let mut r = rig(1000);
    run_at(&mut r, HOT);
    for i in 0..1000 {
        run_at(&mut r, COLD + i * COLD_STEP);
    }
    assert!(
        !r.cache.holds(HOT),
        "the test is about a page without blocks"
    );
    // By the guest: mov word [rcx], ax with `dec rbx` (48 ff cb) in the place of `inc rbx`.
    r.code(COLD, &[0x66, 0x89, 0x01, 0xf4]);
    (r.cpu.regs[1], r.cpu.regs[0]) = (HOT + 1, 0xcbff);
    run_at(&mut r, HOT);
    run_at(&mut r, COLD);
    run_at(&mut r, HOT);
    assert_eq!(r.cpu.regs[3], 1);
}
