//! Hardware breakpoints: what meets them, when the exception comes, and what it says.

use super::rig::{CODE, HANDLER, IDT, Rig, TSS};
use crate::cpu::flags::{RF, TF};
use crate::cpu::state::cr4;
use crate::debug::{BD, BS};
use crate::mem::PAGE;
use crate::run::Stop;

/// Where the handler writes down what it finds.
const LOG: u64 = 0x40_0000;
const ENTRY_BYTES: u64 = 32;
/// The handler has a stack of its own.
const HANDLER_STACK: u64 = 0x2c_0000;
/// A page for data; [`WATCHED`] lies in it.
const DATA: u64 = 0x50_0000;
const WATCHED: u64 = DATA + 0x100;
/// What is written where it shall be seen.
const PATTERN: u64 = 0x1111_2222_3333_4444;

/// Types and lengths in DR7.
const EXECUTION: u64 = 0;
const WRITE: u64 = 1;
const PORT: u64 = 2;
const ACCESS: u64 = 3;
const LENGTHS: [(u64, u64); 4] = [(1, 0), (2, 1), (4, 3), (8, 2)];

/// push rax; mov rax, dr6; mov [r15], rax; mov rax, [rsp+8]; mov [r15+8], rax; mov rax, [rsp+0x18];
/// mov [r15+0x10], rax; mov [r15+0x18], rcx; add r15, 0x20; xor eax, eax; mov dr6, rax;
/// or [rsp+0x18], r14; pop rax; iretq
const NOTE: &[u8] = &[
    0x50, 0x0f, 0x21, 0xf0, 0x49, 0x89, 0x07, 0x48, 0x8b, 0x44, 0x24, 0x08, 0x49, 0x89, 0x47, 0x08,
    0x48, 0x8b, 0x44, 0x24, 0x18, 0x49, 0x89, 0x47, 0x10, 0x49, 0x89, 0x4f, 0x18, 0x49, 0x83, 0xc7,
    0x20, 0x31, 0xc0, 0x0f, 0x23, 0xf0, 0x4c, 0x09, 0x74, 0x24, 0x18, 0x58, 0x48, 0xcf,
];

/// A debug exception.
#[derive(Debug, PartialEq, Eq)]
struct Hit {
    /// The bits of DR6 that mean something.
    reasons: u64,
    rip: u64,
    /// RF in the flags that were pushed.
    resume: bool,
    rcx: u64,
}

/// A machine at `code`, with the handler, which sets the flags `or_flags` when it returns.
fn rig(code: &[u8], or_flags: u64) -> Rig {
    let mut r = Rig::long(CODE);
    r.gate(1, HANDLER, 1, 0);
    r.put64(TSS + 0x24, HANDLER_STACK);
    r.code(HANDLER, NOTE);
    r.code(CODE, code);
    r.cpu.regs[15] = LOG;
    r.cpu.regs[14] = or_flags;
    r.cpu.regs[3] = WATCHED;
    r
}

/// DR7's bits of breakpoint `n`, enabled locally.
fn control(n: u64, kind: u64, length: u64) -> u64 {
    1 << (2 * n) | (kind | length << 2) << (16 + 4 * n)
}

fn set(r: &mut Rig, n: usize, address: u64, kind: u64, length: u64) {
    r.cpu.dr[n] = address;
    r.cpu.dr[7] |= control(n as u64, kind, length);
    r.cpu.update_breakpoints();
}

fn hits(r: &Rig) -> Vec<Hit> {
    let end = r.cpu.regs[15];
    (LOG..end)
        .step_by(ENTRY_BYTES as usize)
        .map(|at| Hit {
            reasons: r.get64(at) & 0xe00f,
            rip: r.get64(at + 8),
            resume: r.get64(at + 16) & RF != 0,
            rcx: r.get64(at + 24),
        })
        .collect()
}

fn hit(reasons: u64, offset: u64, rcx: u64) -> Hit {
    Hit {
        reasons,
        rip: CODE + offset,
        resume: false,
        rcx,
    }
}

