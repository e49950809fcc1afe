//! Output that nobody waits for any more.
//!
//! A command may leave processes behind that hold its pipes or its terminal. They must neither
//! block on a full pipe nor die of a closed one, so one thread reads and drops what they write
//! until they close it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::{Errno, read, write};

/// Most streams kept; further ones are closed, and their writers get an error.
pub(crate) const MAX_DRAINED: usize = 4096;
/// Bytes read from one stream before the next has its turn.
const PIECE_BYTES: usize = 64 << 10;

/// Hands streams to the thread that drains them.
pub(crate) struct Drainer {
    shared: Arc<Shared>,
}

struct Shared {
    /// Streams that the thread has not taken yet.
    new: Mutex<Vec<OwnedFd>>,
    wake: OwnedFd,
}

impl Drainer {
    /// Starts the thread. It ends with the process.
    pub(crate) fn start() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let shared = Arc::new(Shared {
            new: Mutex::default(),
            wake: eventfd(0, flags)?,
        });
        let theirs = Arc::clone(&shared);
        thread::Builder::new()
            .name("drain".into())
            .stack_size(256 << 10)
            .spawn(move || drain(&theirs))?;
        Ok(Self { shared })
    }

    /// Drains `stream`, which must be non-blocking, until its end.
    pub(crate) fn adopt(&self, stream: OwnedFd) {
        let mut new = self
            .shared
            .new
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        new.push(stream);
        drop(new);
        // A full counter wakes the thread as well.
        let _ = write(&self.shared.wake, &1u64.to_ne_bytes_for_kernel());
    }
}

/// The kernel's interface is in host order, which is no format of ours.
trait KernelBytes {
    fn to_ne_bytes_for_kernel(self) -> [u8; 8];
}

impl KernelBytes for u64 {
    #[allow(clippy::host_endian_bytes)] // eventfd takes a host integer
    fn to_ne_bytes_for_kernel(self) -> [u8; 8] {
        self.to_ne_bytes()
    }
}

fn drain(shared: &Shared) {
    let mut streams: Vec<OwnedFd> = Vec::new();
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        let ready = wait(shared, &streams);
        let mut at = 0;
        streams.retain(|stream| {
            let keep = !ready[at] || still_open(stream, &mut buffer);
            at += 1;
            keep
        });
        let mut counter = [0; 8];
        // Only clears the wake-up.
        let _ = read(&shared.wake, &mut counter);
        let mut new = shared.new.lock().unwrap_or_else(PoisonError::into_inner);
        streams.append(&mut new);
        streams.truncate(MAX_DRAINED);
    }
}

/// Which of `streams` can be read, once one of them or the wake-up can.
fn wait(shared: &Shared, streams: &[OwnedFd]) -> Vec<bool> {
    let mut polled = vec![PollFd::new(&shared.wake, PollFlags::IN)];
    polled.extend(
        streams
            .iter()
            .map(|stream| PollFd::new(stream, PollFlags::IN)),
    );
    match poll(&mut polled, None) {
        Ok(_) => polled[1..]
            .iter()
            .map(|fd| !fd.revents().is_empty())
            .collect(),
        // Interrupted, or out of memory for a moment: nothing is known to be ready.
        Err(_) => vec![false; streams.len()],
    }
}

fn still_open(stream: &OwnedFd, buffer: &mut [u8]) -> bool {
    match read(stream, buffer) {
        Ok(count) => count > 0,
        Err(Errno::AGAIN | Errno::INTR) => true,
        Err(_) => false, // a terminal whose last user left answers EIO
    }
}
