//! Accesses to addresses that are not memory.

use vmm_core::hypervisor::Hypervisor;

use crate::guest::{Access, TestVm, start};

fn read(offset: u64, bytes: usize) -> Access {
    let gpa = start::MMIO + offset;
    Access::MmioRead { gpa, bytes }
}

fn write(offset: u64, bytes: usize, value: u64) -> Access {
    let gpa = start::MMIO + offset;
    Access::MmioWrite { gpa, bytes, value }
}

#[rustfmt::skip]
const SIZES: &[u8] = &[
    0xbb, 0x00, 0x00, 0x00, 0xd0, // mov ebx,0xd0000000
    0x48, 0xb8, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, // movabs rax,0x1122334455667788
    0x88, 0x03, // mov BYTE PTR [rbx],al
    0x66, 0x89, 0x43, 0x02, // mov WORD PTR [rbx+0x2],ax
    0x89, 0x43, 0x04, // mov DWORD PTR [rbx+0x4],eax
    0x48, 0x89, 0x43, 0x08, // mov QWORD PTR [rbx+0x8],rax
    0xc6, 0x43, 0x10, 0x99, // mov BYTE PTR [rbx+0x10],0x99
    0xc7, 0x43, 0x14, 0xfe, 0xff, 0xff, 0xff, // mov DWORD PTR [rbx+0x14],0xfffffffe
    0x48, 0xc7, 0x43, 0x18, 0xfe, 0xff, 0xff, 0xff, // mov QWORD PTR [rbx+0x18],0xfffffffffffffffe
    0x8a, 0x03, // mov al,BYTE PTR [rbx]
    0x49, 0x89, 0xc0, // mov r8,rax
    0x66, 0x8b, 0x43, 0x02, // mov ax,WORD PTR [rbx+0x2]
    0x49, 0x89, 0xc1, // mov r9,rax
    0x8b, 0x43, 0x04, // mov eax,DWORD PTR [rbx+0x4]
    0x49, 0x89, 0xc2, // mov r10,rax
    0x48, 0x8b, 0x43, 0x08, // mov rax,QWORD PTR [rbx+0x8]
    0x49, 0x89, 0xc3, // mov r11,rax
    0x44, 0x0f, 0xb7, 0x63, 0x02, // movzx r12d,WORD PTR [rbx+0x2]
    0x4c, 0x0f, 0xbe, 0x2b, // movsx r13,BYTE PTR [rbx]
    0x4c, 0x63, 0x73, 0x04, // movsxd r14,DWORD PTR [rbx+0x4]
    0xe6, 0xf4, // out 0xf4,al
    // stop:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop
];
/// All sizes, with sign and zero extension.
pub fn each_size_is_read_and_written(hypervisor: &dyn Hypervisor) {
    let vm = TestVm::new(hypervisor, 1);
    vm.place(start::CODE, SIZES);
    let mut vcpu = vm.bind(0);
    vcpu.load(&start::long_mode());
    vcpu.trace.answers = [
        0xa1,
        0xb2b1,
        0xc4c3_c2c1,
        0xd8d7_d6d5_d4d3_d2d1,
        0xe2e1,
        0x80,
        0x8000_0000,
    ]
    .into();
    vcpu.run_until_done();
    let accesses = [
        write(0, 1, 0x88),
        write(2, 2, 0x7788),
        write(4, 4, 0x5566_7788),
        write(8, 8, 0x1122_3344_5566_7788),
        write(16, 1, 0x99),
        write(20, 4, 0xffff_fffe),
        write(24, 8, -2_i64 as u64),
        read(0, 1),
        read(2, 2),
        read(4, 4),
        read(8, 8),
        read(2, 2),
        read(0, 1),
        read(4, 4),
    ];
    assert_eq!(vcpu.trace.accesses, accesses);
    let general = vcpu.save().general;
    assert_eq!(general.r8, 0x1122_3344_5566_77a1);
    assert_eq!(general.r9, 0x1122_3344_5566_b2b1);
    assert_eq!(general.r10, 0xc4c3_c2c1);
    assert_eq!(general.r11, 0xd8d7_d6d5_d4d3_d2d1);
    assert_eq!(general.r12, 0xe2e1);
    assert_eq!(general.r13, 0xffff_ffff_ffff_ff80);
    assert_eq!(general.r14, 0xffff_ffff_8000_0000);
}

