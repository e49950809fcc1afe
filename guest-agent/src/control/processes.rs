//! The guest's processes, as a checkpoint lists them.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::time::Instant;

use agent_protocol::codec::Bytes;
use agent_protocol::message::{
    Activity, MAX_PROCESS_NAME_BYTES, MAX_PROCESSES, Process, Processes,
};
use rustix::process::Pid;

/// Flag of kernel threads in `/proc/PID/stat`, `PF_KTHREAD` of `linux/sched.h`.
const KERNEL_THREAD: u32 = 0x0020_0000;

/// What runs in the guest, kernel threads left out.
#[derive(Debug)]
pub(super) struct Survey {
    /// The processes, as far as they could be looked at in time.
    pub(super) processes: Processes,
    /// What has run so far in all of them but the agent's two, this one and the first, which waits for it. `None` where that is not
    /// known in time, or this kernel does not count.
    pub(super) activity: Option<Activity>,
}

/// Looks at what runs until `deadline`; `sessions` of the agent were counted so far.
///
/// The agent has precedence over all others, and on a slow CPU a look at one process takes a third of a millisecond: kernel threads,
/// which are most of them, are passed over by name, and in between others get the CPU.
pub(super) fn survey(sessions: u64, deadline: Instant) -> Survey {
    let mut found = Processes::default();
    let mut activity = Some(Activity {
        sessions,
        ..Activity::default()
    });
    let (kernel_threads, own) = (kernel_threads(), [1, std::process::id()]);
    let Ok(entries) = fs::read_dir("/proc") else {
        return Survey {
            processes: found,
            activity: None,
        };
    };
    // The kernel gives them by number.
    for entry in entries.flatten() {
        let Some(number) = process_number(&entry.file_name()) else {
            continue;
        };
        if kernel_threads.contains(&number) {
            continue;
        }
        rustix::thread::sched_yield();
        let late = Instant::now() >= deadline;
        if late {
            activity = None;
        }
        let full = found.list.len() == MAX_PROCESSES;
        if late || full {
            found.unlisted = found.unlisted.saturating_add(1);
        }
        if late || (full && activity.is_none()) {
            continue;
        }
        // One that has just ended, or a kernel thread, is no part of the list.
        let stat = fs::read(entry.path().join("stat"));
        let Some(process) = stat.ok().and_then(|stat| parse(&stat)) else {
            continue;
        };
        if !full {
            found.list.push(process);
        }
        if !own.contains(&number) {
            activity = activity.and_then(|sum| with_threads(sum, &entry.path(), deadline));
        }
    }
    Survey {
        processes: found,
        activity,
    }
}

/// A process's number, where a name in `/proc` is one.
fn process_number(name: &OsStr) -> Option<u32> {
    let name = name.to_str()?;
    let digits = name.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| name.parse().ok())?
}

/// The kernel's threads: what the second process has begun (`proc(5)`, `/proc/PID/task/TID/children`). Where the kernel does not
/// tell, and in a container, nothing is known of them here.
fn kernel_threads() -> HashSet<u32> {
    let is_kernel = fs::read("/proc/2/stat").is_ok_and(|stat| stat.starts_with(b"2 (kthreadd) "));
    let children = fs::read_to_string("/proc/2/task/2/children").unwrap_or_default();
    let numbers = children
        .split_whitespace()
        .filter_map(|number| number.parse().ok());
    match is_kernel {
        true => numbers.collect(),
        false => HashSet::new(),
    }
}

/// Adds a process's threads. One that ends meanwhile is missing from now on.
fn with_threads(mut sum: Activity, process: &Path, deadline: Instant) -> Option<Activity> {
    let Ok(threads) = fs::read_dir(process.join("task")) else {
        return Some(sum);
    };
    for thread in threads.flatten() {
        if Instant::now() >= deadline {
            return None;
        }
        sum.threads += 1;
        sum.cpu_nanos = sum.cpu_nanos.wrapping_add(cpu_nanos(&thread.path())?);
    }
    Some(sum)
}

/// The parent of a process; `None` where it is gone or has none.
pub(crate) fn parent_of(pid: Pid) -> Option<Pid> {
    let stat = fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    let parent = parse(&stat)?.ppid;
    Pid::from_raw(i32::try_from(parent).ok()?)
}

