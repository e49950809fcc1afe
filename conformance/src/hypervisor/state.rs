//! Complete state: save, change, load, save again, compare.

use vmm_core::cpu_state::VcpuState;
use vmm_core::hypervisor::Hypervisor;
use vmm_core::x86::{Msr, MsrList, X86VcpuState, lapic_register, msr};

use crate::guest::{TestVm, portable_cpu, start};

/// Changes every part of the state.
#[rustfmt::skip]
const CHANGES: &[u8] = &[
    0xb8, 0x18, 0x00, 0x00, 0x00, // mov eax,0x18
    0x8e, 0xe0, // mov fs,eax
    0x8e, 0xe8, // mov gs,eax
    0x0f, 0x01, 0x14, 0x25, 0x00, 0x81, 0x00, 0x00, // lgdt ds:0x8100
    0x0f, 0x01, 0x1c, 0x25, 0x10, 0x81, 0x00, 0x00, // lidt ds:0x8110
    0xb8, 0x77, 0x77, 0x00, 0x00, // mov eax,0x7777
    0x0f, 0x22, 0xd0, // mov cr2,rax
    0xb8, 0x07, 0x00, 0x00, 0x00, // mov eax,0x7
    0x44, 0x0f, 0x22, 0xc0, // mov cr8,rax
    0x0f, 0x20, 0xe0, // mov rax,cr4
    0x0d, 0x80, 0x00, 0x00, 0x00, // or eax,0x80
    0x0f, 0x22, 0xe0, // mov cr4,rax
    0xb9, 0x82, 0x00, 0x00, 0xc0, // mov ecx,0xc0000082
    0xb8, 0x78, 0x56, 0x34, 0x12, // mov eax,0x12345678
    0xba, 0x00, 0x80, 0xff, 0xff, // mov edx,0xffff8000
    0x0f, 0x30, // wrmsr
    0xb9, 0x02, 0x01, 0x00, 0xc0, // mov ecx,0xc0000102
    0x0f, 0x30, // wrmsr
    0xb9, 0x81, 0x00, 0x00, 0xc0, // mov ecx,0xc0000081
    0x0f, 0x30, // wrmsr
    0xb9, 0x76, 0x01, 0x00, 0x00, // mov ecx,0x176
    0x0f, 0x30, // wrmsr
    0xb9, 0x77, 0x02, 0x00, 0x00, // mov ecx,0x277
    0xb8, 0x06, 0x06, 0x06, 0x06, // mov eax,0x6060606
    0x89, 0xc2, // mov edx,eax
    0x0f, 0x30, // wrmsr
    0xb9, 0x50, 0x02, 0x00, 0x00, // mov ecx,0x250
    0x0f, 0x30, // wrmsr
    0xb9, 0x00, 0x02, 0x00, 0x00, // mov ecx,0x200
    0xb8, 0x06, 0x00, 0x00, 0xc0, // mov eax,0xc0000006
    0x31, 0xd2, // xor edx,edx
    0x0f, 0x30, // wrmsr
    0xbb, 0x00, 0x00, 0xe0, 0xfe, // mov ebx,0xfee00000
    0xc7, 0x83, 0xf0, 0x00, 0x00, 0x00, 0xfe, 0x01, 0x00, 0x00, // mov DWORD PTR [rbx+0xf0],0x1fe
    0xc7, 0x83, 0xd0, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x05, // mov DWORD PTR [rbx+0xd0],0x5000000
    0xc7, 0x83, 0x50, 0x03, 0x00, 0x00, 0x33, 0x07, 0x01, 0x00, // mov DWORD PTR [rbx+0x350],0x10733
    0xc7, 0x83, 0xe0, 0x03, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00, // mov DWORD PTR [rbx+0x3e0],0x3
    0xc7, 0x83, 0x10, 0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x06, // mov DWORD PTR [rbx+0x310],0x6000000
    0x48, 0xb8, 0x88, 0x88, 0x77, 0x77, 0x66, 0x66, 0x55, 0x55, // movabs rax,0x5555666677778888
    0x0f, 0x23, 0xc0, // mov dr0,rax
    0x0f, 0x23, 0xd8, // mov dr3,rax
    0xb8, 0x00, 0x05, 0x00, 0x00, // mov eax,0x500
    0x0f, 0x23, 0xf8, // mov dr7,rax
    0x0f, 0xae, 0x0c, 0x25, 0x00, 0x82, 0x00, 0x00, // fxrstor ds:0x8200
    0x0f, 0x10, 0x1c, 0x25, 0x80, 0x81, 0x00, 0x00, // movups xmm3,XMMWORD PTR ds:0x8180
    0x48, 0xb8, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, // movabs rax,0x1111111111111111
    0x48, 0x89, 0xc1, // mov rcx,rax
    0x48, 0x89, 0xc2, // mov rdx,rax
    0x48, 0x89, 0xc3, // mov rbx,rax
    0x48, 0x89, 0xc5, // mov rbp,rax
    0x48, 0x89, 0xc6, // mov rsi,rax
    0x48, 0x89, 0xc7, // mov rdi,rax
    0x49, 0x89, 0xc0, // mov r8,rax
    0x49, 0x89, 0xc1, // mov r9,rax
    0x49, 0x89, 0xc2, // mov r10,rax
    0x49, 0x89, 0xc3, // mov r11,rax
    0x49, 0x89, 0xc4, // mov r12,rax
    0x49, 0x89, 0xc5, // mov r13,rax
    0x49, 0x89, 0xc6, // mov r14,rax
    0x49, 0x89, 0xc7, // mov r15,rax
    0x48, 0xc7, 0xc4, 0x00, 0xf0, 0x06, 0x00, // mov rsp,0x6f000
    0xf9, // stc
    0xfd, // std
    0xe6, 0xf4, // out 0xf4,al
    // stop:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop
];
fn prepare(vm: &TestVm) {
    vm.place(start::CODE, CHANGES);
    let pointer = |base: u64, limit: u16| [&limit.to_le_bytes()[..], &base.to_le_bytes()].concat();
    vm.place(0x8100, &pointer(start::DESCRIPTOR_TABLE, 0x3f));
    vm.place(0x8110, &pointer(0x10_8000, 0x7ff));
    vm.place(0x8180, &[0x33; 16]);
    // FXSAVE area (Intel SDM volume 1, 10.5.1): control words, an empty stack but ST(0), registers.
    let mut area = [0x44_u8; 512];
    area[..2].copy_from_slice(&0x027f_u16.to_le_bytes());
    area[2..4].copy_from_slice(&0x3800_u16.to_le_bytes());
    area[4..6].copy_from_slice(&[0x80, 0]);
    area[6..24].fill(0);
    area[24..28].copy_from_slice(&0x1fa0_u32.to_le_bytes());
    area[28..32].fill(0);
    for register in 0..8 {
        area[32 + 16 * register + 10..48 + 16 * register].fill(0);
    }
    vm.place(0x8200, &area);
}

