//! The TSC and kvm-clock across a save.

use std::thread;
use std::time::{Duration, Instant};

use vmm_core::Gpa;
use vmm_core::hypervisor::Hypervisor;
use vmm_core::ram::PAGE_BYTES;
use vmm_core::tracker::DirtyTracker;
use vmm_core::x86::{X86VcpuState, msr};

use crate::guest::{TestVcpu, TestVm, portable_cpu, start};

#[rustfmt::skip]
const TSC: &[u8] = &[
    // again:
    0x0f, 0x31, // rdtsc
    0x48, 0xc1, 0xe2, 0x20, // shl rdx,0x20
    0x48, 0x09, 0xd0, // or rax,rdx
    0x48, 0x89, 0x04, 0x25, 0x00, 0x80, 0x00, 0x00, // mov QWORD PTR ds:0x8000,rax
    0x0f, 0x31, // rdtsc
    0x48, 0xc1, 0xe2, 0x20, // shl rdx,0x20
    0x48, 0x09, 0xd0, // or rax,rdx
    0x48, 0x89, 0x04, 0x25, 0x08, 0x80, 0x00, 0x00, // mov QWORD PTR ds:0x8008,rax
    0xe6, 0xf4, // out 0xf4,al
    0xeb, 0xda, // jmp again
];
fn stamps(vm: &TestVm, vcpu: &mut TestVcpu) -> [u64; 2] {
    vcpu.run_until_done();
    let stamps = [vm.read_u64(start::DATA), vm.read_u64(start::DATA + 8)];
    assert!(stamps[0] <= stamps[1], "the TSC went back: {stamps:?}");
    stamps
}

fn tsc_of(state: &X86VcpuState) -> u64 {
    state.msr(msr::TSC).expect("the TSC is saved")
}

/// The TSC counts on from where it was saved, not from the host's, also in another VM and later.
pub fn the_tsc_goes_on_from_its_saved_value(hypervisor: &dyn Hypervisor) {
    const FAR: u64 = 1 << 52;
    /// How much a host may be slowed down here; the TSC of any host is far from the value.
    const SOON: u64 = 1 << 44;
    let vm = TestVm::new(hypervisor, 1);
    vm.place(start::CODE, TSC);
    let mut vcpu = vm.bind(0);
    let mut state = start::long_mode();
    state.set_msr(msr::TSC, FAR);
    vcpu.load(&state);
    let [_, last] = stamps(&vm, &mut vcpu);
    assert!((FAR..FAR + SOON).contains(&last), "{last:#x}");
    let state = vcpu.save();
    assert!(tsc_of(&state) >= last);
    thread::sleep(Duration::from_millis(50));
    let other = vm.copy(hypervisor);
    let mut resumed = other.bind(0);
    resumed.load(&state);
    let [next, _] = stamps(&other, &mut resumed);
    assert!(
        next >= tsc_of(&state) && next < FAR + SOON,
        "{next:#x} after {:#x}",
        tsc_of(&state)
    );
    // And back in the first VM, to the same moment.
    vcpu.load(&state);
    let [again, _] = stamps(&vm, &mut vcpu);
    assert!(again >= tsc_of(&state) && again < FAR + SOON);
}

/// Where the guest asks for its clock.
const CLOCK_PAGE: u64 = 0xc000;
const PAGE: usize = PAGE_BYTES as usize;

