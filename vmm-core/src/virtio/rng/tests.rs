use std::sync::Arc;

use vm_memory::{Bytes, GuestAddress};

use super::*;
use crate::testing::{Driver, TestIrq, test_ram};
use crate::unit::StateUnit;
use crate::virtio::VirtioMmio;

fn ask(rng: Rng, bytes: u32) -> (Vec<u8>, u32) {
    let (ram, irq) = (test_ram().unwrap(), Arc::<TestIrq>::default());
    let slot = VirtioMmio::new("rng0", 2, Arc::new(rng), ram.clone(), irq.clone());
    let slot = Arc::new(slot.unwrap());
    slot.resume();
    let mut driver = Driver::start(slot.clone(), ram.clone(), irq, 1, u64::MAX).unwrap();
    slot.quiesce();
    let saved = slot.save().unwrap();
    slot.resume();
    let buffer = (Driver::BUFFERS, bytes, true);
    driver.submit(0, &[buffer]).unwrap();
    driver.notify(0);
    let (_, length) = driver.wait_used(0).unwrap();
    slot.quiesce();
    assert_ne!(slot.save().unwrap(), saved, "the change must be seen");
    slot.restore(&saved).unwrap();
    assert_eq!(slot.save().unwrap(), saved);
    let mut data = vec![0; bytes as usize];
    ram.read_slice(&mut data, GuestAddress(Driver::BUFFERS))
        .unwrap();
    (data, length)
}

#[test]
fn bytes_come_from_the_source() {
    let (data, length) = ask(Rng::from_source(Box::new(io::repeat(7))), 64);
    assert_eq!((data, length), (vec![7; 64], 64));
    let (data, length) = ask(Rng::from_host().unwrap(), 64);
    assert_eq!(length, 64);
    assert_ne!(data, vec![0; 64]);
}

#[test]
fn one_request_is_bounded_and_a_dry_source_gives_nothing() {
    let (_, length) = ask(Rng::from_source(Box::new(io::repeat(7))), 1 << 20);
    assert_eq!(u64::from(length), MAX_REQUEST_BYTES);
    let (data, length) = ask(Rng::from_source(Box::new(io::empty())), 64);
    assert_eq!((data, length), (vec![0; 64], 0));
}