/// How long a thread had a CPU so far; 0 for one that has just ended.
fn cpu_nanos(thread: &Path) -> Option<u64> {
    match fs::read_to_string(thread.join("schedstat")) {
        Ok(line) => line.split(' ').next()?.parse().ok(),
        Err(_) if thread.exists() => None,
        Err(_) => Some(0),
    }
}

/// One line of `/proc/PID/stat`: `PID (COMM) STATE PPID PGRP SESSION TTY TPGID FLAGS …`. The name may
/// hold anything, also parentheses.
fn parse(stat: &[u8]) -> Option<Process> {
    let open = stat.iter().position(|&byte| byte == b'(')?;
    let close = stat.iter().rposition(|&byte| byte == b')')?;
    let number = |bytes: &[u8]| std::str::from_utf8(bytes).ok()?.trim().parse().ok();
    let comm = stat.get(open + 1..close)?;
    let mut rest = stat.get(close + 1..)?.split(|&byte| byte == b' ').skip(1);
    let state = *rest.next()?.first()?;
    let ppid = number(rest.next()?)?;
    let flags = number(rest.nth(4)?)?;
    (flags & KERNEL_THREAD == 0).then_some(())?;
    Some(Process {
        pid: number(&stat[..open])?,
        ppid,
        comm: Bytes::from(&comm[..comm.len().min(MAX_PROCESS_NAME_BYTES)]),
        state,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_name_may_look_like_the_rest_of_the_line() {
        let stat = b"42 (a) R 1 (b) S 7 42 42 0 -1 4194304 1 2 3\n";
        let process = parse(stat).expect("a process");
        assert_eq!((process.pid, process.ppid), (42, 7));
        assert_eq!(*process.comm, *b"a) R 1 (b");
        assert_eq!(process.state, b'S');
        assert_eq!(parse(b"2 (kthreadd) S 0 0 0 0 -1 2129984 0\n"), None);
        for bad in [&b""[..], b"1", b"1 (x", b"1 (x)", b"1 (x) S", b") ("] {
            assert_eq!(parse(bad), None);
        }
    }

    #[test]
    fn what_runs_is_counted() {
        let later = || Instant::now() + Duration::from_secs(60);
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .expect("a child");
        let path = Path::new("/proc").join(child.id().to_string());
        let patience = later();
        // It counts when the thread has given its CPU up.
        let first = loop {
            match cpu_nanos(&path).expect("counted") {
                0 if Instant::now() < patience => std::thread::yield_now(),
                counted => break counted,
            }
        };
        assert!(first > 0, "it was executed");
        let counted = survey(7, later()).activity.expect("counted");
        assert!(counted.threads >= 1 && counted.cpu_nanos >= first);
        assert_eq!(counted.sessions, 7);
        child.kill().expect("killed");
        child.wait().expect("collected");
        assert_eq!(cpu_nanos(&path), Some(0));
        assert_eq!(survey(7, Instant::now()).activity, None);
    }

    #[test]
    fn this_process_is_listed_and_time_is_kept() {
        let all = survey(0, Instant::now() + Duration::from_secs(60)).processes;
        let own = std::process::id();
        assert!(all.unlisted == 0 || all.list.len() == MAX_PROCESSES);
        assert!(all.list.iter().any(|process| process.pid == own));
        assert!(all.list.is_sorted_by_key(|process| process.pid));
        let none = survey(0, Instant::now()).processes;
        assert!(none.list.is_empty() && none.unlisted > 0);
    }

    #[test]
    fn kernel_threads_are_passed_over() {
        // In a container the second process is any.
        let threads = kernel_threads();
        for number in threads.iter().take(100) {
            let stat = fs::read(format!("/proc/{number}/stat"));
            assert_eq!(stat.ok().and_then(|stat| parse(&stat)), None, "{number}");
        }
        assert!(!threads.contains(&std::process::id()));
        assert_eq!(process_number(OsStr::new("17")), Some(17));
        for other in ["", "self", "1a", "99999999999"] {
            assert_eq!(process_number(OsStr::new(other)), None);
        }
    }
}
