//! Several vCPUs: start-up, interrupts between them, shared memory.

use std::sync::Barrier;
use std::thread;

use vmm_core::hypervisor::{Hypervisor, VcpuBinder, VcpuStop};
use vmm_core::x86::{MAX_VCPUS, MpState, X86VcpuState};

use crate::guest::{TestVcpu, TestVm, start};

/// Where the second vCPU's code lies: the page that its start-up message names, or for long mode.
const SECOND_CODE: u64 = 0x4000;

/// Sends INIT and start-up, waits until as many vCPUs as ECX says have counted themselves at 0x8000,
/// reports the code segment and the ids that they left at 0x800c and 0x8004, and lets them end. What
/// it sends where is in EDX, EDI and ESI.
#[rustfmt::skip]
const STARTS: &[u8] = &[
    0xbb, 0x00, 0x00, 0xe0, 0xfe, // mov ebx,0xfee00000
    0xc7, 0x83, 0xf0, 0x00, 0x00, 0x00, 0xff, 0x01, 0x00, 0x00, // mov DWORD PTR [rbx+0xf0],0x1ff
    0x89, 0x93, 0x10, 0x03, 0x00, 0x00, // mov DWORD PTR [rbx+0x310],edx
    0x89, 0xbb, 0x00, 0x03, 0x00, 0x00, // mov DWORD PTR [rbx+0x300],edi
    0x89, 0xb3, 0x00, 0x03, 0x00, 0x00, // mov DWORD PTR [rbx+0x300],esi
    // wait:
    0xf3, 0x90, // pause
    0x39, 0x0c, 0x25, 0x00, 0x80, 0x00, 0x00, // cmp DWORD PTR ds:0x8000,ecx
    0x75, 0xf5, // jne wait
    0x8b, 0x04, 0x25, 0x0c, 0x80, 0x00, 0x00, // mov eax,DWORD PTR ds:0x800c
    0xe7, 0xe0, // out 0xe0,eax
    0x8b, 0x04, 0x25, 0x04, 0x80, 0x00, 0x00, // mov eax,DWORD PTR ds:0x8004
    0xe7, 0xe0, // out 0xe0,eax
    0xc7, 0x04, 0x25, 0x08, 0x80, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, // mov DWORD PTR ds:0x8008,0x1
    0xe6, 0xf4, // out 0xf4,al
    // stop:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop
];
/// In real mode: leaves its code segment, sets the bit of its id, counts itself and waits to be let go.
#[rustfmt::skip]
const STARTED: &[u8] = &[
    0xb8, 0x00, 0x08, // mov ax,0x800
    0x8e, 0xd8, // mov ds,ax
    0x8c, 0xc8, // mov ax,cs
    0xa3, 0x0c, 0x00, // mov ds:0xc,ax
    0x66, 0xb8, 0x01, 0x00, 0x00, 0x00, // mov eax,0x1
    0x0f, 0xa2, // cpuid
    0x66, 0xc1, 0xeb, 0x18, // shr ebx,0x18
    0x66, 0xf0, 0x0f, 0xab, 0x1e, 0x04, 0x00, // lock bts DWORD PTR ds:0x4,ebx
    0x66, 0xf0, 0xff, 0x06, 0x00, 0x00, // lock inc DWORD PTR ds:0x0
    // wait:
    0xf3, 0x90, // pause
    0x66, 0x83, 0x3e, 0x08, 0x00, 0x01, // cmp DWORD PTR ds:0x8,0x1
    0x75, 0xf6, // jne wait
    0xe6, 0xf4, // out 0xf4,al
    // stop:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop
];

/// Destination shorthand of an interrupt command: all but the sender.
const ALL_BUT_SELF: u64 = 3 << 18;

/// The first vCPU in front of [`STARTS`], which is to wait for `others`: with one INIT and one
/// start-up message to the APIC with id `destination`, or to whom `shorthand` says.
fn starter(others: u8, destination: u64, shorthand: u64) -> X86VcpuState {
    let mut state = start::long_mode();
    state.general.rcx = others.into();
    state.general.rdx = destination << 24;
    state.general.rdi = 0x4500 | shorthand;
    state.general.rsi = 0x4600 | shorthand | SECOND_CODE >> 12;
    state
}

