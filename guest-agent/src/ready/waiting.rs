//! The agent's side: who waits, and who will.
//!
//! One thread owns all of it. Any process of the guest may connect, so everything has a limit, and no user but root can
//! take all places. What a process says is never waited for.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use agent_protocol::message::{ErrorKind, MAX_ANNOUNCED, Reply};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send};
use rustix::process::{Pid, PidfdFlags, pidfd_open, setpriority_process};
use rustix::time::Timespec;

use super::{ANNOUNCE, ANNOUNCE_PARENT, CALL};
use crate::control::processes::parent_of;
use crate::door::{self, Visitor};

/// Connections of the tool at one time.
const MAX_CALLERS: usize = 256;
/// Hosts that wait until all are ready, at one time.
const MAX_WATCHERS: usize = 16;
/// Of each limit, the part for one user other than root, and that for all such users: the rest is root's.
const PART_OF_USER: usize = 4;
/// How long a connection may say nothing.
const GREETING_TIME: Duration = Duration::from_secs(10);
/// Pause when no connection can be taken.
const RETRY: Duration = Duration::from_millis(200);
/// Most parents that are looked at: no tree of processes is deeper that anybody means.
const MAX_ANCESTORS: usize = 256;

/// The way to the thread.
pub(crate) struct Waiting {
    orders: Mutex<Sender<Order>>,
    wake: Arc<OwnedFd>,
}

/// What the thread is told by the agent's others.
enum Order {
    Listen(UnixListener),
    Release { line: String, answer: Sender<u32> },
    Count { answer: Sender<(u32, Vec<u32>)> },
    Watch(Visitor),
}

impl Waiting {
    /// Starts the thread. It ends with the process.
    pub(crate) fn start() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = Arc::new(eventfd(0, flags)?);
        let (orders, taken) = channel();
        let theirs = Arc::clone(&wake);
        thread::Builder::new()
            .name("ready".into())
            .stack_size(256 << 10)
            .spawn(move || attend(&theirs, &taken))?;
        Ok(Self {
            orders: Mutex::new(orders),
            wake,
        })
    }

    fn order(&self, order: Order) {
        let orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        // A thread that is gone answers nothing, which its callers see.
        let _ = orders.send(order);
        drop(orders);
        // A full counter wakes the thread as well.
        #[allow(clippy::host_endian_bytes)] // eventfd takes a host integer
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }

    /// Hears the guest's processes at this socket.
    pub(crate) fn listen(&self, listener: UnixListener) {
        self.order(Order::Listen(listener));
    }

    /// Tells all that wait to go on; returns how many were told.
    pub(crate) fn release(&self, index: u32, name: &str) -> u32 {
        let (answer, answered) = channel();
        let line = format!("go {index} {name}\n");
        self.order(Order::Release { line, answer });
        answered.recv().unwrap_or_default()
    }

    /// How many wait, and which processes will.
    pub(crate) fn count(&self) -> (u32, Vec<u32>) {
        let (answer, answered) = channel();
        self.order(Order::Count { answer });
        answered.recv().unwrap_or_default()
    }

    /// Answers `visitor` once nobody is announced who does not wait.
    pub(crate) fn watch(&self, visitor: Visitor) {
        self.order(Order::Watch(visitor));
    }
}

/// A connection of the tool.
struct Caller {
    stream: OwnedFd,
    uid: u32,
    pid: Pid,
    /// When it must have said what it is about; `None` once it waits.
    until: Option<Instant>,
}

/// A process that will call.
struct Announced {
    uid: u32,
    pid: Pid,
    process: OwnedFd,
}

/// What became of a caller that was heard.
enum Heard {
    /// It has nothing to say yet.
    Nothing,
    /// It waits.
    Waits,
    /// Nothing more is said to it.
    Done,
}

#[derive(Default)]
struct Party {
    listener: Option<UnixListener>,
    callers: Vec<Caller>,
    announced: Vec<Announced>,
    watchers: Vec<File>,
}

