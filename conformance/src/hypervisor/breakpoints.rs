//! Hardware breakpoints: code and data that stop the guest, also after a restore.

use vmm_core::hypervisor::{Hypervisor, X86Spec};

use crate::guest::{TestVcpu, TestVm, interrupt_table, portable_cpu, start};

/// Where the handler of debug exceptions is placed.
const HANDLER: u64 = 0x2_3000;
/// Vector of debug exceptions.
const DEBUG: u8 = 1;
/// Bits of DR6: breakpoints 0 to 3.
const B0: u32 = 1;
const B1: u32 = 2;
const B2: u32 = 4;
const B3: u32 = 8;

/// Reports DR6 and RIP, clears DR6, sets the resume flag.
#[rustfmt::skip]
const NOTE: &[u8] = &[
    0x50, // push rax
    0x0f, 0x21, 0xf0, // mov rax,dr6
    0x25, 0x0f, 0xe0, 0x00, 0x00, // and eax,0xe00f
    0xe7, 0xe0, // out 0xe0,eax
    0x8b, 0x44, 0x24, 0x08, // mov eax,DWORD PTR [rsp+0x8]
    0xe7, 0xe0, // out 0xe0,eax
    0x31, 0xc0, // xor eax,eax
    0x0f, 0x23, 0xf0, // mov dr6,rax
    0x80, 0x4c, 0x24, 0x1a, 0x01, // or BYTE PTR [rsp+0x1a],0x1
    0x58, // pop rax
    0x48, 0xcf, // iretq
];

/// A VM with `code` and the handler, at the code's first instruction.
fn prepare(hypervisor: &dyn Hypervisor, x86: X86Spec, code: &[u8]) -> (TestVm, TestVcpu) {
    let vm = TestVm::with_cpu(hypervisor, 1, x86);
    vm.place(start::CODE, code);
    vm.place(HANDLER, NOTE);
    interrupt_table::set(&vm, DEBUG, HANDLER);
    let mut vcpu = vm.bind(0);
    vcpu.load(&start::long_mode());
    (vm, vcpu)
}

/// The address of the code's byte `offset`, as reported.
fn at(offset: u32) -> u32 {
    start::CODE as u32 + offset
}

/// Breakpoint 0 waits for writes to 4 bytes, 1 for an instruction, 2 for reads and writes of 8 bytes.
#[rustfmt::skip]
const MEETS: &[u8] = &[
    0xb8, 0x04, 0x80, 0x00, 0x00, // mov eax,0x8004
    0x0f, 0x23, 0xc0, // mov dr0,rax
    0x8d, 0x05, 0x31, 0x00, 0x00, 0x00, // lea eax,[rip+0x31] ; stop_here
    0x0f, 0x23, 0xc8, // mov dr1,rax
    0xb8, 0x10, 0x90, 0x00, 0x00, // mov eax,0x9010
    0x0f, 0x23, 0xd0, // mov dr2,rax
    0xb8, 0x15, 0x00, 0x0d, 0x0b, // mov eax,0xb0d0015
    0x0f, 0x23, 0xf8, // mov dr7,rax
    0x48, 0x89, 0x04, 0x25, 0x00, 0x80, 0x00, 0x00, // mov QWORD PTR ds:0x8000,rax
    0x89, 0x04, 0x25, 0x08, 0x80, 0x00, 0x00, // mov DWORD PTR ds:0x8008,eax
    0x8b, 0x04, 0x25, 0x04, 0x80, 0x00, 0x00, // mov eax,DWORD PTR ds:0x8004
    0x8a, 0x04, 0x25, 0x13, 0x90, 0x00, 0x00, // mov al,BYTE PTR ds:0x9013
    0x90, // nop
    // stop_here:
    0xff, 0xc3, // inc ebx
    0xbc, 0x18, 0x90, 0x00, 0x00, // mov esp,0x9018
    0x53, // push rbx
    0xf0, 0x01, 0x1c, 0x25, 0x04, 0x80, 0x00, 0x00, // lock add DWORD PTR ds:0x8004,ebx
    0x0f, 0x11, 0x04, 0x25, 0x00, 0x80, 0x00, 0x00, // movups XMMWORD PTR ds:0x8000,xmm0
    0x31, 0xc0, // xor eax,eax
    0x0f, 0x23, 0xf8, // mov dr7,rax
    0x89, 0x1c, 0x25, 0x04, 0x80, 0x00, 0x00, // mov DWORD PTR ds:0x8004,ebx
    0xff, 0xc3, // inc ebx
    0x89, 0xd8, // mov eax,ebx
    0xe7, 0xe0, // out 0xe0,eax
    0xe6, 0xf4, // out 0xf4,al
    // stop:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop
];
/// Instructions stop before they run; writes, reads and pushes after it; what is beside does not.
pub fn code_and_data_stop_the_guest(hypervisor: &dyn Hypervisor) {
    let (_vm, mut vcpu) = prepare(hypervisor, portable_cpu(hypervisor), MEETS);
    let expected = [
        [B0, at(0x29)],
        [B2, at(0x3e)],
        [B1, at(0x3f)],
        [B2, at(0x47)],
        [B0, at(0x4f)],
        [B0, at(0x57)],
    ];
    let mut expected = expected.concat();
    // The instruction at the breakpoint ran once, and one more after all were disabled.
    expected.push(2);
    let reports = vcpu.run_until_done();
    assert_eq!(reports, expected, "{reports:x?}");
}

