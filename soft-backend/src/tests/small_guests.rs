//! Small guests that exercise the system level.

use super::rig::{
    CODE, FINE, HANDLER, KERNEL_DS, PD, PDPT, Rig, TSS, USER_CS, USER_DS, fine_pages, frame,
};
use crate::cpu::flags;
use crate::cpu::state::efer;
use crate::run::Stop;

#[test]
fn an_interrupt_from_user_code_switches_the_stack_and_comes_back() {
    let mut r = Rig::long(CODE);
    r.put64(TSS + 4, 0x28_0000);
    r.gate(0x80, HANDLER, 0, 3);
    // push USER_DS; push 0x300000; push 0x202; push USER_CS; push 0x120000; iretq
    r.code(
        CODE,
        &[
            0x6a,
            USER_DS as u8,
            0x68,
            0,
            0,
            0x30,
            0,
            0x68,
            2,
            2,
            0,
            0,
            0x6a,
            USER_CS as u8,
            0x68,
            0,
            0,
            0x12,
            0,
            0x48,
            0xcf,
        ],
    );
    // int 0x80; inc rcx; hlt (which is #GP at level 3)
    r.code(0x12_0000, &[0xcd, 0x80, 0x48, 0xff, 0xc1, 0xf4]);
    // inc rbx; iretq
    r.code(HANDLER, &[0x48, 0xff, 0xc3, 0x48, 0xcf]);
    r.gate(13, HANDLER + 0x1000, 0, 0);
    r.code(HANDLER + 0x1000, &[0xf4]);
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!((r.cpu.regs[3], r.cpu.regs[1]), (1, 1));
    // Error code, RIP, CS, RFLAGS, RSP, SS of the #GP.
    let f: Vec<u64> = (0..6).map(|n| frame(&r, n)).collect();
    assert_eq!(f[..3], [0, 0x12_0005, USER_CS.into()]);
    assert_eq!(f[4..], [0x30_0000, USER_DS.into()]);
    assert_eq!(r.cpu.regs[4], 0x28_0000 - 48);
    assert_eq!(r.cpu.cpl, 0);
}

#[test]
fn user_code_may_not_use_supervisor_pages_or_gates() {
    let mut r = Rig::long(0x12_0000);
    let entry = fine_pages(&r);
    r.put64(entry(0), FINE | 3);
    r.put64(TSS + 4, 0x28_0000);
    r.gate(14, HANDLER, 0, 0);
    r.gate(13, HANDLER + 0x1000, 0, 0);
    r.gate(0x40, HANDLER, 0, 0);
    // The handler notes the error code and goes on after the 3-byte instruction.
    // pop rdi; add qword [rsp], 3; iretq
    r.code(HANDLER, &[0x5f, 0x48, 0x83, 0x04, 0x24, 3, 0x48, 0xcf]);
    r.code(HANDLER + 0x1000, &[0xf4]);
    // mov rax, [rbx]; int 0x40
    r.code(0x12_0000, &[0x48, 0x8b, 0x03, 0xcd, 0x40]);
    r.cpu.regs[3] = FINE;
    let user = r.cpu.descriptor(USER_CS).unwrap().unwrap();
    let user = crate::segments::Segment::from_descriptor(USER_CS, user);
    let stack = r.cpu.descriptor(USER_DS).unwrap().unwrap();
    r.cpu.seg[2] = crate::segments::Segment::from_descriptor(USER_DS, stack);
    r.cpu.set_cs(user, 3);
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!(r.cpu.regs[7], 5, "present, user, read");
    assert_eq!((frame(&r, 0), frame(&r, 1)), (0x40 * 8 + 2, 0x12_0003));
}

