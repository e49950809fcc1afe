//! What FXSAVE says about the last x87 instruction.

use super::rig::{CODE, Rig};
use crate::run::Stop;

const IMAGE: u64 = 0x60_0000;
const CONTROL_WORD: u64 = 0x61_0000;

/// Runs `code`, then `fxsave64 [rbx]; hlt`; gives FOP and FIP. The control word at [rsi] unmasks all.
fn pointers(code: &[u8]) -> (u64, u64) {
    let mut r = Rig::long(CODE);
    r.code(CODE, &[code, &[0x48, 0x0f, 0xae, 0x03, 0xf4]].concat());
    r.put64(CONTROL_WORD, 0x340);
    (r.cpu.regs[3], r.cpu.regs[6]) = (IMAGE, CONTROL_WORD);
    assert_eq!(r.run(), Stop::Halted);
    (r.get64(IMAGE) >> 48, r.get64(IMAGE + 8))
}

#[test]
fn the_opcode_is_kept_of_an_instruction_with_an_unmasked_exception_only() {
    // fninit; fld1
    assert_eq!(pointers(&[0xdb, 0xe3, 0xd9, 0xe8]), (0, CODE + 2));
    // fninit; fldz; fld1; fdiv st0, st1: a masked division by zero
    let masked = [0xdb, 0xe3, 0xd9, 0xee, 0xd9, 0xe8, 0xd8, 0xf1];
    assert_eq!(pointers(&masked), (0, CODE + 6));
    // The same with `fldcw [rsi]` after FNINIT.
    let unmasked = [0xdb, 0xe3, 0xd9, 0x2e, 0xd9, 0xee, 0xd9, 0xe8, 0xd8, 0xf1];
    assert_eq!(pointers(&unmasked), (0x0f1, CODE + 8));
}

#[test]
fn prefixes_are_no_part_of_the_opcode() {
    // fninit; fldcw [rsi]; fld1; fdiv qword [r8+rsi], with a REX prefix
    let code = [0xdb, 0xe3, 0xd9, 0x2e, 0xd9, 0xe8, 0x41, 0xdc, 0x34, 0x30];
    // 0x340 as a double is denormal: an unmasked exception.
    assert_eq!(pointers(&code), (0x434, CODE + 6));
}

#[test]
fn fninit_clears_it() {
    let code = [
        0xdb, 0xe3, 0xd9, 0x2e, 0xd9, 0xee, 0xd9, 0xe8, 0xd8, 0xf1, 0xdb, 0xe3,
    ];
    assert_eq!(pointers(&code), (0, 0));
}
