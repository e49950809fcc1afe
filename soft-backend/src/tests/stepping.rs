//! Single steps over SYSCALL and SYSRET, which load TF.

use super::rig::{CODE, HANDLER, KERNEL_DS, Rig, TSS, USER_CS};
use crate::cpu::flags::{DF, IF, TF};
use crate::debug::BS;
use crate::run::Stop;
use crate::segments::Segment;

/// The kernel's entry for SYSCALL, and where #DB goes.
const ENTRY: u64 = HANDLER;
const ON_DEBUG: u64 = HANDLER + 0x1000;

/// User code at `CODE`: `syscall; nop; nop`, with TF set. The #DB handler is `mov rbx, dr6; hlt`.
fn rig(mask: u64, entry: &[u8]) -> Rig {
    let mut r = Rig::long(CODE);
    r.cpu.msr.star = u64::from(KERNEL_DS) << 48 | 0x08 << 32;
    r.cpu.msr.lstar = ENTRY;
    r.cpu.msr.sfmask = mask;
    r.put64(TSS + 4, 0x28_0000);
    r.gate(1, ON_DEBUG, 1, 0);
    r.put64(TSS + 0x24, 0x2c_0000);
    r.code(ON_DEBUG, &[0x0f, 0x21, 0xf3, 0xf4]);
    r.code(CODE, &[0x0f, 0x05, 0x90, 0x90]);
    r.code(ENTRY, entry);
    let user = r.cpu.descriptor(USER_CS).unwrap().unwrap();
    r.cpu.set_cs(Segment::from_descriptor(USER_CS, user), 3);
    r.cpu.regs[3] = 0;
    r.cpu.sysflags |= TF;
    r
}

/// Where the #DB that ended the run says it happened.
fn interrupted(r: &Rig) -> u64 {
    assert_ne!(r.cpu.regs[3] & BS, 0, "no single step was reported");
    r.get64(r.cpu.regs[4])
}

#[test]
fn syscall_that_masks_tf_takes_no_trap_at_the_entry() {
    // inc rax; hlt
    let mut r = rig(IF | DF | TF, &[0x48, 0xff, 0xc0, 0xf4]);
    r.cpu.regs[0] = 0;
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!((r.cpu.regs[0], r.cpu.regs[3]), (1, 0));
    assert_eq!(r.cpu.regs[11] & TF, TF, "the user's TF is in R11");
}

#[test]
fn syscall_that_keeps_tf_traps_before_the_first_instruction_of_the_kernel() {
    let mut r = rig(IF | DF, &[0x48, 0xff, 0xc0, 0xf4]);
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!(interrupted(&r), ENTRY);
}

#[test]
fn sysret_that_sets_tf_traps_before_the_next_instruction_of_the_user() {
    // sysretq
    let mut r = rig(IF | DF | TF, &[0x48, 0x0f, 0x07]);
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!(interrupted(&r), CODE + 2);
}

#[test]
fn sysret_that_clears_tf_is_not_stepped() {
    // pushfq; or byte [rsp+1], 1; popfq; sysretq; R11 is without TF, and the user's code is HLT, a #GP
    let entry = [0x9c, 0x80, 0x4c, 0x24, 0x01, 0x01, 0x9d, 0x48, 0x0f, 0x07];
    let mut r = rig(IF | DF | TF, &entry);
    r.cpu.sysflags &= !TF;
    r.cpu.regs[4] = 0x20_0000;
    r.code(CODE, &[0x0f, 0x05, 0xf4]);
    r.gate(13, ON_DEBUG + 0x1000, 1, 0);
    r.code(ON_DEBUG + 0x1000, &[0xf4]);
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!(r.cpu.rip, ON_DEBUG + 0x1001, "#GP, not #DB");
}

#[test]
fn iret_that_sets_tf_runs_one_instruction_first() {
    // SS, RSP, RFLAGS with TF, CS, RIP lie on the kernel's stack; iretq
    let mut r = rig(0, &[]);
    let kernel = r.cpu.descriptor(super::rig::KERNEL_CS).unwrap().unwrap();
    r.cpu
        .set_cs(Segment::from_descriptor(super::rig::KERNEL_CS, kernel), 0);
    r.cpu.sysflags &= !TF;
    let frame = [
        CODE,
        USER_CS.into(),
        TF | 2,
        0x30_0000,
        super::rig::USER_DS.into(),
    ];
    for (i, v) in frame.into_iter().enumerate() {
        r.put64(0x20_0000 + 8 * i as u64, v);
    }
    r.code(CODE, &[0x90, 0x90]);
    r.code(ENTRY, &[0x48, 0xcf]);
    r.cpu.rip = ENTRY;
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!(interrupted(&r), CODE + 1);
}
