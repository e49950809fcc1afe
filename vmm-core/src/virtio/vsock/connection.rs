//! One stream between a port of the guest and a socket of the host.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::num::Wrapping;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use super::header::{Header, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, op};

/// Bytes from the guest that may wait for the host: the credit given to the guest.
pub(super) const BUFFER_BYTES: u32 = 256 << 10;
/// Bytes from the host that may wait for the guest's buffers.
const TO_GUEST_BYTES: usize = 64 << 10;
/// The guest is told of new room once it believes to have less than this.
const CREDIT_UPDATE_BELOW: u32 = BUFFER_BYTES / 2;
/// How long the guest may leave a connection as it is after the host's end was closed, before it is reset.
const LINGER: Duration = Duration::from_secs(10);

/// Something that the guest has to be told, without data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Notices {
    request: bool,
    response: bool,
    credit_update: bool,
    credit_request: bool,
}

/// A connection. Buffers are bounded in both directions; the socket is non-blocking.
#[derive(Debug)]
pub(super) struct Connection {
    stream: Arc<UnixStream>,
    /// When an unanswered request of ours is given up; `None` once established.
    connecting_until: Option<Duration>,
    notices: Notices,
    to_host: VecDeque<u8>,
    to_guest: VecDeque<u8>,
    /// Bytes received from the guest.
    received: Wrapping<u32>,
    /// Bytes of those that left `to_host`.
    forwarded: Wrapping<u32>,
    /// `forwarded` as the guest knows it.
    forwarded_told: Wrapping<u32>,
    /// Bytes sent to the guest.
    sent: Wrapping<u32>,
    peer_buffer: u32,
    peer_forwarded: Wrapping<u32>,
    credit_was_requested: bool,
    /// SHUTDOWN flags that the guest sent.
    guest_shut: u32,
    /// SHUTDOWN flags that the guest was sent.
    told_shut: u32,
    /// The host sends no more.
    host_sends_no_more: bool,
    /// The host receives no more.
    host_receives_no_more: bool,
    host_was_told_end: bool,
    /// The host's end is closed altogether.
    host_gone: bool,
    /// When a connection without a host is given up.
    lingers_until: Option<Duration>,
    /// The guest forgot the connection; what it sent is still given to the host.
    guest_gone: bool,
}

impl Connection {
    /// A connection that the host asks for.
    pub(super) fn dial(stream: UnixStream, give_up: Duration) -> std::io::Result<Self> {
        let mut connection = Self::new(stream)?;
        connection.connecting_until = Some(give_up);
        connection.notices.request = true;
        Ok(connection)
    }

    /// A connection that the guest asked for by `request`.
    pub(super) fn accept(stream: UnixStream, request: &Header) -> std::io::Result<Self> {
        let mut connection = Self::new(stream)?;
        connection.notices.response = true;
        connection.take_credit(request);
        Ok(connection)
    }

