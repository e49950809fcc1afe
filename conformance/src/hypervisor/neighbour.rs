//! Guests beside work on another of the host's processors that disturbs them where the host is emulated by a QEMU that is
//! not mended (`xtask/src/vmtest/mend.rs`).
#![allow(unsafe_code)] // an atomic access over a page's border and a load of FPU state have no safe name

use std::arch::asm;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity};
use vmm_core::hypervisor::Hypervisor;

use super::interrupts::{START_TICKS, TICK};
use crate::guest::{TestVm, interrupt_table, start};
use crate::skip;

/// Counts ticks, after [`START_TICKS`]; reports how many came in between another one's begin and end.
#[rustfmt::skip]
const COUNT_TICKS: &[u8] = &[
    0xfb, // sti
    // again:
    0xf3, 0x90, // pause
    0x81, 0x3c, 0x25, 0x00, 0x80, 0x00, 0x00, 0xc8, 0x00, 0x00, 0x00, // cmp DWORD PTR ds:0x8000,0xc8
    0x72, 0xf1, // jb again
    0xfa, // cli
    0x8b, 0x04, 0x25, 0x04, 0x80, 0x00, 0x00, // mov eax,DWORD PTR ds:0x8004
    0xe7, 0xe0, // out 0xe0,eax
    0xe6, 0xf4, // out 0xf4,al
    // stop:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop
];
const HANDLER: u64 = 0x3000;
/// Takes its time before the access that ends the interrupt, which leaves the guest.
#[rustfmt::skip]
const HANDLER_CODE: &[u8] = &[
    0x50, // push rax
    0x51, // push rcx
    0x8b, 0x04, 0x25, 0x08, 0x80, 0x00, 0x00, // mov eax,DWORD PTR ds:0x8008
    0x01, 0x04, 0x25, 0x04, 0x80, 0x00, 0x00, // add DWORD PTR ds:0x8004,eax
    0xc7, 0x04, 0x25, 0x08, 0x80, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, // mov DWORD PTR ds:0x8008,0x1
    0xb9, 0x20, 0x4e, 0x00, 0x00, // mov ecx,0x4e20
    // spin:
    0xe2, 0xfe, // loop spin
    0xc7, 0x04, 0x25, 0x08, 0x80, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // mov DWORD PTR ds:0x8008,0x0
    0xff, 0x04, 0x25, 0x00, 0x80, 0x00, 0x00, // inc DWORD PTR ds:0x8000
    0xb8, 0xb0, 0x00, 0xe0, 0xfe, // mov eax,0xfee000b0
    0xc7, 0x00, 0x00, 0x00, 0x00, 0x00, // mov DWORD PTR [rax],0x0
    0x59, // pop rcx
    0x58, // pop rax
    0x48, 0xcf, // iretq
];

/// Leaves the guest 100000 times, with CPUID; reports how many times are left.
#[rustfmt::skip]
const LEAVE: &[u8] = &[
    0xbd, 0xa0, 0x86, 0x01, 0x00, // mov ebp,0x186a0
    // again:
    0x31, 0xc0, // xor eax,eax
    0x0f, 0xa2, // cpuid
    0xff, 0xcd, // dec ebp
    0x75, 0xf8, // jne again
    0x89, 0xe8, // mov eax,ebp
    0xe7, 0xe0, // out 0xe0,eax
    0xe6, 0xf4, // out 0xf4,al
    // stop:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop
];

/// An interrupt never comes into the handler of another, which begins with interrupts disabled.
///
/// In the emulated host another processor meanwhile often wants to be alone.
pub fn ticks_wait_for_one_another(hypervisor: &dyn Hypervisor) {
    let vm = TestVm::new(hypervisor, 1);
    vm.place(start::CODE, &[START_TICKS, COUNT_TICKS].concat());
    vm.place(HANDLER, HANDLER_CODE);
    interrupt_table::set(&vm, TICK, HANDLER);
    let reports = beside(&vm, || {
        be_alone();
        thread::sleep(Duration::from_micros(20));
    });
    assert_eq!(reports, [0], "ticks in another's handler");
}

/// A guest that is left many times goes on as it was.
///
/// In the emulated host another processor meanwhile loads the state of its FPU all the time.
pub fn exits_change_nothing(hypervisor: &dyn Hypervisor) {
    let vm = TestVm::new(hypervisor, 1);
    vm.place(start::CODE, LEAVE);
    assert_eq!(beside(&vm, load_fpu_state), [0], "CPUIDs that are left");
}

/// Runs the VM's guest to its end, `work` beside it in the emulated host; gives what the guest reported.
fn beside(vm: &TestVm, work: impl Fn() + Sync) -> Vec<u32> {
    let mut vcpu = vm.bind(0);
    vcpu.load(&start::long_mode());
    let through = AtomicBool::new(false);
    // On a host with one processor the neighbour shares it and disturbs nobody.
    let apart = thread::available_parallelism().is_ok_and(|processors| processors.get() > 1);
    thread::scope(|scope| {
        // On a real processor some of it would slow down everything on the host.
        if skip::host_is_qemu() {
            if apart {
                stay_on(0);
            }
            scope.spawn(|| {
                if apart {
                    stay_on(1);
                }
                while !through.load(Ordering::Relaxed) {
                    work();
                }
            });
        }
        let _through = SetOnDrop(&through);
        vcpu.run_until_done()
    })
}

/// Keeps this thread on one processor.
fn stay_on(processor: usize) {
    let mut processors = CpuSet::new();
    processors.set(processor);
    sched_setaffinity(None, &processors).expect("a processor for this thread");
}

/// Ends the other thread also where the guest makes this one panic.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// An atomic access over a page's border: QEMU makes all other processors wait for it.
fn be_alone() {
    #[repr(align(4096))]
    struct Pages([u8; 2 * 4096]);
    let mut pages = Pages([0; 2 * 4096]);
    let over_the_border = (&raw mut pages.0).cast::<u8>().wrapping_add(4096 - 4);
    // SAFETY: the eight bytes from there lie in `pages`, which nothing else uses; the instruction takes any
    // alignment.
    unsafe {
        asm!("lock add qword ptr [{}], 1", in(reg) over_the_border, options(nostack));
    }
}

/// Saves the state of the FPU and loads it again, a thousand times.
fn load_fpu_state() {
    #[repr(align(16))]
    struct State([u8; 512]);
    let mut state = State([0; 512]);
    for _ in 0..1000 {
        // SAFETY: every processor of x86-64 has FXSAVE; its area has 512 bytes, aligned to 16. What is loaded is what was there.
        unsafe {
            asm!("fxsave64 [{0}]", "fxrstor64 [{0}]", in(reg) state.0.as_mut_ptr(), options(nostack));
        }
    }
}
