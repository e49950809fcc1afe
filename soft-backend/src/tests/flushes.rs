//! What drops translations, and how much of them: of small pages, and of parts of large ones.

use super::rig::{CODE, PD, PDPT, Rig};
use crate::cpu::state::{cr0, cr4, efer};
use crate::run::Stop;
use crate::segments::{CS, DS, Segment, attr};

/// Numbers of registers in `Cpu::regs`.
const RAX: usize = 0;
const RCX: usize = 1;
const RDX: usize = 2;
const RBX: usize = 3;
const RSI: usize = 6;
const RDI: usize = 7;

/// `mov rax, [rbx]; mov [rdi], rsi; FLUSH; mov rdx, [rbx]; hlt` (32-bit code leaves out the prefixes).
fn load_remap_load(flush: &[u8], wide: bool) -> Vec<u8> {
    let mut code = Vec::new();
    for part in [&[0x8b, 0x03][..], &[0x89, 0x37]] {
        code.extend(wide.then_some(0x48));
        code.extend(part);
    }
    code.extend(flush);
    code.extend(wide.then_some(0x48));
    code.extend([0x8b, 0x13, 0xf4]);
    code
}

const INVLPG_RCX: &[u8] = &[0x0f, 0x01, 0x39];

/// A page that was moved: where it is read, the entry that changes and to what, where INVLPG aims.
struct Moved {
    read: u64,
    entry: u64,
    to: u64,
    old: u64,
    new: u64,
    aim: u64,
}

fn check_moved(mut r: Rig, m: &Moved, flush: &[u8], wide: bool) {
    r.code(CODE, &load_remap_load(flush, wide));
    r.put64(m.old, 0x1111);
    r.put64(m.new, 0x2222);
    r.cpu.regs[RBX] = m.read;
    r.cpu.regs[RDI] = m.entry;
    r.cpu.regs[RSI] = m.to;
    r.cpu.regs[RCX] = m.aim;
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!((r.cpu.regs[RAX], r.cpu.regs[RDX]), (0x1111, 0x2222));
}

/// The 2 MiB page at 6 MiB moves to 8 MiB.
fn moved_2m(aim: u64) -> Moved {
    Moved {
        read: 0x60_5000,
        entry: PD + 8 * 3,
        to: 0x80_0000 | 0x87,
        old: 0x60_5000,
        new: 0x80_5000,
        aim,
    }
}

#[test]
fn invlpg_drops_the_whole_of_a_2_mib_page_wherever_it_aims() {
    for aim in [0x60_0000, 0x60_5000, 0x60_5fff, 0x70_0123, 0x7f_ffff] {
        check_moved(Rig::long(CODE), &moved_2m(aim), INVLPG_RCX, true);
    }
}

#[test]
fn invlpg_drops_the_whole_of_a_1_gib_page_that_is_split() {
    let page = 0x4000_0000;
    let table = 0x9000;
    for aim in [page, page + 0x12_3000, page + 0x3fff_ffff] {
        let r = Rig::long(CODE);
        r.put64(PDPT + 8, 0x87);
        for i in 0..32 {
            r.put64(table + 8 * i, ((i + 1) % 32) << 21 | 0x87);
        }
        let m = Moved {
            read: page + 0x60_5000,
            entry: PDPT + 8,
            to: table | 7,
            old: 0x60_5000,
            new: 0x80_5000,
            aim,
        };
        check_moved(r, &m, INVLPG_RCX, true);
    }
}

/// Protected mode with 32-bit tables and 4 MiB pages, mapped one to one.
fn rig_32() -> Rig {
    let mut r = Rig::real(CODE);
    for i in 0..8 {
        let entry = |n: u64| n << 22 | 0x87;
        r.put64(PD + 8 * i, entry(2 * i + 1) << 32 | entry(2 * i));
    }
    let flat = |kind| Segment {
        selector: 8,
        attr: attr::P | attr::S | attr::ACCESSED | attr::G | attr::DB | kind,
        limit: u32::MAX,
        base: 0,
    };
    r.cpu.cr0 = cr0::PE | cr0::PG | cr0::WP | cr0::NE | cr0::ET;
    r.cpu.cr4 = cr4::PSE;
    r.cpu.cr3 = PD;
    r.cpu.seg = [flat(attr::WRITABLE); 6];
    r.cpu.seg[CS] = flat(attr::CODE | attr::READABLE);
    r.cpu.update_mode();
    r.cpu.flush_tlb();
    r
}

#[test]
fn invlpg_drops_the_whole_of_a_4_mib_page_in_both_halves() {
    for aim in [0x40_0000, 0x60_5000, 0x7f_f000] {
        for read in [0x40_5000, 0x60_5000] {
            let m = Moved {
                read,
                entry: PD + 4,
                to: 0x80_0000 | 0x87,
                old: read,
                new: read + 0x40_0000,
                aim,
            };
            check_moved(rig_32(), &m, INVLPG_RCX, false);
        }
    }
}

#[test]
fn invlpg_in_32_bit_code_wraps_round_the_address_space() {
    let mut r = rig_32();
    // The base takes the address beyond 4 GiB, to 6 MiB.
    r.cpu.seg[DS].base = 0xffff_f000;
    let m = moved_2m(0x60_1000);
    let m = Moved {
        read: m.read + 0x1000,
        entry: PD + 4 + 0x1000,
        to: 0x80_0000 | 0x87,
        new: 0xa0_5000,
        ..m
    };
    check_moved(r, &m, INVLPG_RCX, false);
}

