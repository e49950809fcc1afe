//! The local APIC: messages, its timer, priorities, and what of it is saved.

use std::thread;
use std::time::Duration;

use vmm_core::hypervisor::{Hypervisor, VcpuStop};
use vmm_core::irq::MsiMessage;
use vmm_core::x86::{MpState, lapic_register};

use crate::guest::{Access, TestVm, start};

const VECTOR: u8 = 0x45;

#[rustfmt::skip]
const WAIT: &[u8] = &[
    0xbb, 0x00, 0x00, 0xe0, 0xfe, // mov ebx,0xfee00000
    0xc7, 0x83, 0xf0, 0x00, 0x00, 0x00, 0xff, 0x01, 0x00, 0x00, // mov DWORD PTR [rbx+0xf0],0x1ff
    0xe6, 0x10, // out 0x10,al
    0xfb, // sti
    0xf4, // hlt
    0xfa, // cli
    0xb8, 0x01, 0x00, 0x00, 0x00, // mov eax,0x1
    0xe7, 0xe0, // out 0xe0,eax
    0xe6, 0xf4, // out 0xf4,al
    // stop:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop
];
/// An interrupt that comes from another thread while the guest halts, or just before.
pub fn a_message_wakes_a_halted_guest(hypervisor: &dyn Hypervisor) {
    for delay in [0, 20] {
        let vm = TestVm::new(hypervisor, 1);
        vm.place(start::CODE, WAIT);
        let mut vcpu = vm.bind(0);
        vcpu.load(&start::long_mode());
        let (send, receive) = std::sync::mpsc::channel();
        vcpu.trace.hook = Some(Box::new(move |access| {
            send.send(access).expect("the other thread waits");
        }));
        let vm = &vm;
        thread::scope(|scope| {
            scope.spawn(move || {
                receive.recv().expect("the guest says when");
                thread::sleep(Duration::from_millis(delay));
                vm.interrupt(0, VECTOR);
            });
            assert_eq!(vcpu.run_until_done(), [u32::from(VECTOR), 1]);
        });
    }
}

#[rustfmt::skip]
const TIMER: &[u8] = &[
    0xbb, 0x00, 0x00, 0xe0, 0xfe, // mov ebx,0xfee00000
    0xc7, 0x83, 0xf0, 0x00, 0x00, 0x00, 0xff, 0x01, 0x00, 0x00, // mov DWORD PTR [rbx+0xf0],0x1ff
    0xc7, 0x83, 0xe0, 0x03, 0x00, 0x00, 0x0b, 0x00, 0x00, 0x00, // mov DWORD PTR [rbx+0x3e0],0xb
    0xc7, 0x83, 0x20, 0x03, 0x00, 0x00, 0x46, 0x00, 0x00, 0x00, // mov DWORD PTR [rbx+0x320],0x46
    0xc7, 0x83, 0x80, 0x03, 0x00, 0x00, 0x80, 0x84, 0x1e, 0x00, // mov DWORD PTR [rbx+0x380],0x1e8480
    0xfb, // sti
    0xf4, // hlt
    0xfa, // cli
    0x8b, 0x83, 0x90, 0x03, 0x00, 0x00, // mov eax,DWORD PTR [rbx+0x390]
    0xe7, 0xe0, // out 0xe0,eax
    0x8b, 0x83, 0x80, 0x03, 0x00, 0x00, // mov eax,DWORD PTR [rbx+0x380]
    0xe7, 0xe0, // out 0xe0,eax
    0xe6, 0xf4, // out 0xf4,al
    // stop:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop
];
/// One shot: an interrupt, after which the count stays at zero.
pub fn the_timer_wakes_a_halted_guest(hypervisor: &dyn Hypervisor) {
    let vm = TestVm::new(hypervisor, 1);
    vm.place(start::CODE, TIMER);
    let mut vcpu = vm.bind(0);
    vcpu.load(&start::long_mode());
    assert_eq!(vcpu.run_until_done(), [0x46, 0, 2_000_000]);
}

