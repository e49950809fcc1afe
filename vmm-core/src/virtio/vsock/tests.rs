use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use vm_memory::{Bytes, GuestAddress};

use super::header::{HEADER_BYTES, Header, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, op};
use super::{RX, TX, Vsock};
use crate::host_side::{VsockBackend, VsockDial};
use crate::testing::{Driver, TestIrq, test_ram};
use crate::unit::StateUnit;
use crate::virtio::VirtioMmio;

const CID: u64 = 7;
const EVENT_BUFFER: u64 = Driver::BUFFERS;
const TX_BUFFERS: u64 = Driver::BUFFERS + 0x10_0000;
const RX_BUFFERS: u64 = Driver::BUFFERS + 0x40_0000;
const BUFFER: u64 = 0x1_1000;
/// Credit that the test's guest gives.
const GUEST_CREDIT: u32 = 64 << 10;

/// Dials from a list; accepts the guest's connections at port 80 only.
struct Host {
    dials: Mutex<VecDeque<VsockDial>>,
    wake: (UnixStream, UnixStream),
    accepted: Mutex<VecDeque<UnixStream>>,
}

impl Host {
    fn new() -> Arc<Self> {
        let wake = UnixStream::pair().unwrap();
        wake.1.set_nonblocking(true).unwrap();
        Arc::new(Self {
            dials: Mutex::default(),
            wake,
            accepted: Mutex::default(),
        })
    }

    fn dial(&self, port: u32) -> UnixStream {
        let (mine, stream) = UnixStream::pair().unwrap();
        mine.set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        // Under one lock, so that the device never finds the dial before its byte.
        let mut dials = self.dials.lock().unwrap();
        dials.push_back(VsockDial { port, stream });
        (&self.wake.0).write_all(&[1]).unwrap();
        mine
    }
}

impl VsockBackend for Host {
    fn dial_ready(&self) -> io::Result<OwnedFd> {
        Ok(self.wake.1.try_clone()?.into())
    }

    fn next_dial(&self) -> io::Result<Option<VsockDial>> {
        let mut dials = self.dials.lock().unwrap();
        let dial = dials.pop_front();
        if dial.is_some() {
            (&self.wake.1).read_exact(&mut [0])?;
        }
        Ok(dial)
    }

    fn accept_from_guest(&self, port: u32) -> io::Result<UnixStream> {
        if port != 80 {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (mine, theirs) = UnixStream::pair()?;
        mine.set_read_timeout(Some(Duration::from_secs(20)))?;
        self.accepted.lock().unwrap().push_back(mine);
        Ok(theirs)
    }
}

struct Bench {
    host: Arc<Host>,
    device: Arc<Vsock>,
    slot: Arc<VirtioMmio>,
    driver: Driver,
    /// Address of the buffer behind each head of the receive queue.
    rx: Vec<u64>,
    tx_slot: u64,
}

fn bench() -> Bench {
    let (host, ram, irq) = (Host::new(), test_ram().unwrap(), Arc::<TestIrq>::default());
    let device = Arc::new(Vsock::new(CID, host.clone()).unwrap());
    let slot = VirtioMmio::new("vsock0", 1, device.clone(), ram.clone(), irq.clone());
    let slot = Arc::new(slot.unwrap());
    slot.resume();
    let driver = Driver::start(slot.clone(), ram, irq, 3, u64::MAX).unwrap();
    let mut bench = Bench {
        host,
        device,
        slot,
        driver,
        rx: vec![0; 128],
        tx_slot: 0,
    };
    for index in 0..32 {
        bench.give_rx_buffer(RX_BUFFERS + index * BUFFER, 4096);
    }
    bench.driver.notify(RX);
    bench
}

fn packet(op: u16, guest_port: u32, host_port: u32) -> Header {
    Header {
        src_cid: CID,
        dst_cid: 2,
        src_port: guest_port,
        dst_port: host_port,
        kind: 1,
        op,
        buf_alloc: GUEST_CREDIT,
        ..Header::default()
    }
}

impl Bench {
    fn give_rx_buffer(&mut self, address: u64, length: u32) {
        let head = self.driver.submit(RX, &[(address, length, true)]).unwrap();
        self.rx[usize::from(head)] = address;
    }

