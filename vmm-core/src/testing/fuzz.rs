//! Fuzz bodies: a byte string becomes register accesses and memory contents of a hostile guest.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use vm_memory::{Bytes, GuestAddress};

use super::{Driver, MemoryDisk, TestIrq, test_ram};
use crate::bus::BusDevice;
use crate::host_side::{VsockBackend, VsockDial};
use crate::hypervisor::Vm;
use crate::ram::GuestRam;
use crate::serial::Serial;
use crate::tracker::DirtyTracker;
use crate::unit::StateUnit;
use crate::virtio::{Balloon, Blk, Rng, VirtioDevice, VirtioMmio, Vsock};

/// Size of the disk that the fuzz bodies use.
const DISK_BYTES: usize = 64 << 10;
/// Descriptors are written into this many places of a ring.
const RING_SLOTS: u64 = 128;

/// Takes values off a byte string; zeros behind its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    fn u32(&mut self) -> u32 {
        u32::from(self.u16()) | u32::from(self.u16()) << 16
    }

    /// An address: mostly in memory, sometimes anywhere.
    fn address(&mut self) -> u64 {
        let high = self.byte();
        let low = u64::from(self.u32());
        match high {
            0..0xc0 => Driver::BUFFERS + low % (1 << 20),
            0xc0..0xe0 => low,
            _ => u64::from(high) << 56 | low << 20,
        }
    }
}

/// Drives a virtio device with `queues` queues. Every second input begins with a driver that has
/// set the device up correctly.
fn fuzz_virtio(device: Arc<dyn VirtioDevice>, ram: GuestRam, input: &[u8]) {
    let irq = Arc::<TestIrq>::default();
    let queues = device.queue_sizes().len();
    let Ok(slot) = VirtioMmio::new("fuzz", 0, device, ram.clone(), irq.clone()) else {
        return;
    };
    let slot = Arc::new(slot);
    slot.resume();
    let mut input = Input(input);
    if input.byte() & 1 == 0 {
        let mask = if input.byte() & 1 == 0 { u64::MAX } else { 0 };
        Driver::start(slot.clone(), ram.clone(), irq, queues, mask);
    }
    while !input.0.is_empty() {
        step(&slot, &ram, queues, &mut input);
    }
    for queue in 0..queues {
        slot.write(0x50, &(queue as u32).to_le_bytes());
    }
    slot.quiesce();
    let saved = slot.save().expect("a device at rest can be saved");
    slot.restore(&saved).expect("a device takes its own state");
    assert_eq!(slot.save().expect("as before"), saved);
    slot.resume();
    // A reset brings every device back.
    let irq = Arc::default();
    let ram = slot_ram(&ram);
    assert!(Driver::start(slot.clone(), ram, irq, queues, u64::MAX).is_some());
    slot.stop();
}

/// The rings' memory cleared, for a driver that starts anew.
fn slot_ram(ram: &GuestRam) -> GuestRam {
    let rings = vec![0; (Driver::BUFFERS - 0x1_0000) as usize];
    ram.write_slice(&rings, GuestAddress(0x1_0000))
        .expect("rings are in memory");
    ram.clone()
}

fn step(slot: &VirtioMmio, ram: &GuestRam, queues: usize, input: &mut Input<'_>) {
    // The rings of the driver's queues; see `Driver`.
    let queue = u64::from(input.byte()) % queues as u64;
    let rings = 0x1_0000 * (queue + 1);
    // What is not in memory is refused there; that is no concern of the device's.
    match input.byte() % 8 {
        0 => slot.write(u64::from(input.u16()) % 0x180, &input.u32().to_le_bytes()),
        1 => slot.read(u64::from(input.u16()) % 0x180, &mut [0; 4]),
        2 => slot.write(0x50, &(queue as u32).to_le_bytes()),
        3 => {
            let place = rings + 16 * (u64::from(input.byte()) % RING_SLOTS);
            let mut raw = input.address().to_le_bytes().to_vec();
            let length = match input.byte() % 4 {
                0 => 16,
                1 => 1,
                2 => u32::from(input.u16()),
                _ => input.u32(),
            };
            raw.extend(length.to_le_bytes());
            raw.extend((input.u16() & 7).to_le_bytes());
            raw.extend((input.u16() % 130).to_le_bytes());
            let _ = ram.write_slice(&raw, GuestAddress(place));
        }
        4 => {
            let place = rings + 0x8004 + 2 * (u64::from(input.byte()) % RING_SLOTS);
            let _ = ram.write_obj(input.u16() % 130, GuestAddress(place));
        }
        5 => {
            let step = u16::from(input.byte() % 4);
            let index = GuestAddress(rings + 0x8002);
            let now = ram.read_obj::<u16>(index).unwrap_or(0);
            let _ = ram.write_obj(now.wrapping_add(step), index);
            slot.write(0x50, &(queue as u32).to_le_bytes());
        }
        6 => {
            let length = usize::from(input.byte() % 64);
            let at = input.address();
            let data: Vec<u8> = (0..length).map(|_| input.byte()).collect();
            let _ = ram.write_slice(&data, GuestAddress(at));
        }
        _ => {
            slot.quiesce();
            slot.resume();
        }
    }
}

