//! Stopping a vCPU from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use vmm_core::hypervisor::{Hypervisor, VcpuKick, VcpuStop};
use vmm_core::x86::MpState;

use crate::guest::{TestVcpu, TestVm, start};

#[rustfmt::skip]
const COUNT: &[u8] = &[
    // again:
    0x48, 0xff, 0x04, 0x25, 0x00, 0x80, 0x00, 0x00, // inc QWORD PTR ds:0x8000
    0xeb, 0xf6, // jmp again
];
#[rustfmt::skip]
const END: &[u8] = &[
    0xb8, 0x01, 0x00, 0x00, 0x00, // mov eax,0x1
    0xe7, 0xe0, // out 0xe0,eax
    0xe6, 0xf4, // out 0xf4,al
    // stop:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop
];
fn counting(hypervisor: &dyn Hypervisor) -> (TestVm, TestVcpu) {
    let vm = TestVm::new(hypervisor, 1);
    vm.place(start::CODE, COUNT);
    let mut vcpu = vm.bind(0);
    vcpu.load(&start::long_mode());
    (vm, vcpu)
}

/// Kicks once the counter of [`COUNT`] has passed `value`, and runs meanwhile.
fn run_past(vm: &TestVm, vcpu: &mut TestVcpu, value: u64) -> VcpuStop {
    let kicker = vcpu.kicker();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while vm.read_u64(start::DATA) <= value && !over.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_micros(200));
            }
            kicker.kick();
        });
        let stop = vcpu.run();
        over.store(true, Ordering::SeqCst);
        stop
    })
}

/// A kick that comes first: the next run executes nothing.
pub fn before_run_nothing_is_executed(hypervisor: &dyn Hypervisor) {
    let (vm, mut vcpu) = counting(hypervisor);
    let before = vcpu.save().general;
    vcpu.kicker().kick();
    assert_eq!(vcpu.run(), VcpuStop::Kicked);
    assert_eq!(vcpu.save().general, before);
    assert_eq!(vm.read_u64(start::DATA), 0);
}

/// An endless loop is interrupted, again and again, and loses nothing.
pub fn a_running_guest_is_stopped_and_goes_on(hypervisor: &dyn Hypervisor) {
    let (vm, mut vcpu) = counting(hypervisor);
    let mut last = 0;
    for _ in 0..5 {
        assert_eq!(run_past(&vm, &mut vcpu, last + 100), VcpuStop::Kicked);
        let count = vm.read_u64(start::DATA);
        assert!(count > last + 100);
        let rip = vcpu.save().general.rip;
        assert!((start::CODE..start::CODE + COUNT.len() as u64).contains(&rip));
        last = count;
    }
}

/// One run consumes all kicks that came before it.
pub fn kicks_do_not_add_up(hypervisor: &dyn Hypervisor) {
    let vm = TestVm::new(hypervisor, 1);
    vm.place(start::CODE, END);
    let mut vcpu = vm.bind(0);
    vcpu.load(&start::long_mode());
    for _ in 0..3 {
        vcpu.kicker().kick();
    }
    assert_eq!(vcpu.run(), VcpuStop::Kicked);
    assert!(!vcpu.trace.done);
    assert_eq!(vcpu.run_until_done(), [1]);
}

#[rustfmt::skip]
const HALT: &[u8] = &[
    0xe6, 0x10, // out 0x10,al
    0xfa, // cli
    0xf4, // hlt
    0xe6, 0xf4, // out 0xf4,al
];
/// A guest that halts for ever is stopped in the halted state.
pub fn a_halted_guest_is_stopped(hypervisor: &dyn Hypervisor) {
    let vm = TestVm::new(hypervisor, 1);
    vm.place(start::CODE, HALT);
    let mut vcpu = vm.bind(0);
    vcpu.load(&start::long_mode());
    let kicker: Arc<dyn VcpuKick> = vcpu.kicker();
    let halting = Arc::new(AtomicBool::new(false));
    let seen = halting.clone();
    vcpu.trace.hook = Some(Box::new(move |_| seen.store(true, Ordering::SeqCst)));
    let state = thread::scope(|scope| {
        scope.spawn(|| {
            while !halting.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_micros(200));
            }
            thread::sleep(Duration::from_millis(20));
            kicker.kick();
        });
        loop {
            assert_eq!(vcpu.run(), VcpuStop::Kicked);
            let state = vcpu.save();
            // On a very busy host the kick may come before the guest gets to its HLT.
            if state.mp_state == MpState::Halted {
                return state;
            }
            kicker.kick();
        }
    });
    assert_eq!(state.general.rip, start::CODE + 4, "behind HLT");
    assert!(!vcpu.trace.done);
}

/// A kick of a vCPU that no thread has bound yet is not lost.
pub fn before_bind_counts(hypervisor: &dyn Hypervisor) {
    let vm = TestVm::new(hypervisor, 1);
    vm.place(start::CODE, COUNT);
    let binder = vm.binder(0);
    binder.kicker().kick();
    let mut vcpu = TestVcpu::bind(binder);
    vcpu.load(&start::long_mode());
    assert_eq!(vcpu.run(), VcpuStop::Kicked);
    assert_eq!(vm.read_u64(start::DATA), 0);
}