    fn new(stream: UnixStream) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream: Arc::new(stream),
            connecting_until: None,
            notices: Notices::default(),
            to_host: VecDeque::new(),
            to_guest: VecDeque::new(),
            received: Wrapping(0),
            forwarded: Wrapping(0),
            forwarded_told: Wrapping(0),
            sent: Wrapping(0),
            peer_buffer: 0,
            peer_forwarded: Wrapping(0),
            credit_was_requested: false,
            guest_shut: 0,
            told_shut: 0,
            host_sends_no_more: false,
            host_receives_no_more: false,
            host_was_told_end: false,
            host_gone: false,
            lingers_until: None,
            guest_gone: false,
        })
    }

    pub(super) fn stream(&self) -> Arc<UnixStream> {
        self.stream.clone()
    }

    /// When the connection is given up if the guest does nothing.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.connecting_until.or(self.lingers_until)
    }

    fn established(&self) -> bool {
        self.connecting_until.is_none()
    }

    /// Takes a packet of the guest. `Err(())`: a violation, the connection has to be reset.
    pub(super) fn receive(&mut self, header: &Header, data: &[u8]) -> Result<(), ()> {
        self.take_credit(header);
        match header.op {
            op::RESPONSE if !self.established() && !self.notices.request => {
                self.connecting_until = None;
            }
            op::RW if self.established() => self.receive_data(data)?,
            op::SHUTDOWN => self.guest_shut |= header.flags & (SHUTDOWN_RECEIVE | SHUTDOWN_SEND),
            op::RST => self.guest_gone = true,
            op::CREDIT_UPDATE => {}
            op::CREDIT_REQUEST => self.notices.credit_update = true,
            _ => return Err(()),
        }
        self.flush();
        Ok(())
    }

    fn take_credit(&mut self, header: &Header) {
        self.peer_buffer = header.buf_alloc;
        self.peer_forwarded = Wrapping(header.fwd_cnt);
        if self.credit() > 0 {
            self.credit_was_requested = false;
        }
    }

    /// Bytes that may be sent to the guest.
    fn credit(&self) -> u32 {
        let on_their_side = (self.sent - self.peer_forwarded).0;
        self.peer_buffer.saturating_sub(on_their_side)
    }

    /// What the guest may have in flight is bounded by the credit it was given.
    fn receive_data(&mut self, data: &[u8]) -> Result<(), ()> {
        let held = (self.received - self.forwarded).0;
        let length = u32::try_from(data.len()).map_err(|_| ())?;
        if length > BUFFER_BYTES.saturating_sub(held) || self.guest_shut & SHUTDOWN_SEND != 0 {
            return Err(());
        }
        self.received += Wrapping(length);
        self.to_host.extend(data);
        Ok(())
    }

    /// Gives the host what it takes.
    pub(super) fn flush(&mut self) {
        while !self.to_host.is_empty() {
            if self.host_receives_no_more {
                let dropped = self.to_host.len();
                self.forward(dropped);
                break;
            }
            match (&*self.stream).write(self.to_host.as_slices().0) {
                Ok(written) if written > 0 => self.forward(written),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                _ => self.host_receives_no_more = true,
            }
        }
        self.tell_host_end();
    }

    fn forward(&mut self, bytes: usize) {
        self.to_host.drain(..bytes);
        // At most BUFFER_BYTES.
        self.forwarded += Wrapping(bytes as u32);
        let believed = BUFFER_BYTES.saturating_sub((self.received - self.forwarded_told).0);
        if believed < CREDIT_UPDATE_BELOW {
            self.notices.credit_update = true;
        }
    }

    /// Passes the guest's half closes on: of what it sends behind its data, of what it receives at
    /// once.
    fn tell_host_end(&mut self) {
        if self.guest_shut & SHUTDOWN_RECEIVE != 0 && !self.host_sends_no_more {
            self.host_sends_no_more = true;
            self.to_guest.clear();
            // The host's end may be gone already.
            let _ = self.stream.shutdown(Shutdown::Read);
        }
        let ended = self.guest_gone || self.guest_shut & SHUTDOWN_SEND != 0;
        if ended && self.to_host.is_empty() && !self.host_was_told_end {
            self.host_was_told_end = true;
            // As above.
            let _ = self.stream.shutdown(Shutdown::Write);
        }
    }

    /// Whether bytes of the host are wanted now.
    pub(super) fn wants_input(&self) -> bool {
        self.established()
            && !self.host_sends_no_more
            && !self.guest_gone
            && self.to_guest.is_empty()
            && self.credit() > 0
    }

    /// Whether the host is slow to take the guest's bytes.
    pub(super) fn wants_output(&self) -> bool {
        !self.to_host.is_empty() && !self.host_receives_no_more
    }

    /// Whether the host's hanging up would be news, and can be dealt with.
    pub(super) fn wants_hang_up(&self) -> bool {
        self.established() && !self.host_receives_no_more
    }

    /// Reads what the host sent; `buffer` is the worker's, reused.
    pub(super) fn fill(&mut self, buffer: &mut Vec<u8>) {
        if !self.wants_input() {
            return;
        }
        buffer.resize(TO_GUEST_BYTES, 0);
        match (&*self.stream).read(buffer) {
            Ok(0) => self.host_sends_no_more = true,
            Ok(length) => self.to_guest.extend(&buffer[..length]),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.host_sends_no_more = true,
        }
    }

    /// The host closed its end: nothing can be given to it any more. What it sent before is still
    /// read.
    pub(super) fn host_hung_up(&mut self) {
        self.host_receives_no_more = true;
        self.host_gone = true;
        self.flush();
    }

    /// Whether [`next_packet`](Self::next_packet) has one.
    pub(super) fn has_packet(&self) -> bool {
        if self.guest_gone {
            return false;
        }
        if !self.established() {
            return self.notices.request;
        }
        self.notices.response
            || self.notices.credit_update
            || self.has_data()
            || self.shutdown_to_tell().is_some()
            || (self.starved() && !self.credit_was_requested)
    }

    fn has_data(&self) -> bool {
        !self.to_guest.is_empty() && self.credit() > 0
    }

    /// The next packet for the guest, with at most `limit` bytes of data, appended to `data`.
    pub(super) fn next_packet(&mut self, limit: usize, data: &mut Vec<u8>) -> Option<Header> {
        if self.guest_gone {
            return None;
        }
        if std::mem::take(&mut self.notices.request) {
            return Some(self.packet(op::REQUEST));
        }
        if !self.established() {
            return None;
        }
        if std::mem::take(&mut self.notices.response) {
            return Some(self.packet(op::RESPONSE));
        }
        if let Some(packet) = self.next_data(limit, data) {
            return Some(packet);
        }
        if let Some(flags) = self.shutdown_to_tell() {
            self.told_shut |= flags;
            let mut packet = self.packet(op::SHUTDOWN);
            packet.flags = self.told_shut;
            return Some(packet);
        }
        if std::mem::take(&mut self.notices.credit_update) {
            return Some(self.packet(op::CREDIT_UPDATE));
        }
        if self.starved() && !std::mem::replace(&mut self.credit_was_requested, true) {
            return Some(self.packet(op::CREDIT_REQUEST));
        }
        None
    }

    fn next_data(&mut self, limit: usize, data: &mut Vec<u8>) -> Option<Header> {
        let length = self.to_guest.len().min(limit).min(self.credit() as usize);
        if length == 0 {
            return None;
        }
        data.extend(self.to_guest.drain(..length));
        self.sent += Wrapping(length as u32);
        // A guest that takes what the host left behind may take its time.
        self.lingers_until = None;
        let mut packet = self.packet(op::RW);
        packet.len = length as u32;
        Some(packet)
    }

    /// Data waits and the guest has no room, as far as is known.
    fn starved(&self) -> bool {
        self.credit() == 0 && !self.host_sends_no_more
    }

    fn shutdown_to_tell(&self) -> Option<u32> {
        let mut flags = 0;
        if self.host_sends_no_more && self.to_guest.is_empty() {
            flags |= SHUTDOWN_SEND;
        }
        if self.host_receives_no_more {
            flags |= SHUTDOWN_RECEIVE;
        }
        (flags & !self.told_shut != 0).then_some(flags)
    }

    /// A packet of this connection; ports are filled in by the table.
    fn packet(&mut self, op: u16) -> Header {
        self.forwarded_told = self.forwarded;
        // Every packet carries the credit.
        self.notices.credit_update = false;
        Header {
            op,
            buf_alloc: BUFFER_BYTES,
            fwd_cnt: self.forwarded.0,
            ..Header::default()
        }
    }

    /// How the connection's end is to be handled.
    pub(super) fn ending(&mut self, now: Duration) -> Ending {
        let drained = self.to_host.is_empty() || self.host_receives_no_more;
        if self.guest_gone {
            return if drained {
                Ending::Forget
            } else {
                Ending::None
            };
        }
        if self.host_gone && self.established() {
            self.lingers_until.get_or_insert(now + LINGER);
        }
        let gave_up = self.deadline().is_some_and(|until| now >= until);
        let both = SHUTDOWN_RECEIVE | SHUTDOWN_SEND;
        if gave_up || (self.guest_shut == both && drained) {
            return Ending::Reset;
        }
        Ending::None
    }
}

