//! User code under a kernel.

use vmm_core::hypervisor::Hypervisor;
use vmm_core::x86::msr;

use crate::guest::interrupt_table::Exception;
use crate::guest::{TestVm, paging, start};

/// Where user code lies.
const USER: u64 = 0x5000;
/// Where SYSCALL goes.
const KERNEL_ENTRY: u64 = 0x3000;

#[rustfmt::skip]
const ENTER: &[u8] = &[
    0x6a, 0x1b, // push 0x1b
    0x68, 0x00, 0x00, 0x05, 0x00, // push 0x50000
    0x68, 0x02, 0x02, 0x00, 0x00, // push 0x202
    0x6a, 0x23, // push 0x23
    0x68, 0x00, 0x50, 0x00, 0x00, // push 0x5000
    0x48, 0xcf, // iretq
];
#[rustfmt::skip]
const CALLS: &[u8] = &[
    0xbf, 0x11, 0x11, 0x00, 0x00, // mov edi,0x1111
    0x0f, 0x05, // syscall
    0x89, 0xc7, // mov edi,eax
    0x66, 0x8c, 0xc8, // mov ax,cs
    0x0f, 0xb7, 0xf0, // movzx esi,ax
    0x9c, // pushf
    0x5a, // pop rdx
    0x0f, 0x05, // syscall
];
#[rustfmt::skip]
const SERVES: &[u8] = &[
    0x89, 0xf8, // mov eax,edi
    0xe7, 0xe0, // out 0xe0,eax
    0x89, 0xc8, // mov eax,ecx
    0xe7, 0xe0, // out 0xe0,eax
    0x44, 0x89, 0xd8, // mov eax,r11d
    0xe7, 0xe0, // out 0xe0,eax
    0x66, 0x8c, 0xc8, // mov ax,cs
    0x0f, 0xb7, 0xc0, // movzx eax,ax
    0xe7, 0xe0, // out 0xe0,eax
    0x9c, // pushf
    0x58, // pop rax
    0x25, 0x00, 0x02, 0x00, 0x00, // and eax,0x200
    0xe7, 0xe0, // out 0xe0,eax
    0xff, 0x04, 0x25, 0x00, 0x80, 0x00, 0x00, // inc DWORD PTR ds:0x8000
    0x83, 0x3c, 0x25, 0x00, 0x80, 0x00, 0x00, 0x02, // cmp DWORD PTR ds:0x8000,0x2
    0x74, 0x08, // je finish
    0xb8, 0x22, 0x22, 0x00, 0x00, // mov eax,0x2222
    0x48, 0x0f, 0x07, // sysretq
    // finish:
    0x89, 0xf0, // mov eax,esi
    0xe7, 0xe0, // out 0xe0,eax
    0x89, 0xd0, // mov eax,edx
    0xe7, 0xe0, // out 0xe0,eax
    0xe6, 0xf4, // out 0xf4,al
    // stop:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop
];
/// SYSCALL, SYSRET and IRET: selectors, flags, return address.
pub fn system_calls_come_and_go(hypervisor: &dyn Hypervisor) {
    let vm = TestVm::new(hypervisor, 1);
    vm.place(start::CODE, ENTER);
    vm.place(USER, CALLS);
    vm.place(KERNEL_ENTRY, SERVES);
    let mut vcpu = vm.bind(0);
    vcpu.load(&start::long_mode());
    let mut state = vcpu.save();
    // Kernel code 0x08 and data 0x10; user data 0x18 and code 0x20 from base 0x10.
    state.set_msr(msr::STAR, 0x0010_0008 << 32);
    state.set_msr(msr::LSTAR, KERNEL_ENTRY);
    state.set_msr(msr::SYSCALL_MASK, 0x200);
    vcpu.load(&state);
    let user = USER as u32;
    let first = [0x1111, user + 7, 0x202, 8, 0];
    let second = [
        0x2222,
        user + 19,
        0x202,
        8,
        0,
        start::USER_CODE.into(),
        0x202,
    ];
    let expected = [&first[..], &second[..]].concat();
    assert_eq!(vcpu.run_until_done(), expected);
}

#[rustfmt::skip]
const TOUCHES: &[u8] = &[
    0xbb, 0x00, 0xa0, 0x00, 0x00, // mov ebx,0xa000
    0x8b, 0x03, // mov eax,DWORD PTR [rbx]
];
#[rustfmt::skip]
const PRIVILEGED: &[u8] = &[
    0x90, // nop
    0xfa, // cli
];
/// What user code may not do faults, on the kernel's stack, with the old one saved there.
pub fn faults_of_user_code_switch_stacks(hypervisor: &dyn Hypervisor) {
    let user = USER as u32;
    let cases = [
        (TOUCHES, 14, 5, user + 5, 0xa000),
        (PRIVILEGED, 13, 0, user + 1, 0),
    ];
    for (code, vector, error_code, rip, cr2) in cases {
        let vm = TestVm::new(hypervisor, 1);
        vm.place(start::CODE, ENTER);
        vm.place(USER, code);
        paging::protect(&vm, 0xa000, paging::SUPERVISOR);
        let mut vcpu = vm.bind(0);
        vcpu.load(&start::long_mode());
        let expected = Exception {
            vector,
            error_code,
            rip,
            cr2,
        };
        assert_eq!(Exception::of_reports(&vcpu.run_until_done()), expected);
        let state = vcpu.save();
        assert_eq!(state.system.cs.selector, start::KERNEL_CODE);
        assert_eq!(
            state.system.ss.selector, 0,
            "SS is null after a change of privilege"
        );
        // SS, RSP, RFLAGS, CS, RIP, error code; then the stub's vector.
        assert_eq!(
            vm.read_u64(start::KERNEL_STACK - 8),
            u64::from(start::USER_DATA)
        );
        assert_eq!(vm.read_u64(start::KERNEL_STACK - 16), 0x5_0000);
        assert_eq!(vm.read_u64(start::KERNEL_STACK - 24) & 0x200, 0x200);
        assert_eq!(
            vm.read_u64(start::KERNEL_STACK - 32),
            u64::from(start::USER_CODE)
        );
        assert_eq!(vm.read_u64(start::KERNEL_STACK - 40), u64::from(rip));
    }
}
