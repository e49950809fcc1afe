use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::*;
use crate::testing::TestIrq;

#[derive(Clone, Default)]
struct Sink {
    bytes: Arc<Mutex<Vec<u8>>>,
    held: Arc<AtomicBool>,
}

impl Write for Sink {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        while self.held.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.bytes.lock().unwrap().extend(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn serial() -> (Serial, Sink, Arc<TestIrq>) {
    let (sink, irq) = (Sink::default(), Arc::<TestIrq>::default());
    let serial = Serial::new(Box::new(sink.clone()), irq.clone()).unwrap();
    (serial, sink, irq)
}

fn read(serial: &Serial, offset: u64) -> u8 {
    let mut value = [0];
    serial.read(offset, &mut value);
    value[0]
}

#[test]
fn output_reaches_the_sink_in_order() {
    let (serial, sink, _) = serial();
    let text: Vec<u8> = (0..200_000_u32).map(|i| i as u8).collect();
    for byte in &text {
        serial.write(0, &[*byte]);
    }
    serial.flush();
    assert_eq!(*sink.bytes.lock().unwrap(), text);
}

#[test]
fn a_sink_that_hangs_loses_output_and_says_so() {
    let (serial, sink, _) = serial();
    sink.held.store(true, Ordering::SeqCst);
    for _ in 0..300_000 {
        serial.write(0, b"x");
    }
    sink.held.store(false, Ordering::SeqCst);
    serial.flush();
    serial.write(0, b"!");
    serial.flush();
    let bytes = sink.bytes.lock().unwrap();
    let text = String::from_utf8(bytes.clone()).unwrap();
    assert!(text.contains("bytes of output lost]"));
    assert!(text.ends_with('!') && text.len() < 200_000);
}

#[test]
fn a_driver_finds_a_16550a() {
    let (serial, ..) = serial();
    serial.write(7, &[0xa5]);
    assert_eq!(read(&serial, 7), 0xa5, "scratch");
    serial.write(2, &[0x01]);
    assert_eq!(read(&serial, 2) & 0xc0, 0xc0, "FIFOs");
    serial.write(4, &[0x1a]);
    assert_eq!(read(&serial, 6) & 0xf0, 0x90, "loop-back of RTS and OUT2");
    serial.write(0, &[0x77]);
    assert_eq!(read(&serial, 5) & 1, 1);
    assert_eq!(read(&serial, 0), 0x77, "looped back");
    serial.write(4, &[0x0b]);
    serial.write(3, &[0x80]);
    serial.write(0, &[1]);
    serial.write(1, &[0]);
    assert_eq!((read(&serial, 0), read(&serial, 1)), (1, 0), "divisor");
    serial.write(3, &[0x03]);
    assert_eq!(read(&serial, 5) & 0x60, 0x60, "transmitter empty");
}

#[test]
fn interrupts_are_edges_of_the_line() {
    let (serial, _, irq) = serial();
    serial.write(1, &[0x03]);
    assert_eq!(irq.pulses(), 0, "gated by OUT2");
    serial.write(4, &[0x0b]);
    assert_eq!(irq.pulses(), 1, "transmitter empty");
    assert_eq!(read(&serial, 2) & 0x0f, 0x02);
    assert_eq!(read(&serial, 2) & 0x0f, 0x01, "acknowledged by reading");
    serial.write(0, b"a");
    assert_eq!(irq.pulses(), 2, "empty again");
    serial.write(0, b"b");
    assert_eq!(irq.pulses(), 3);
    read(&serial, 2);
    assert_eq!(serial.inject(b"in"), 2);
    assert_eq!(irq.pulses(), 4);
    assert_eq!(read(&serial, 2) & 0x0f, 0x04);
    assert_eq!((read(&serial, 0), read(&serial, 0)), (b'i', b'n'));
    assert_eq!(read(&serial, 2) & 0x0f, 0x01);
    serial.inject(b"!");
    assert_eq!(irq.pulses(), 5);
    assert_eq!(serial.inject(&[0; 5000]), SERIAL_INPUT_BYTES - 1);
}

#[test]
fn state_survives_and_changes_are_undone() {
    let (serial, ..) = serial();
    serial.write(1, &[0x01]);
    serial.write(4, &[0x0b]);
    serial.inject(b"abc");
    let saved = serial.save().unwrap();
    read(&serial, 0);
    serial.write(2, &[1]);
    serial.write(7, &[9]);
    assert_ne!(serial.save().unwrap(), saved, "the change must be seen");
    serial.restore(&saved).unwrap();
    assert_eq!(serial.save().unwrap(), saved);
    assert_eq!(read(&serial, 0), b'a');
    let mut foreign = saved.clone();
    foreign.version = 2;
    assert!(serial.restore(&foreign).is_err());
    let mut writer = FieldWriter::new();
    writer.bytes(8, &[0; SERIAL_INPUT_BYTES + 1]);
    let mut oversized = saved;
    oversized.bytes = writer.finish();
    assert!(serial.restore(&oversized).is_err());
}