/// What becomes of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// It goes on.
    None,
    /// It is dropped without a word.
    Forget,
    /// The guest is told by RST.
    Reset,
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREDIT: u32 = 1000;

    /// A connection whose host has written `bytes` bytes and closed its end.
    fn abandoned(bytes: usize) -> Connection {
        let (mut host, stream) = UnixStream::pair().unwrap();
        let request = Header {
            op: op::REQUEST,
            buf_alloc: CREDIT,
            ..Header::default()
        };
        let mut connection = Connection::accept(stream, &request).unwrap();
        host.write_all(&vec![7; bytes]).unwrap();
        drop(host);
        connection.fill(&mut Vec::new());
        connection.host_hung_up();
        connection
    }

    #[test]
    fn a_guest_that_does_not_end_a_connection_without_a_host_loses_it() {
        let mut connection = abandoned(0);
        let now = Duration::from_secs(100);
        assert_eq!(connection.ending(now), Ending::None, "the guest may answer");
        assert_eq!(connection.deadline(), Some(now + LINGER));
        while connection.next_packet(4096, &mut Vec::new()).is_some() {}
        let last = now + LINGER - Duration::from_nanos(1);
        assert_eq!(connection.ending(last), Ending::None);
        assert_eq!(connection.ending(now + LINGER), Ending::Reset);
    }

    #[test]
    fn what_the_host_left_behind_may_be_taken_slowly() {
        let mut connection = abandoned(2 * CREDIT as usize);
        let (mut now, mut data) = (Duration::from_secs(100), Vec::new());
        for _ in 0..2 {
            assert_eq!(connection.ending(now), Ending::None);
            while connection.next_packet(4096, &mut data).is_some() {}
            now += LINGER - Duration::from_secs(1);
            assert_eq!(connection.ending(now), Ending::None);
            let more = Header {
                op: op::CREDIT_UPDATE,
                buf_alloc: CREDIT,
                fwd_cnt: data.len() as u32,
                ..Header::default()
            };
            connection.receive(&more, &[]).unwrap();
        }
        assert_eq!(data.len(), 2 * CREDIT as usize, "everything arrived");
        // A guest that takes nothing more has the same time as any other.
        assert_eq!(connection.ending(now + LINGER + LINGER), Ending::Reset);
    }
}
