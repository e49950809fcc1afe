//! Interrupt table of 64-bit guests.
//!
//! Every vector has a handler. An exception's reports vector, error code, the low halves of RIP and
//! CR2, and says that the guest is through; an interrupt's (vectors from 32) reports its vector, ends
//! the interrupt at the local APIC and returns.

use super::{TestVm, start};

/// The interrupt descriptor table.
pub const TABLE: u64 = 0x10_8000;
/// Stubs of 16 bytes, one per vector.
const STUBS: u64 = 0x2_0000;
/// What all stubs jump to.
const EXCEPTION: u64 = 0x2_2000;
const INTERRUPT: u64 = 0x2_2100;

/// What an exception's handler reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // as the processor has them
pub struct Exception {
    pub vector: u8,
    pub error_code: u32,
    pub rip: u32,
    pub cr2: u32,
}

impl Exception {
    /// Reads the reports of a guest that ended in one exception.
    pub fn of_reports(reports: &[u32]) -> Self {
        let [vector, error_code, rip, cr2] = *reports else {
            panic!("not the reports of an exception: {reports:x?}");
        };
        Self {
            vector: vector as u8,
            error_code,
            rip,
            cr2,
        }
    }
}

#[rustfmt::skip]
const EXCEPTION_CODE: &[u8] = &[
    0x8b, 0x04, 0x24, // mov eax,DWORD PTR [rsp]
    0xe7, 0xe0, // out 0xe0,eax
    0x8b, 0x44, 0x24, 0x08, // mov eax,DWORD PTR [rsp+0x8]
    0xe7, 0xe0, // out 0xe0,eax
    0x8b, 0x44, 0x24, 0x10, // mov eax,DWORD PTR [rsp+0x10]
    0xe7, 0xe0, // out 0xe0,eax
    0x0f, 0x20, 0xd0, // mov rax,cr2
    0xe7, 0xe0, // out 0xe0,eax
    0xe6, 0xf4, // out 0xf4,al
    // stop:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop
];
#[rustfmt::skip]
const INTERRUPT_CODE: &[u8] = &[
    0x50, // push rax
    0x53, // push rbx
    0x0f, 0xb6, 0x44, 0x24, 0x10, // movzx eax,BYTE PTR [rsp+0x10]
    0xe7, 0xe0, // out 0xe0,eax
    0xbb, 0xb0, 0x00, 0xe0, 0xfe, // mov ebx,0xfee000b0
    0xc7, 0x03, 0x00, 0x00, 0x00, 0x00, // mov DWORD PTR [rbx],0x0
    0x5b, // pop rbx
    0x58, // pop rax
    0x48, 0x83, 0xc4, 0x10, // add rsp,0x10
    0x48, 0xcf, // iretq
];
/// Exceptions that push an error code (Intel SDM volume 3, table 6-1).
const WITH_ERROR_CODE: [u8; 8] = [8, 10, 11, 12, 13, 14, 17, 21];

/// The stub of a vector: `push 0` where the processor pushes no error code, `push vector`, `jmp`.
fn stub(vector: u8) -> Vec<u8> {
    let mut code = Vec::new();
    if !WITH_ERROR_CODE.contains(&vector) {
        code.extend([0x6a, 0]);
    }
    // Sign-extended; handlers look at as much as is right.
    code.extend([0x6a, vector]);
    let target = if vector < 32 { EXCEPTION } else { INTERRUPT };
    let next = stub_address(vector) + code.len() as u64 + 5;
    code.push(0xe9);
    code.extend((target.wrapping_sub(next) as u32).to_le_bytes());
    code
}

fn stub_address(vector: u8) -> u64 {
    STUBS + 16 * u64::from(vector)
}

/// A 64-bit interrupt gate that user code may use (Intel SDM volume 3, 6.14.1).
fn gate(handler: u64) -> [u8; 16] {
    let mut gate = [0; 16];
    gate[..2].copy_from_slice(&(handler as u16).to_le_bytes());
    gate[2..4].copy_from_slice(&start::KERNEL_CODE.to_le_bytes());
    gate[5] = 0xee;
    gate[6..8].copy_from_slice(&((handler >> 16) as u16).to_le_bytes());
    gate[8..12].copy_from_slice(&((handler >> 32) as u32).to_le_bytes());
    gate
}

/// Sends a vector to other code.
pub fn set(vm: &TestVm, vector: u8, handler: u64) {
    vm.place(TABLE + 16 * u64::from(vector), &gate(handler));
}

/// Takes a vector out of the table: its gate is not present.
pub fn remove(vm: &TestVm, vector: u8) {
    vm.place(TABLE + 16 * u64::from(vector), &[0; 16]);
}

/// Places interrupt table, handlers, global descriptor table and task state segment.
pub fn place(vm: &TestVm) {
    for vector in 0..=255 {
        set(vm, vector, stub_address(vector));
        vm.place(stub_address(vector), &stub(vector));
    }
    vm.place(EXCEPTION, EXCEPTION_CODE);
    vm.place(INTERRUPT, INTERRUPT_CODE);
    vm.place(start::DESCRIPTOR_TABLE, &start::descriptor_table());
    // Stack of privilege level 0, at offset 4 (Intel SDM volume 3, 7.7).
    vm.place(start::TASK_STATE + 4, &start::KERNEL_STACK.to_le_bytes());
}
