//! CPUID answers what the VM's table says.

use std::thread;

use vmm_core::hypervisor::Hypervisor;
use vmm_core::x86::CpuidEntry;

use crate::guest::{TestVcpu, TestVm, start};

/// Leaf and subleaf pairs at 0x8000, ended by leaf 0xffffffff; EAX, EBX, ECX, EDX go to 0x9000.
#[rustfmt::skip]
const QUERIES: &[u8] = &[
    0xbe, 0x00, 0x80, 0x00, 0x00, // mov esi,0x8000
    0xbf, 0x00, 0x90, 0x00, 0x00, // mov edi,0x9000
    // again:
    0x8b, 0x06, // mov eax,DWORD PTR [rsi]
    0x83, 0xf8, 0xff, // cmp eax,0xffffffff
    0x74, 0x1a, // je finish
    0x8b, 0x4e, 0x04, // mov ecx,DWORD PTR [rsi+0x4]
    0x0f, 0xa2, // cpuid
    0x89, 0x07, // mov DWORD PTR [rdi],eax
    0x89, 0x5f, 0x04, // mov DWORD PTR [rdi+0x4],ebx
    0x89, 0x4f, 0x08, // mov DWORD PTR [rdi+0x8],ecx
    0x89, 0x57, 0x0c, // mov DWORD PTR [rdi+0xc],edx
    0x48, 0x83, 0xc6, 0x08, // add rsi,0x8
    0x48, 0x83, 0xc7, 0x10, // add rdi,0x10
    0xeb, 0xdf, // jmp again
    // finish:
    0xe6, 0xf4, // out 0xf4,al
    // stop:
    0xf4, // hlt
    0xeb, 0xfd, // jmp stop
];
const ANSWERS: u64 = 0x9000;

fn query(vm: &TestVm, vcpu: &mut TestVcpu, apic_id: u8, leaves: &[(u32, u32)]) -> Vec<[u32; 4]> {
    let end = [(u32::MAX, 0)];
    let bytes: Vec<u8> = leaves
        .iter()
        .chain(&end)
        .flat_map(|(leaf, subleaf)| [leaf.to_le_bytes(), subleaf.to_le_bytes()].concat())
        .collect();
    vm.place(start::DATA, &bytes);
    vcpu.load(&start::long_mode_of(apic_id));
    vcpu.run_until_done();
    let word = |at: u64| vm.read_u64(at) as u32;
    (0..leaves.len() as u64)
        .map(|index| [0, 4, 8, 12].map(|offset| word(ANSWERS + index * 16 + offset)))
        .collect()
}

/// Takes out of an answer what follows other registers: OSXSAVE, OSPKE, and the APIC bits.
fn fixed(entry: &CpuidEntry) -> [u32; 4] {
    let CpuidEntry {
        eax, ebx, ecx, edx, ..
    } = *entry;
    match entry.leaf {
        1 => [eax, ebx, ecx & !(1 << 27), edx],
        7 => [eax, ebx, ecx & !(1 << 4), edx],
        // The size of the state in use.
        0xd => [eax, 0, ecx, edx],
        _ => [eax, ebx, ecx, edx],
    }
}

/// Every entry of the table, and nothing where there is none.
pub fn is_what_the_table_says(hypervisor: &dyn Hypervisor) {
    let vm = TestVm::new(hypervisor, 1);
    vm.place(start::CODE, QUERIES);
    let mut vcpu = vm.bind(0);
    let table = vm.x86.cpuid.for_vcpu(0);
    let leaves: Vec<(u32, u32)> = table
        .entries()
        .iter()
        .map(|e| (e.leaf, e.subleaf))
        .collect();
    let answers = query(&vm, &mut vcpu, 0, &leaves);
    for (entry, [eax, ebx, ecx, edx]) in table.entries().iter().zip(answers) {
        let got = CpuidEntry {
            eax,
            ebx,
            ecx,
            edx,
            ..*entry
        };
        let (got, expected) = (fixed(&got), fixed(entry));
        assert_eq!(
            got, expected,
            "leaf {:#x}.{}: {got:x?}",
            entry.leaf, entry.subleaf
        );
    }
    // Within the ranges, but not in the table: a kernel takes zeros for "not there".
    let absent: Vec<(u32, u32)> = [2, 3, 5, 6]
        .map(|leaf| (leaf, 0))
        .into_iter()
        .filter(|(leaf, subleaf)| table.get(*leaf, *subleaf).is_none())
        .collect();
    assert!(!absent.is_empty());
    for (leaf, answer) in absent.iter().zip(query(&vm, &mut vcpu, 0, &absent)) {
        assert_eq!(answer, [0; 4], "leaf {leaf:x?}");
    }
}

/// Leaf 1 tells each vCPU its own APIC id.
pub fn each_vcpu_has_its_own_id(hypervisor: &dyn Hypervisor) {
    let vm = TestVm::new(hypervisor, 3);
    vm.place(start::CODE, QUERIES);
    for index in 0..3_u8 {
        let binder = vm.binder(index);
        let vm = &vm;
        let answers = thread::scope(|scope| {
            let vcpu = scope.spawn(move || {
                let mut vcpu = TestVcpu::bind(binder);
                query(vm, &mut vcpu, index, &[(1, 0)])
            });
            vcpu.join().expect("a vCPU")
        });
        assert_eq!(answers[0][1] >> 24, u32::from(index));
    }
}
