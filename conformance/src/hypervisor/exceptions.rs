//! Exceptions of kernel code, with error code, RIP and CR2.

use vmm_core::hypervisor::{Hypervisor, VcpuStop};
use vmm_core::x86::DescriptorTable;

use crate::guest::interrupt_table::{self, Exception};
use crate::guest::{TestVm, paging, start};

/// Runs `code`, which ends in an exception at offset `rip` (Intel SDM volume 3, 6.15).
fn ends_in(hypervisor: &dyn Hypervisor, code: &[u8], vector: u8, error_code: u32, rip: u32) {
    let vm = TestVm::new(hypervisor, 1);
    vm.place(start::CODE, code);
    if vector == 12 {
        // The stack itself is at fault: the handler needs another.
        use_other_stack(&vm, vector);
    }
    let mut vcpu = vm.bind(0);
    vcpu.load(&start::long_mode());
    let expected = Exception {
        vector,
        error_code,
        rip: start::CODE as u32 + rip,
        cr2: 0,
    };
    assert_eq!(Exception::of_reports(&vcpu.run_until_done()), expected);
}

/// Gives a vector's gate the first interrupt stack of the task state segment.
fn use_other_stack(vm: &TestVm, vector: u8) {
    // Interrupt stack table, at offset 36 of the task state segment (Intel SDM volume 3, 7.7).
    vm.place(start::TASK_STATE + 36, &start::KERNEL_STACK.to_le_bytes());
    vm.place(interrupt_table::TABLE + 16 * u64::from(vector) + 4, &[1]);
}

#[rustfmt::skip]
const DIVIDE: &[u8] = &[
    0x31, 0xc9, // xor ecx,ecx
    0x31, 0xd2, // xor edx,edx
    0xf7, 0xf1, // div ecx
];
/// Division by zero.
pub fn a_division_by_zero(hypervisor: &dyn Hypervisor) {
    ends_in(hypervisor, DIVIDE, 0, 0, 4);
}

#[rustfmt::skip]
const DIVIDE_OVERFLOW: &[u8] = &[
    0xb9, 0x02, 0x00, 0x00, 0x00, // mov ecx,0x2
    0x89, 0xca, // mov edx,ecx
    0xf7, 0xf1, // div ecx
];
/// A quotient that does not fit.
pub fn a_quotient_too_large(hypervisor: &dyn Hypervisor) {
    ends_in(hypervisor, DIVIDE_OVERFLOW, 0, 0, 7);
}

#[rustfmt::skip]
const BREAKPOINT: &[u8] = &[
    0x90, // nop
    0xcc, // int3
];
/// INT3: RIP is behind it.
pub fn a_breakpoint(hypervisor: &dyn Hypervisor) {
    ends_in(hypervisor, BREAKPOINT, 3, 0, 2);
}

#[rustfmt::skip]
const UNDEFINED: &[u8] = &[
    0x90, // nop
    0x0f, 0x0b, // ud2
];
/// UD2.
pub fn an_undefined_instruction(hypervisor: &dyn Hypervisor) {
    ends_in(hypervisor, UNDEFINED, 6, 0, 1);
}

#[rustfmt::skip]
const TASK_SWITCHED: &[u8] = &[
    0x0f, 0x20, 0xc0, // mov rax,cr0
    0x83, 0xc8, 0x08, // or eax,0x8
    0x90, // nop
    0x0f, 0x22, 0xc0, // mov cr0,rax
    0x0f, 0x10, 0x04, 0x25, 0x00, 0x80, 0x00, 0x00, // movups xmm0,XMMWORD PTR ds:0x8000
];
/// SSE while CR0.TS is set.
pub fn a_lazy_switch_of_sse_state(hypervisor: &dyn Hypervisor) {
    ends_in(hypervisor, TASK_SWITCHED, 7, 0, 10);
}

