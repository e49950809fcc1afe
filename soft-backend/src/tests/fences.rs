//! What the guest does by fences and locked instructions holds for device threads too.

use std::sync::atomic::{AtomicBool, Ordering, fence};

use vm_memory::{Bytes, GuestAddress};

use super::rig::Rig;
use crate::run::Stop;

const CODE: u64 = 0x10_0000;
const DATA: u64 = 0x30_0080;
/// Offsets in the data, on cache lines of their own: the round, what the guest writes, what the
/// device writes; what the guest saw.
const ROUND: u64 = 0;
const GUEST: u64 = 0x40;
const DEVICE: u64 = 0x40_u64.wrapping_neg();
const SEEN: u64 = 0x10;
const DONE: u64 = 0x18;
const ROUNDS: u64 = 3_000;

/// A driver that makes a buffer available and then looks whether the device wants to be told, beside
/// a device that does the reverse: one of them has to see the other.
fn one_sees_the_other(barrier: &[u8]) {
    let mut r = Rig::long(CODE);
    let back = -(30 + barrier.len() as i8);
    let mut code = vec![
        0x48, 0x3b, 0x4b, 0x00, // cmp rcx, [rbx + ROUND]
        0x75, 0xfa, // jne to the start
        0x48, 0x89, 0x4b, 0x40, // mov [rbx + GUEST], rcx
    ];
    code.extend(barrier);
    code.extend([
        0x48, 0x8b, 0x43, 0xc0, // mov rax, [rbx + DEVICE]
        0x48, 0x89, 0x43, 0x10, // mov [rbx + SEEN], rax
        0x48, 0x89, 0x4b, 0x18, // mov [rbx + DONE], rcx
        0x48, 0xff, 0xc1, // inc rcx
        0x48, 0x39, 0xd1, // cmp rcx, rdx
        0x75, back as u8, // jne to the start
        0xf4,       // hlt
    ]);
    r.code(CODE, &code);
    (r.cpu.regs[1], r.cpu.regs[2], r.cpu.regs[3]) = (1, ROUNDS + 1, DATA);
    let ram = r.ram.clone();
    let at = |offset: u64| GuestAddress(DATA.wrapping_add(offset));
    let missed = std::thread::scope(|scope| {
        let device = scope.spawn(|| {
            let load = |offset| -> u64 { ram.load(at(offset), Ordering::Acquire).unwrap() };
            let store = |v: u64, offset| ram.store(v, at(offset), Ordering::Release).unwrap();
            let mut missed = 0;
            for round in 1..=ROUNDS {
                store(round, ROUND);
                store(round, DEVICE);
                fence(Ordering::SeqCst);
                let guest_is_here = load(GUEST) == round;
                while load(DONE) != round {
                    std::thread::yield_now();
                }
                missed += u64::from(!guest_is_here && load(SEEN) != round);
            }
            missed
        });
        while r.run() != Stop::Halted {}
        device.join().unwrap()
    });
    assert_eq!(r.cpu.regs[1], ROUNDS + 1);
    assert_eq!(missed, 0, "of {ROUNDS} rounds, after {barrier:02x?}");
}

#[test]
fn mfence_orders_a_store_before_a_load() {
    one_sees_the_other(&[0x0f, 0xae, 0xf0]);
}

#[test]
fn locked_instructions_are_fences_aligned_or_not() {
    // lock or dword [rsp - 4], 0; the same at rsp - 5
    one_sees_the_other(&[0xf0, 0x83, 0x4c, 0x24, 0xfc, 0x00]);
    one_sees_the_other(&[0xf0, 0x83, 0x4c, 0x24, 0xfb, 0x00]);
}

/// CMPXCHG16B counts in the lower half; a device writes the upper one, which must stay as it is.
#[test]
fn cmpxchg16b_undoes_no_write_of_a_device() {
    const ADDED: u64 = 300_000;
    let mut r = Rig::long(CODE);
    r.code(
        CODE,
        &[
            0x48, 0x8b, 0x06, // mov rax, [rsi]
            0x48, 0x8b, 0x56, 0x08, // mov rdx, [rsi+8]
            0x48, 0x89, 0xc3, // mov rbx, rax
            0x48, 0xff, 0xc3, // inc rbx
            0x48, 0x89, 0xd1, // mov rcx, rdx
            0xf0, 0x48, 0x0f, 0xc7, 0x0e, // lock cmpxchg16b [rsi]
            0x75, 0xe9, // jne to the start
            0x48, 0xff, 0xcf, // dec rdi
            0x75, 0xe4, // jne to the start
            0xf4, // hlt
        ],
    );
    (r.cpu.regs[6], r.cpu.regs[7]) = (DATA, ADDED);
    let (ram, done) = (r.ram.clone(), AtomicBool::new(false));
    let (written, undone) = std::thread::scope(|scope| {
        let device = scope.spawn(|| {
            let high = GuestAddress(DATA + 8);
            let (mut written, mut undone) = (0_u64, 0);
            while !done.load(Ordering::SeqCst) {
                written += 1;
                ram.store(written, high, Ordering::SeqCst).unwrap();
                let stays =
                    (0..100).all(|_| ram.load::<u64>(high, Ordering::SeqCst).unwrap() == written);
                undone += u64::from(!stays);
            }
            (written, undone)
        });
        while r.get64(DATA + 8) == 0 {
            std::thread::yield_now();
        }
        while r.run() != Stop::Halted {}
        done.store(true, Ordering::SeqCst);
        device.join().unwrap()
    });
    assert_eq!((r.get64(DATA), r.get64(DATA + 8)), (ADDED, written));
    assert_eq!(undone, 0, "of {written}");
}