/// mov ecx, 3; again: inc rbx; inc rdx; dec ecx; jnz again; hlt
const LOOP: &[u8] = &[
    0xb9, 3, 0, 0, 0, 0x48, 0xff, 0xc3, 0x48, 0xff, 0xc2, 0xff, 0xc9, 0x75, 0xf6, 0xf4,
];

#[test]
fn an_instruction_breakpoint_comes_before_the_instruction_each_time() {
    let mut r = rig(LOOP, RF);
    // The code is in the cache already, as a whole.
    assert_eq!(r.run(), Stop::Halted);
    (r.cpu.rip, r.cpu.regs[2], r.cpu.regs[3]) = (CODE, 0, 0);
    set(&mut r, 1, CODE + 8, EXECUTION, 0);
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!(hits(&r), [hit(2, 8, 3), hit(2, 8, 2), hit(2, 8, 1)]);
    assert_eq!((r.cpu.regs[3], r.cpu.regs[2]), (3, 3));
    assert!(!r.cpu.flag(RF));
    // Disabled, it is gone, and what was remembered before it was set is not.
    (r.cpu.rip, r.cpu.dr[7]) = (CODE, 0x400);
    r.cpu.update_breakpoints();
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!(hits(&r).len(), 3);
    assert_eq!((r.cpu.regs[3], r.cpu.regs[2]), (6, 6));
}

#[test]
fn without_the_resume_flag_the_exception_comes_again() {
    let mut r = rig(LOOP, 0);
    set(&mut r, 0, CODE + 5, EXECUTION, 0);
    // inc rsi; cmp rsi, 3; je +2; iretq; hlt
    r.code(
        HANDLER,
        &[
            0x48, 0xff, 0xc6, 0x48, 0x83, 0xfe, 3, 0x74, 0x02, 0x48, 0xcf, 0xf4,
        ],
    );
    r.cpu.regs[6] = 0;
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!(
        (r.cpu.regs[6], r.cpu.regs[3]),
        (3, WATCHED),
        "inc rbx never ran"
    );
}

#[test]
fn an_enabled_breakpoint_is_seen_by_the_next_instruction() {
    // mov dr0, rsi; mov dr7, rdi; nop; inc rdx; xor eax, eax; mov dr7, rax; hlt
    let code = [
        0x0f, 0x23, 0xc6, 0x0f, 0x23, 0xff, 0x90, 0x48, 0xff, 0xc2, 0x31, 0xc0, 0x0f, 0x23, 0xf8,
        0xf4,
    ];
    for (offset, control) in [(6, 1), (6, 2), (7, 1)] {
        let mut r = rig(&code, RF);
        (r.cpu.regs[6], r.cpu.regs[7]) = (CODE + offset, control);
        assert_eq!(r.run(), Stop::Halted);
        assert_eq!(hits(&r), [hit(1, offset, 0)], "{offset} {control}");
    }
}

#[test]
fn an_instruction_that_crosses_a_page_is_stopped_too() {
    let at = CODE + PAGE - 2;
    let mut r = rig(&[], RF);
    // inc rdx (across); hlt
    r.code(at, &[0x48, 0xff, 0xc2, 0xf4]);
    r.cpu.rip = at;
    r.cpu.regs[2] = 0;
    set(&mut r, 0, at, EXECUTION, 0);
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!(hits(&r), [hit(1, PAGE - 2, 0)]);
    assert_eq!(r.cpu.regs[2], 1);
}