#[rustfmt::skip]
const NOT_PRESENT: &[u8] = &[
    0xb8, 0x30, 0x00, 0x00, 0x00, // mov eax,0x30
    0x8e, 0xe0, // mov fs,eax
];
/// A segment that is not present: its selector.
pub fn an_absent_segment(hypervisor: &dyn Hypervisor) {
    ends_in(hypervisor, NOT_PRESENT, 11, 0x30, 5);
}

#[rustfmt::skip]
const STACK: &[u8] = &[
    0x48, 0xbc, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x80, // movabs rsp,0x8000000000000000
    0x50, // push rax
];
/// A push to a non-canonical address.
pub fn a_stack_out_of_range(hypervisor: &dyn Hypervisor) {
    ends_in(hypervisor, STACK, 12, 0, 10);
}

#[rustfmt::skip]
const SELECTOR: &[u8] = &[
    0xb8, 0x33, 0x12, 0x00, 0x00, // mov eax,0x1233
    0x8e, 0xe8, // mov gs,eax
];
/// A selector beyond the table.
pub fn a_selector_out_of_range(hypervisor: &dyn Hypervisor) {
    ends_in(hypervisor, SELECTOR, 13, 0x1230, 5);
}

#[rustfmt::skip]
const NON_CANONICAL: &[u8] = &[
    0x48, 0xbb, 0x00, 0x00, 0x00, 0x00, 0x00, 0x80, 0x00, 0x00, // movabs rbx,0x800000000000
    0x8a, 0x03, // mov al,BYTE PTR [rbx]
];
/// A read of a non-canonical address.
pub fn data_out_of_range(hypervisor: &dyn Hypervisor) {
    ends_in(hypervisor, NON_CANONICAL, 13, 0, 10);
}

#[rustfmt::skip]
const MSR: &[u8] = &[
    0xb9, 0x45, 0x23, 0x01, 0x00, // mov ecx,0x12345
    0x0f, 0x32, // rdmsr
];
/// RDMSR of a number that does not exist.
pub fn an_unknown_msr(hypervisor: &dyn Hypervisor) {
    ends_in(hypervisor, MSR, 13, 0, 5);
}

#[rustfmt::skip]
const CONTROL: &[u8] = &[
    0xb8, 0x20, 0x00, 0x00, 0x80, // mov eax,0x80000020
    0x90, // nop
    0x90, // nop
    0x0f, 0x22, 0xe0, // mov cr4,rax
];
/// A reserved bit of CR4.
pub fn a_reserved_control_bit(hypervisor: &dyn Hypervisor) {
    ends_in(hypervisor, CONTROL, 13, 0, 7);
}

#[rustfmt::skip]
const SOFTWARE: &[u8] = &[
    0xcd, 0x09, // int 0x9
];
/// INT n: RIP is behind it.
pub fn a_software_interrupt(hypervisor: &dyn Hypervisor) {
    ends_in(hypervisor, SOFTWARE, 9, 0, 2);
}

/// A page whose protection the cases below change.
const PAGE: u64 = 0xa000;

