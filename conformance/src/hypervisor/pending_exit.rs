//! An access in flight when the vCPU is stopped belongs to the saved state: it happens exactly once.

use vmm_core::hypervisor::{Hypervisor, VcpuStop};

use crate::guest::{Access, TestVcpu, TestVm, start};

#[rustfmt::skip]
const PORT: &[u8] = &[
    0x31, 0xc0, // xor eax,eax
    0xe5, 0x20, // in eax,0x20
    0xb9, 0xc8, 0x00, 0x00, 0x00, // mov ecx,0xc8
    // spin:
    0xff, 0xc9, // dec ecx
    0x75, 0xfc, // jne spin
    0xe7, 0xe0, // out 0xe0,eax
    0xe6, 0xf4, // out 0xf4,al
    // stop:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop
];
#[rustfmt::skip]
const MEMORY: &[u8] = &[
    0xbb, 0x00, 0x00, 0x00, 0xd0, // mov ebx,0xd0000000
    0x48, 0x03, 0x83, 0xfc, 0x0f, 0x00, 0x00, // add rax,QWORD PTR [rbx+0xffc]
    0xb9, 0xc8, 0x00, 0x00, 0x00, // mov ecx,0xc8
    // spin:
    0xff, 0xc9, // dec ecx
    0x75, 0xfc, // jne spin
    0x49, 0x89, 0xc0, // mov r8,rax
    0xe7, 0xe0, // out 0xe0,eax
    0x48, 0xc1, 0xe8, 0x20, // shr rax,0x20
    0xe7, 0xe0, // out 0xe0,eax
    0xe6, 0xf4, // out 0xf4,al
    // stop:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop
];
#[rustfmt::skip]
const WRITE: &[u8] = &[
    0xbb, 0x00, 0x00, 0x00, 0xd0, // mov ebx,0xd0000000
    0xb8, 0x05, 0x00, 0x00, 0x00, // mov eax,0x5
    0xe7, 0x20, // out 0x20,eax
    0x89, 0x03, // mov DWORD PTR [rbx],eax
    0xb9, 0xc8, 0x00, 0x00, 0x00, // mov ecx,0xc8
    // spin:
    0xff, 0xc9, // dec ecx
    0x75, 0xfc, // jne spin
    0xff, 0xc0, // inc eax
    0xe7, 0xe0, // out 0xe0,eax
    0xe6, 0xf4, // out 0xf4,al
    // stop:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop
];
#[rustfmt::skip]
const STRING: &[u8] = &[
    0xfc, // cld
    0xba, 0x20, 0x00, 0x00, 0x00, // mov edx,0x20
    0xbf, 0x00, 0x80, 0x00, 0x00, // mov edi,0x8000
    0xb9, 0x06, 0x00, 0x00, 0x00, // mov ecx,0x6
    0xf3, 0x6c, // rep ins BYTE PTR es:[rdi],dx
    0x89, 0xc8, // mov eax,ecx
    0xb9, 0xc8, 0x00, 0x00, 0x00, // mov ecx,0xc8
    // spin:
    0xff, 0xc9, // dec ecx
    0x75, 0xfc, // jne spin
    0xe7, 0xe0, // out 0xe0,eax
    0x89, 0xf8, // mov eax,edi
    0xe7, 0xe0, // out 0xe0,eax
    0xe6, 0xf4, // out 0xf4,al
    // stop:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop
];
/// A vCPU at `code` that is kicked from within its first access.
fn stopped_in_access(
    hypervisor: &dyn Hypervisor,
    code: &[u8],
    answers: &[u64],
) -> (TestVm, TestVcpu) {
    let vm = TestVm::new(hypervisor, 1);
    vm.place(start::CODE, code);
    let mut vcpu = vm.bind(0);
    vcpu.load(&start::long_mode());
    vcpu.trace.answers = answers.iter().copied().collect();
    let kicker = vcpu.kicker();
    vcpu.trace.hook = Some(Box::new(move |_| kicker.kick()));
    assert_eq!(vcpu.run(), VcpuStop::Kicked);
    assert!(!vcpu.trace.done, "the kick came before the guest's end");
    (vm, vcpu)
}

/// Saves, goes on in another VM, and returns its reports and all accesses of both.
fn go_on_elsewhere(
    hypervisor: &dyn Hypervisor,
    vm: &TestVm,
    vcpu: &mut TestVcpu,
) -> (Vec<u32>, Vec<Access>, TestVm) {
    let state = vcpu.save();
    let other = vm.copy(hypervisor);
    let mut resumed = other.bind(0);
    resumed.load(&state);
    resumed.trace.answers = std::mem::take(&mut vcpu.trace.answers);
    // It may have been kicked between two accesses: the one after may come here.
    let mut reports = std::mem::take(&mut vcpu.trace.reports);
    reports.extend(resumed.run_until_done());
    let mut accesses = std::mem::take(&mut vcpu.trace.accesses);
    accesses.extend(&resumed.trace.accesses);
    (reports, accesses, other)
}

/// IN is not repeated and its value is not lost.
pub fn a_port_read_completes_once(hypervisor: &dyn Hypervisor) {
    let (vm, mut vcpu) = stopped_in_access(hypervisor, PORT, &[0x1234_5678, 0xbad]);
    let (reports, accesses, _) = go_on_elsewhere(hypervisor, &vm, &mut vcpu);
    assert_eq!(reports, [0x1234_5678]);
    assert_eq!(
        accesses,
        [Access::PortIn {
            port: 0x20,
            bytes: 4
        }]
    );
}

/// A read from a device that spans two pages: all pieces are read once.
pub fn a_memory_read_completes_once(hypervisor: &dyn Hypervisor) {
    let ones = 0x0101_0101_0101_0101;
    let (vm, mut vcpu) = stopped_in_access(hypervisor, MEMORY, &[ones; 8]);
    let (reports, accesses, _) = go_on_elsewhere(hypervisor, &vm, &mut vcpu);
    assert_eq!(reports, [0x0101_0101; 2]);
    let bytes: Vec<usize> = accesses
        .iter()
        .map(|access| match access {
            Access::MmioRead { bytes, .. } => *bytes,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(bytes.iter().sum::<usize>(), 8, "{accesses:x?}");
}

/// OUT and a store to a device happen once each.
pub fn a_write_happens_once(hypervisor: &dyn Hypervisor) {
    let (vm, mut vcpu) = stopped_in_access(hypervisor, WRITE, &[]);
    let (reports, accesses, _) = go_on_elsewhere(hypervisor, &vm, &mut vcpu);
    assert_eq!(reports, [6]);
    let expected = [
        Access::PortOut {
            port: 0x20,
            bytes: 4,
            value: 5,
        },
        Access::MmioWrite {
            gpa: start::MMIO,
            bytes: 4,
            value: 5,
        },
    ];
    assert_eq!(accesses, expected);
}

/// REP INS stopped in the middle: no element is lost or read twice.
pub fn a_string_read_goes_on_where_it_was(hypervisor: &dyn Hypervisor) {
    let (vm, mut vcpu) = stopped_in_access(hypervisor, STRING, &[1, 2, 3, 4, 5, 6, 0xbad]);
    let (reports, accesses, other) = go_on_elsewhere(hypervisor, &vm, &mut vcpu);
    assert_eq!(reports, [0, 0x8006]);
    assert_eq!(
        accesses,
        [Access::PortIn {
            port: 0x20,
            bytes: 1
        }; 6]
    );
    assert_eq!(other.read_u64(start::DATA), 0x0000_0605_0403_0201);
}
