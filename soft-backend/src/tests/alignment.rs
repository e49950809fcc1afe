//! Alignment checks: CR0.AM, EFLAGS.AC, privilege level 3.

use super::rig::{CODE, FINE, HANDLER, Rig, TSS, USER_CS, fine_pages, frame};
use crate::cpu::flags;
use crate::cpu::state::cr0;
use crate::run::Stop;
use crate::segments::Segment;

const DATA: u64 = 0x60_0000;

/// At `CODE` with level 3, AC and AM set; #AC, #GP and #PF end at handlers that halt, with the vector in BL.
fn rig(code: &[u8]) -> Rig {
    let mut r = Rig::long(CODE);
    r.put64(TSS + 4, 0x28_0000);
    for vector in [13, 14, 17] {
        let at = HANDLER + 0x100 * vector;
        r.gate(vector, at, 0, 0);
        // mov bl, vector; hlt
        r.code(at, &[0xb3, vector as u8, 0xf4]);
    }
    r.code(CODE, code);
    let user = r.cpu.descriptor(USER_CS).unwrap().unwrap();
    r.cpu.set_cs(Segment::from_descriptor(USER_CS, user), 3);
    r.cpu.cr0 |= cr0::AM;
    r.cpu.sysflags |= flags::AC;
    r.cpu.update_context();
    r.cpu.regs[7] = DATA;
    r
}

/// Runs to a handler; gives the vector.
fn vector(r: &mut Rig) -> u64 {
    assert_eq!(r.run(), Stop::Halted);
    r.cpu.regs[3] & 0xff
}

#[test]
fn a_misaligned_access_faults_with_error_code_zero() {
    // Each is followed by HLT, which is #GP here.
    let aligned_to_8: [&[u8]; 7] = [
        &[0x48, 0x8b, 0x07],       // mov rax, [rdi]
        &[0x48, 0x89, 0x07],       // mov [rdi], rax
        &[0x48, 0x01, 0x07],       // add [rdi], rax
        &[0xf0, 0x48, 0x01, 0x07], // lock add [rdi], rax
        &[0xdd, 0x07],             // fld qword [rdi]
        &[0xf3, 0x0f, 0x7e, 0x07], // movq xmm0, [rdi]
        &[0xf3, 0x0f, 0x6f, 0x07], // movdqu xmm0, [rdi]
    ];
    for access in aligned_to_8 {
        let code = [access, &[0xf4]].concat();
        for offset in 0..=8 {
            let mut r = rig(&code);
            r.cpu.regs[7] += offset;
            let expected = if offset % 8 == 0 { 13 } else { 17 };
            assert_eq!(vector(&mut r), expected, "{access:x?} at offset {offset}");
            if expected == 17 {
                assert_eq!((frame(&r, 0), frame(&r, 1)), (0, CODE));
                assert_eq!(r.get64(DATA), 0, "{access:x?} has stored");
            }
        }
    }
}

#[test]
fn words_and_bytes_have_alignments_of_their_own() {
    let accesses: [(&[u8], u64); 3] = [
        (&[0x8a, 0x07, 0xf4], 1),       // mov al, [rdi]
        (&[0x66, 0x8b, 0x07, 0xf4], 2), // mov ax, [rdi]
        (&[0x8b, 0x07, 0xf4], 4),       // mov eax, [rdi]
    ];
    for (code, alignment) in accesses {
        for offset in 0..8 {
            let mut r = rig(code);
            r.cpu.regs[7] += offset;
            let expected = if offset % alignment == 0 { 13 } else { 17 };
            assert_eq!(vector(&mut r), expected, "{code:x?} at offset {offset}");
        }
    }
}

#[test]
fn rep_movs_is_checked_as_well() {
    // mov ecx, 16; rep movsq; hlt
    let mut r = rig(&[0xb9, 16, 0, 0, 0, 0xf3, 0x48, 0xa5, 0xf4]);
    r.cpu.regs[6] = DATA + 0x1000;
    r.cpu.regs[7] = DATA + 4;
    assert_eq!(vector(&mut r), 17);
    assert_eq!(r.cpu.regs[1], 16);
}

#[test]
fn all_three_conditions_are_needed() {
    let code = [0x48, 0x8b, 0x07, 0xf4];
    type Take = fn(&mut Rig);
    let without: [Take; 2] = [|r| r.cpu.cr0 &= !cr0::AM, |r| r.cpu.sysflags &= !flags::AC];
    for take in without {
        let mut r = rig(&code);
        take(&mut r);
        r.cpu.update_context();
        r.cpu.regs[7] += 1;
        assert_eq!(vector(&mut r), 13);
    }
    let mut r = rig(&code);
    let kernel = r.cpu.descriptor(super::rig::KERNEL_CS).unwrap().unwrap();
    r.cpu
        .set_cs(Segment::from_descriptor(super::rig::KERNEL_CS, kernel), 0);
    r.cpu.regs[7] += 1;
    assert_eq!(vector(&mut r), 0, "the supervisor's HLT");
}

#[test]
fn a_page_fault_comes_before_an_alignment_check() {
    // mov rax, [rdi]
    let mut r = rig(&[0x48, 0x8b, 0x07]);
    let entry = fine_pages(&r);
    r.put64(entry(1), 0);
    r.cpu.regs[7] = FINE + 4092;
    assert_eq!(vector(&mut r), 14);
    assert_eq!(r.cpu.cr2, FINE + 4096);
}

#[test]
fn a_translation_from_before_ac_was_set_is_checked_too() {
    // mov rax, [rdi]; pushfq; or dword [rsp], 0x40000; popfq; mov rax, [rdi]; hlt
    let code = [
        0x48, 0x8b, 0x07, 0x9c, 0x81, 0x0c, 0x24, 0, 0, 4, 0, 0x9d, 0x48, 0x8b, 0x07, 0xf4,
    ];
    let mut r = rig(&code);
    r.cpu.sysflags &= !flags::AC;
    r.cpu.update_context();
    r.cpu.regs[7] += 1;
    assert_eq!(vector(&mut r), 17);
    assert_eq!(frame(&r, 1), CODE + 12);
}
