//! Which pages were written, exactly.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use vmm_core::Gpa;
use vmm_core::hypervisor::Hypervisor;
use vmm_core::ram::PAGE_BYTES;
use vmm_core::tracker::{DirtySet, DirtyTracker};

use crate::guest::{TestVcpu, TestVm, start};

/// Writes in all the ways that there are, reads elsewhere.
#[rustfmt::skip]
const WRITES: &[u8] = &[
    0xc6, 0x05, 0x00, 0x80, 0x00, 0x00, 0x01, // mov BYTE PTR ds:0x8000,0x1
    0xa1, 0x00, 0x90, 0x00, 0x00, // mov eax,ds:0x9000
    0xbb, 0xfe, 0xbf, 0x00, 0x00, // mov ebx,0xbffe
    0x89, 0x03, // mov DWORD PTR [ebx],eax
    0xbf, 0xfc, 0x0f, 0x1f, 0x00, // mov edi,0x1f0ffc
    0xb9, 0x03, 0x00, 0x00, 0x00, // mov ecx,0x3
    0xfc, // cld
    0xf3, 0xab, // rep stos DWORD PTR es:[edi],eax
    0xf0, 0xff, 0x05, 0x00, 0x00, 0x04, 0x00, // lock inc DWORD PTR ds:0x40000
    0x87, 0x05, 0x08, 0x20, 0x04, 0x00, // xchg DWORD PTR ds:0x42008,eax
    0xbe, 0x00, 0x00, 0x05, 0x00, // mov esi,0x50000
    0xbf, 0x00, 0xf0, 0x3f, 0x00, // mov edi,0x3ff000
    0xa5, // movs DWORD PTR es:[edi],DWORD PTR ds:[esi]
    0x0f, 0x11, 0x05, 0xf8, 0x4f, 0x04, 0x00, // movups XMMWORD PTR ds:0x44ff8,xmm0
    0xbc, 0x00, 0x80, 0x04, 0x00, // mov esp,0x48000
    0x50, // push eax
    0xe8, 0x16, 0x00, 0x00, 0x00, // call function
    0x3b, 0x05, 0x00, 0xa0, 0x04, 0x00, // cmp eax,DWORD PTR ds:0x4a000
    0xe6, 0xf4, // out 0xf4,al
    0xeb, 0x00, // jmp again
    // again:
    0xc6, 0x05, 0x01, 0x80, 0x00, 0x00, 0x01, // mov BYTE PTR ds:0x8001,0x1
    0xe6, 0xf4, // out 0xf4,al
    // stop:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop
    // function:
    0xc3, // ret
];
/// The pages that [`WRITES`] writes before it first says that it is through.
const WRITTEN: [u64; 11] = [
    0x8000, 0xb000, 0xc000, 0x4_0000, 0x4_2000, 0x4_4000, 0x4_5000, 0x4_7000, 0x1f_0000, 0x1f_1000,
    0x3f_f000,
];

const NOTHING: [u64; 0] = [];

fn pages(set: &DirtySet) -> Vec<u64> {
    set.pages().map(|page| page.0).collect()
}

/// A guest at the beginning of [`WRITES`] whose writes are tracked.
///
/// It has no paging, since processors may count their own walks of page tables as writes, and it
/// has run once, since a backend may count the first touch of a page as a write.
fn tracked(hypervisor: &dyn Hypervisor) -> (TestVm, TestVcpu, DirtyTracker) {
    let vm = TestVm::new(hypervisor, 1);
    vm.place(start::CODE, WRITES);
    let mut vcpu = vm.bind(0);
    let mut state = start::protected_mode();
    // FXSAVE and SSE.
    state.system.cr4 = 0x600;
    vcpu.load(&state);
    vcpu.run_until_done();
    vcpu.run_until_done();
    vcpu.load(&state);
    let tracker = DirtyTracker::new(vm.ram.clone(), vm.vm.clone());
    tracker.start().expect("tracking starts");
    (vm, vcpu, tracker)
}

fn take(tracker: &DirtyTracker) -> Vec<u64> {
    pages(&tracker.take().expect("the set is read"))
}

/// Stores, string stores, locked changes, pushes, stores across pages; and no read.
pub fn exactly_the_written_pages(hypervisor: &dyn Hypervisor) {
    let (_vm, mut vcpu, tracker) = tracked(hypervisor);
    assert_eq!(take(&tracker), NOTHING, "before the guest ran");
    vcpu.run_until_done();
    assert_eq!(take(&tracker), WRITTEN);
    tracker.stop().expect("tracking stops");
}

/// A page that was taken and is written again is in the next set; one that is not written is not.
pub fn pages_are_armed_again(hypervisor: &dyn Hypervisor) {
    let (_vm, mut vcpu, tracker) = tracked(hypervisor);
    vcpu.run_until_done();
    assert!(take(&tracker).contains(&0x8000));
    assert_eq!(take(&tracker), NOTHING);
    vcpu.run_until_done();
    assert_eq!(take(&tracker), [0x8000]);
    assert_eq!(take(&tracker), NOTHING);
}