#[rustfmt::skip]
const MODIFY: &[u8] = &[
    0xbb, 0x00, 0x00, 0x00, 0xd0, // mov ebx,0xd0000000
    0x83, 0x03, 0x05, // add DWORD PTR [rbx],0x5
    0x80, 0x4b, 0x04, 0x80, // or BYTE PTR [rbx+0x4],0x80
    0xb9, 0x00, 0x10, 0x00, 0x00, // mov ecx,0x1000
    0x87, 0x4b, 0x08, // xchg DWORD PTR [rbx+0x8],ecx
    0x83, 0x7b, 0x0c, 0x07, // cmp DWORD PTR [rbx+0xc],0x7
    0x0f, 0x94, 0xc0, // sete al
    0x0f, 0xb6, 0xc0, // movzx eax,al
    0xe7, 0xe0, // out 0xe0,eax
    0x89, 0xc8, // mov eax,ecx
    0xe7, 0xe0, // out 0xe0,eax
    0xe6, 0xf4, // out 0xf4,al
    // stop:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop
];
/// Instructions that read and write the same address do each once.
pub fn read_modify_write_is_a_read_and_a_write(hypervisor: &dyn Hypervisor) {
    let vm = TestVm::new(hypervisor, 1);
    vm.place(start::CODE, MODIFY);
    let mut vcpu = vm.bind(0);
    vcpu.load(&start::long_mode());
    vcpu.trace.answers = [100, 3, 0x77, 7].into();
    assert_eq!(vcpu.run_until_done(), [1, 0x77]);
    let accesses = [
        read(0, 4),
        write(0, 4, 105),
        read(4, 1),
        write(4, 1, 0x83),
        read(8, 4),
        write(8, 4, 0x1000),
        read(12, 4),
    ];
    assert_eq!(vcpu.trace.accesses, accesses);
}

#[rustfmt::skip]
const STRINGS: &[u8] = &[
    0xfc, // cld
    0xbe, 0x00, 0x01, 0x00, 0xd0, // mov esi,0xd0000100
    0xbf, 0x00, 0x80, 0x00, 0x00, // mov edi,0x8000
    0xb9, 0x03, 0x00, 0x00, 0x00, // mov ecx,0x3
    0xf3, 0xa5, // rep movs DWORD PTR es:[rdi],DWORD PTR ds:[rsi]
    0xbe, 0x00, 0x80, 0x00, 0x00, // mov esi,0x8000
    0xbf, 0x00, 0x02, 0x00, 0xd0, // mov edi,0xd0000200
    0xb9, 0x02, 0x00, 0x00, 0x00, // mov ecx,0x2
    0x66, 0xf3, 0xa5, // rep movs WORD PTR es:[rdi],WORD PTR ds:[rsi]
    0xb8, 0xaa, 0x00, 0x00, 0x00, // mov eax,0xaa
    0xb9, 0x02, 0x00, 0x00, 0x00, // mov ecx,0x2
    0xf3, 0xaa, // rep stos BYTE PTR es:[rdi],al
    0x89, 0xf8, // mov eax,edi
    0xe7, 0xe0, // out 0xe0,eax
    0xe6, 0xf4, // out 0xf4,al
    // stop:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop
];
/// MOVS from and to a device, STOS to one: one access per element.
pub fn strings_move_between_device_and_memory(hypervisor: &dyn Hypervisor) {
    let vm = TestVm::new(hypervisor, 1);
    vm.place(start::CODE, STRINGS);
    let mut vcpu = vm.bind(0);
    vcpu.load(&start::long_mode());
    vcpu.trace.answers = [0x1111_2222, 0x3333_4444, 0x5555_6666].into();
    assert_eq!(vcpu.run_until_done(), [0xd000_0206]);
    let accesses = [
        read(0x100, 4),
        read(0x104, 4),
        read(0x108, 4),
        write(0x200, 2, 0x2222),
        write(0x202, 2, 0x1111),
        write(0x204, 1, 0xaa),
        write(0x205, 1, 0xaa),
    ];
    assert_eq!(vcpu.trace.accesses, accesses);
    assert_eq!(vm.read_u64(start::DATA), 0x3333_4444_1111_2222);
}

#[rustfmt::skip]
const ACROSS: &[u8] = &[
    0xbb, 0xfe, 0x0f, 0x00, 0xd0, // mov ebx,0xd0000ffe
    0x48, 0xb8, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, // movabs rax,0x1122334455667788
    0x48, 0x89, 0x03, // mov QWORD PTR [rbx],rax
    0x48, 0x8b, 0x03, // mov rax,QWORD PTR [rbx]
    0x49, 0x89, 0xc0, // mov r8,rax
    0xe6, 0xf4, // out 0xf4,al
    // stop:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop
];
/// An access that spans two pages comes in pieces; together they are the whole.
pub fn an_access_across_pages_arrives_whole(hypervisor: &dyn Hypervisor) {
    let vm = TestVm::new(hypervisor, 1);
    vm.place(start::CODE, ACROSS);
    let mut vcpu = vm.bind(0);
    vcpu.load(&start::long_mode());
    vcpu.trace.answers = std::iter::repeat_n(0x5555_5555_5555_5555, 8).collect();
    vcpu.run_until_done();
    let (mut written, mut read) = ([0_u8; 8], 0);
    for access in &vcpu.trace.accesses {
        match *access {
            Access::MmioWrite { gpa, bytes, value } => {
                let at = (gpa - start::MMIO - 0xffe) as usize;
                written[at..at + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
            }
            Access::MmioRead { bytes, .. } => read += bytes,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(u64::from_le_bytes(written), 0x1122_3344_5566_7788);
    assert_eq!(read, 8);
    assert_eq!(vcpu.save().general.r8, 0x5555_5555_5555_5555);
}
