//! All connections of one device, and the packets between them and the queues.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::net::Shutdown;
use std::ops::Bound;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::PollFlags;

use super::connection::{BUFFER_BYTES, Connection, Ending};
use super::header::{HEADER_BYTES, HOST_CID, Header, TYPE_STREAM, op};
use super::{RX, TX};
use crate::host_side::{VsockBackend, VsockDial};
use crate::ram::GuestRam;
use crate::virtio::io::{DeviceIo, Taken};
use crate::warn_limit::WarnLimit;
use std::io;

/// Most connections at a time.
const MAX_CONNECTIONS: usize = 512;
/// Refusals that wait for a buffer of the guest; more are dropped.
const MAX_REFUSALS: usize = 256;
/// Packets moved in one direction before the other gets its turn.
const PACKETS_PER_ROUND: usize = 256;
/// How long the guest may take to answer a dial.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// Host ports of dials start above this; below are ports that the guest may dial.
const FIRST_HOST_PORT: u32 = 0x4000_0000;

/// Names a connection: port of the host, port of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    host_port: u32,
    guest_port: u32,
}

/// What a device has of the host.
pub(super) struct Host<'a> {
    pub(super) backend: &'a dyn VsockBackend,
    pub(super) warnings: &'a WarnLimit,
}

#[derive(Debug)]
pub(super) struct Table {
    cid: u64,
    connections: BTreeMap<Key, Connection>,
    refusals: VecDeque<Header>,
    next_host_port: u32,
    /// Who was served last, so that all get their turn.
    last_served: Option<Key>,
}

impl Table {
    /// No connections; host ports start at random, or where `first_port` says.
    pub(super) fn new(cid: u64, first_port: Option<u32>) -> Self {
        // Each RandomState has keys of its own: enough for ports that do not repeat by design.
        let random = first_port.unwrap_or_else(|| RandomState::new().hash_one(cid) as u32);
        Self {
            cid,
            connections: BTreeMap::new(),
            refusals: VecDeque::new(),
            next_host_port: FIRST_HOST_PORT | random,
            last_served: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.connections.len()
    }

    fn has_room(&self) -> bool {
        self.connections.len() < MAX_CONNECTIONS
    }

    /// When the next connection is given up that the guest does not answer or end.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let all = self.connections.values();
        all.filter_map(Connection::deadline).min()
    }

    /// Closes all connections for the host at once: the worker may hold their sockets for as long as it waits.
    pub(super) fn shut_down(&self) {
        for connection in self.connections.values() {
            if let Err(error) = connection.stream().shutdown(Shutdown::Both) {
                tracing::debug!(%error, "vsock connection was closed already");
            }
        }
    }