/// A state in which each part differs from what a reset leaves and from what [`CHANGES`] leaves.
pub(super) fn unusual() -> X86VcpuState {
    let mut state = start::long_mode();
    let general = &mut state.general;
    for (index, register) in (1_u64..).zip([
        &mut general.rax,
        &mut general.rbx,
        &mut general.rcx,
        &mut general.rdx,
        &mut general.rsi,
        &mut general.rdi,
        &mut general.rbp,
        &mut general.r8,
        &mut general.r9,
        &mut general.r10,
        &mut general.r11,
        &mut general.r12,
        &mut general.r13,
        &mut general.r14,
        &mut general.r15,
    ]) {
        *register = 0xa5a5_0000_0000_0000 | index;
    }
    // Carry, parity, adjust, zero, sign, overflow; interrupts are off.
    general.rflags = 0x8d7;
    state.system.fs.base = 0x7fff_1234_5000;
    state.system.gs.base = 0xffff_8880_1234_0000;
    state.system.cr2 = 0xdead_b000;
    state.system.cr8 = 3;
    // AMD's processors keep 32 bits of the SYSENTER registers.
    for (number, value) in [
        (msr::STAR, 0x0023_0010_0000_0000),
        (msr::LSTAR, 0xffff_ffff_8100_0000),
        (msr::CSTAR, 0xffff_ffff_8100_1000),
        (msr::SYSCALL_MASK, 0x0004_7700),
        (msr::KERNEL_GS_BASE, 0xffff_8880_0000_1000),
        (msr::SYSENTER_CS, 0x10),
        (msr::SYSENTER_ESP, 0x1000_1000),
        (msr::SYSENTER_EIP, 0x8100_2000),
        (msr::PAT, 0x0407_0105_0007_0406),
        // Memory ranges: 1 GiB uncached at 2 GiB, pieces of the first MiB, all on.
        (*msr::MTRR_VARIABLE.start(), 0x8000_0000),
        (*msr::MTRR_VARIABLE.start() + 1, 0xff_c000_0800),
        (*msr::MTRR_VARIABLE.end() - 1, 0x1_0000_0005),
        (msr::MTRR_FIXED[0], 0x0505_0505_0606_0606),
        (msr::MTRR_FIXED[10], 0x0400_0106_0504_0100),
        (msr::MTRR_DEF_TYPE, 0xc06),
    ] {
        state.msrs.retain(|msr| msr.index != number);
        state.msrs.push(Msr {
            index: number,
            value,
        });
    }
    for component in &mut state.xsave {
        match component.index {
            // One value on the x87 stack, other control words, MXCSR rounding up.
            0 => {
                let x87 = &mut component.bytes;
                x87[..2].copy_from_slice(&0x0f7f_u16.to_le_bytes());
                x87[2..4].copy_from_slice(&0x3800_u16.to_le_bytes());
                x87[4] = 0x80;
                x87[24..28].copy_from_slice(&0x5f80_u32.to_le_bytes());
                x87[32..42].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0xc0, 0, 0x40]);
            }
            1 => {
                for (byte, value) in component.bytes.iter_mut().zip((0..=255_u8).cycle()) {
                    *byte = value;
                }
            }
            _ => {}
        }
    }
    let mut register = |offset: usize, value: u32| {
        state.lapic[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
    };
    register(lapic_register::TASK_PRIORITY, 0x30);
    register(lapic_register::SPURIOUS, 0x1ff);
    register(lapic_register::LOGICAL_DESTINATION, 0x0100_0000);
    register(lapic_register::LVT_TIMER, 0x1_00ec);
    register(lapic_register::LVT_LINT0, 0x1_0700);
    register(lapic_register::TIMER_DIVIDE, 0xb);
    state.debug.addresses = [0x1000, 0x2000, 0xffff_ffff_8000_0000, 0x4000];
    state
}