/// Runs a second vCPU on its own thread until it says that it is through; meets the first at `loaded`
/// before.
fn run_second(
    binder: Box<dyn VcpuBinder>,
    state: &X86VcpuState,
    loaded: &Barrier,
) -> (Vec<u32>, X86VcpuState) {
    let mut vcpu = TestVcpu::bind(binder);
    vcpu.load(state);
    loaded.wait();
    let reports = vcpu.run_until_done();
    let state = vcpu.save();
    (reports, state)
}

/// INIT and start-up IPI: the second vCPU begins in real mode at the page it was told.
pub fn a_second_vcpu_is_started(hypervisor: &dyn Hypervisor) {
    let vm = TestVm::new(hypervisor, 2);
    vm.place(start::CODE, STARTS);
    vm.place(SECOND_CODE, STARTED);
    let second = vm.binder(1);
    let reset = X86VcpuState::reset(1);
    let mut first = vm.bind(0);
    first.load(&starter(1, 1, 0));
    let loaded = Barrier::new(2);
    thread::scope(|scope| {
        let second = scope.spawn(|| run_second(second, &reset, &loaded));
        loaded.wait();
        assert_eq!(first.run_until_done(), [(SECOND_CODE >> 4) as u32, 1 << 1]);
        let (_, state) = second.join().expect("the second vCPU");
        assert_eq!(state.system.cs.base, SECOND_CODE);
        assert_eq!(state.system.cr0 & 1, 0, "real mode");
        assert_ne!(state.mp_state, MpState::Uninitialized);
    });
}

#[rustfmt::skip]
const CALLER: &[u8] = &[
    0xbb, 0x00, 0x00, 0xe0, 0xfe, // mov ebx,0xfee00000
    0xc7, 0x83, 0xf0, 0x00, 0x00, 0x00, 0xff, 0x01, 0x00, 0x00, // mov DWORD PTR [rbx+0xf0],0x1ff
    // wait:
    0xf3, 0x90, // pause
    0x83, 0x3c, 0x25, 0x00, 0x80, 0x00, 0x00, 0x01, // cmp DWORD PTR ds:0x8000,0x1
    0x75, 0xf4, // jne wait
    0xc7, 0x83, 0x10, 0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, // mov DWORD PTR [rbx+0x310],0x1000000
    0xc7, 0x83, 0x00, 0x03, 0x00, 0x00, 0x45, 0x40, 0x00, 0x00, // mov DWORD PTR [rbx+0x300],0x4045
    0xfb, // sti
    0xf4, // hlt
    0xfa, // cli
    0xe6, 0xf4, // out 0xf4,al
    // stop:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop
];
#[rustfmt::skip]
const CALLED: &[u8] = &[
    0xbb, 0x00, 0x00, 0xe0, 0xfe, // mov ebx,0xfee00000
    0xc7, 0x83, 0xf0, 0x00, 0x00, 0x00, 0xff, 0x01, 0x00, 0x00, // mov DWORD PTR [rbx+0xf0],0x1ff
    0xc7, 0x04, 0x25, 0x00, 0x80, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, // mov DWORD PTR ds:0x8000,0x1
    0xfb, // sti
    0xf4, // hlt
    0xfa, // cli
    0xc7, 0x83, 0x10, 0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // mov DWORD PTR [rbx+0x310],0x0
    0xc7, 0x83, 0x00, 0x03, 0x00, 0x00, 0x46, 0x40, 0x00, 0x00, // mov DWORD PTR [rbx+0x300],0x4046
    0xe6, 0xf4, // out 0xf4,al
    // stop:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop
];
/// An interrupt from vCPU 0 wakes vCPU 1, whose answer wakes vCPU 0.
pub fn vcpus_interrupt_each_other(hypervisor: &dyn Hypervisor) {
    let vm = TestVm::new(hypervisor, 2);
    vm.place(start::CODE, CALLER);
    vm.place(SECOND_CODE, CALLED);
    let second = vm.binder(1);
    let mut state = start::long_mode_of(1);
    state.general.rip = SECOND_CODE;
    let mut first = vm.bind(0);
    first.load(&start::long_mode());
    let loaded = Barrier::new(2);
    thread::scope(|scope| {
        let second = scope.spawn(|| run_second(second, &state, &loaded));
        loaded.wait();
        assert_eq!(first.run_until_done(), [0x46]);
        assert_eq!(second.join().expect("the second vCPU").0, [0x45]);
    });
}