#[test]
fn loads_of_control_registers_drop_everything() {
    // mov rcx, cr3; mov cr3, rcx
    let cr3 = [0x0f, 0x20, 0xd9, 0x0f, 0x22, 0xd9];
    // mov rcx, cr4; xor rcx, 0x80; mov cr4, rcx
    let cr4 = [
        0x0f, 0x20, 0xe1, 0x48, 0x81, 0xf1, 0x80, 0, 0, 0, 0x0f, 0x22, 0xe1,
    ];
    // mov rcx, cr0; xor rcx, 0x10000; mov cr0, rcx
    let cr0 = [
        0x0f, 0x20, 0xc1, 0x48, 0x81, 0xf1, 0, 0, 1, 0, 0x0f, 0x22, 0xc1,
    ];
    for flush in [&cr3[..], &cr4, &cr0] {
        check_moved(Rig::long(CODE), &moved_2m(0), flush, true);
    }
}

#[test]
fn global_pages_survive_no_change_of_cr4_pge() {
    let mut r = Rig::long(CODE);
    r.cpu.cr4 |= 1 << 7;
    r.put64(PD + 8 * 3, 0x60_0000 | 0x187);
    let flush = [
        0x0f, 0x20, 0xe1, 0x48, 0x81, 0xf1, 0x80, 0, 0, 0, 0x0f, 0x22, 0xe1,
    ];
    check_moved(r, &moved_2m(0), &flush, true);
}

/// `call rbx; mov [rdi], rsi; FLUSH; call rbx; hlt`, and at the target, before and after it moves,
/// `inc rax; ret` and `inc rdx; ret`.
fn check_moved_code(mut r: Rig, m: &Moved, flush: &[u8]) {
    let mut code = vec![0xff, 0xd3, 0x48, 0x89, 0x37];
    code.extend(flush);
    code.extend([0xff, 0xd3, 0xf4]);
    r.code(CODE, &code);
    r.code(m.old, &[0x48, 0xff, 0xc0, 0xc3]);
    r.code(m.new, &[0x48, 0xff, 0xc2, 0xc3]);
    (r.cpu.regs[RAX], r.cpu.regs[RDX]) = (0, 0);
    r.cpu.regs[RBX] = m.read;
    r.cpu.regs[RDI] = m.entry;
    r.cpu.regs[RSI] = m.to;
    r.cpu.regs[RCX] = m.aim;
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!((r.cpu.regs[RAX], r.cpu.regs[RDX]), (1, 1));
}

#[test]
fn code_of_a_large_page_that_moved_is_not_run_again() {
    for aim in [0x60_0000, 0x60_5000, 0x7f_f000] {
        check_moved_code(Rig::long(CODE), &moved_2m(aim), INVLPG_RCX);
    }
    // mov rcx, cr3; mov cr3, rcx
    let cr3 = [0x0f, 0x20, 0xd9, 0x0f, 0x22, 0xd9];
    check_moved_code(Rig::long(CODE), &moved_2m(0), &cr3);
}

#[test]
fn a_direct_jump_into_a_moved_page_goes_to_the_new_code() {
    for flush in [INVLPG_RCX, &[0x0f, 0x20, 0xd9, 0x0f, 0x22, 0xd9]] {
        let mut r = Rig::long(CODE);
        let m = moved_2m(0x70_0000);
        // again: call target; mov [rdi], rsi; FLUSH; dec r8; jnz again; hlt
        let relative = (m.read as i64 - (CODE as i64 + 5)) as i32;
        let mut code = vec![0xe8];
        code.extend(relative.to_le_bytes());
        code.extend([0x48, 0x89, 0x37]);
        code.extend(flush);
        code.extend([0x49, 0xff, 0xc8, 0x75]);
        code.push(-(code.len() as i8 + 1) as u8);
        code.push(0xf4);
        r.code(CODE, &code);
        r.code(m.old, &[0x48, 0xff, 0xc0, 0xc3]);
        r.code(m.new, &[0x48, 0xff, 0xc2, 0xc3]);
        r.cpu.regs[8] = 5;
        (r.cpu.regs[RAX], r.cpu.regs[RDX]) = (0, 0);
        (r.cpu.regs[RDI], r.cpu.regs[RSI]) = (m.entry, m.to);
        r.cpu.regs[RCX] = m.aim;
        assert_eq!(r.run(), Stop::Halted);
        assert_eq!((r.cpu.regs[RAX], r.cpu.regs[RDX]), (1, 4));
    }
}

#[test]
fn a_write_to_efer_drops_translations() {
    let mut r = Rig::long(CODE);
    // mov rax, [rbx]; mov r8, rax; mov [rdi], rsi; mov ecx, 0xc0000080; rdmsr; xor eax, 0x800; wrmsr;
    // mov rdx, [rbx]; mov rax, r8; hlt
    let code = [
        0x48, 0x8b, 0x03, 0x49, 0x89, 0xc0, 0x48, 0x89, 0x37, 0xb9, 0x80, 0, 0, 0xc0, 0x0f, 0x32,
        0x35, 0, 8, 0, 0, 0x0f, 0x30, 0x48, 0x8b, 0x13, 0x4c, 0x89, 0xc0, 0xf4,
    ];
    let m = moved_2m(0);
    r.code(CODE, &code);
    r.put64(m.old, 0x1111);
    r.put64(m.new, 0x2222);
    r.cpu.regs[RBX] = m.read;
    (r.cpu.regs[RDI], r.cpu.regs[RSI]) = (m.entry, m.to);
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!((r.cpu.regs[RAX], r.cpu.regs[RDX]), (0x1111, 0x2222));
    assert_eq!(r.cpu.efer & efer::NXE, 0, "EFER has changed");
}