/// Asks for its clock and reads it, as the kernel's documentation says.
#[rustfmt::skip]
const CLOCK: &[u8] = &[
    0xb9, 0x01, 0x4d, 0x56, 0x4b, // mov ecx,0x4b564d01
    0xb8, 0x01, 0xc0, 0x00, 0x00, // mov eax,0xc001
    0x31, 0xd2, // xor edx,edx
    0x0f, 0x30, // wrmsr
    // again:
    0x8b, 0x04, 0x25, 0x00, 0xc0, 0x00, 0x00, // mov eax,DWORD PTR ds:0xc000
    0xa8, 0x01, // test al,0x1
    0x75, 0xf5, // jne again
    0x89, 0xc6, // mov esi,eax
    0x0f, 0x31, // rdtsc
    0x48, 0xc1, 0xe2, 0x20, // shl rdx,0x20
    0x48, 0x09, 0xd0, // or rax,rdx
    0x48, 0x89, 0x04, 0x25, 0x00, 0x80, 0x00, 0x00, // mov QWORD PTR ds:0x8000,rax
    0x48, 0x8b, 0x04, 0x25, 0x08, 0xc0, 0x00, 0x00, // mov rax,QWORD PTR ds:0xc008
    0x48, 0x89, 0x04, 0x25, 0x08, 0x80, 0x00, 0x00, // mov QWORD PTR ds:0x8008,rax
    0x48, 0x8b, 0x04, 0x25, 0x10, 0xc0, 0x00, 0x00, // mov rax,QWORD PTR ds:0xc010
    0x48, 0x89, 0x04, 0x25, 0x10, 0x80, 0x00, 0x00, // mov QWORD PTR ds:0x8010,rax
    0x48, 0x8b, 0x04, 0x25, 0x18, 0xc0, 0x00, 0x00, // mov rax,QWORD PTR ds:0xc018
    0x48, 0x89, 0x04, 0x25, 0x18, 0x80, 0x00, 0x00, // mov QWORD PTR ds:0x8018,rax
    0x3b, 0x34, 0x25, 0x00, 0xc0, 0x00, 0x00, // cmp esi,DWORD PTR ds:0xc000
    0x75, 0xa9, // jne again
    0x89, 0xf0, // mov eax,esi
    0xe7, 0xe0, // out 0xe0,eax
    0xe6, 0xf4, // out 0xf4,al
    0xeb, 0xa1, // jmp again
];
/// What the guest read from its clock page (kernel documentation `virt/kvm/x86/msr.rst`).
struct Reading {
    tsc: u64,
    nanoseconds: u64,
    version: u32,
    flags: u8,
}

impl Reading {
    /// Runs the guest up to its next reading.
    fn next(vm: &TestVm, vcpu: &mut TestVcpu) -> Self {
        let reports = vcpu.run_until_done();
        let [tsc, timestamp, system_time, rest] =
            [0, 8, 16, 24].map(|offset| vm.read_u64(start::DATA + offset));
        let [m0, m1, m2, m3, shift, flags, ..] = rest.to_le_bytes();
        let multiplier = u128::from(u32::from_le_bytes([m0, m1, m2, m3]));
        let ticks = u128::from(tsc.wrapping_sub(timestamp));
        let shift = shift as i8;
        let shifted = if shift < 0 {
            ticks >> shift.unsigned_abs()
        } else {
            ticks << shift
        };
        Self {
            tsc,
            nanoseconds: system_time.wrapping_add(((shifted * multiplier) >> 32) as u64),
            version: reports[0],
            flags,
        }
    }
}

/// What clocks and threads of a busy host may differ by.
const SLACK: Duration = Duration::from_millis(50);

fn with_clock(hypervisor: &dyn Hypervisor) -> (TestVm, TestVcpu) {
    let vm = TestVm::new(hypervisor, 1);
    vm.place(start::CODE, CLOCK);
    let mut vcpu = vm.bind(0);
    vcpu.load(&start::long_mode());
    (vm, vcpu)
}

/// The clock runs at the host's pace and its page has an even version.
pub fn kvm_clock_counts_nanoseconds(hypervisor: &dyn Hypervisor) {
    let (vm, mut vcpu) = with_clock(hypervisor);
    let before = Instant::now();
    let first = Reading::next(&vm, &mut vcpu);
    let after_first = Instant::now();
    thread::sleep(Duration::from_millis(100));
    let before_second = Instant::now();
    let second = Reading::next(&vm, &mut vcpu);
    let most = before.elapsed();
    let least = before_second - after_first;
    assert_eq!((first.version % 2, second.version % 2), (0, 0));
    assert_ne!(first.version, 0, "the page was written");
    let passed = Duration::from_nanos(second.nanoseconds - first.nanoseconds);
    assert!(
        passed + SLACK >= least && passed <= most + SLACK,
        "{passed:?} of {least:?} to {most:?}"
    );
}