/// The vector of [`START_TICKS`].
pub(super) const TICK: u8 = 0x46;
/// Starts a periodic timer of [`TICK`] that ticks every 1 000 000 counts; leaves the APIC's address in RBX.
#[rustfmt::skip]
pub(super) const START_TICKS: &[u8] = &[
    0xbb, 0x00, 0x00, 0xe0, 0xfe, // mov ebx,0xfee00000
    0xc7, 0x83, 0xf0, 0x00, 0x00, 0x00, 0xff, 0x01, 0x00, 0x00, // mov DWORD PTR [rbx+0xf0],0x1ff
    0xc7, 0x83, 0xe0, 0x03, 0x00, 0x00, 0x0b, 0x00, 0x00, 0x00, // mov DWORD PTR [rbx+0x3e0],0xb
    0xc7, 0x83, 0x20, 0x03, 0x00, 0x00, 0x46, 0x00, 0x02, 0x00, // mov DWORD PTR [rbx+0x320],0x20046
    0xc7, 0x83, 0x80, 0x03, 0x00, 0x00, 0x40, 0x42, 0x0f, 0x00, // mov DWORD PTR [rbx+0x380],0xf4240
];
/// Waits for ticks, after [`START_TICKS`].
#[rustfmt::skip]
const WAIT_FOR_TICKS: &[u8] = &[
    0xb9, 0x04, 0x00, 0x00, 0x00, // mov ecx,0x4
    // again:
    0xfb, // sti
    0xf4, // hlt
    0xfa, // cli
    0xe2, 0xfb, // loop again
    0xc7, 0x83, 0x80, 0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // mov DWORD PTR [rbx+0x380],0x0
    0xe6, 0xf4, // out 0xf4,al
    // stop:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop
];
/// A periodic timer goes on by itself.
pub fn a_periodic_timer_ticks(hypervisor: &dyn Hypervisor) {
    let vm = TestVm::new(hypervisor, 1);
    vm.place(start::CODE, &[START_TICKS, WAIT_FOR_TICKS].concat());
    let mut vcpu = vm.bind(0);
    vcpu.load(&start::long_mode());
    // Four halts end by a tick each; on a busy host more ticks come between them.
    let ticks = vcpu.run_until_done();
    assert!(
        ticks.len() >= 4 && ticks.iter().all(|vector| *vector == u32::from(TICK)),
        "{ticks:x?}"
    );
}

#[rustfmt::skip]
const CLOSED: &[u8] = &[
    0xbb, 0x00, 0x00, 0xe0, 0xfe, // mov ebx,0xfee00000
    0xc7, 0x83, 0xf0, 0x00, 0x00, 0x00, 0xff, 0x01, 0x00, 0x00, // mov DWORD PTR [rbx+0xf0],0x1ff
    0xe6, 0xf4, // out 0xf4,al
    0xeb, 0x00, // jmp next
    // next:
    0xfb, // sti
    0x90, // nop
    0xe6, 0x11, // out 0x11,al
    0xe6, 0x11, // out 0x11,al
    0xe6, 0x11, // out 0x11,al
    0xfa, // cli
    0xb8, 0x02, 0x00, 0x00, 0x00, // mov eax,0x2
    0xe7, 0xe0, // out 0xe0,eax
    0xe6, 0xf4, // out 0xf4,al
    // stop:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop
];
/// Interrupts that arrived while the guest held them back are part of the state: each is delivered
/// once after the restore, the higher vector first.
pub fn a_waiting_interrupt_is_saved(hypervisor: &dyn Hypervisor) {
    let vm = TestVm::new(hypervisor, 1);
    vm.place(start::CODE, CLOSED);
    let mut vcpu = vm.bind(0);
    vcpu.load(&start::long_mode());
    assert!(vcpu.run_until_done().is_empty());
    vm.interrupt(0, 0x51);
    vm.interrupt(0, 0x72);
    vm.interrupt(0, 0x51);
    let state = vcpu.save();
    let request = |vector: usize| {
        let at = lapic_register::INTERRUPT_REQUEST + vector / 32 * 16 + vector % 32 / 8;
        state.lapic[at] >> (vector % 8) & 1
    };
    assert_eq!((request(0x51), request(0x72), request(0x45)), (1, 1, 0));
    let other = vm.copy(hypervisor);
    let mut resumed = other.bind(0);
    resumed.load(&state);
    assert_eq!(resumed.run_until_done(), [0x72, 0x51, 2]);
}