    /// The sockets to wait on.
    pub(super) fn interest(&self) -> Vec<(Key, Arc<UnixStream>, PollFlags)> {
        let mut interest = Vec::new();
        for (key, connection) in &self.connections {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, connection.wants_input());
            flags.set(PollFlags::OUT, connection.wants_output());
            // Hanging up is reported even if not asked for, again and again.
            if !flags.is_empty() || connection.wants_hang_up() {
                interest.push((*key, connection.stream(), flags));
            }
        }
        interest
    }

    /// Begins a connection to the guest.
    ///
    /// # Errors
    /// The socket cannot be used, or there are too many connections: the caller's end is closed, and does not wait.
    pub(super) fn dial(&mut self, dial: VsockDial, now: Duration) -> io::Result<()> {
        if !self.has_room() {
            return Err(io::Error::other("the guest has too many connections"));
        }
        let mut key = Key {
            host_port: self.next_host_port,
            guest_port: dial.port,
        };
        while self.connections.contains_key(&key) {
            key.host_port = next_port(key.host_port);
        }
        self.next_host_port = next_port(key.host_port);
        let connection = Connection::dial(dial.stream, now + DIAL_TIMEOUT)?;
        self.connections.insert(key, connection);
        Ok(())
    }

    /// A socket has something to read, has room, or was closed by the host.
    pub(super) fn stream_ready(&mut self, key: Key, hung_up: bool, buffer: &mut Vec<u8>) {
        if let Some(connection) = self.connections.get_mut(&key) {
            connection.flush();
            connection.fill(buffer);
            if hung_up {
                connection.host_hung_up();
            }
        }
    }

    /// Takes packets of the guest; true if some were left.
    pub(super) fn receive(&mut self, io: &DeviceIo, host: &Host<'_>, buffer: &mut Vec<u8>) -> bool {
        for _ in 0..PACKETS_PER_ROUND {
            let Some(taken) = io.take(TX) else {
                return false;
            };
            if let Some(header) = parse(io.ram(), &taken, buffer) {
                self.handle(&header, buffer, host);
            }
            io.finish(taken, 0);
        }
        true
    }

    fn handle(&mut self, header: &Header, data: &[u8], host: &Host<'_>) {
        if header.dst_cid != HOST_CID || header.src_cid != self.cid {
            return;
        }
        if header.kind != TYPE_STREAM {
            return self.refuse(header);
        }
        let key = Key {
            host_port: header.dst_port,
            guest_port: header.src_port,
        };
        if header.op == op::REQUEST {
            return self.accept(key, header, host.backend);
        }
        match self.connections.get_mut(&key) {
            Some(connection) => {
                if connection.receive(header, data).is_err() {
                    if let Some(left_out) = host.warnings.admit() {
                        tracing::warn!(
                            ?header,
                            left_out,
                            "vsock connection closed: the guest broke its rules"
                        );
                    }
                    self.connections.remove(&key);
                    self.refuse(header);
                }
            }
            None => self.refuse(header),
        }
    }

    fn accept(&mut self, key: Key, request: &Header, backend: &dyn VsockBackend) {
        // A second request for a connection that exists: the guest has forgotten the first.
        let stale = self.connections.remove(&key).is_some();
        if stale || !self.has_room() {
            return self.refuse(request);
        }
        let accepted = backend
            .accept_from_guest(request.dst_port)
            .and_then(|stream| Connection::accept(stream, request));
        match accepted {
            Ok(connection) => {
                self.connections.insert(key, connection);
            }
            Err(error) => {
                tracing::debug!(%error, port = request.dst_port, "vsock connection refused");
                self.refuse(request);
            }
        }
    }

    /// Answers by RST; an RST is not answered.
    fn refuse(&mut self, header: &Header) {
        if header.op != op::RST && self.refusals.len() < MAX_REFUSALS {
            self.refusals.push_back(header.refusal());
        }
    }

    /// Gives the guest what waits for it, as far as it has buffers; true if this is to be
    /// continued.
    pub(super) fn send(&mut self, io: &DeviceIo, buffer: &mut Vec<u8>) -> bool {
        for _ in 0..PACKETS_PER_ROUND {
            let next = match self.refusals.front() {
                Some(_) => None,
                None => match self.pick() {
                    Some(key) => Some(key),
                    None => return false,
                },
            };
            // Only now: a buffer that was taken cannot be put back. Without one, the next kicks.
            let Some(taken) = io.take(RX) else {
                return false;
            };
            let writable = taken.buffers.as_ref().map_or(0, |b| b.writable.bytes());
            let Some(limit) = writable.checked_sub(HEADER_BYTES as u64) else {
                io.finish(taken, 0);
                continue;
            };
            buffer.clear();
            let header = match next {
                None => self.refusals.pop_front(),
                Some(key) => self.next_packet(key, limit, buffer),
            };
            let written =
                header.map_or(0, |header| write_packet(io.ram(), &taken, &header, buffer));
            io.finish(taken, written);
            if let Some(connection) = next.and_then(|key| self.connections.get_mut(&key)) {
                connection.fill(buffer);
            }
        }
        true
    }

    /// The next connection with a packet for the guest, in turn.
    fn pick(&self) -> Option<Key> {
        let after = match self.last_served {
            Some(last) => (Bound::Excluded(last), Bound::Unbounded),
            None => (Bound::Unbounded, Bound::Unbounded),
        };
        let in_turn = self.connections.range(after).chain(&self.connections);
        in_turn
            .filter(|(_, connection)| connection.has_packet())
            .map(|(key, _)| *key)
            .next()
    }

    fn next_packet(&mut self, key: Key, limit: u64, data: &mut Vec<u8>) -> Option<Header> {
        self.last_served = Some(key);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let packet = self.connections.get_mut(&key)?.next_packet(limit, data)?;
        Some(Header {
            src_cid: HOST_CID,
            dst_cid: self.cid,
            src_port: key.host_port,
            dst_port: key.guest_port,
            kind: TYPE_STREAM,
            ..packet
        })
    }

    /// Drops connections that have ended.
    pub(super) fn reap(&mut self, now: Duration) {
        let cid = self.cid;
        let refusals = &mut self.refusals;
        self.connections.retain(|key, connection| {
            let ending = connection.ending(now);
            if ending == Ending::Reset && refusals.len() < MAX_REFUSALS {
                refusals.push_back(Header {
                    src_cid: HOST_CID,
                    dst_cid: cid,
                    src_port: key.host_port,
                    dst_port: key.guest_port,
                    kind: TYPE_STREAM,
                    op: op::RST,
                    ..Header::default()
                });
            }
            ending == Ending::None
        });
    }
}