#[rustfmt::skip]
const READ: &[u8] = &[
    0x8b, 0x04, 0x25, 0x23, 0xa1, 0x00, 0x00, // mov eax,DWORD PTR ds:0xa123
];
#[rustfmt::skip]
const WRITE: &[u8] = &[
    0xbb, 0x23, 0xa1, 0x00, 0x00, // mov ebx,0xa123
    0xc7, 0x03, 0x01, 0x00, 0x00, 0x00, // mov DWORD PTR [rbx],0x1
];
#[rustfmt::skip]
const MODIFY: &[u8] = &[
    0x90, // nop
    0xfe, 0x04, 0x25, 0x01, 0xa0, 0x00, 0x00, // inc BYTE PTR ds:0xa001
];
#[rustfmt::skip]
const CROSSING: &[u8] = &[
    0xbb, 0xfd, 0x9f, 0x00, 0x00, // mov ebx,0x9ffd
    0x48, 0x8b, 0x03, // mov rax,QWORD PTR [rbx]
];
#[rustfmt::skip]
const FETCH: &[u8] = &[
    0xb8, 0x10, 0xa0, 0x00, 0x00, // mov eax,0xa010
    0xff, 0xe0, // jmp rax
];
/// Runs `code`, which faults at offset `rip` once [`PAGE`] has these flags.
fn faults(
    hypervisor: &dyn Hypervisor,
    code: &[u8],
    flags: u64,
    error_code: u32,
    [rip, cr2]: [u32; 2],
) {
    let vm = TestVm::new(hypervisor, 1);
    vm.place(start::CODE, code);
    paging::protect(&vm, PAGE, flags);
    let mut vcpu = vm.bind(0);
    vcpu.load(&start::long_mode());
    let got = Exception::of_reports(&vcpu.run_until_done());
    let expected = Exception {
        vector: 14,
        error_code,
        rip,
        cr2,
    };
    assert_eq!(got, expected);
    assert_eq!(vcpu.save().system.cr2, u64::from(cr2));
}

/// Present (1), write (2), user (4), fetch (0x10) in the error code, and the address in CR2.
pub fn page_faults_say_what_and_where(hypervisor: &dyn Hypervisor) {
    let code = start::CODE as u32;
    // Reads and writes of nothing, of a page that may not be written, and across pages.
    faults(hypervisor, READ, paging::NOT_PRESENT, 0, [code, 0xa123]);
    faults(
        hypervisor,
        WRITE,
        paging::NOT_PRESENT,
        2,
        [code + 5, 0xa123],
    );
    faults(hypervisor, WRITE, paging::READ_ONLY, 3, [code + 5, 0xa123]);
    faults(hypervisor, MODIFY, paging::READ_ONLY, 3, [code + 1, 0xa001]);
    faults(
        hypervisor,
        CROSSING,
        paging::NOT_PRESENT,
        0,
        [code + 5, 0xa000],
    );
    // Fetches: the fault is at the target.
    faults(
        hypervisor,
        FETCH,
        paging::NO_EXECUTE,
        0x11,
        [0xa010, 0xa010],
    );
    faults(
        hypervisor,
        FETCH,
        paging::NOT_PRESENT,
        0x10,
        [0xa010, 0xa010],
    );
}

/// No handler for the fault, none for the double fault: the vCPU shuts down.
pub fn a_triple_fault_is_reported(hypervisor: &dyn Hypervisor) {
    let vm = TestVm::new(hypervisor, 1);
    vm.place(start::CODE, UNDEFINED);
    let mut vcpu = vm.bind(0);
    let mut state = start::long_mode();
    state.system.idt = DescriptorTable::default();
    vcpu.load(&state);
    assert_eq!(vcpu.run(), VcpuStop::TripleFault);
}

/// A gate that is not present is itself a fault; one that happens while that is delivered is a
/// double fault.
pub fn faults_in_delivery_become_others(hypervisor: &dyn Hypervisor) {
    let deliver = |removed: &[u8]| {
        let vm = TestVm::new(hypervisor, 1);
        vm.place(start::CODE, UNDEFINED);
        for vector in removed {
            interrupt_table::remove(&vm, *vector);
        }
        let mut vcpu = vm.bind(0);
        vcpu.load(&start::long_mode());
        Exception::of_reports(&vcpu.run_until_done())
    };
    // The gate's vector times 8, IDT, external: not the instruction itself is at fault (Intel SDM
    // volume 3, 6.13). A gate of zeros has a wrong type, which is checked before presence.
    let missing = deliver(&[6]);
    assert_eq!((missing.vector, missing.error_code), (13, 6 << 3 | 3));
    let doubled = deliver(&[6, 13]);
    assert_eq!((doubled.vector, doubled.error_code), (8, 0));
}
