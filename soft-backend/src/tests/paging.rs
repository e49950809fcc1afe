//! Small guests whose pages are read-only, absent, forbidden or moved.

use super::rig::{CODE, FINE, HANDLER, PD, PML4, Rig, fine_pages, frame};
use crate::cpu::state::cr4;
use crate::run::Stop;

#[test]
fn a_write_to_a_read_only_page_faults_with_address_and_code() {
    let mut r = Rig::long(CODE);
    let entry = fine_pages(&r);
    r.put64(entry(3), (FINE + 3 * 4096) | 1);
    r.gate(14, HANDLER, 0, 0);
    // mov qword [rbx], rax
    r.code(CODE, &[0x48, 0x89, 0x03]);
    r.code(HANDLER, &[0xf4]);
    r.cpu.regs[3] = FINE + 3 * 4096 + 8;
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!(r.cpu.cr2, FINE + 3 * 4096 + 8);
    assert_eq!((frame(&r, 0), frame(&r, 1)), (3, CODE));
    assert_eq!(
        frame(&r, 4),
        0x20_0000,
        "the stack pointer is that of the fault"
    );
}

#[test]
fn accessed_and_dirty_bits_follow_the_accesses() {
    let mut r = Rig::long(CODE);
    let entry = fine_pages(&r);
    // mov rax, [rbx]; mov [rcx], rax; hlt
    r.code(CODE, &[0x48, 0x8b, 0x03, 0x48, 0x89, 0x01, 0xf4]);
    r.cpu.regs[3] = FINE;
    r.cpu.regs[1] = FINE + 4096;
    assert_eq!(r.run(), Stop::Halted);
    let ad = |page| r.get64(entry(page)) & 0x60;
    assert_eq!((ad(0), ad(1), ad(2)), (0x20, 0x60, 0));
    assert_eq!(r.get64(PML4) & 0x20, 0x20);
}

#[test]
fn a_store_across_two_pages_writes_nothing_if_the_second_faults() {
    let mut r = Rig::long(CODE);
    let entry = fine_pages(&r);
    r.put64(entry(1), 0);
    r.put64(FINE + 4088, 0x1111_1111_1111_1111);
    r.gate(14, HANDLER, 0, 0);
    // mov [rbx], rax
    r.code(CODE, &[0x48, 0x89, 0x03]);
    r.code(HANDLER, &[0xf4]);
    r.cpu.regs[3] = FINE + 4092;
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!(r.cpu.cr2, FINE + 4096);
    assert_eq!(r.get64(FINE + 4088), 0x1111_1111_1111_1111);
}

#[test]
fn rep_movs_keeps_its_progress_at_a_fault() {
    let mut r = Rig::long(CODE);
    let entry = fine_pages(&r);
    r.put64(entry(2), 0);
    r.gate(14, HANDLER, 0, 0);
    // rep movsb
    r.code(CODE, &[0xf3, 0xa4]);
    r.code(HANDLER, &[0xf4]);
    (r.cpu.regs[6], r.cpu.regs[7], r.cpu.regs[1]) = (0x30_0000, FINE + 4096 + 100, 8000);
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!(r.cpu.regs[7], FINE + 2 * 4096);
    assert_eq!(r.cpu.regs[1], 8000 - (4096 - 100));
    assert_eq!(frame(&r, 1), CODE);
}

#[test]
fn no_execute_and_smep_stop_fetches() {
    for (nx, smep, code) in [(true, false, 0x11), (false, true, 0x11)] {
        let mut r = Rig::long(CODE);
        let entry = fine_pages(&r);
        // The handler's page must stay executable for the supervisor.
        r.put64(PD, 0x83);
        if nx {
            r.put64(entry(0), FINE | 3 | 1 << 63);
        }
        if smep {
            r.cpu.cr4 |= cr4::SMEP;
        }
        r.gate(14, HANDLER, 0, 0);
        // jmp rbx
        r.code(CODE, &[0xff, 0xe3]);
        r.code(HANDLER, &[0xf4]);
        r.code(FINE, &[0xf4]);
        r.cpu.regs[3] = FINE;
        assert_eq!(r.run(), Stop::Halted);
        assert_eq!((r.cpu.cr2, frame(&r, 0), frame(&r, 1)), (FINE, code, FINE));
    }
}