/// Writes through the guest's memory by the machine, and pages that are given up.
pub fn writes_by_devices_and_discards_count(hypervisor: &dyn Hypervisor) {
    let (vm, mut vcpu, tracker) = tracked(hypervisor);
    vm.place(0x5_0fff, &[1, 2]);
    assert_eq!(take(&tracker), [0x5_0000, 0x5_1000]);
    tracker
        .discard(Gpa(0x5_0000), 2 * PAGE_BYTES)
        .expect("discarded");
    assert_eq!(vm.read_u64(0x5_0ff8), 0, "gone");
    assert_eq!(take(&tracker), [0x5_0000, 0x5_1000]);
    // The guest sees the new pages and can write to discarded ones.
    tracker.discard(Gpa(0x8000), PAGE_BYTES).expect("discarded");
    vcpu.run_until_done();
    let taken = take(&tracker);
    assert!(taken.contains(&0x8000) && !taken.contains(&0x5_0000));
    assert_eq!(vm.read_u64(0x8000), 1);
    tracker.discard(Gpa(0x8000), PAGE_BYTES).expect("discarded");
    vcpu.run_until_done();
    assert_eq!(
        vm.read_u64(0x8000),
        0x0100,
        "the guest wrote to the new page"
    );
    assert_eq!(take(&tracker), [0x8000]);
}

/// The dirty set of a capture that failed is in the next one, together with what came since.
pub fn what_is_given_back_is_taken_again(hypervisor: &dyn Hypervisor) {
    let (vm, mut vcpu, tracker) = tracked(hypervisor);
    vcpu.run_until_done();
    let failed = tracker.take().expect("the set is read");
    assert_eq!(take(&tracker), NOTHING);
    tracker.give_back(&failed);
    assert_eq!(take(&tracker), WRITTEN);
    let mut part = DirtySet::empty(&vm.ram);
    part.insert(Gpa(0x7_1234));
    tracker.give_back(&part);
    vcpu.run_until_done();
    assert_eq!(take(&tracker), [0x8000, 0x7_1000]);
}

/// Counts in a word of each of 64 pages in turn, without end.
#[rustfmt::skip]
const ROUNDS: &[u8] = &[
    0x31, 0xc0, // xor eax,eax
    // again:
    0xbb, 0x00, 0x00, 0x10, 0x00, // mov ebx,0x100000
    // round:
    0x81, 0xc3, 0x00, 0x10, 0x00, 0x00, // add ebx,0x1000
    0x89, 0xda, // mov edx,ebx
    0x48, 0x81, 0xc2, 0x00, 0x00, 0x10, 0x00, // add rdx,0x100000
    0x48, 0xff, 0xc0, // inc rax
    0x48, 0x89, 0x42, 0x08, // mov QWORD PTR [rdx+0x8],rax
    0x81, 0xfb, 0x00, 0x00, 0x14, 0x00, // cmp ebx,0x140000
    0x75, 0xe2, // jne round
    0xeb, 0xdb, // jmp again
];
/// What a live capture relies on: copying the pages of each set while the guest runs, then those
/// of the last set while it stands, gives its memory exactly.
pub fn copies_made_while_the_guest_runs_converge(hypervisor: &dyn Hypervisor) {
    const ROUNDS_TAKEN: usize = 20;
    let vm = TestVm::new(hypervisor, 1);
    vm.place(start::CODE, ROUNDS);
    let mut vcpu = vm.bind(0);
    vcpu.load(&start::long_mode());
    let tracker = DirtyTracker::new(vm.ram.clone(), vm.vm.clone());
    tracker.start().expect("tracking starts");
    let mut copy = vm.memory();
    let patch = |copy: &mut Vec<u8>| {
        let set = tracker.take().expect("the set is read");
        for page in set.pages() {
            let at = page.0 as usize;
            vm.read_into(page.0, &mut copy[at..at + PAGE_BYTES as usize]);
        }
        set.len()
    };
    let kicker = vcpu.kicker();
    let over = AtomicBool::new(false);
    let taken = thread::scope(|scope| {
        let (copy, patch, over) = (&mut copy, &patch, &over);
        let copier = scope.spawn(move || {
            let mut taken = 0;
            for _ in 0..ROUNDS_TAKEN {
                taken += patch(copy);
                thread::sleep(Duration::from_millis(2));
            }
            while taken == 0 && !over.load(Ordering::SeqCst) {
                taken += patch(copy);
            }
            kicker.kick();
            taken
        });
        vcpu.run();
        over.store(true, Ordering::SeqCst);
        copier.join().expect("the copier")
    });
    assert!(taken > 0, "the guest wrote while it was copied");
    vcpu.save();
    patch(&mut copy);
    let memory = vm.memory();
    let differs = (0..memory.len()).find(|at| memory[*at] != copy[*at]);
    assert_eq!(differs, None, "first difference");
}