#[test]
fn ist_stacks_are_used_at_the_same_level_too() {
    let mut r = Rig::long(CODE);
    r.put64(TSS + 0x24 + 8, 0x2c_0008);
    r.gate(6, HANDLER, 2, 0);
    r.code(CODE, &[0x0f, 0x0b]);
    r.code(HANDLER, &[0xf4]);
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!(r.cpu.regs[4], 0x2c_0000 - 40, "aligned down to 16 bytes");
    assert_eq!((frame(&r, 0), frame(&r, 3)), (CODE, 0x20_0000));
}

#[test]
fn a_fault_while_delivering_is_a_double_fault_and_then_a_shutdown() {
    let mut r = Rig::long(CODE);
    let entry = fine_pages(&r);
    r.put64(entry(5), 0);
    // The page fault's stack is not mapped; the double fault has a good one.
    r.put64(TSS + 0x24, FINE + 6 * 4096);
    r.put64(TSS + 0x24 + 8, 0x2c_0000);
    r.gate(14, HANDLER, 1, 0);
    r.gate(8, HANDLER, 2, 0);
    r.code(CODE, &[0x48, 0x8b, 0x03]);
    r.code(HANDLER, &[0xf4]);
    r.cpu.regs[3] = FINE + 5 * 4096;
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!((frame(&r, 0), frame(&r, 1)), (0, CODE));

    let mut r = Rig::long(CODE);
    let entry = fine_pages(&r);
    r.put64(entry(5), 0);
    r.put64(TSS + 0x24, FINE + 6 * 4096);
    r.gate(14, HANDLER, 1, 0);
    r.gate(8, HANDLER, 1, 0);
    r.code(CODE, &[0x48, 0x8b, 0x03]);
    r.cpu.regs[3] = FINE + 5 * 4096;
    assert_eq!(r.run(), Stop::TripleFault);
}

#[test]
fn syscall_and_sysret_change_level_and_flags() {
    let mut r = Rig::long(0x12_0000);
    r.cpu.msr.star = u64::from(KERNEL_DS) << 48 | 0x08 << 32;
    r.cpu.msr.lstar = HANDLER;
    r.cpu.msr.sfmask = flags::IF | flags::DF;
    // std; syscall; inc rdx; hlt
    r.code(0x12_0000, &[0xfd, 0x0f, 0x05, 0x48, 0xff, 0xc2, 0xf4]);
    // inc rbx; sysretq
    r.code(HANDLER, &[0x48, 0xff, 0xc3, 0x48, 0x0f, 0x07]);
    r.put64(TSS + 4, 0x28_0000);
    r.gate(13, HANDLER + 0x1000, 0, 0);
    r.code(HANDLER + 0x1000, &[0xf4]);
    let user = r.cpu.descriptor(USER_CS).unwrap().unwrap();
    r.cpu
        .set_cs(crate::segments::Segment::from_descriptor(USER_CS, user), 3);
    r.cpu.regs[2] = 0;
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!((r.cpu.regs[3], r.cpu.regs[2]), (1, 1));
    assert_eq!(r.cpu.regs[1], 0x12_0003);
    let f: Vec<u64> = (0..6).map(|n| frame(&r, n)).collect();
    assert_eq!((f[2], f[5]), (USER_CS.into(), USER_DS.into()));
    assert!(f[3] & flags::DF != 0, "RFLAGS came back from R11");
}

#[test]
fn code_that_changes_itself_runs_as_changed() {
    let mut r = Rig::long(CODE);
    // mov byte [rip+1], 7 ; mov al, 1 (whose immediate the store changes); hlt
    r.code(CODE, &[0xc6, 0x05, 1, 0, 0, 0, 7, 0xb0, 1, 0xf4]);
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!(r.cpu.get::<u8>(0), 7);
    // Again, with the block in the cache, and through another mapping of the page.
    r.put64(PDPT + 8, PD | 7);
    r.code(CODE, &[0xc6, 0x03, 9, 0xb0, 1, 0xff, 0xe6]);
    r.code(CODE + 0x100, &[0xf4]);
    r.cpu.rip = CODE;
    r.cpu.regs[3] = (1 << 30) + CODE + 4;
    r.cpu.regs[6] = CODE + 0x100;
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!(r.cpu.get::<u8>(0), 9);
}

