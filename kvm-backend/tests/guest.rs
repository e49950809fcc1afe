//! A few instructions of a real guest under bare KVM: shows that the host's virtualization works.
#![allow(unsafe_code)] // the guest's memory is handed to KVM

use conformance::skip;
use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{Kvm, VcpuExit};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

/// Where the code lies; one page of memory.
const CODE: GuestAddress = GuestAddress(0x1000);
const MEMORY_BYTES: usize = 0x1000;
const PORT: u16 = 0x10;

/// mov ecx, 1000 / add eax, ecx / loop / mov dx, 0x10 / out dx, eax / hlt, in real mode
const PROGRAM: &[u8] = &[
    0x66, 0xb9, 0xe8, 0x03, 0x00, 0x00, // mov ecx, 1000
    0x66, 0x01, 0xc8, // add eax, ecx
    0x67, 0xe2, 0xfa, // loop (by ecx) to the addition
    0xba, 0x10, 0x00, // mov dx, PORT
    0x66, 0xef, // out dx, eax
    0xf4, // hlt
];

#[test]
fn a_loop_in_real_mode_computes_a_sum() {
    let kvm = match Kvm::new() {
        Ok(kvm) => kvm,
        Err(error) => {
            return skip::without_kvm("a_loop_in_real_mode_computes_a_sum", &error.to_string());
        }
    };
    let vm = kvm.create_vm().unwrap();
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(CODE, MEMORY_BYTES)]).unwrap();
    memory.write_slice(PROGRAM, CODE).unwrap();
    let region = kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: CODE.0,
        memory_size: MEMORY_BYTES as u64,
        userspace_addr: memory.get_host_address(CODE).unwrap() as u64,
    };
    // SAFETY: the mapping is of that size and outlives the VM's last run below.
    unsafe { vm.set_user_memory_region(region) }.unwrap();
    let mut vcpu = vm.create_vcpu(0).unwrap();
    let mut special = vcpu.get_sregs().unwrap();
    special.cs.base = 0;
    special.cs.selector = 0;
    vcpu.set_sregs(&special).unwrap();
    let mut registers = vcpu.get_regs().unwrap();
    registers.rip = CODE.0;
    registers.rax = 0;
    registers.rflags = 2;
    vcpu.set_regs(&registers).unwrap();
    match vcpu.run().unwrap() {
        VcpuExit::IoOut(PORT, data) => {
            assert_eq!(data, (1000_u32 * 1001 / 2).to_le_bytes());
        }
        other => panic!("instead of the sum: {other:?}"),
    }
    assert!(matches!(vcpu.run().unwrap(), VcpuExit::Hlt));
}