/// Instructions that access memory at RBX, RDI or RSP ([`WATCHED`] and a bit above): their bytes, where
/// from the watched address and how many bytes they touch, and whether they write.
const ACCESSES: &[(&[u8], u64, u64, bool)] = &[
    (&[0x88, 0x03], 0, 1, true),                    // mov [rbx], al
    (&[0x8a, 0x03], 0, 1, false),                   // mov al, [rbx]
    (&[0x66, 0x89, 0x43, 0x02], 2, 2, true),        // mov [rbx+2], ax
    (&[0x48, 0x89, 0x43, 0x08], 8, 8, true),        // mov [rbx+8], rax
    (&[0x48, 0x8b, 0x43, 0xfc], 0xfc, 8, false),    // mov rax, [rbx-4]
    (&[0x48, 0x89, 0x43, 0xf9], 0xf9, 8, true),     // mov [rbx-7], rax
    (&[0x01, 0x43, 0x04], 4, 4, true),              // add [rbx+4], eax
    (&[0x3b, 0x43, 0x04], 4, 4, false),             // cmp eax, [rbx+4]
    (&[0xf0, 0x48, 0x0f, 0xc1, 0x03], 0, 8, true),  // lock xadd [rbx], rax
    (&[0x87, 0x03], 0, 4, true),                    // xchg [rbx], eax
    (&[0xf0, 0x0f, 0xb1, 0x13], 0, 4, true),        // lock cmpxchg [rbx], edx
    (&[0xf0, 0x48, 0x0f, 0xc7, 0x0b], 0, 16, true), // lock cmpxchg16b [rbx]
    (&[0x50], 0xf8, 8, true),                       // push rax
    (&[0xe8, 0, 0, 0, 0], 0xf8, 8, true),           // call next
    (&[0x58], 0, 8, false),                         // pop rax
    (&[0xaa], 0, 1, true),                          // stosb
    (&[0x48, 0xaf], 0, 8, false),                   // scasq
    (&[0x0f, 0x11, 0x03], 0, 16, true),             // movups [rbx], xmm0
    (&[0x0f, 0x10, 0x03], 0, 16, false),            // movups xmm0, [rbx]
    (&[0xdb, 0x3b], 0, 10, true),                   // fstp tbyte [rbx]
    (&[0xdd, 0x13], 0, 8, true),                    // fst qword [rbx]
    (&[0xd9, 0x33], 0, 28, true),                   // fnstenv [rbx]
    (&[0x0f, 0xae, 0x1b], 0, 4, true),              // stmxcsr [rbx]
    (&[0x0f, 0xc7, 0x0b], 0, 8, true),              // cmpxchg8b [rbx]
];

#[test]
fn data_breakpoints_are_met_by_what_overlaps_them() {
    for (code, start, bytes, writes) in ACCESSES {
        // Relative to the watched address, signed.
        let start = i64::from(*start as u8 as i8);
        for (length, encoded) in LENGTHS {
            for offset in (-8..24).map(|n| n * length as i64) {
                for kind in [WRITE, ACCESS] {
                    let mut r = rig(&[code, &[0xf4][..]].concat(), 0);
                    (r.cpu.regs[4], r.cpu.regs[7]) = (WATCHED, WATCHED);
                    let (at, unaligned) = (WATCHED.wrapping_add_signed(offset), length - 1);
                    set(&mut r, 2, at | unaligned, kind, encoded);
                    assert_eq!(r.run(), Stop::Halted);
                    let overlaps = start < offset + length as i64 && offset < start + *bytes as i64;
                    let met = overlaps && (*writes || kind == ACCESS);
                    let expected = met.then(|| hit(4, code.len() as u64, r.cpu.regs[1]));
                    let expected: Vec<_> = expected.into_iter().collect();
                    assert_eq!(hits(&r), expected, "{code:x?} {offset} {length} {kind}");
                }
            }
        }
    }
}

#[test]
fn the_exception_comes_after_the_store_and_others_go_on_in_the_block() {
    // mov [rbx+64], rax; mov [rbx], rax; inc rdx; mov [rbx], rax; hlt
    let code = [
        0x48, 0x89, 0x43, 0x40, 0x48, 0x89, 0x03, 0x48, 0xff, 0xc2, 0x48, 0x89, 0x03, 0xf4,
    ];
    let mut r = rig(&code, 0);
    (r.cpu.regs[0], r.cpu.regs[2]) = (PATTERN, 0);
    set(&mut r, 0, WATCHED, WRITE, 2);
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!(hits(&r), [hit(1, 7, 0), hit(1, 13, 0)]);
    assert_eq!(
        (r.get64(WATCHED), r.get64(WATCHED + 64)),
        (PATTERN, PATTERN)
    );
    assert_eq!(r.cpu.regs[2], 1);
}