#[test]
fn devices_that_write_code_are_noticed() {
    let mut r = Rig::long(CODE);
    for v in [1u8, 2, 3] {
        // mov al, v; hlt
        r.code(CODE, &[0xb0, v, 0xf4]);
        r.cpu.rip = CODE;
        assert_eq!(r.run(), Stop::Halted);
        assert_eq!(r.cpu.get::<u8>(0), v);
    }
}

#[test]
fn data_beside_code_does_not_lose_stores() {
    let mut r = Rig::long(CODE);
    // mov rdi, rbx; mov ecx, 600; rep stosb; inc qword [rbx]; hlt
    let code = [
        0x48, 0x89, 0xdf, 0xb9, 0x58, 2, 0, 0, 0xf3, 0xaa, 0x48, 0xff, 0x03, 0xf4,
    ];
    r.code(CODE, &code);
    r.cpu.regs[3] = CODE + 0x400;
    r.cpu.regs[0] = 0x55;
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!(r.get64(CODE + 0x400), 0x5555_5555_5555_5556);
    assert_eq!(r.get64(CODE + 0x400 + 592), 0x5555_5555_5555_5555);
}

#[test]
fn the_trap_flag_steps_one_instruction_at_a_time() {
    let mut r = Rig::long(CODE);
    r.gate(1, HANDLER, 0, 0);
    // inc rbx; iretq
    r.code(HANDLER, &[0x48, 0xff, 0xc3, 0x48, 0xcf]);
    // pushfq; or dword [rsp], 0x100; popfq; nop; nop; pushfq; and dword [rsp], ~0x100; popfq; hlt
    r.code(
        CODE,
        &[
            0x9c, 0x81, 0x0c, 0x24, 0, 1, 0, 0, 0x9d, 0x90, 0x90, 0x9c, 0x81, 0x24, 0x24, 0xff,
            0xfe, 0xff, 0xff, 0x9d, 0xf4,
        ],
    );
    assert_eq!(r.run(), Stop::Halted);
    // nop, nop, pushfq, and, popfq: each is followed by a trap.
    assert_eq!(r.cpu.regs[3], 5);
    assert!(r.cpu.dr[6] & 1 << 14 != 0);
}

#[test]
fn sti_holds_interrupts_back_for_one_instruction() {
    let mut r = Rig::long(CODE);
    r.gate(2, HANDLER, 0, 0);
    r.gate(0x40, HANDLER, 0, 0);
    r.code(HANDLER, &[0xf4]);
    // sti; inc rbx; inc rbx
    r.code(CODE, &[0xfb, 0x48, 0xff, 0xc3, 0x48, 0xff, 0xc3]);
    r.cpu.lapic.write(0xf0, 0x1ff, 0);
    r.cpu.lapic.request(0x40, false);
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!((r.cpu.regs[3], frame(&r, 0)), (1, CODE + 4));
    assert!(!r.cpu.flag(flags::IF));
}

#[test]
fn device_accesses_happen_once_each() {
    let mut r = Rig::long(CODE);
    r.put64(PD + 8 * 100, 0xd000_0000 | 0x87);
    let device = 100u64 << 21;
    // add dword [rbx], 1; mov al, [rbx+5]; in al, 0x60; out 0x80, al; hlt
    r.code(
        CODE,
        &[0x83, 0x03, 1, 0x8a, 0x43, 5, 0xe4, 0x60, 0xe6, 0x80, 0xf4],
    );
    r.cpu.regs[3] = device + 0x10;
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!(r.devices.reads, 3);
    assert_eq!(r.devices.out, [(0xd000_0010, 0x1312_1111), (0x80, 0x60)]);
}