/// Breakpoint 3 waits for writes to 4 bytes, 0 for an instruction; in between the guest is saved.
#[rustfmt::skip]
const COMES_BACK: &[u8] = &[
    0xb8, 0x04, 0x80, 0x00, 0x00, // mov eax,0x8004
    0x0f, 0x23, 0xd8, // mov dr3,rax
    0x8d, 0x05, 0x13, 0x00, 0x00, 0x00, // lea eax,[rip+0x13] ; code_here
    0x0f, 0x23, 0xc0, // mov dr0,rax
    0xb8, 0x81, 0x00, 0x00, 0xd0, // mov eax,0xd0000081
    0x0f, 0x23, 0xf8, // mov dr7,rax
    0xb9, 0x34, 0x12, 0x00, 0x00, // mov ecx,0x1234
    0xe6, 0xf4, // out 0xf4,al
    0x90, // nop
    // code_here:
    0xff, 0xc1, // inc ecx
    0x89, 0x0c, 0x25, 0x04, 0x80, 0x00, 0x00, // mov DWORD PTR ds:0x8004,ecx
    0x89, 0x0c, 0x25, 0x08, 0x80, 0x00, 0x00, // mov DWORD PTR ds:0x8008,ecx
    0x89, 0xc8, // mov eax,ecx
    0xe7, 0xe0, // out 0xe0,eax
    0x0f, 0x21, 0xf8, // mov rax,dr7
    0xe7, 0xe0, // out 0xe0,eax
    0x31, 0xc0, // xor eax,eax
    0x0f, 0x23, 0xf8, // mov dr7,rax
    0xe6, 0xf4, // out 0xf4,al
    // stop2:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop2
];
/// A breakpoint that was set before a save is met after it, in another VM.
pub fn breakpoints_come_back(hypervisor: &dyn Hypervisor) {
    go_on_elsewhere(hypervisor, hypervisor, hypervisor);
}

/// The same, saved by `first` and loaded by `second`, with the CPU that `cpu_of` chooses.
pub fn go_on_elsewhere(first: &dyn Hypervisor, second: &dyn Hypervisor, cpu_of: &dyn Hypervisor) {
    let (vm, mut vcpu) = prepare(first, portable_cpu(cpu_of), COMES_BACK);
    assert!(vcpu.run_until_done().is_empty());
    let saved = vcpu.save();
    let other = vm.copy(second);
    let mut elsewhere = other.bind(0);
    elsewhere.load(&saved);
    assert_eq!(elsewhere.save().debug, saved.debug);
    let expected = [B0, at(0x21), B3, at(0x2a), 0x1235, 0xd000_0481];
    let reports = elsewhere.run_until_done();
    assert_eq!(reports, expected, "{reports:x?}");
}