/// Time between save and load is not seen, and the clock never goes back.
pub fn kvm_clock_stands_still_while_saved(hypervisor: &dyn Hypervisor) {
    const PAUSE: Duration = Duration::from_millis(400);
    let (mut vm, mut vcpu) = with_clock(hypervisor);
    let begin = Instant::now();
    let first = Reading::next(&vm, &mut vcpu);
    let mut last = first.nanoseconds;
    for generation in 1..=2 {
        let state = vcpu.save();
        let clock = vm.vm.x86_clock().expect("a clock").save().expect("saved");
        assert!(clock.guest_nanoseconds + SLACK.as_nanos() as u64 >= last);
        thread::sleep(PAUSE);
        let other = vm.copy(hypervisor);
        let mut resumed = other.bind(0);
        resumed.load(&state);
        other
            .vm
            .x86_clock()
            .expect("a clock")
            .load(&clock)
            .expect("loaded");
        resumed.inner().notify_stopped().expect("told");
        let next = Reading::next(&other, &mut resumed);
        assert!(
            next.nanoseconds >= last,
            "from {last} back to {}",
            next.nanoseconds
        );
        let seen = Duration::from_nanos(next.nanoseconds - first.nanoseconds);
        let most = begin.elapsed() - PAUSE * generation + SLACK;
        assert!(
            seen <= most,
            "{seen:?} seen, {most:?} passed outside of the pauses"
        );
        last = next.nanoseconds;
        (vm, vcpu) = (other, resumed);
    }
}

/// TSC and clock are one pair, also when the host does other things between saving or loading the one
/// and the other: a guest's kernel gives up a TSC that differs from its clock.
pub fn tsc_and_kvm_clock_keep_step(hypervisor: &dyn Hypervisor) {
    const OTHER_THINGS: Duration = Duration::from_millis(300);
    let (mut vm, mut vcpu) = with_clock(hypervisor);
    let khz = u128::from(portable_cpu(hypervisor).tsc_khz);
    let first = Reading::next(&vm, &mut vcpu);
    for _ in 0..2 {
        let state = vcpu.save();
        thread::sleep(OTHER_THINGS);
        let clock = vm.vm.x86_clock().expect("a clock").save().expect("saved");
        let other = vm.copy(hypervisor);
        let mut resumed = other.bind(0);
        resumed.load(&state);
        thread::sleep(OTHER_THINGS);
        let loaded = other.vm.x86_clock().expect("a clock").load(&clock);
        loaded.expect("loaded");
        resumed.inner().notify_stopped().expect("told");
        let next = Reading::next(&other, &mut resumed);
        let by_clock = Duration::from_nanos(next.nanoseconds - first.nanoseconds);
        let ticks = u128::from(next.tsc - first.tsc);
        let by_tsc = Duration::from_nanos((ticks * 1_000_000 / khz) as u64);
        let apart = by_clock.abs_diff(by_tsc);
        assert!(
            apart < SLACK,
            "{by_clock:?} by the clock, {by_tsc:?} by the TSC"
        );
        (vm, vcpu) = (other, resumed);
    }
}

/// `PVCLOCK_GUEST_STOPPED` appears in the page after the vCPU was told, and not before.
pub fn a_stop_is_told(hypervisor: &dyn Hypervisor) {
    const GUEST_STOPPED: u8 = 2;
    let (vm, mut vcpu) = with_clock(hypervisor);
    let first = Reading::next(&vm, &mut vcpu);
    assert_eq!(first.flags & GUEST_STOPPED, 0);
    vcpu.inner().notify_stopped().expect("told");
    let second = Reading::next(&vm, &mut vcpu);
    assert_eq!(second.flags & GUEST_STOPPED, GUEST_STOPPED);
    assert!(second.version > first.version, "the page was written again");
    // A guest that has no clock has nothing to be told.
    let other = TestVm::new(hypervisor, 1);
    let mut without = other.bind(0);
    without.load(&start::long_mode());
    without.inner().notify_stopped().expect("nothing to tell");
}

/// The clock is written by the host: pages that it changes are in the dirty set like any other.
pub fn what_the_clock_writes_is_tracked(hypervisor: &dyn Hypervisor) {
    let (vm, mut vcpu) = with_clock(hypervisor);
    Reading::next(&vm, &mut vcpu);
    let tracker = DirtyTracker::new(vm.ram.clone(), vm.vm.clone());
    tracker.start().expect("tracking starts");
    let mut last = vm.memory();
    let mut changed_clock = false;
    for _ in 0..3 {
        vcpu.inner().notify_stopped().expect("told");
        Reading::next(&vm, &mut vcpu);
        let set = tracker.take().expect("the set is read");
        let memory = vm.memory();
        for (at, (old, new)) in (0..).zip(last.chunks(PAGE).zip(memory.chunks(PAGE))) {
            let page = at * PAGE as u64;
            changed_clock |= page == CLOCK_PAGE && old != new;
            assert!(
                old == new || set.contains(Gpa(page)),
                "page {page:#x} changed"
            );
        }
        last = memory;
    }
    assert!(changed_clock, "the clock was written");
}