/// Registers of the local APIC that follow others, or that differ between processors.
const DERIVED: [usize; 3] = [
    lapic_register::VERSION,
    lapic_register::ARBITRATION_PRIORITY,
    lapic_register::PROCESSOR_PRIORITY,
];

/// Without what is not fixed: the TSC and derived registers.
pub(super) fn comparable(mut state: X86VcpuState) -> X86VcpuState {
    state.set_msr(msr::TSC, 0);
    for offset in DERIVED {
        state.lapic[offset..offset + 4].fill(0);
    }
    state
}

/// Save, change everything by guest code, load, save: equal. The changes did change each part.
pub fn everything_comes_back(hypervisor: &dyn Hypervisor) {
    let vm = TestVm::new(hypervisor, 1);
    prepare(&vm);
    let mut vcpu = vm.bind(0);
    let loaded = unusual();
    vcpu.load(&loaded);
    let saved = comparable(vcpu.save());
    assert_same_values(&saved, &loaded);

    vcpu.run_until_done();
    let changed = comparable(vcpu.save());
    assert_ne!(changed.general, saved.general);
    assert_ne!(changed.system, saved.system);
    assert_ne!(changed.system.gdt, saved.system.gdt);
    assert_ne!(changed.system.idt, saved.system.idt);
    assert_ne!(changed.system.fs, saved.system.fs);
    for (changed, saved) in changed.xsave.iter().zip(&saved.xsave) {
        assert_ne!(changed, saved, "extended state");
    }
    for number in [
        msr::LSTAR,
        msr::KERNEL_GS_BASE,
        msr::STAR,
        msr::SYSENTER_EIP,
        msr::PAT,
        *msr::MTRR_VARIABLE.start(),
        msr::MTRR_FIXED[0],
    ] {
        assert_ne!(changed.msr(number), saved.msr(number), "MSR {number:#x}");
    }
    assert_ne!(changed.lapic, saved.lapic);
    assert_ne!(changed.debug, saved.debug);

    vcpu.load(&saved);
    assert_eq!(comparable(vcpu.save()), saved);
    let other = vm.copy(hypervisor);
    let mut elsewhere = other.bind(0);
    elsewhere.load(&saved);
    assert_eq!(comparable(elsewhere.save()), saved);
    vcpu.load(&changed);
    assert_eq!(comparable(vcpu.save()), changed);
}

/// What was loaded is what was saved, value by value.
fn assert_same_values(saved: &X86VcpuState, loaded: &X86VcpuState) {
    assert_eq!(saved.general, loaded.general);
    assert_eq!(saved.system, loaded.system);
    assert_eq!(saved.debug, loaded.debug);
    assert_eq!(saved.events, loaded.events);
    assert_eq!(saved.mp_state, loaded.mp_state);
    for msr in loaded.msrs.iter().filter(|msr| msr.index != msr::TSC) {
        assert_eq!(
            saved.msr(msr.index),
            Some(msr.value),
            "MSR {:#x}",
            msr.index
        );
    }
    for component in &loaded.xsave {
        let same = saved
            .xsave
            .iter()
            .find(|saved| saved.index == component.index);
        assert_eq!(same, Some(component));
    }
    for offset in (0..saved.lapic.len()).step_by(16) {
        if !DERIVED.contains(&offset) {
            let bytes = offset..offset + 4;
            let (saved, loaded) = (&saved.lapic[bytes.clone()], &loaded.lapic[bytes]);
            assert_eq!(saved, loaded, "local APIC register {offset:#x}");
        }
    }
}

