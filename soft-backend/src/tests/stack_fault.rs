//! #SS and #GP of non-canonical operands.

use super::rig::{CODE, HANDLER, Rig, frame};
use crate::run::Stop;

#[test]
fn a_non_canonical_operand_blames_the_stack_where_it_lies_there() {
    const STACK: u64 = 0x4_0000;
    const HIGH: u64 = 1 << 63;
    let cases: [(&[u8], u64); 8] = [
        (&[0x8b, 0x45, 0], STACK),                  // mov eax, [rbp]
        (&[0x89, 0x45, 8], STACK),                  // mov [rbp+8], eax
        (&[0x3e, 0x8b, 0x45, 0], STACK),            // mov eax, ds:[rbp]: the prefix means nothing
        (&[0x0f, 0x10, 0x45, 0], STACK),            // movups xmm0, [rbp]
        (&[0x64, 0x8b, 0x45, 0], HANDLER),          // mov eax, fs:[rbp]
        (&[0x8b, 0x06], HANDLER),                   // mov eax, [rsi]
        (&[0x8b, 0x04, 0x2d, 0, 0, 0, 0], HANDLER), // mov eax, [rbp*1]
        (&[0x0f, 0x28, 0x47, 1], HANDLER),          // movaps xmm0, [rdi+1]: canonical, not aligned
    ];
    for (code, expected) in cases {
        let mut r = Rig::long(CODE);
        r.cpu.cr4 |= 0x200; // OSFXSR
        r.gate(12, STACK, 0, 0);
        r.gate(13, HANDLER, 0, 0);
        r.code(STACK, &[0xf4]);
        r.code(HANDLER, &[0xf4]);
        r.code(CODE, code);
        (r.cpu.regs[5], r.cpu.regs[6], r.cpu.regs[7]) = (HIGH, HIGH, 0x30_0000);
        assert_eq!(r.run(), Stop::Halted);
        assert_eq!(r.cpu.rip, expected + 1, "{code:x?}");
        assert_eq!((frame(&r, 0), frame(&r, 1)), (0, CODE), "{code:x?}");
    }
}
