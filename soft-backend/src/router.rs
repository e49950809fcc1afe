//! How interrupts reach vCPUs: an inbox per vCPU that any thread may put messages into.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use vmm_core::x86::lapic::{Destination, Message};

/// No start-up IPI waits.
const NO_START_UP: u32 = u32::MAX;

/// Messages that wait for a vCPU, and the addresses under which it takes them.
#[derive(Default)]
pub(crate) struct Inbox {
    edge: [AtomicU64; 4],
    level: [AtomicU64; 4],
    nmi: AtomicBool,
    init: AtomicBool,
    start_up: AtomicU32,
    any: AtomicBool,
    /// Id in bits 0–7, logical id in 8–15, flat model in 16.
    address: AtomicU32,
}

/// What an inbox held.
#[derive(Clone, Debug, Default)]
pub(crate) struct Post {
    pub(crate) vectors: Vec<(u8, bool)>,
    pub(crate) nmi: bool,
    pub(crate) init: bool,
    pub(crate) start_up: Option<u8>,
}

impl Inbox {
    fn new() -> Self {
        let inbox = Inbox::default();
        inbox.start_up.store(NO_START_UP, Ordering::Relaxed);
        inbox
    }

    /// Publishes how interrupts find this vCPU.
    pub(crate) fn set_address(&self, (id, logical, flat): (u8, u8, bool)) {
        let v = u32::from(id) | u32::from(logical) << 8 | u32::from(flat) << 16;
        self.address.store(v, Ordering::Relaxed);
    }

    fn matches(&self, id: u8, logical: bool) -> bool {
        let a = self.address.load(Ordering::Relaxed);
        if !logical {
            return id == 0xff || id == a as u8;
        }
        let mine = (a >> 8) as u8;
        if a >> 16 & 1 != 0 {
            return id & mine != 0;
        }
        // Cluster model: cluster number above, members below.
        (id >> 4 == mine >> 4 || id >> 4 == 0xf) && id & mine & 0xf != 0
    }

    fn put(&self, m: Message) {
        match m {
            Message::Fixed { vector, level } | Message::LowestPriority { vector, level } => {
                let bank = if level { &self.level } else { &self.edge };
                bank[usize::from(vector >> 6)].fetch_or(1 << (vector & 63), Ordering::SeqCst);
            }
            Message::Nmi => self.nmi.store(true, Ordering::SeqCst),
            Message::Init => self.init.store(true, Ordering::SeqCst),
            Message::StartUp(v) => self.start_up.store(v.into(), Ordering::SeqCst),
        }
        self.any.store(true, Ordering::SeqCst);
    }

    /// Takes everything, if there is anything.
    #[inline]
    pub(crate) fn take(&self) -> Option<Post> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        Some(self.take_all())
    }

    #[cold]
    fn take_all(&self) -> Post {
        self.any.store(false, Ordering::SeqCst);
        let mut post = Post::default();
        for (bank, level) in [(&self.edge, false), (&self.level, true)] {
            for (i, w) in (0u8..).zip(bank) {
                let mut w = w.swap(0, Ordering::SeqCst);
                while w != 0 {
                    post.vectors
                        .push((i * 64 + w.trailing_zeros() as u8, level));
                    w &= w - 1;
                }
            }
        }
        post.nmi = self.nmi.swap(false, Ordering::SeqCst);
        post.init = self.init.swap(false, Ordering::SeqCst);
        let s = self.start_up.swap(NO_START_UP, Ordering::SeqCst);
        post.start_up = u8::try_from(s).ok();
        post
    }
}

/// How a vCPU's thread is reached while it waits.
#[derive(Default)]
pub(crate) struct Mailbox {
    kicked: AtomicBool,
    rings: Mutex<u64>,
    bell: Condvar,
}

impl Mailbox {
    pub(crate) fn kick(&self) {
        self.kicked.store(true, Ordering::SeqCst);
        self.ring();
    }

    /// Takes a kick.
    pub(crate) fn take_kick(&self) -> bool {
        self.kicked.load(Ordering::SeqCst) && self.kicked.swap(false, Ordering::SeqCst)
    }

    /// Wakes a waiting thread.
    pub(crate) fn ring(&self) {
        *self.rings.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.bell.notify_all();
    }