#[test]
fn several_breakpoints_are_reported_together_and_single_steps_with_them() {
    // pushfq; or byte [rsp+1], 1; popfq; mov [rbx], rax; hlt
    let code = [
        0x9c, 0x80, 0x4c, 0x24, 0x01, 0x01, 0x9d, 0x48, 0x89, 0x03, 0xf4,
    ];
    let mut r = rig(&code, 0);
    set(&mut r, 0, WATCHED, WRITE, 2);
    set(&mut r, 1, WATCHED + 4, ACCESS, 3);
    set(&mut r, 2, WATCHED + 8, ACCESS, 3);
    set(&mut r, 3, CODE + 10, EXECUTION, 0);
    // The last one is met by the instruction after; that one is let pass then.
    r.cpu.regs[14] = RF;
    assert_eq!(r.run(), Stop::Halted);
    assert!(r.cpu.flag(TF));
    let rcx = r.cpu.regs[1];
    // RF was set by the handler for the store's exception: HLT is not stopped.
    assert_eq!(hits(&r), [hit(BS | 3, 10, rcx)]);
}

#[test]
fn repeated_stores_are_stopped_after_the_iteration() {
    // rep stosb; hlt
    let mut r = rig(&[0xf3, 0xaa, 0xf4], 0);
    (r.cpu.regs[0], r.cpu.regs[1], r.cpu.regs[7]) = (0x5a, 16, WATCHED - 4);
    set(&mut r, 0, WATCHED, WRITE, 1);
    set(&mut r, 1, WATCHED + 11, WRITE, 0);
    assert_eq!(r.run(), Stop::Halted);
    let between = |reasons, rcx| Hit {
        resume: true,
        ..hit(reasons, 0, rcx)
    };
    assert_eq!(hits(&r), [between(1, 11), between(1, 10), hit(2, 2, 0)]);
    assert_eq!(r.get64(WATCHED + 4), 0x5a5a_5a5a_5a5a_5a5a);
    assert_eq!(r.get64(WATCHED + 12), 0);
}

#[test]
fn repeated_loads_are_stopped_and_an_instruction_breakpoint_stops_the_first_only() {
    // rep movsb; hlt
    let mut r = rig(&[0xf3, 0xa4, 0xf4], RF);
    (r.cpu.regs[1], r.cpu.regs[6], r.cpu.regs[7]) = (5000, WATCHED - 3000, 0x60_0000);
    set(&mut r, 0, WATCHED, ACCESS, 0);
    set(&mut r, 1, CODE, EXECUTION, 0);
    assert_eq!(r.run(), Stop::Halted);
    let read = Hit {
        resume: true,
        ..hit(1, 0, 1999)
    };
    assert_eq!(hits(&r), [hit(2, 0, 5000), read]);
    assert_eq!(r.cpu.regs[7], 0x60_0000 + 5000);
}

#[test]
fn a_single_step_ends_after_each_iteration() {
    // rep stosb; hlt
    let mut r = rig(&[0xf3, 0xaa, 0xf4], 0);
    (r.cpu.regs[1], r.cpu.regs[7]) = (3, WATCHED);
    let flags = r.cpu.rflags() | TF;
    r.cpu.set_rflags(flags);
    assert_eq!(r.run(), Stop::Halted);
    let left: Vec<u64> = hits(&r).iter().map(|h| h.rcx).collect();
    assert_eq!(left, [2, 1, 0]);
}