/// A guest that waits in HLT is saved so, and an interrupt wakes its copy.
pub fn a_halted_guest_is_saved_halted(hypervisor: &dyn Hypervisor) {
    let vm = TestVm::new(hypervisor, 1);
    vm.place(start::CODE, WAIT);
    let mut vcpu = vm.bind(0);
    vcpu.load(&start::long_mode());
    let kicker = vcpu.kicker();
    let state = thread::scope(|scope| {
        loop {
            let kicker = kicker.clone();
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(20));
                kicker.kick();
            });
            assert_eq!(vcpu.run(), VcpuStop::Kicked);
            let state = vcpu.save();
            if state.mp_state == MpState::Halted {
                return state;
            }
        }
    });
    let other = vm.copy(hypervisor);
    let mut resumed = other.bind(0);
    resumed.load(&state);
    assert_eq!(resumed.save().mp_state, MpState::Halted);
    other.interrupt(0, VECTOR);
    assert_eq!(resumed.run_until_done(), [u32::from(VECTOR), 1]);
}

#[rustfmt::skip]
const RUNNING: &[u8] = &[
    0xbb, 0x00, 0x00, 0xe0, 0xfe, // mov ebx,0xfee00000
    0xc7, 0x83, 0xf0, 0x00, 0x00, 0x00, 0xff, 0x01, 0x00, 0x00, // mov DWORD PTR [rbx+0xf0],0x1ff
    0xc7, 0x83, 0xe0, 0x03, 0x00, 0x00, 0x0b, 0x00, 0x00, 0x00, // mov DWORD PTR [rbx+0x3e0],0xb
    0xc7, 0x83, 0x20, 0x03, 0x00, 0x00, 0x46, 0x00, 0x00, 0x00, // mov DWORD PTR [rbx+0x320],0x46
    0xc7, 0x83, 0x80, 0x03, 0x00, 0x00, 0x00, 0xe1, 0xf5, 0x05, // mov DWORD PTR [rbx+0x380],0x5f5e100
    0xe6, 0xf4, // out 0xf4,al
    0xeb, 0x00, // jmp next
    // next:
    0xfb, // sti
    0xf4, // hlt
    0xfa, // cli
    0x0f, 0x31, // rdtsc
    0x48, 0xc1, 0xe2, 0x20, // shl rdx,0x20
    0x48, 0x09, 0xd0, // or rax,rdx
    0x48, 0x89, 0x04, 0x25, 0x00, 0x80, 0x00, 0x00, // mov QWORD PTR ds:0x8000,rax
    0xe6, 0xf4, // out 0xf4,al
    // stop:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop
];
/// A timer that runs while it is saved goes on with what remained.
pub fn a_running_timer_is_saved(hypervisor: &dyn Hypervisor) {
    let vm = TestVm::new(hypervisor, 1);
    vm.place(start::CODE, RUNNING);
    let mut vcpu = vm.bind(0);
    vcpu.load(&start::long_mode());
    assert!(vcpu.run_until_done().is_empty());
    let state = vcpu.save();
    let register = |at: usize| {
        let bytes = [0, 1, 2, 3].map(|byte| state.lapic[at + byte]);
        u64::from(u32::from_le_bytes(bytes))
    };
    let initial = register(lapic_register::TIMER_INITIAL_COUNT);
    let left = register(lapic_register::TIMER_CURRENT_COUNT);
    assert_eq!(initial, 100_000_000);
    assert!(left > 0 && left < initial, "{left} left");
    let other = vm.copy(hypervisor);
    let mut resumed = other.bind(0);
    resumed.load(&state);
    assert_eq!(resumed.run_until_done(), [0x46]);
    // The timer counts nanoseconds: it may not have fired before they had passed.
    let tsc = state
        .msr(vmm_core::x86::msr::TSC)
        .expect("the TSC is saved");
    let passed = other.read_u64(start::DATA) - tsc;
    let needed = u128::from(left) * u128::from(vm.x86.tsc_khz) / 1_000_000;
    // Loading the timer and loading the TSC are not one moment on every backend.
    assert!(
        u128::from(passed) + 2_000_000 >= needed,
        "{passed} of {needed} ticks"
    );
}

