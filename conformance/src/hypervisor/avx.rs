//! AVX state: XCR0 and the upper halves of the YMM registers.

use vmm_core::hypervisor::{Hypervisor, X86Spec};
use vmm_core::x86::{self, CpuProfile};

use crate::guest::{TestVm, start};
use crate::skip;

/// Number and length in bytes of the registers.
const REGISTERS: u32 = 16;
const REGISTER_BYTES: u32 = 32;
/// Where the guest finds what it loads, and where it stores.
const GIVEN: u32 = start::DATA as u32 + 0x200;
const FOUND: u32 = start::DATA as u32 + 0x400;
/// XCR0 of a guest that uses x87, SSE and AVX.
const XCR0_AVX: u32 = 7;
/// The component of the XSAVE area that holds the upper halves (Intel SDM volume 1, 13.1).
const AVX_COMPONENT: u8 = 2;

/// Enables AVX.
#[rustfmt::skip]
const ENABLE: &[u8] = &[
    0x0f, 0x20, 0xe0, // mov rax,cr4
    0x0d, 0x00, 0x00, 0x04, 0x00, // or eax,0x40000
    0x0f, 0x22, 0xe0, // mov cr4,rax
    0x31, 0xc9, // xor ecx,ecx
    0x31, 0xd2, // xor edx,edx
    0xb8, 0x07, 0x00, 0x00, 0x00, // mov eax,0x7
    0x0f, 0x01, 0xd1, // xsetbv
];
/// Reports XCR0.
#[rustfmt::skip]
const REPORT: &[u8] = &[
    0x31, 0xc9, // xor ecx,ecx
    0x0f, 0x01, 0xd0, // xgetbv
    0xe7, 0xe0, // out 0xe0,eax
];
#[rustfmt::skip]
const DONE: &[u8] = &[0xe6, 0xf4]; // out 0xf4,al

/// Which way registers are moved: the opcodes of VMOVDQU.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Move {
    FromMemory = 0x6f,
    ToMemory = 0x7f,
}

/// `vmovdqu` between each register and memory from `address` on.
fn move_all(direction: Move, address: u32) -> impl Iterator<Item = u8> {
    (0..REGISTERS).flat_map(move |register| {
        // The two-byte VEX prefix: bit 7 is REX.R inverted, then no second operand, 256 bits, F3.
        let prefix = if register < 8 { 0xfe } else { 0x7e };
        let operand = 0x04 | (register as u8 & 7) << 3;
        let place = address + register * REGISTER_BYTES;
        let instruction = [0xc5, prefix, direction as u8, operand, 0x25];
        instruction.into_iter().chain(place.to_le_bytes())
    })
}

fn program() -> Vec<u8> {
    let mut code = ENABLE.to_vec();
    code.extend(move_all(Move::FromMemory, GIVEN));
    code.extend(DONE);
    code.extend(REPORT);
    code.extend(move_all(Move::ToMemory, FOUND));
    code.extend(DONE);
    code
}

/// Registers that a guest loaded are saved whole, and are there again in another VM.
pub fn registers_go_on_elsewhere(hypervisor: &dyn Hypervisor) {
    let host = hypervisor.capabilities().x86.as_ref();
    let host = host.expect("an x86 backend");
    let (cpuid, msrs) = match x86::build_profile(CpuProfile::V3, &host.cpuid) {
        Ok(profile) => profile,
        Err(error) => {
            return skip::because("avx::registers_go_on_elsewhere", &error.to_string());
        }
    };
    let x86 = X86Spec {
        cpuid,
        msrs,
        tsc_khz: host.tsc_khz,
    };
    let given: Vec<u8> = (0..REGISTERS * REGISTER_BYTES)
        .map(|index| (index * 7 + index / REGISTER_BYTES) as u8)
        .collect();
    let vm = TestVm::with_cpu(hypervisor, 1, x86);
    vm.place(start::CODE, &program());
    vm.place(GIVEN.into(), &given);
    let mut vcpu = vm.bind(0);
    vcpu.load(&start::long_mode());
    vcpu.run_until_done();
    let saved = vcpu.save();
    assert_eq!(saved.xcr0, u64::from(XCR0_AVX));
    let upper = saved
        .xsave
        .iter()
        .find(|component| component.index == AVX_COMPONENT);
    let halves: Vec<u8> = given
        .chunks(REGISTER_BYTES as usize)
        .flat_map(|register| &register[REGISTER_BYTES as usize / 2..])
        .copied()
        .collect();
    assert_eq!(upper.map(|component| &component.bytes), Some(&halves));

    let other = vm.copy(hypervisor);
    let mut elsewhere = other.bind(0);
    elsewhere.load(&saved);
    assert_eq!(elsewhere.run_until_done(), [XCR0_AVX]);
    let mut found = vec![0; given.len()];
    other.read_into(FOUND.into(), &mut found);
    assert_eq!(found, given);
}