#[test]
fn what_an_exception_pushes_is_met_at_its_handler() {
    // ud2
    let mut r = rig(&[0x0f, 0x0b], 0);
    r.gate(6, HANDLER + 0x100, 0, 0);
    r.code(HANDLER + 0x100, &[0xf4]);
    // The third of the five words from the top: the flags.
    set(&mut r, 0, 0x20_0000 - 24, WRITE, 2);
    // The gate, which is read.
    set(&mut r, 1, IDT + 16 * 6, ACCESS, 3);
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!(hits(&r), [hit(3, HANDLER + 0x100 - CODE, 0)]);
}

#[test]
fn a_watched_stack_of_the_handler_itself_does_not_repeat_for_ever() {
    let mut r = rig(&[0x48, 0x89, 0x03, 0xf4], 0);
    set(&mut r, 0, WATCHED, WRITE, 0);
    set(&mut r, 1, HANDLER_STACK - 8, WRITE, 2);
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!(hits(&r), [hit(1, 3, 0)]);
}

#[test]
fn a_breakpoint_on_its_own_handler_uses_up_the_budget() {
    let mut r = rig(&[0x90, 0xf4], 0);
    set(&mut r, 0, CODE, EXECUTION, 0);
    set(&mut r, 1, HANDLER, EXECUTION, 0);
    assert_eq!(r.run(), Stop::Budget);
}

#[test]
fn single_steps_without_end_use_up_the_budget() {
    // jmp to itself; the handler returns, and TF with it.
    let mut r = rig(&[0xeb, 0xfe], 0);
    r.code(HANDLER, &[0x48, 0xcf]);
    let flags = r.cpu.rflags() | TF;
    r.cpu.set_rflags(flags);
    assert_eq!(r.run(), Stop::Budget);
}

#[test]
fn ports_are_watched_only_with_debug_extensions() {
    // in al, 0x71; out 0x72, al; out 0x74, al; insb; hlt
    let code = [0xe4, 0x71, 0xe6, 0x72, 0xe6, 0x74, 0x6c, 0xf4];
    for extensions in [false, true] {
        let mut r = rig(&code, 0);
        if extensions {
            r.cpu.cr4 |= cr4::DE;
        }
        (r.cpu.regs[2], r.cpu.regs[7]) = (0x73, WATCHED);
        set(&mut r, 0, 0x70, PORT, 3);
        // An address of memory is no port.
        set(&mut r, 1, WATCHED, PORT, 0);
        assert_eq!(r.run(), Stop::Halted);
        let expected = [hit(1, 2, 0), hit(1, 4, 0), hit(1, 7, 0)];
        let expected = if extensions { &expected[..] } else { &[] };
        assert_eq!(hits(&r), expected);
        assert_eq!(r.devices.reads, 2, "each port is read once");
        assert_eq!(r.devices.out.len(), 2);
    }
}

#[test]
fn a_device_is_read_once_for_a_store_that_is_watched() {
    // movsq; hlt
    let mut r = rig(&[0x48, 0xa5, 0xf4], 0);
    // Page 1 GiB of the rig's tables is no memory.
    r.put64(super::rig::PDPT + 8, (1 << 30) | 0x87);
    r.cpu.flush_tlb();
    (r.cpu.regs[6], r.cpu.regs[7]) = (1 << 30, WATCHED);
    set(&mut r, 0, WATCHED, WRITE, 0);
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!(hits(&r), [hit(1, 2, 0)]);
    assert_eq!(r.devices.reads, 1);
    assert_eq!(r.get64(WATCHED), 0x0706_0504_0302_0100);
}

#[test]
fn an_instruction_that_faults_reports_the_fault_only() {
    // movsq, to where nothing is
    let mut r = rig(&[0x48, 0xa5], 0);
    r.gate(14, HANDLER + 0x100, 0, 0);
    r.code(HANDLER + 0x100, &[0xf4]);
    (r.cpu.regs[6], r.cpu.regs[7]) = (WATCHED, 1 << 31);
    set(&mut r, 0, WATCHED, ACCESS, 0);
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!(hits(&r), []);
    assert_eq!(r.cpu.cr2, 1 << 31);
}