#[rustfmt::skip]
const LOCKED: &[u8] = &[
    0xb9, 0x10, 0x27, 0x00, 0x00, // mov ecx,0x2710
    0xb8, 0x01, 0x00, 0x00, 0x00, // mov eax,0x1
    // again:
    0xf0, 0xff, 0x04, 0x25, 0x00, 0x80, 0x00, 0x00, // lock inc DWORD PTR ds:0x8000
    0xf0, 0x0f, 0xc1, 0x04, 0x25, 0x40, 0x80, 0x00, 0x00, // lock xadd DWORD PTR ds:0x8040,eax
    0xb8, 0x01, 0x00, 0x00, 0x00, // mov eax,0x1
    0x87, 0x14, 0x25, 0x80, 0x80, 0x00, 0x00, // xchg DWORD PTR ds:0x8080,edx
    0xe2, 0xe1, // loop again
    0xe6, 0xf4, // out 0xf4,al
    // stop:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop
];
const LOCKED_ROUNDS: u64 = 10_000;

/// LOCK INC and LOCK XADD of two vCPUs on one address lose nothing.
pub fn locked_operations_are_atomic(hypervisor: &dyn Hypervisor) {
    let vm = TestVm::new(hypervisor, 2);
    vm.place(start::CODE, LOCKED);
    let second = vm.binder(1);
    let state = start::long_mode_of(1);
    let mut first = vm.bind(0);
    first.load(&start::long_mode());
    let loaded = Barrier::new(2);
    thread::scope(|scope| {
        let second = scope.spawn(|| run_second(second, &state, &loaded));
        loaded.wait();
        first.run_until_done();
        second.join().expect("the second vCPU");
    });
    assert_eq!(vm.read_u64(0x8000), 2 * LOCKED_ROUNDS);
    assert_eq!(vm.read_u64(0x8040), 2 * LOCKED_ROUNDS);
}

/// A vCPU that waits for INIT is saved so, and its copy still waits.
pub fn a_waiting_vcpu_is_saved(hypervisor: &dyn Hypervisor) {
    let vm = TestVm::new(hypervisor, 2);
    vm.place(start::CODE, STARTS);
    vm.place(SECOND_CODE, STARTED);
    let second = vm.binder(1);
    let saved = thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let mut vcpu = TestVcpu::bind(second);
            vcpu.load(&X86VcpuState::reset(1));
            vcpu.kicker().kick();
            assert_eq!(vcpu.run(), VcpuStop::Kicked);
            vcpu.save()
        });
        waits.join().expect("the second vCPU")
    });
    assert_eq!(saved.mp_state, MpState::Uninitialized);
    let other = vm.copy(hypervisor);
    let second = other.binder(1);
    let mut first = other.bind(0);
    first.load(&starter(1, 1, 0));
    let loaded = Barrier::new(2);
    thread::scope(|scope| {
        let second = scope.spawn(|| run_second(second, &saved, &loaded));
        loaded.wait();
        assert_eq!(first.run_until_done(), [(SECOND_CODE >> 4) as u32, 1 << 1]);
        second.join().expect("the second vCPU");
    });
}

/// One start-up message to all others starts as many vCPUs as a machine may have, or the backend runs,
/// each under its own id; all run at once.
pub fn all_vcpus_are_started(hypervisor: &dyn Hypervisor) {
    let most = hypervisor.capabilities().max_vcpus;
    let count = usize::from(MAX_VCPUS).min(most) as u8;
    let vm = TestVm::new(hypervisor, count);
    vm.place(start::CODE, STARTS);
    vm.place(SECOND_CODE, STARTED);
    let mut first = vm.bind(0);
    first.load(&starter(count - 1, 0, ALL_BUT_SELF));
    let loaded = Barrier::new(usize::from(count));
    thread::scope(|scope| {
        let others: Vec<_> = (1..count)
            .map(|index| {
                let binder = vm.binder(index);
                let loaded = &loaded;
                scope.spawn(move || run_second(binder, &X86VcpuState::reset(index), loaded))
            })
            .collect();
        loaded.wait();
        // A bit for each id but the first vCPU's.
        let ids = (1 << count) - 2;
        assert_eq!(first.run_until_done(), [(SECOND_CODE >> 4) as u32, ids]);
        for other in others {
            let (_, state) = other.join().expect("a vCPU");
            assert_eq!(state.system.cs.base, SECOND_CODE);
        }
    });
}