#[rustfmt::skip]
const PRIORITY: &[u8] = &[
    0xbb, 0x00, 0x00, 0xe0, 0xfe, // mov ebx,0xfee00000
    0xc7, 0x83, 0xf0, 0x00, 0x00, 0x00, 0xff, 0x01, 0x00, 0x00, // mov DWORD PTR [rbx+0xf0],0x1ff
    0xb8, 0x06, 0x00, 0x00, 0x00, // mov eax,0x6
    0x44, 0x0f, 0x22, 0xc0, // mov cr8,rax
    0xfb, // sti
    0xe6, 0x10, // out 0x10,al
    0xe6, 0x11, // out 0x11,al
    0xe6, 0x11, // out 0x11,al
    0x8b, 0x83, 0x80, 0x00, 0x00, 0x00, // mov eax,DWORD PTR [rbx+0x80]
    0xe7, 0xe0, // out 0xe0,eax
    0xb8, 0x04, 0x00, 0x00, 0x00, // mov eax,0x4
    0x44, 0x0f, 0x22, 0xc0, // mov cr8,rax
    0x90, // nop
    0xe6, 0x11, // out 0x11,al
    0xe6, 0x11, // out 0x11,al
    0xb8, 0x03, 0x00, 0x00, 0x00, // mov eax,0x3
    0xe7, 0xe0, // out 0xe0,eax
    0x31, 0xc0, // xor eax,eax
    0x89, 0x83, 0x80, 0x00, 0x00, 0x00, // mov DWORD PTR [rbx+0x80],eax
    0xe6, 0x11, // out 0x11,al
    0xe6, 0x11, // out 0x11,al
    0xfa, // cli
    0x44, 0x0f, 0x20, 0xc0, // mov rax,cr8
    0xe7, 0xe0, // out 0xe0,eax
    0xe6, 0xf4, // out 0xf4,al
    // stop:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop
];
/// CR8 and the task priority register are one; interrupts of a lower class wait for it.
pub fn task_priority_holds_interrupts_back(hypervisor: &dyn Hypervisor) {
    let vm = TestVm::new(hypervisor, 1);
    vm.place(start::CODE, PRIORITY);
    let mut vcpu = vm.bind(0);
    vcpu.load(&start::long_mode());
    let msi = vm.vm.clone();
    vcpu.trace.hook = Some(Box::new(move |access| {
        let Access::PortOut { port: 0x10, .. } = access else {
            return;
        };
        for vector in [0x45, 0x55] {
            let message = MsiMessage {
                address: 0xfee0_0000,
                data: vector,
            };
            let sink = msi.msi().expect("x86 has MSIs");
            sink.deliver(message).expect("delivered");
        }
    }));
    assert_eq!(vcpu.run_until_done(), [0x60, 0x55, 3, 0x45, 0]);
}

#[rustfmt::skip]
const LEVEL: &[u8] = &[
    0xbb, 0x00, 0x00, 0xe0, 0xfe, // mov ebx,0xfee00000
    0xc7, 0x83, 0xf0, 0x00, 0x00, 0x00, 0xff, 0x01, 0x00, 0x00, // mov DWORD PTR [rbx+0xf0],0x1ff
    0xe6, 0x10, // out 0x10,al
    0xfb, // sti
    0x90, // nop
    0xe6, 0x11, // out 0x11,al
    0xe6, 0x11, // out 0x11,al
    0xfa, // cli
    0xe6, 0xf4, // out 0xf4,al
    // stop:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop
];
/// The end of a level-triggered interrupt goes to the IOAPIC, that of an edge does not.
pub fn the_end_of_a_level_interrupt_is_reported(hypervisor: &dyn Hypervisor) {
    const LEVEL_TRIGGERED: u32 = 1 << 15 | 1 << 14;
    for (data, ends) in [(0x47 | LEVEL_TRIGGERED, true), (0x48, false)] {
        let vm = TestVm::new(hypervisor, 1);
        vm.place(start::CODE, LEVEL);
        let message = MsiMessage {
            address: 0xfee0_0000,
            data,
        };
        let msi = vm.vm.msi().expect("x86 has MSIs");
        msi.watch_level_messages(&[None, ends.then_some(message)])
            .expect("messages are watched");
        let mut vcpu = vm.bind(0);
        vcpu.load(&start::long_mode());
        let sender = vm.vm.clone();
        vcpu.trace.hook = Some(Box::new(move |access| {
            if let Access::PortOut { port: 0x10, .. } = access {
                let msi = sender.msi().expect("x86 has MSIs");
                msi.deliver(message).expect("delivered");
            }
        }));
        assert_eq!(vcpu.run_until_done(), [data & 0xff]);
        let vector = data as u8;
        let reported = vcpu
            .trace
            .accesses
            .contains(&Access::EndOfInterrupt { vector });
        assert_eq!(reported, ends, "vector {vector:#x}");
    }
}