#[test]
fn smap_stops_supervisor_data_accesses_unless_ac() {
    let mut r = Rig::long(CODE);
    let _entries = fine_pages(&r);
    r.put64(PD, 0x83);
    r.cpu.cr4 |= cr4::SMEP | cr4::SMAP;
    r.gate(14, HANDLER, 0, 0);
    // stac; mov rax, [rbx]; clac; mov rax, [rbx]
    r.code(
        CODE,
        &[
            0x0f, 0x01, 0xcb, 0x48, 0x8b, 0x03, 0x0f, 0x01, 0xca, 0x48, 0x8b, 0x03,
        ],
    );
    r.code(HANDLER, &[0xf4]);
    r.cpu.regs[3] = FINE;
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!((frame(&r, 0), frame(&r, 1)), (1, CODE + 9));
}

#[test]
fn an_instruction_across_two_pages_follows_the_mapping_of_the_second() {
    let mut r = Rig::long(FINE + 4096 - 2);
    let entry = fine_pages(&r);
    // mov eax, imm32 with the immediate's last three bytes and the HLT in the second page
    r.code(FINE + 4096 - 2, &[0xb8, 1]);
    r.code(FINE + 4096, &[0, 0, 0, 0xf4]);
    r.code(FINE + 2 * 4096, &[1, 0, 0, 0xf4]);
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!(r.cpu.regs[0], 1);
    r.put64(entry(1), (FINE + 2 * 4096) | 7);
    r.cpu.flush_tlb();
    r.cpu.rip = FINE + 4096 - 2;
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!(r.cpu.regs[0], 0x101);
}

#[test]
fn invlpg_makes_a_changed_entry_count() {
    let mut r = Rig::long(CODE);
    let entry = fine_pages(&r);
    r.put64(FINE, 1);
    r.put64(FINE + 4096, 2);
    // mov rax, [rbx]; mov [rcx], rdx; mov rsi, [rbx]; invlpg [rbx]; mov rdi, [rbx]; hlt
    r.code(
        CODE,
        &[
            0x48, 0x8b, 0x03, 0x48, 0x89, 0x11, 0x48, 0x8b, 0x33, 0x0f, 0x01, 0x3b, 0x48, 0x8b,
            0x3b, 0xf4,
        ],
    );
    (r.cpu.regs[3], r.cpu.regs[1], r.cpu.regs[2]) = (FINE, entry(0), (FINE + 4096) | 7);
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!((r.cpu.regs[0], r.cpu.regs[7]), (1, 2));
}

#[test]
fn rep_movs_between_two_mappings_of_a_page_goes_element_by_element() {
    for (element, opcode) in [(1, &[0xf3, 0xa4][..]), (8, &[0xf3, 0x48, 0xa5])] {
        let mut r = Rig::long(CODE);
        let entry = fine_pages(&r);
        r.put64(entry(1), FINE | 7);
        r.code(CODE, &[opcode, &[0xf4]].concat());
        for i in 0..32 {
            r.put64(FINE + 8 * i, 0x0807_0605_0403_0201 + i);
        }
        // The destination lies one element ahead of the source, by its other address: the first
        // element spreads.
        let first = r.get64(FINE);
        (r.cpu.regs[6], r.cpu.regs[7]) = (FINE, FINE + 4096 + element);
        r.cpu.regs[1] = 128 / element;
        assert_eq!(r.run(), Stop::Halted);
        let spread = if element == 1 {
            0x0101_0101_0101_0101
        } else {
            first
        };
        assert!((0..16).all(|i| r.get64(FINE + 8 * i) == spread));
    }
}
