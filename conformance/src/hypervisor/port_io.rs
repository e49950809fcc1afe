//! Port input and output.

use vmm_core::hypervisor::Hypervisor;

use crate::guest::{Access, TestVm, start};

#[rustfmt::skip]
const SIZES: &[u8] = &[
    0xb8, 0x44, 0x33, 0x22, 0x11, // mov eax,0x11223344
    0xe6, 0x10, // out 0x10,al
    0x66, 0xe7, 0x10, // out 0x10,ax
    0xe7, 0x10, // out 0x10,eax
    0x66, 0xba, 0x34, 0x12, // mov dx,0x1234
    0xee, // out dx,al
    0x66, 0xef, // out dx,ax
    0xef, // out dx,eax
    0xe4, 0x20, // in al,0x20
    0xe7, 0xe0, // out 0xe0,eax
    0x66, 0xe5, 0x20, // in ax,0x20
    0xe7, 0xe0, // out 0xe0,eax
    0xe5, 0x20, // in eax,0x20
    0xe7, 0xe0, // out 0xe0,eax
    0xba, 0x78, 0x56, 0xff, 0xff, // mov edx,0xffff5678
    0xec, // in al,dx
    0xe7, 0xe0, // out 0xe0,eax
    0x66, 0xed, // in ax,dx
    0xe7, 0xe0, // out 0xe0,eax
    0xed, // in eax,dx
    0xe7, 0xe0, // out 0xe0,eax
    0xe6, 0xf4, // out 0xf4,al
    // stop:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop
];
/// All sizes, by immediate and by DX; input leaves the rest of the register alone.
pub fn each_size_goes_out_and_comes_in(hypervisor: &dyn Hypervisor) {
    let vm = TestVm::new(hypervisor, 1);
    vm.place(start::CODE, SIZES);
    let mut vcpu = vm.bind(0);
    vcpu.load(&start::protected_mode());
    vcpu.trace.answers = [0xa1, 0xb2b1, 0xc4c3_c2c1, 0xd1, 0xe2e1, 0xf4f3_f2f1].into();
    let expected = [
        0x1122_33a1,
        0x1122_b2b1,
        0xc4c3_c2c1,
        0xc4c3_c2d1,
        0xc4c3_e2e1,
        0xf4f3_f2f1,
    ];
    assert_eq!(vcpu.run_until_done(), expected);
    let out = |port, bytes, value| Access::PortOut { port, bytes, value };
    let input = |port, bytes| Access::PortIn { port, bytes };
    let accesses = [
        out(0x10, 1, 0x44),
        out(0x10, 2, 0x3344),
        out(0x10, 4, 0x1122_3344),
        out(0x1234, 1, 0x44),
        out(0x1234, 2, 0x3344),
        out(0x1234, 4, 0x1122_3344),
        input(0x20, 1),
        input(0x20, 2),
        input(0x20, 4),
        input(0x5678, 1),
        input(0x5678, 2),
        input(0x5678, 4),
    ];
    assert_eq!(vcpu.trace.accesses, accesses);
}

#[rustfmt::skip]
const STRINGS: &[u8] = &[
    0xfc, // cld
    0xbe, 0x00, 0x80, 0x00, 0x00, // mov esi,0x8000
    0xba, 0x30, 0x00, 0x00, 0x00, // mov edx,0x30
    0xb9, 0x03, 0x00, 0x00, 0x00, // mov ecx,0x3
    0xf3, 0x6e, // rep outs dx,BYTE PTR ds:[esi]
    0xb9, 0x02, 0x00, 0x00, 0x00, // mov ecx,0x2
    0x66, 0xf3, 0x6f, // rep outs dx,WORD PTR ds:[esi]
    0xb9, 0x02, 0x00, 0x00, 0x00, // mov ecx,0x2
    0xf3, 0x6f, // rep outs dx,DWORD PTR ds:[esi]
    0x6e, // outs dx,BYTE PTR ds:[esi]
    0xbf, 0x00, 0x81, 0x00, 0x00, // mov edi,0x8100
    0xba, 0x31, 0x00, 0x00, 0x00, // mov edx,0x31
    0xb9, 0x05, 0x00, 0x00, 0x00, // mov ecx,0x5
    0xf3, 0x6c, // rep ins BYTE PTR es:[edi],dx
    0xb9, 0x02, 0x00, 0x00, 0x00, // mov ecx,0x2
    0x66, 0xf3, 0x6d, // rep ins WORD PTR es:[edi],dx
    0x6d, // ins DWORD PTR es:[edi],dx
    0xfd, // std
    0xbf, 0x04, 0x82, 0x00, 0x00, // mov edi,0x8204
    0xb9, 0x02, 0x00, 0x00, 0x00, // mov ecx,0x2
    0xf3, 0x6d, // rep ins DWORD PTR es:[edi],dx
    0xb9, 0x00, 0x00, 0x00, 0x00, // mov ecx,0x0
    0xf3, 0x6d, // rep ins DWORD PTR es:[edi],dx
    0x89, 0xf0, // mov eax,esi
    0xe7, 0xe0, // out 0xe0,eax
    0x89, 0xf8, // mov eax,edi
    0xe7, 0xe0, // out 0xe0,eax
    0xe6, 0xf4, // out 0xf4,al
    // stop:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop
];
/// INS and OUTS with and without REP, both directions: one access per element, in order.
pub fn strings_go_element_by_element(hypervisor: &dyn Hypervisor) {
    let vm = TestVm::new(hypervisor, 1);
    vm.place(start::CODE, STRINGS);
    let bytes: Vec<u8> = (1..=32).collect();
    vm.place(start::DATA, &bytes);
    let mut vcpu = vm.bind(0);
    vcpu.load(&start::protected_mode());
    let answers = [
        0x41,
        0x42,
        0x43,
        0x44,
        0x45,
        0x5251,
        0x5453,
        0x6463_6261,
        0x7473_7271,
        0x8483_8281,
    ];
    vcpu.trace.answers = answers.into();
    assert_eq!(vcpu.run_until_done(), [0x8010, 0x81fc]);
    let out = |bytes, value| Access::PortOut {
        port: 0x30,
        bytes,
        value,
    };
    let input = |bytes| Access::PortIn { port: 0x31, bytes };
    let accesses = [
        out(1, 1),
        out(1, 2),
        out(1, 3),
        out(2, 0x0504),
        out(2, 0x0706),
        out(4, 0x0b0a_0908),
        out(4, 0x0f0e_0d0c),
        out(1, 0x10),
        input(1),
        input(1),
        input(1),
        input(1),
        input(1),
        input(2),
        input(2),
        input(4),
        input(4),
        input(4),
    ];
    assert_eq!(vcpu.trace.accesses, accesses);
    let mut read = [0; 13];
    vm.read_into(0x8100, &mut read);
    assert_eq!(read, *b"ABCDEQRSTabcd");
    assert_eq!(vm.read_u64(0x8200), 0x7473_7271_8483_8281);
}