fn attend(wake: &OwnedFd, orders: &Receiver<Order>) {
    // What is done here is done for the guest's processes, at their priority.
    let _ = setpriority_process(None, 0);
    let mut party = Party::default();
    loop {
        let ready = party.wait(wake);
        party.look(&ready);
        let mut counter = [0; 8];
        // Only clears the wake-up.
        let _ = rustix::io::read(wake, &mut counter);
        while let Ok(order) = orders.try_recv() {
            party.obey(order);
        }
        party.answer_watchers();
    }
}

impl Party {
    /// Whom to look at: the listener, callers, announced processes and watchers, in this order.
    fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let listener = self.listener.iter().map(AsFd::as_fd);
        let callers = self.callers.iter().map(|caller| caller.stream.as_fd());
        let announced = self.announced.iter().map(|one| one.process.as_fd());
        let watchers = self.watchers.iter().map(AsFd::as_fd);
        listener.chain(callers).chain(announced).chain(watchers)
    }

    /// Waits until there is something to do; which of the sockets has something to say.
    fn wait(&self, wake: &OwnedFd) -> Vec<bool> {
        let flags = PollFlags::IN | PollFlags::RDHUP;
        let mut polled = vec![PollFd::new(wake, flags)];
        polled.extend(self.sockets().map(|fd| PollFd::from_borrowed_fd(fd, flags)));
        let until = self.callers.iter().filter_map(|caller| caller.until).min();
        let timeout = until.map(|until| {
            let left = until.saturating_duration_since(Instant::now());
            Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            }
        });
        let count = polled.len() - 1;
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) => {
                let ready = polled[1..].iter();
                ready.map(|fd| !fd.revents().is_empty()).collect()
            }
            // Interrupted, or out of memory for a moment: nothing is known to be ready.
            Err(_) => vec![false; count],
        }
    }

    fn look(&mut self, ready: &[bool]) {
        let (listens, ready) = ready.split_at(usize::from(self.listener.is_some()));
        let (called, ready) = ready.split_at(self.callers.len());
        let (ended, gone) = ready.split_at(self.announced.len());
        // One that has ended will not call any more; a host has nothing to say but that it is gone.
        keep_unless(&mut self.announced, ended);
        keep_unless(&mut self.watchers, gone);
        let now = Instant::now();
        for (mut caller, called) in std::mem::take(&mut self.callers).into_iter().zip(called) {
            let late = caller.until.is_some_and(|until| now >= until);
            let heard = match (called, late) {
                (true, _) => self.hear(&caller),
                (false, true) => Heard::Done,
                (false, false) => Heard::Nothing,
            };
            match heard {
                Heard::Nothing => self.callers.push(caller),
                Heard::Waits => {
                    caller.until = None;
                    self.callers.push(caller);
                }
                Heard::Done => {}
            }
        }
        if listens.contains(&true) {
            self.accept();
        }
    }

    fn accept(&mut self) {
        let Some(listener) = &self.listener else {
            return;
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let stream = match accept_with(listener, flags) {
            Ok(stream) => stream,
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                return thread::sleep(RETRY);
            }
            // Whoever called is gone again.
            Err(_) => return,
        };
        let Ok(peer) = socket_peercred(&stream) else {
            return;
        };
        let uid = peer.uid.as_raw();
        let others = self.callers.iter().map(|caller| caller.uid);
        if !has_room(MAX_CALLERS, uid, others) {
            return say(&stream, "no too many processes wait for a branch already\n");
        }
        self.callers.push(Caller {
            stream,
            uid,
            pid: peer.pid,
            until: Some(Instant::now() + GREETING_TIME),
        });
    }

    fn hear(&mut self, caller: &Caller) -> Heard {
        let mut bytes = [0; 2];
        let heard = match recv(&caller.stream, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((count, _)) => &bytes[..count],
            Err(Errno::AGAIN | Errno::INTR) => return Heard::Nothing,
            Err(_) => return Heard::Done,
        };
        let waits = caller.until.is_none();
        let announced = match heard {
            [CALL] if !waits => {
                self.is_ready(caller.pid);
                return Heard::Waits;
            }
            [ANNOUNCE] if !waits => self.announce(caller, Some(caller.pid)),
            [ANNOUNCE_PARENT] if !waits => {
                let parent = parent_of(caller.pid);
                self.announce(caller, parent)
            }
            // It left, or is none of ours.
            _ => return Heard::Done,
        };
        say(&caller.stream, announced);
        Heard::Done
    }

    /// Notes a process that will call; the answer.
    fn announce(&mut self, caller: &Caller, who: Option<Pid>) -> &'static str {
        let own = rustix::process::getpid();
        let Some(pid) = who.filter(|pid| *pid != own && *pid != Pid::INIT) else {
            return "no nobody started this who could call it later: give it the command\n";
        };
        if self.announced.iter().any(|one| one.pid == pid) {
            return "ok\n";
        }
        let others = self.announced.iter().map(|one| one.uid);
        if !has_room(MAX_ANNOUNCED, caller.uid, others) {
            return "no too many processes are announced already\n";
        }
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
            return "no the process cannot be watched\n";
        };
        self.announced.push(Announced {
            uid: caller.uid,
            pid,
            process,
        });
        "ok\n"
    }

    /// A process waits now: it, or the one of its ancestors that had announced that.
    fn is_ready(&mut self, caller: Pid) {
        if self.announced.is_empty() {
            return;
        }
        let mut at = Some(caller);
        for _ in 0..MAX_ANCESTORS {
            let Some(pid) = at else { return };
            self.announced.retain(|one| one.pid != pid);
            at = parent_of(pid);
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Listen(listener) => self.listener = Some(listener),
            Order::Release { line, answer } => {
                let mut count = 0;
                self.callers.retain(|caller| {
                    let waits = caller.until.is_none();
                    if waits {
                        say(&caller.stream, &line);
                        count += 1;
                    }
                    !waits
                });
                // Whoever asked may be gone.
                let _ = answer.send(count);
            }
            Order::Count { answer } => {
                let waiting = self.callers.iter().filter(|caller| caller.until.is_none());
                let waiting = u32::try_from(waiting.count()).unwrap_or(u32::MAX);
                let announced = self.announced.iter();
                let announced = announced.map(|one| one.pid.as_raw_nonzero().get().unsigned_abs());
                // Whoever asked may be gone.
                let _ = answer.send((waiting, announced.collect()));
            }
            Order::Watch(visitor) if self.watchers.len() < MAX_WATCHERS => {
                self.watchers.push(visitor.stream);
            }
            Order::Watch(visitor) => {
                let reply = Reply::Error {
                    kind: ErrorKind::Busy,
                    message: format!("{MAX_WATCHERS} commands wait for the guest already"),
                };
                // A client that is gone needs no answer.
                let _ = door::answer(&visitor.stream, &reply);
            }
        }
    }

    fn answer_watchers(&mut self) {
        if self.announced.is_empty() {
            for watcher in self.watchers.drain(..) {
                // A client that is gone needs no answer.
                let _ = door::answer(&watcher, &Reply::Ok);
            }
        }
    }
}