#[test]
fn rep_outs_and_ins_go_element_by_element() {
    let mut r = Rig::long(CODE);
    r.put64(0x30_0000, 0x0807_0605_0403_0201);
    // mov edx, 0x3f8; rep outsw; mov ecx, 3; rep insb; hlt
    r.code(
        CODE,
        &[
            0xba, 0xf8, 3, 0, 0, 0x66, 0xf3, 0x6f, 0xb9, 3, 0, 0, 0, 0xf3, 0x6c, 0xf4,
        ],
    );
    (r.cpu.regs[6], r.cpu.regs[7], r.cpu.regs[1]) = (0x30_0000, 0x30_0010, 4);
    assert_eq!(r.run(), Stop::Halted);
    let words: Vec<u64> = r.devices.out.iter().map(|o| o.1).collect();
    assert_eq!(words, [0x201, 0x403, 0x605, 0x807]);
    assert_eq!(r.get64(0x30_0010), 0xf8_f8f8);
    assert_eq!(r.devices.reads, 3);
}

#[test]
fn real_mode_interrupts_and_segments() {
    let mut r = Rig::real(0x1000);
    r.put64(4 * 0x21, 0x0200_0010);
    // mov ax, 0x3000; mov ds, ax; mov byte [0x10], 0x5a; int 0x21; hlt
    r.code(
        0x1000,
        &[
            0xb8, 0, 0x30, 0x8e, 0xd8, 0xc6, 6, 0x10, 0, 0x5a, 0xcd, 0x21, 0xf4,
        ],
    );
    // At 0200:0010: inc bx; iret
    r.code(0x2010, &[0x43, 0xcf]);
    r.cpu.regs[4] = 0x8000;
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!(r.cpu.regs[3], 1);
    assert_eq!(r.get64(0x3_0010) & 0xff, 0x5a);
    assert_eq!(r.cpu.rip, 0x100d);
}

#[test]
fn from_real_mode_to_long_mode_as_start_up_code_does() {
    let mut r = Rig::long(CODE);
    let tables = (r.cpu.gdtr, r.cpu.idtr);
    r.cpu.reset();
    (r.cpu.gdtr, r.cpu.idtr) = tables;
    r.cpu.seg[1] = crate::segments::Segment::real(0x800, true);
    r.cpu.rip = 0;
    r.cpu.update_mode();
    // A 32-bit code segment in the GDT's last slot.
    r.put64(super::rig::GDT + 0x30, 0x00cf_9b00_0000_ffff);
    // mov eax, 0x11; mov cr0, eax; jmp far 0x30:0x8100
    r.code(
        0x8000,
        &[
            0x66, 0xb8, 0x11, 0, 0, 0, 0x0f, 0x22, 0xc0, 0x66, 0xea, 0, 0x81, 0, 0, 0x30, 0,
        ],
    );
    // mov eax, 0x20; mov cr4, eax; mov eax, PML4; mov cr3, eax; mov ecx, EFER; mov eax, 0x100;
    // xor edx, edx; wrmsr; mov eax, 0x80000011; mov cr0, eax; jmp far 0x08:0x8200
    r.code(
        0x8100,
        &[
            0xb8, 0x20, 0, 0, 0, 0x0f, 0x22, 0xe0, 0xb8, 0, 0x10, 0, 0, 0x0f, 0x22, 0xd8, 0xb9,
            0x80, 0, 0, 0xc0, 0xb8, 0, 1, 0, 0, 0x31, 0xd2, 0x0f, 0x30, 0xb8, 0x11, 0, 0, 0x80,
            0x0f, 0x22, 0xc0, 0xea, 0, 0x82, 0, 0, 8, 0,
        ],
    );
    // mov rax, 0x1122334455667788; hlt
    r.code(
        0x8200,
        &[
            0x48, 0xb8, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0xf4,
        ],
    );
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!(r.cpu.regs[0], 0x1122_3344_5566_7788);
    assert!(r.cpu.efer & efer::LMA != 0 && r.cpu.code64());
}