    /// A number to give to [`Mailbox::wait`]: rings after this call end the wait.
    pub(crate) fn rings(&self) -> u64 {
        *self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until somebody rings after `seen`, or for `limit`.
    pub(crate) fn wait(&self, seen: u64, limit: Option<Duration>) {
        let guard = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = |n: &mut u64| *n == seen;
        match limit {
            Some(d) => drop(self.bell.wait_timeout_while(guard, d, waiting)),
            None => drop(self.bell.wait_while(guard, waiting)),
        }
    }
}

/// The inboxes and mailboxes of a machine.
pub(crate) struct Router {
    pub(crate) inboxes: Vec<Inbox>,
    pub(crate) mail: Vec<Mailbox>,
    /// Makes the running vCPU look around.
    pub(crate) attention: AtomicBool,
    round_robin: AtomicU32,
    /// Deterministic mode.
    pub(crate) order: Option<Order>,
}

/// Deterministic mode: what others may know of the vCPU whose turn it is.
#[derive(Default)]
pub(crate) struct Order {
    /// Whose turn it is: the one thread that may have to be woken.
    pub(crate) turn: AtomicUsize,
    /// The thread that runs it.
    pub(crate) thread: Mutex<Option<ThreadId>>,
    /// Instructions that the machine has retired, as of the last access to a device or stop.
    pub(crate) count: AtomicU64,
}

impl Order {
    /// Whether the caller is called by the running vCPU itself: it answers an access.
    fn is_inside(&self) -> bool {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        *thread == Some(std::thread::current().id())
    }
}

impl Router {
    pub(crate) fn new(vcpus: u8, order: Option<Order>) -> Arc<Self> {
        Arc::new(Router {
            inboxes: (0..vcpus).map(|_| Inbox::new()).collect(),
            mail: (0..vcpus).map(|_| Mailbox::default()).collect(),
            attention: AtomicBool::new(false),
            round_robin: AtomicU32::new(0),
            order,
        })
    }

    /// Asks the running vCPU to look around.
    pub(crate) fn call(&self) {
        self.attention.store(true, Ordering::SeqCst);
    }

    /// As [`call`](Self::call), from any thread. In deterministic mode the vCPU runs on to its next
    /// stop when another thread calls: where it stops must not depend on when that is.
    pub(crate) fn call_from_anywhere(&self) {
        if self.order.as_ref().is_none_or(Order::is_inside) {
            self.call();
        }
    }

    /// Publishes the machine's instruction count.
    pub(crate) fn publish_count(&self, retired: u64) {
        if let Some(order) = &self.order {
            order.count.store(retired, Ordering::SeqCst);
        }
    }

    /// Wakes whoever acts on a message to a vCPU.
    fn ring_for(&self, vcpu: usize) {
        let order = self.order.as_ref();
        let sleeper = order.map_or(vcpu, |order| order.turn.load(Ordering::SeqCst));
        self.mail[sleeper].ring();
    }

    /// Sends a message; `from` is the sending vCPU, if it is one.
    pub(crate) fn send(&self, m: Message, to: Destination, from: Option<usize>) {
        let mut targets: Vec<usize> = (0..self.inboxes.len())
            .filter(|i| match to {
                Destination::Of { id, logical } => self.inboxes[*i].matches(id, logical),
                Destination::Itself => Some(*i) == from,
                Destination::All => true,
                Destination::Others => Some(*i) != from,
            })
            .collect();
        if let Message::LowestPriority { .. } = m
            && targets.len() > 1
        {
            let n = self.round_robin.fetch_add(1, Ordering::Relaxed) as usize % targets.len();
            targets = vec![targets[n]];
        }
        for i in targets {
            self.inboxes[i].put(m);
            self.ring_for(i);
        }
        self.call();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_find_their_targets() {
        let r = Router::new(3, None);
        for i in 0..3u8 {
            r.inboxes[usize::from(i)].set_address((i, 1 << i, true));
        }
        let fixed = |vector| Message::Fixed {
            vector,
            level: false,
        };
        r.send(
            fixed(0x40),
            Destination::Of {
                id: 2,
                logical: false,
            },
            None,
        );
        r.send(
            fixed(0x41),
            Destination::Of {
                id: 0b101,
                logical: true,
            },
            None,
        );
        r.send(fixed(0x42), Destination::Others, Some(0));
        r.send(
            Message::StartUp(9),
            Destination::Of {
                id: 1,
                logical: false,
            },
            Some(0),
        );
        let take = |i: usize| r.inboxes[i].take().unwrap_or_default();
        let vectors = |p: &Post| p.vectors.iter().map(|v| v.0).collect::<Vec<_>>();
        assert_eq!(vectors(&take(0)), [0x41]);
        let one = take(1);
        assert_eq!((vectors(&one), one.start_up), (vec![0x42], Some(9)));
        assert_eq!(vectors(&take(2)), [0x40, 0x41, 0x42]);
        assert!(r.inboxes[2].take().is_none());
    }

    #[test]
    fn lowest_priority_goes_to_one() {
        let r = Router::new(4, None);
        for i in 0..4u8 {
            r.inboxes[usize::from(i)].set_address((i, 1 << i, true));
        }
        let m = Message::LowestPriority {
            vector: 0x50,
            level: true,
        };
        r.send(
            m,
            Destination::Of {
                id: 0xf,
                logical: true,
            },
            None,
        );
        let got = (0..4).filter(|i| r.inboxes[*i].take().is_some()).count();
        assert_eq!(got, 1);
    }
}