#[test]
fn mov_ss_holds_back_what_it_met_for_one_instruction() {
    // mov ss, [rbx]; inc rdx; hlt
    let code = [0x8e, 0x13, 0x48, 0xff, 0xc2, 0xf4];
    let mut r = rig(&code, RF);
    r.put64(WATCHED, super::rig::KERNEL_DS.into());
    set(&mut r, 0, WATCHED, ACCESS, 1);
    // The instruction in its shadow is not stopped either.
    set(&mut r, 1, CODE + 2, EXECUTION, 0);
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!(hits(&r), [hit(1, 5, 0)]);
}

#[test]
fn iret_with_the_resume_flag_passes_a_breakpoint() {
    for (flags, expected) in [(2, 1), (2 | RF, 0)] {
        // iretq to `inc rdx; hlt`
        let mut r = rig(&[0x48, 0xcf, 0x48, 0xff, 0xc2, 0xf4], RF);
        let sp = 0x20_0000 - 40;
        let frame = [CODE + 2, 8, flags, 0x20_0000, 0x10];
        for (n, v) in (0..).zip(frame) {
            r.put64(sp + 8 * n, v);
        }
        r.cpu.regs[4] = sp;
        set(&mut r, 0, CODE + 2, EXECUTION, 0);
        assert_eq!(r.run(), Stop::Halted);
        assert_eq!(hits(&r).len(), expected);
        assert!(!r.cpu.flag(RF), "it lasts for one instruction");
    }
}

#[test]
fn general_detect_stops_accesses_to_debug_registers_once() {
    // mov rax, dr0; hlt
    let mut r = rig(&[0x0f, 0x21, 0xc0, 0xf4], 0);
    r.cpu.dr[0] = PATTERN;
    r.cpu.dr[7] |= 1 << 13;
    assert_eq!(r.run(), Stop::Halted);
    // The handler itself uses them: the bit is clear.
    assert_eq!(hits(&r), [hit(BD, 0, 0)]);
    assert_eq!(r.cpu.regs[0], PATTERN);
}

#[test]
fn registers_four_and_five_are_six_and_seven_without_debug_extensions() {
    for extensions in [false, true] {
        // mov dr5, rax; mov rcx, dr7; hlt
        let mut r = rig(&[0x0f, 0x23, 0xe8, 0x0f, 0x21, 0xf9, 0xf4], 0);
        r.gate(6, HANDLER + 0x100, 0, 0);
        r.code(HANDLER + 0x100, &[0xf4]);
        if extensions {
            r.cpu.cr4 |= cr4::DE;
        }
        r.cpu.regs[0] = 0xd900;
        assert_eq!(r.run(), Stop::Halted);
        let expected = if extensions { 0 } else { 0x500 };
        assert_eq!(r.cpu.regs[1], expected);
    }
}

#[test]
fn a_page_that_is_not_watched_keeps_its_fast_way() {
    // mov [rbx], rax; mov [rcx], rax; mov rax, [rdx]; hlt
    let code = [0x48, 0x89, 0x03, 0x48, 0x89, 0x01, 0x48, 0x8b, 0x02, 0xf4];
    let mut r = rig(&code, 0);
    let (other, read) = (DATA + PAGE, DATA + 2 * PAGE);
    (r.cpu.regs[1], r.cpu.regs[2]) = (other, read);
    set(&mut r, 0, WATCHED + 8, WRITE, 2);
    set(&mut r, 1, read + 8, ACCESS, 2);
    assert_eq!(r.run(), Stop::Halted);
    assert_eq!(hits(&r), []);
    assert!(r.cpu.beside_code(WATCHED), "each store is looked at");
    assert!(!r.cpu.beside_code(other));
    r.cpu.dr[7] = 0x400;
    r.cpu.update_breakpoints();
    r.cpu.rip = CODE;
    assert_eq!(r.run(), Stop::Halted);
    assert!(!r.cpu.beside_code(WATCHED));
}