#[test]
fn cmpxchg16b_wants_alignment() {
    let mut r = Rig::long(CODE);
    r.gate(13, HANDLER, 0, 0);
    r.code(HANDLER, &[0xf4]);
    // lock cmpxchg16b [rsi]; setz dil; lock cmpxchg16b [rsi+8]
    r.code(
        CODE,
        &[
            0xf0, 0x48, 0x0f, 0xc7, 0x0e, 0x40, 0x0f, 0x94, 0xc7, 0xf0, 0x48, 0x0f, 0xc7, 0x4e, 8,
        ],
    );
    r.cpu.regs[6] = 0x30_0000;
    (r.cpu.regs[0], r.cpu.regs[2], r.cpu.regs[3], r.cpu.regs[1]) = (0, 0, 5, 6);
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!((r.get64(0x30_0000), r.get64(0x30_0008)), (5, 6));
    assert_eq!((r.cpu.regs[7], frame(&r, 1)), (1, CODE + 9));
}

#[test]
fn non_canonical_addresses_are_refused_before_anything_changes() {
    let mut r = Rig::long(CODE);
    r.gate(13, HANDLER, 0, 0);
    r.code(HANDLER, &[0xf4]);
    // jmp rbx
    r.code(CODE, &[0xff, 0xe3]);
    r.cpu.regs[3] = 1 << 47;
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!((frame(&r, 0), frame(&r, 1)), (0, CODE));
}

#[test]
fn a_comparison_and_its_jump_do_as_one_what_they_do_apart() {
    let values = [0u32, 1, 5, 0x7fff_ffff, 0x8000_0000, u32::MAX];
    for cc in 0..16u8 {
        let mut r = Rig::long(CODE);
        // cmp eax, ebx; jcc +1; hlt; inc ecx; hlt
        r.code(CODE, &[0x39, 0xd8, 0x70 | cc, 1, 0xf4, 0xff, 0xc1, 0xf4]);
        for (a, b) in values
            .iter()
            .flat_map(|a| values.iter().map(move |b| (*a, *b)))
        {
            r.cpu.rip = CODE;
            (r.cpu.regs[0], r.cpu.regs[3], r.cpu.regs[1]) = (a.into(), b.into(), 0);
            let before = r.cpu.retired;
            assert_eq!(r.run(), Stop::Halted);
            let mut expect = crate::cpu::flags::LazyFlags::default();
            expect.set_sub(a, b, a.wrapping_sub(b));
            assert_eq!(r.cpu.regs[1] != 0, expect.cond(cc), "{cc} {a:#x} {b:#x}");
            assert_eq!(r.cpu.lazy.to_bits(), {
                if r.cpu.regs[1] != 0 {
                    // INC keeps CF.
                    let cf = expect.cf();
                    expect.set_inc(0u32, 1);
                    expect.put_cf(cf);
                }
                expect.to_bits()
            });
            // HLT does not retire before it is left.
            assert_eq!(r.cpu.retired - before, 2 + r.cpu.regs[1]);
        }
    }
}

#[test]
fn msrs_that_kernels_read_unguarded_are_there() {
    let mut r = Rig::long(CODE);
    for n in [
        0xfe,
        0x200,
        0x20f,
        0x250,
        0x26f,
        0x2ff,
        0xc001_0010,
        0xc001_0055,
    ] {
        assert!(r.cpu.read_msr(n).is_some(), "{n:#x}");
    }
    assert_eq!(r.cpu.read_msr(0xdead), None);
    r.gate(13, HANDLER, 0, 0);
    r.code(HANDLER, &[0xf4]);
    // rdmsr
    r.code(CODE, &[0x0f, 0x32]);
    r.cpu.regs[1] = 0xdead;
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!((frame(&r, 0), frame(&r, 1)), (0, CODE));
}