/// A hostile driver in front of a disk.
pub fn fuzz_blk(input: &[u8]) {
    let disk = Arc::new(MemoryDisk::new(DISK_BYTES, false));
    if let (Ok(blk), Ok(ram)) = (Blk::new(disk, "fuzz"), test_ram()) {
        fuzz_virtio(Arc::new(blk), ram, input);
    }
}

/// A hostile driver in front of an entropy source.
pub fn fuzz_rng(input: &[u8]) {
    if let Ok(ram) = test_ram() {
        let rng = Rng::from_source(Box::new(io::repeat(5)));
        fuzz_virtio(Arc::new(rng), ram, input);
    }
}

/// A VM without any powers: its vCPUs write nothing.
struct NoVm;

impl Vm for NoVm {}

/// A hostile driver in front of a balloon.
pub fn fuzz_balloon(input: &[u8]) {
    if let Ok(ram) = test_ram() {
        let tracker = DirtyTracker::new(ram.clone(), Arc::new(NoVm));
        fuzz_virtio(Arc::new(Balloon::new(tracker)), ram, input);
    }
}

/// A host that accepts connections at even ports and dials once.
struct FuzzHost {
    wake: UnixStream,
    _waker: UnixStream,
    dial: std::sync::Mutex<Option<VsockDial>>,
    peers: std::sync::Mutex<Vec<UnixStream>>,
}

impl VsockBackend for FuzzHost {
    fn dial_ready(&self) -> io::Result<OwnedFd> {
        Ok(self.wake.try_clone()?.into())
    }

    fn next_dial(&self) -> io::Result<Option<VsockDial>> {
        Ok(self.dial.lock().map_or(None, |mut dial| dial.take()))
    }

    fn accept_from_guest(&self, port: u32) -> io::Result<UnixStream> {
        let (mine, theirs) = UnixStream::pair()?;
        match self.peers.lock() {
            Ok(mut peers) if port.is_multiple_of(2) && peers.len() < 16 => peers.push(mine),
            _ => return Err(io::ErrorKind::ConnectionRefused.into()),
        }
        Ok(theirs)
    }
}

/// A hostile driver in front of a vsock device.
pub fn fuzz_vsock(input: &[u8]) {
    let (Ok((wake, waker)), Ok((stream, peer))) = (UnixStream::pair(), UnixStream::pair()) else {
        return;
    };
    let host = FuzzHost {
        wake,
        _waker: waker,
        dial: std::sync::Mutex::new(Some(VsockDial { port: 1, stream })),
        peers: std::sync::Mutex::new(vec![peer]),
    };
    if let (Ok(vsock), Ok(ram)) = (Vsock::new(3, Arc::new(host)), test_ram()) {
        fuzz_virtio(Arc::new(vsock), ram, input);
    }
}

/// Random accesses to the serial port.
pub fn fuzz_serial(input: &[u8]) {
    let Ok(serial) = Serial::new(Box::new(io::sink()), Arc::<TestIrq>::default()) else {
        return;
    };
    for access in input.chunks(2) {
        let value = access.get(1).copied().unwrap_or(0);
        match access[0] % 32 {
            offset @ 0..16 => serial.write(u64::from(offset), &[value]),
            offset @ 16..30 => serial.read(u64::from(offset - 16), &mut [0; 1]),
            30 => serial.write(0, &[value; 4]),
            _ => drop(serial.inject(&[value; 100])),
        }
    }
    let saved = serial.save().expect("a serial port can be saved");
    serial
        .restore(&saved)
        .expect("a device takes its own state");
    assert_eq!(serial.save().expect("as before"), saved);
}

/// Random inputs, the same on every run (xorshift64*).
#[cfg(test)]
pub(super) fn inputs(count: u64, body: impl Fn(&[u8])) {
    for seed in 1..=count {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let input: Vec<u8> = (0..2048)
            .map(|_| {
                state ^= state >> 12;
                state ^= state << 25;
                state ^= state >> 27;
                (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 56) as u8
            })
            .collect();
        body(&input);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_blk_driver() {
        inputs(150, fuzz_blk);
    }

    #[test]
    fn hostile_vsock_driver() {
        inputs(150, fuzz_vsock);
    }

    #[test]
    fn hostile_balloon_driver() {
        inputs(150, fuzz_balloon);
    }

    #[test]
    fn hostile_rng_driver() {
        inputs(150, fuzz_rng);
    }

    #[test]
    fn hostile_serial_driver() {
        inputs(150, fuzz_serial);
    }
}
