//! Fuzz bodies for saved state: what a hostile point gives to vCPUs and devices.

use std::io;
use std::sync::Arc;

use super::{MemoryDisk, TestIrq, test_ram};
use crate::arm64::Arm64VcpuState;
use crate::bus::BusDevice;
use crate::hypervisor::Vm;
use crate::serial::Serial;
use crate::tracker::DirtyTracker;
use crate::unit::StateUnit;
use crate::virtio::{Balloon, Blk, Rng, VirtioDevice, VirtioMmio};
use crate::x86::{Ioapic, X86VcpuState};

/// Size of the disk whose state is restored.
const DISK_BYTES: usize = 64 << 10;
/// Bytes that make one edit of a saved state: offset (two bytes), value.
const EDIT_BYTES: usize = 3;

/// The decoders of vCPU state, on any bytes.
///
/// # Panics
/// If what was read changes when it is written and read again.
pub fn fuzz_vcpu_state(input: &[u8]) {
    if let Ok(state) = X86VcpuState::decode(input) {
        assert_eq!(X86VcpuState::decode(&state.encode()), Ok(state));
    }
    if let Ok(state) = Arm64VcpuState::decode(input) {
        assert_eq!(Arm64VcpuState::decode(&state.encode()), Ok(state));
    }
}

/// Devices that are put into a state made up from `input`: its first byte chooses the device, its second whether the
/// rest is a state, or a list of edits to the device's own.
///
/// # Panics
/// If a device that took the state cannot be saved, or does not take what it saved.
pub fn fuzz_unit_state(input: &[u8]) {
    let [device, form, rest @ ..] = input else {
        return;
    };
    let Ok(ram) = test_ram() else {
        return;
    };
    let slot = |device: Arc<dyn VirtioDevice>| {
        let slot = VirtioMmio::new("fuzz", 0, device, ram.clone(), Arc::<TestIrq>::default());
        if let Ok(slot) = slot {
            restore_hostile(&slot, *form, rest);
            run_hostile(&slot);
        }
    };
    match device % 5 {
        0 => {
            if let Ok(blk) = Blk::new(Arc::new(MemoryDisk::new(DISK_BYTES, false)), "fuzz") {
                slot(Arc::new(blk));
            }
        }
        1 => slot(Arc::new(Rng::from_source(Box::new(io::repeat(5))))),
        2 => slot(Arc::new(Balloon::new(DirtyTracker::new(
            ram.clone(),
            Arc::new(NoVm),
        )))),
        3 => {
            if let Ok(serial) = Serial::new(Box::new(io::sink()), Arc::<TestIrq>::default()) {
                restore_hostile(&serial, *form, rest);
            }
        }
        _ => restore_hostile(Ioapic::new(Arc::new(NoVm)).as_ref(), *form, rest),
    }
}

/// A VM without any powers: messages sent to it go nowhere.
struct NoVm;

impl Vm for NoVm {}

fn restore_hostile(unit: &dyn StateUnit, form: u8, rest: &[u8]) {
    let own = unit.save().expect("a device at rest can be saved");
    let mut hostile = own.clone();
    if form & 1 == 0 {
        hostile.bytes = rest.to_vec();
    } else {
        for edit in rest.chunks_exact(EDIT_BYTES) {
            let at = usize::from(u16::from_le_bytes([edit[0], edit[1]]));
            if let Some(byte) = at
                .checked_rem(hostile.bytes.len())
                .and_then(|at| hostile.bytes.get_mut(at))
            {
                *byte = edit[2];
            }
        }
    }
    if unit.restore(&hostile).is_ok() {
        let saved = unit.save().expect("a restored device can be saved");
        unit.restore(&saved)
            .expect("a device takes what it saved after a restore");
        assert_eq!(unit.save().expect("as before"), saved);
    }
}

/// Lets a virtio device work with whatever queues it was given, and stops it.
fn run_hostile(slot: &VirtioMmio) {
    slot.resume();
    for queue in 0..4u32 {
        slot.write(0x50, &queue.to_le_bytes());
    }
    slot.quiesce();
    slot.save().expect("a device at rest can be saved");
    slot.stop();
}

#[cfg(test)]
mod tests {
    use super::super::fuzz::inputs;
    use super::*;

    #[test]
    fn hostile_unit_states() {
        // Few edits are taken by the devices, many are refused; both forms come up.
        inputs(2_000, |input| {
            let edits = usize::from(input[2] % 8);
            fuzz_unit_state(&input[..2 + edits * EDIT_BYTES]);
            fuzz_unit_state(&[&[input[0], 1], &input[3..3 + EDIT_BYTES]].concat());
        });
    }

    #[test]
    fn hostile_vcpu_states() {
        let good = X86VcpuState::reset(0).encode();
        assert!(X86VcpuState::decode(&good).is_ok());
        inputs(500, |input| {
            fuzz_vcpu_state(input);
            let mut edited = good.clone();
            for edit in input[1..]
                .chunks_exact(EDIT_BYTES)
                .take(usize::from(input[0] % 4))
            {
                let at = usize::from(u16::from_le_bytes([edit[0], edit[1]])) % edited.len();
                edited[at] = edit[2];
            }
            fuzz_vcpu_state(&edited);
        });
    }
}