    fn try_send(&mut self, header: Header, data: &[u8]) -> bool {
        while self.driver.used(TX).is_some() {}
        let at = TX_BUFFERS + self.tx_slot * BUFFER;
        let ram = self.driver.ram();
        let mut header = header;
        header.len = data.len() as u32;
        ram.write_slice(&header.encode(), GuestAddress(at)).unwrap();
        ram.write_slice(data, GuestAddress(at + 64)).unwrap();
        let chain = [
            (at, HEADER_BYTES as u32, false),
            (at + 64, data.len() as u32, false),
        ];
        let used = if data.is_empty() { 1 } else { 2 };
        if self.driver.submit(TX, &chain[..used]).is_none() {
            return false;
        }
        self.driver.notify(TX);
        self.tx_slot = (self.tx_slot + 1) % 32;
        true
    }

    fn send(&mut self, header: Header, data: &[u8]) {
        assert!(self.try_send(header, data), "the transmit queue is full");
        self.driver.wait_used(TX).unwrap();
    }

    fn recycle(&mut self, head: u16, length: u32) -> (Header, Vec<u8>) {
        let at = self.rx[usize::from(head)];
        let mut raw = [0; HEADER_BYTES];
        let ram = self.driver.ram();
        ram.read_slice(&mut raw, GuestAddress(at)).unwrap();
        let header = Header::decode(&raw);
        let mut data = vec![0; header.len as usize];
        let from = GuestAddress(at + HEADER_BYTES as u64);
        ram.read_slice(&mut data, from).unwrap();
        assert_eq!(length as usize, HEADER_BYTES + data.len());
        self.give_rx_buffer(at, 4096);
        self.driver.notify(RX);
        (header, data)
    }

    fn receive(&mut self) -> (Header, Vec<u8>) {
        let (head, length) = self.driver.wait_used(RX).expect("a packet");
        self.recycle(head, length)
    }

    fn try_receive(&mut self) -> Option<(Header, Vec<u8>)> {
        let (head, length) = self.driver.used(RX)?;
        Some(self.recycle(head, length))
    }

