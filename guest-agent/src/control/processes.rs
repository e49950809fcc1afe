//! The guest's processes, as a checkpoint lists them.

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

/// Lists what runs until `deadline`, kernel threads left out.
pub(super) fn list(deadline: Instant) -> Processes {
    let mut found = Processes::default();
    let Ok(entries) = fs::read_dir("/proc") else {
        return found;
    };
    // The kernel gives them by number.
    for entry in entries.flatten() {
        let name = entry.file_name();
        if !name.as_encoded_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        if found.list.len() == MAX_PROCESSES || Instant::now() >= deadline {
            found.unlisted = found.unlisted.saturating_add(1);
            continue;
        }
        // One that has just ended, or a kernel thread, is no part of the list.
        let stat = fs::read(entry.path().join("stat"));
        found.list.extend(stat.ok().and_then(|stat| parse(&stat)));
    }
    found
}

/// Counts what has run so far in all processes but the agent's two, this one and the first, which waits for it; kernel threads
/// are left out. `None` where that is not known by
/// `deadline`, or this kernel does not count.
pub(super) fn activity(sessions: u64, deadline: Instant) -> Option<Activity> {
    let mut activity = Activity {
        sessions,
        ..Activity::default()
    };
    let own = [std::process::id().to_string(), "1".to_owned()];
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let name = entry.file_name();
        let Some(number) = name.to_str() else {
            continue;
        };
        if !number.bytes().all(|byte| byte.is_ascii_digit()) || own.iter().any(|own| own == number)
        {
            continue;
        }
        let stat = fs::read(entry.path().join("stat"));
        if stat.ok().and_then(|stat| parse(&stat)).is_none() {
            continue;
        }
        // One that ends meanwhile is missing from now on.
        let Ok(threads) = fs::read_dir(entry.path().join("task")) else {
            continue;
        };
        for thread in threads.flatten() {
            if Instant::now() >= deadline {
                return None;
            }
            activity.threads += 1;
            activity.cpu_nanos = activity.cpu_nanos.wrapping_add(cpu_nanos(&thread.path())?);
        }
    }
    Some(activity)
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
        let counted = activity(7, later()).expect("counted");
        assert!(counted.threads >= 1 && counted.cpu_nanos >= first);
        assert_eq!(counted.sessions, 7);
        child.kill().expect("killed");
        child.wait().expect("collected");
        assert_eq!(cpu_nanos(&path), Some(0));
        assert_eq!(activity(7, Instant::now()), None);
    }

    #[test]
    fn this_process_is_listed_and_time_is_kept() {
        let all = list(Instant::now() + Duration::from_secs(60));
        let own = std::process::id();
        assert!(all.unlisted == 0 || all.list.len() == MAX_PROCESSES);
        assert!(all.list.iter().any(|process| process.pid == own));
        assert!(all.list.is_sorted_by_key(|process| process.pid));
        let none = list(Instant::now());
        assert!(none.list.is_empty() && none.unlisted > 0);
    }
}