fn next_port(port: u32) -> u32 {
    // The last number means "any port".
    match port.wrapping_add(1) {
        0 | u32::MAX => FIRST_HOST_PORT,
        port => port,
    }
}

/// Reads a packet of the guest: the header, and the data into `buffer`.
fn parse(ram: &GuestRam, taken: &Taken<'_>, buffer: &mut Vec<u8>) -> Option<Header> {
    let readable = &taken.buffers.as_ref().ok()?.readable;
    let mut raw = [0; HEADER_BYTES];
    readable.read(ram, 0, &mut raw).ok()?;
    let header = Header::decode(&raw);
    buffer.clear();
    if header.op == op::RW {
        if header.len > BUFFER_BYTES {
            return None;
        }
        buffer.resize(header.len as usize, 0);
        readable.read(ram, HEADER_BYTES as u64, buffer).ok()?;
    }
    Some(header)
}

fn write_packet(ram: &GuestRam, taken: &Taken<'_>, header: &Header, data: &[u8]) -> u32 {
    let Ok(buffers) = &taken.buffers else {
        return 0;
    };
    let written = buffers
        .writable
        .write(ram, 0, &header.encode())
        .and_then(|()| buffers.writable.write(ram, HEADER_BYTES as u64, data));
    match written {
        Ok(()) => (HEADER_BYTES + data.len()) as u32,
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_dial_that_finds_no_room_is_refused_at_once_and_the_others_stay() {
        let mut table = Table::new(3, Some(0));
        let dial = |table: &mut Table| {
            let (stream, caller) = UnixStream::pair().unwrap();
            let dialled = table.dial(VsockDial { port: 1, stream }, Duration::ZERO);
            (dialled, caller)
        };
        for _ in 0..MAX_CONNECTIONS {
            dial(&mut table).0.unwrap();
        }
        let (refused, mut caller) = dial(&mut table);
        refused.unwrap_err();
        assert_eq!(table.len(), MAX_CONNECTIONS);
        // The caller hears of it, and does not wait.
        assert_eq!(caller.read(&mut [0; 1]).unwrap(), 0);
        table.connections.pop_first();
        dial(&mut table).0.unwrap();
        assert_eq!(table.len(), MAX_CONNECTIONS);
    }
}