    /// A connection that the host asked for: its end, and the host's port.
    fn connect(&mut self, guest_port: u32) -> (UnixStream, u32) {
        let stream = self.host.dial(guest_port);
        let (request, _) = self.receive();
        assert_eq!((request.op, request.dst_port), (op::REQUEST, guest_port));
        self.send(packet(op::RESPONSE, guest_port, request.src_port), &[]);
        (stream, request.src_port)
    }
}

#[test]
fn a_dialled_connection_carries_bytes_both_ways_and_ends_in_halves() {
    let mut bench = bench();
    assert_eq!(bench.driver.config(0, 8), CID.to_le_bytes());
    let (mut stream, port) = bench.connect(5000);
    stream.write_all(b"to the guest").unwrap();
    let (header, data) = bench.receive();
    assert_eq!((header.op, &data[..]), (op::RW, &b"to the guest"[..]));
    assert_eq!((header.src_cid, header.dst_cid), (2, CID));
    bench.send(packet(op::RW, 5000, port), b"to the host");
    let mut data = [0; 11];
    stream.read_exact(&mut data).unwrap();
    assert_eq!(&data, b"to the host");
    // The guest stops sending: the host sees the end and can still send.
    let mut half = packet(op::SHUTDOWN, 5000, port);
    half.flags = SHUTDOWN_SEND;
    bench.send(half, &[]);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    stream.write_all(b"still here").unwrap();
    assert_eq!(bench.receive().1, b"still here");
    drop(stream);
    let flags = loop {
        let (header, _) = bench.receive();
        assert_eq!(header.op, op::SHUTDOWN);
        if header.flags == SHUTDOWN_SEND | SHUTDOWN_RECEIVE {
            break header.flags;
        }
    };
    half.flags = flags;
    bench.send(half, &[]);
    assert_eq!(bench.receive().0.op, op::RST);
    assert_eq!(bench.device.connections(), 0);
}

#[test]
fn a_host_that_stops_sending_still_receives() {
    let mut bench = bench();
    let (mut stream, port) = bench.connect(5000);
    stream.write_all(b"all of it").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(bench.receive().1, b"all of it");
    let (header, _) = bench.receive();
    assert_eq!((header.op, header.flags), (op::SHUTDOWN, SHUTDOWN_SEND));
    bench.send(packet(op::RW, 5000, port), b"answer");
    let mut data = [0; 6];
    stream.read_exact(&mut data).unwrap();
    assert_eq!(&data, b"answer");
}

#[test]
fn the_guest_connects_where_somebody_listens() {
    let mut bench = bench();
    bench.send(packet(op::REQUEST, 1000, 80), &[]);
    assert_eq!(bench.receive().0.op, op::RESPONSE);
    let mut stream = bench.host.accepted.lock().unwrap().pop_front().unwrap();
    bench.send(packet(op::RW, 1000, 80), b"GET");
    let mut data = [0; 3];
    stream.read_exact(&mut data).unwrap();
    assert_eq!(&data, b"GET");
    bench.send(packet(op::REQUEST, 1001, 81), &[]);
    let (refusal, _) = bench.receive();
    assert_eq!((refusal.op, refusal.dst_port), (op::RST, 1001));
    // A stale connection: data for nobody.
    bench.send(packet(op::RW, 1002, 80), b"x");
    assert_eq!(bench.receive().0.op, op::RST);
    // An RST is not answered, and ends the connection.
    bench.send(packet(op::RST, 1000, 80), &[]);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    assert_eq!(bench.device.connections(), 0);
    assert_eq!(bench.try_receive(), None);
}

#[test]
fn credit_bounds_both_directions() {
    let mut bench = bench();
    let (mut stream, port) = bench.connect(5000);
    stream.set_nonblocking(true).unwrap();
    // The guest's credit: no more than it gave arrives.
    let mut written = 0;
    let mut received = 0;
    let mut asked = false;
    for _ in 0..200 {
        written += stream.write(&[5; 8192]).unwrap_or(0);
        std::thread::sleep(Duration::from_millis(1));
        while let Some((header, data)) = bench.try_receive() {
            received += data.len();
            asked |= header.op == op::CREDIT_REQUEST;
        }
    }
    assert!(written > received, "{written} written, {received} received");
    assert_eq!(received, GUEST_CREDIT as usize);
    assert!(asked, "the guest is asked for credit");
    // The host's credit: a guest that overruns it is cut off.
    let mut sent = 0;
    loop {
        bench.send(packet(op::RW, 5000, port), &[6; 32 << 10]);
        sent += 32 << 10;
        if let Some((header, _)) = bench.try_receive()
            && header.op == op::RST
        {
            break;
        }
        assert!(sent < 8 << 20, "never cut off");
    }
    assert!(sent > super::connection::BUFFER_BYTES);
}

#[test]
fn a_restore_closes_connections_and_tells_the_guest_first() {
    let mut bench = bench();
    let (mut stream, _) = bench.connect(5000);
    bench.slot.quiesce();
    let saved = bench.slot.save().unwrap();
    bench.slot.resume();
    // A pause alone changes nothing.
    stream.write_all(b"on").unwrap();
    assert_eq!(bench.receive().1, b"on");
    bench.slot.quiesce();
    assert_ne!(bench.slot.save().unwrap(), saved, "the change must be seen");
    bench.slot.restore(&saved).unwrap();
    assert_eq!(bench.slot.save().unwrap(), saved);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "closed by the restore");
    assert_eq!(bench.device.connections(), 0);
}