/// Drops those whose flag is set.
fn keep_unless<T>(list: &mut Vec<T>, flags: &[bool]) {
    let mut flags = flags.iter();
    list.retain(|_| flags.next() != Some(&true));
}

/// Whether one more of a user has room beside those of `others`.
fn has_room(limit: usize, uid: u32, others: impl Iterator<Item = u32>) -> bool {
    let (mut all, mut of_user, mut of_users) = (0, 0, 0);
    for other in others {
        all += 1;
        of_user += usize::from(other == uid);
        of_users += usize::from(other != 0);
    }
    let part = limit / PART_OF_USER;
    all < limit && (uid == 0 || (of_user < part && of_users < limit - part))
}

/// Says a line to a process, which has room for it unless it wants none.
fn say(stream: &OwnedFd, line: &str) {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    // One that is gone, or takes nothing, is not waited for.
    let _ = send(stream, line.as_bytes(), flags);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_user_but_root_takes_all_places() {
        let room = |uid, others: &[u32]| has_room(8, uid, others.iter().copied());
        assert!(room(5, &[]) && room(5, &[5, 6, 6]));
        assert!(!room(5, &[5, 5]), "a quarter for each user");
        assert!(room(6, &[5, 5, 7, 7, 8]));
        assert!(!room(6, &[5, 5, 7, 7, 8, 8]), "the last quarter is root's");
        assert!(room(0, &[5, 5, 7, 7, 8, 8]));
        assert!(!room(0, &[0; 8]));
    }
}
