//! A state that one VM saved goes on in another, which may be one of another backend.

use std::thread;
use std::time::Duration;

use vmm_core::VcpuIndex;
use vmm_core::cpu_state::VcpuState;
use vmm_core::hypervisor::{Hypervisor, VcpuStop, X86Spec};
use vmm_core::x86::{X86VcpuState, msr};

use super::state::{comparable, unusual};
use crate::guest::{TestVm, portable_cpu, start};

/// A generator of pseudo-random numbers writes 64 of each 1,000 to memory; part of its state is in
/// XMM registers, on the stack and in memory.
#[rustfmt::skip]
const PROGRAM: &[u8] = &[
    0x48, 0xb8, 0x15, 0x7c, 0x4a, 0x7f, 0xb9, 0x79, 0x37, 0x9e, // movabs rax,0x9e3779b97f4a7c15
    0xb9, 0x40, 0x9c, 0x00, 0x00, // mov ecx,0x9c40
    0x31, 0xdb, // xor ebx,ebx
    0x0f, 0x10, 0x3c, 0x25, 0x20, 0x90, 0x00, 0x00, // movups xmm7,XMMWORD PTR ds:0x9020
    // again:
    0x48, 0x89, 0xc2, // mov rdx,rax
    0x48, 0xc1, 0xe2, 0x0d, // shl rdx,0xd
    0x48, 0x31, 0xd0, // xor rax,rdx
    0x48, 0x89, 0xc2, // mov rdx,rax
    0x48, 0xc1, 0xea, 0x07, // shr rdx,0x7
    0x48, 0x31, 0xd0, // xor rax,rdx
    0x48, 0x89, 0xc2, // mov rdx,rax
    0x48, 0xc1, 0xe2, 0x11, // shl rdx,0x11
    0x48, 0x31, 0xd0, // xor rax,rdx
    0x50, // push rax
    0x48, 0x03, 0x1c, 0x24, // add rbx,QWORD PTR [rsp]
    0x41, 0x58, // pop r8
    0x89, 0xca, // mov edx,ecx
    0x81, 0xe2, 0xff, 0x01, 0x00, 0x00, // and edx,0x1ff
    0x48, 0x89, 0x1c, 0xd5, 0x00, 0x80, 0x00, 0x00, // mov QWORD PTR [rdx*8+0x8000],rbx
    0x48, 0xc1, 0xc3, 0x05, // rol rbx,0x5
    0xff, 0xc9, // dec ecx
    0x75, 0xc3, // jne again
    0x0f, 0x11, 0x3c, 0x25, 0x00, 0x90, 0x00, 0x00, // movups XMMWORD PTR ds:0x9000,xmm7
    0x48, 0x89, 0x1c, 0x25, 0x10, 0x90, 0x00, 0x00, // mov QWORD PTR ds:0x9010,rbx
    0x48, 0x89, 0x04, 0x25, 0x18, 0x90, 0x00, 0x00, // mov QWORD PTR ds:0x9018,rax
    0xe6, 0xf4, // out 0xf4,al
    // stop:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop
];
const ROUNDS: u32 = 40_000;
/// Stays in XMM7 all the time.
const CONSTANT: [u64; 2] = [0x0123_4567_89ab_cdef, 0x0f1e_2d3c_4b5a_6978];
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// What the guest computes, computed here.
fn expected() -> (u64, u64, Vec<u64>) {
    let (mut random, mut sum) = (SEED, 0_u64);
    let mut table = vec![0; 512];
    for round in (1..=ROUNDS).rev() {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        sum = sum.wrapping_add(random);
        table[round as usize & 0x1ff] = sum;
        sum = sum.rotate_left(5);
    }
    (sum, random, table)
}

/// A program is stopped several times, goes on in a fresh VM each time, and computes the right
/// result.
pub fn a_program_goes_on_in_another_vm(hypervisor: &dyn Hypervisor) {
    go_through(&[hypervisor, hypervisor], portable_cpu(hypervisor));
}

/// The same, begun on `first`, to `second` and back. Both run the CPU that `cpu_of` chooses for itself.
pub fn between_backends(first: &dyn Hypervisor, second: &dyn Hypervisor, cpu_of: &dyn Hypervisor) {
    go_through(&[first, second], portable_cpu(cpu_of));
}

/// A state in which everything is set, saved by one backend, is the same when another saves it after
/// loading it, and there and back.
pub fn state_is_kept(first: &dyn Hypervisor, second: &dyn Hypervisor, cpu_of: &dyn Hypervisor) {
    let through = |backend: &dyn Hypervisor, state: &X86VcpuState| {
        let vm = TestVm::with_cpu(backend, 1, portable_cpu(cpu_of));
        let mut vcpu = vm.bind(0);
        vcpu.load(state);
        through_its_record(vcpu.save())
    };
    let begun = through(first, &unusual());
    let crossed = through(second, &begun);
    let returned = through(first, &crossed);
    for other in [crossed, returned] {
        let mut other = comparable(other);
        other.xcr0 = begun.xcr0;
        assert_eq!(other, comparable(begun.clone()));
    }
}

fn go_through(backends: &[&dyn Hypervisor], x86: X86Spec) {
    const STOPS: usize = 4;
    let mut vm = TestVm::with_cpu(backends[0], 1, x86);
    vm.place(start::CODE, PROGRAM);
    for (at, word) in [0x9020, 0x9028].into_iter().zip(CONSTANT) {
        vm.place(at, &word.to_le_bytes());
    }
    let mut vcpu = vm.bind(0);
    vcpu.load(&start::long_mode());
    for stop in 1..=STOPS {
        let kicker = vcpu.kicker();
        let kicking = thread::spawn(move || {
            thread::sleep(Duration::from_millis(2));
            kicker.kick();
        });
        assert_eq!(vcpu.run(), VcpuStop::Kicked);
        kicking.join().expect("the kick");
        if vcpu.trace.done {
            break;
        }
        let saved = through_its_record(vcpu.save());
        let next = vm.copy(backends[stop % backends.len()]);
        let mut resumed = next.bind(0);
        resumed.load(&saved);
        assert_equivalent(&resumed.save(), &saved);
        (vm, vcpu) = (next, resumed);
    }
    if !vcpu.trace.done {
        vcpu.run_until_done();
    }
    let (sum, random, table) = expected();
    assert_eq!([0x9000, 0x9008].map(|at| vm.read_u64(at)), CONSTANT);
    assert_eq!(vm.read_u64(0x9010), sum);
    assert_eq!(vm.read_u64(0x9018), random);
    for (index, value) in (0..).zip(table) {
        assert_eq!(vm.read_u64(start::DATA + index * 8), value, "entry {index}");
    }
}

/// Encodes and decodes, as a checkpoint does.
fn through_its_record(state: X86VcpuState) -> X86VcpuState {
    let index = VcpuIndex(0);
    let record = VcpuState::X86(Box::new(state)).to_record(index);
    match VcpuState::from_record(&record, index).expect("the record is read back") {
        VcpuState::X86(state) => *state,
        other => panic!("an x86 record gave {other:?}"),
    }
}

/// Equal but for the TSC, and XCR0 of guests without XSAVE.
fn assert_equivalent(got: &X86VcpuState, expected: &X86VcpuState) {
    let tsc = |state: &X86VcpuState| state.msr(msr::TSC).expect("the TSC is saved");
    assert!(tsc(got) >= tsc(expected), "the TSC went back");
    let mut got = got.clone();
    got.set_msr(msr::TSC, tsc(expected));
    got.xcr0 = expected.xcr0;
    assert_eq!(&got, expected);
}