#[test]
fn a_dial_waits_until_the_guest_has_dealt_with_the_reset() {
    let mut bench = bench();
    // As Linux has it: several buffers wait for events, none of which was taken when the guest gives one back.
    for _ in 0..8 {
        bench.driver.submit(2, &[(EVENT_BUFFER, 4, true)]).unwrap();
    }
    bench
        .driver
        .ram()
        .write_obj(9_u32, GuestAddress(EVENT_BUFFER))
        .unwrap();
    bench.device.transport_reset();
    assert_eq!(bench.driver.wait_used(2).unwrap().1, 4);
    let event: u32 = bench
        .driver
        .ram()
        .read_obj(GuestAddress(EVENT_BUFFER))
        .unwrap();
    assert_eq!(event, 0);
    let _stream = bench.host.dial(5000);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(bench.try_receive(), None, "held back");
    bench.driver.submit(2, &[(EVENT_BUFFER, 4, true)]).unwrap();
    assert!(
        bench.driver.notify_if_asked(2),
        "nobody waits for the buffer"
    );
    assert_eq!(bench.receive().0.op, op::REQUEST);
}

/// 64 MiB through an echo in the guest, in both directions at once.
#[test]
fn large_transfers_both_ways_arrive_whole() {
    const TOTAL: usize = 64 << 20;
    let mut bench = bench();
    let (stream, port) = bench.connect(5000);
    let mut sender = stream.try_clone().unwrap();
    let byte = |at: usize| (at.wrapping_mul(2_654_435_761) >> 13) as u8;
    let writer = std::thread::spawn(move || {
        let mut at = 0;
        while at < TOTAL {
            let piece: Vec<u8> = (at..at + 65536).map(byte).collect();
            sender.write_all(&piece).unwrap();
            at += piece.len();
        }
        sender.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let reader = std::thread::spawn(move || {
        let (mut at, mut buffer) = (0, vec![0; 65536]);
        loop {
            let length = (&stream).read(&mut buffer).unwrap();
            if length == 0 {
                return at;
            }
            for value in &buffer[..length] {
                assert_eq!(*value, byte(at), "byte {at}");
                at += 1;
            }
        }
    });
    let mut pauses = 0;
    echo(&mut bench, port, |bench, packets| {
        if packets % 512 == 0 {
            bench.slot.quiesce();
            pauses += 1;
            bench.slot.resume();
        }
    });
    writer.join().unwrap();
    assert_eq!(reader.join().unwrap(), TOTAL);
    assert!(pauses > 10);
}

/// Sends back whatever comes, within the credit, until the host has sent all.
fn echo(bench: &mut Bench, port: u32, mut between: impl FnMut(&mut Bench, usize)) {
    let (mut forwarded, mut sent) = (0_u32, 0_u32);
    let (mut peer_alloc, mut peer_forwarded) = (0_u32, 0_u32);
    let mut waiting: VecDeque<Vec<u8>> = VecDeque::new();
    let (mut ended, mut packets) = (false, 0);
    let reply = |op, forwarded| Header {
        fwd_cnt: forwarded,
        ..packet(op, 5000, port)
    };
    while !(ended && waiting.is_empty()) {
        let received = match waiting.front() {
            Some(_) => bench.try_receive(),
            None => Some(bench.receive()),
        };
        if let Some((header, data)) = received {
            (peer_alloc, peer_forwarded) = (header.buf_alloc, header.fwd_cnt);
            ended |= header.op == op::SHUTDOWN;
            if header.op == op::RW {
                waiting.push_back(data);
            }
            packets += 1;
            between(bench, packets);
        }
        let room = peer_alloc.saturating_sub(sent.wrapping_sub(peer_forwarded));
        if let Some(data) = waiting.front()
            && data.len() as u32 <= room
        {
            let header = reply(op::RW, forwarded.wrapping_add(data.len() as u32));
            if bench.try_send(header, data) {
                forwarded = header.fwd_cnt;
                sent = sent.wrapping_add(data.len() as u32);
                waiting.pop_front();
            }
        }
    }
    let mut end = reply(op::SHUTDOWN, forwarded);
    end.flags = SHUTDOWN_SEND | SHUTDOWN_RECEIVE;
    while !bench.try_send(end, &[]) {}
    while bench.receive().0.op != op::RST {}
}
