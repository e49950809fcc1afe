//! Whole machines around a guest that counts.

use std::sync::Arc;
use std::time::Duration;

use snapshot_format::StateRecord;
use vm_memory::{Bytes, GuestAddress};
use vmm_core::hypervisor::Hypervisor;
use vmm_core::machine::{BuiltMachine, MachineBuilder, RunningMachine, X86MachineRecord};
use vmm_core::ram::{GuestRam, RamBacking};
use vmm_core::testing::{MemoryDisk, pvh_kernel};
use vmm_core::x86::boot::BootImage;
use vmm_core::x86::{self, X86VcpuState, msr};
use vmm_core::{VcpuIndex, cpu_state::VcpuState};

use super::portable_cpu;

/// Where the code lies, and where it begins.
const ADDRESS: u32 = 0x100_0000;
/// The first of [`COUNTED_PAGES`] pages, in each of which the guest counts in turn.
pub const COUNTERS: u64 = 0x120_0000;
/// Pages that the guest writes.
pub const COUNTED_PAGES: u64 = 64;
/// When this is not zero the guest switches itself off.
pub const OFF: u64 = 0x130_0000;
/// Memory of the machines in bytes.
const RAM_BYTES: u64 = 32 << 20;
/// Size of the disk in bytes.
pub const DISK_BYTES: usize = 1 << 20;

#[rustfmt::skip]
const CODE: &[u8] = &[
    0x31, 0xc0, // xor eax,eax
    // again:
    0x83, 0x3d, 0x00, 0x00, 0x30, 0x01, 0x00, // cmp DWORD PTR ds:0x1300000,0x0
    0x75, 0x1b, // jne off
    0xbb, 0x00, 0x00, 0x20, 0x01, // mov ebx,0x1200000
    // round:
    0x40, // inc eax
    0x89, 0x43, 0x08, // mov DWORD PTR [ebx+0x8],eax
    0xff, 0x03, // inc DWORD PTR [ebx]
    0x81, 0xc3, 0x00, 0x10, 0x00, 0x00, // add ebx,0x1000
    0x81, 0xfb, 0x00, 0x00, 0x24, 0x01, // cmp ebx,0x1240000
    0x75, 0xec, // jne round
    0xeb, 0xdc, // jmp again
    // off:
    0xb0, 0x34, // mov al,0x34
    0x66, 0xba, 0x00, 0x06, // mov dx,0x600
    0xee, // out dx,al
    0xeb, 0xfe, // jmp $
];

/// A machine with devices, of one vCPU, that has not run.
pub fn build(hypervisor: &dyn Hypervisor) -> (BuiltMachine, Arc<MemoryDisk>) {
    let cpu = portable_cpu(hypervisor);
    let record = X86MachineRecord {
        cpuid: cpu.cpuid,
        msrs: cpu.msrs,
        tsc_khz: cpu.tsc_khz,
    };
    let layout = x86::ram_layout(RAM_BYTES).expect("a layout");
    let ram = GuestRam::new(layout, &RamBacking::Anonymous).expect("memory");
    let disk = Arc::new(MemoryDisk::new(DISK_BYTES, false));
    let built = MachineBuilder::new(ram, 1, record)
        .root_disk(disk.clone())
        .build(hypervisor)
        .expect("a machine");
    (built, disk)
}

/// A machine whose guest counts in its pages, without end, and whose writes are tracked.
pub fn counting(hypervisor: &dyn Hypervisor) -> (RunningMachine, Arc<MemoryDisk>) {
    let (built, disk) = build(hypervisor);
    built.tracker().start().expect("tracking starts");
    let kernel = pvh_kernel(ADDRESS, CODE, Some(ADDRESS));
    let image = BootImage {
        kernel: &kernel,
        initramfs: None,
        command_line: "",
    };
    (built.boot(&image).expect("it boots"), disk)
}

/// How often the guest has counted in page `index`.
pub fn count(machine: &RunningMachine, index: u64) -> u32 {
    let at = GuestAddress(COUNTERS + index * 4096);
    machine.ram().read_obj(at).expect("a counter")
}

/// Waits until the guest has been through all pages once more, at least.
pub fn wait_for_a_round(machine: &mut RunningMachine) {
    let before = count(machine, 0);
    // No time limit: a guest that hangs is ended by the test runner.
    while count(machine, 0).wrapping_sub(before) < 3 {
        let event = machine.next_event(Duration::from_millis(1));
        assert_eq!(event, None, "the guest counts on");
    }
}

/// All of a machine's memory.
pub fn memory(ram: &GuestRam) -> Vec<u8> {
    let mut bytes = vec![0; RAM_BYTES as usize];
    ram.read_slice(&mut bytes, GuestAddress(0)).expect("memory");
    bytes
}

/// The units' states without what goes on while a machine stands (its clocks), and what a return to the past changes by
/// intention (the generation id).
pub fn comparable(records: &[StateRecord]) -> Vec<StateRecord> {
    let mut records = records.to_vec();
    records.retain(|record| !matches!(record.unit.as_str(), "vmgenid" | "clock"));
    for record in &mut records {
        let index = VcpuIndex(0);
        if record.unit == index.to_string() {
            let state = VcpuState::from_record(record, index).expect("a vCPU's state");
            let mut state: X86VcpuState = match state {
                VcpuState::X86(state) => *state,
                other => panic!("an x86 vCPU has the state {other:?}"),
            };
            state.set_msr(msr::TSC, 0);
            *record = VcpuState::X86(Box::new(state)).to_record(index);
        }
    }
    records
}