/// The changed state is not only data: loaded elsewhere, the guest computes with it.
#[rustfmt::skip]
const GOES_ON: &[u8] = &[
    0x0f, 0xae, 0x04, 0x25, 0x00, 0x84, 0x00, 0x00, // fxsave ds:0x8400
    0x0f, 0x11, 0x2c, 0x25, 0x00, 0x86, 0x00, 0x00, // movups XMMWORD PTR ds:0x8600,xmm5
    0xb9, 0x82, 0x00, 0x00, 0xc0, // mov ecx,0xc0000082
    0x0f, 0x32, // rdmsr
    0xe7, 0xe0, // out 0xe0,eax
    0x64, 0x8b, 0x04, 0x25, 0x00, 0x00, 0x00, 0x00, // mov eax,DWORD PTR fs:0x0
    0xe7, 0xe0, // out 0xe0,eax
    0x44, 0x0f, 0x20, 0xc0, // mov rax,cr8
    0xe7, 0xe0, // out 0xe0,eax
    0x0f, 0x21, 0xc8, // mov rax,dr1
    0xe7, 0xe0, // out 0xe0,eax
    0xa1, 0xd0, 0x00, 0xe0, 0xfe, 0x00, 0x00, 0x00, 0x00, // movabs eax,ds:0xfee000d0
    0xe7, 0xe0, // out 0xe0,eax
    0x44, 0x89, 0xe0, // mov eax,r12d
    0xe7, 0xe0, // out 0xe0,eax
    0xe6, 0xf4, // out 0xf4,al
    // stop:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop
];
/// Loaded registers are those that guest code works with.
pub fn what_comes_back_goes_on(hypervisor: &dyn Hypervisor) {
    let vm = TestVm::new(hypervisor, 1);
    vm.place(start::CODE, GOES_ON);
    vm.place(0x9000, &0x600d_da7a_u32.to_le_bytes());
    let mut vcpu = vm.bind(0);
    let mut state = unusual();
    state.system.fs.base = 0x9000;
    vcpu.load(&state);
    let expected = [0x8100_0000, 0x600d_da7a, 3, 0x2000, 0x0100_0000, 0xc];
    let reports = vcpu.run_until_done();
    assert_eq!(reports, expected, "{reports:x?}");
    let mut xmm5 = [0; 16];
    vm.read_into(0x8600, &mut xmm5);
    assert_eq!(xmm5[..], state.xsave[1].bytes[80..96]);
    let mut area = [0; 512];
    vm.read_into(0x8400, &mut area);
    // Everything but the mask of MXCSR.
    assert_eq!(area[..28], state.xsave[0].bytes[..28]);
    assert_eq!(area[32..160], state.xsave[0].bytes[32..]);
    assert_eq!(area[160..416], state.xsave[1].bytes[..]);
}

/// A point of before MTRRs were saved loads with the list of MSRs that it was made with.
pub fn an_older_list_of_msrs_loads(hypervisor: &dyn Hypervisor) {
    let is_new =
        |number: u32| msr::MTRR_VARIABLE.contains(&number) || msr::MTRR_FIXED.contains(&number);
    let mut x86 = portable_cpu(hypervisor);
    let mut numbers = x86.msrs.numbers().to_vec();
    numbers.retain(|number| !is_new(*number));
    x86.msrs = MsrList::from_numbers(numbers.clone());
    let mut old = unusual();
    old.msrs.retain(|msr| !is_new(msr.index));
    let vm = TestVm::with_cpu(hypervisor, 1, x86);
    let mut vcpu = vm.bind(0);
    vcpu.load(&old);
    let saved = vcpu.save();
    assert_same_values(&saved, &old);
    let saved: Vec<u32> = saved.msrs.iter().map(|msr| msr.index).collect();
    assert_eq!(saved, numbers);
}

/// An MSR outside of the profile is an error, not ignored.
pub fn a_foreign_msr_is_refused(hypervisor: &dyn Hypervisor) {
    let vm = TestVm::new(hypervisor, 1);
    let mut vcpu = vm.bind(0);
    let mut state = start::long_mode();
    state.msrs.push(Msr {
        index: 0xdead,
        value: 1,
    });
    let error = vcpu
        .inner()
        .load(&VcpuState::X86(Box::new(state)))
        .expect_err("there is no such MSR");
    assert!(error.to_string().contains("0xdead"), "{error}");
}
