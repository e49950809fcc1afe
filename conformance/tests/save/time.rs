//! Time stands still while a machine is saved, except on the wall clock.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::bed::Bed;

/// How long a machine lies saved: what is late by so much was not frozen.
const SAVED: Duration = Duration::from_secs(8);

fn seconds(text: &str) -> f64 {
    text.trim()
        .parse()
        .unwrap_or_else(|_| panic!("no time: {text}"))
}

fn monotonic(bed: &Bed, name: &str) -> f64 {
    seconds(&bed.exec(
        name,
        &["python3", "-c", "import time; print(time.monotonic())"],
    ))
}

/// The wall clock lies between what the host's says before and after, within a second.
fn check_wall_clock(bed: &Bed, name: &str) {
    let host = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("after 1970")
            .as_secs_f64()
    };
    let before = host();
    let guest = seconds(&bed.exec(name, &["date", "+%s.%N"]));
    let after = host();
    assert!(
        before - 1.0 <= guest && guest <= after + 1.0,
        "{name}: {guest}, the host {before} to {after}"
    );
}

fn ticks(bed: &Bed, name: &str) -> u64 {
    bed.sh(name, "cat /run/ticks").parse().expect("a number")
}

/// How often the kernel was told that the VM generation id changed, on any vCPU.
const TOLD_GENERATIONS: &str = "awk '/ACPI:Ged/ { print $2 + $3 }' /proc/interrupts";

#[test]
fn clock_and_timers_survive_three_generations_with_two_busy_vcpus() {
    let Some(bed) = Bed::open("clock_and_timers_survive_three_generations_with_two_busy_vcpus")
    else {
        return;
    };
    bed.boot("generation-0", &["--cpus", "2"]);
    // What the boot says about the host's clocks, for instance that those of its processors differ, is
    // not about saving.
    bed.sh("generation-0", "dmesg --clear");
    bed.python("generation-0", include_str!("guest/clock.py"), "");
    // The sleep has begun when it is saved.
    bed.sh(
        "generation-0",
        "touch /run/sleep; until test -e /run/sleeps; do sleep 0.05; done",
    );
    for number in 1..=3 {
        let (before, after) = (
            format!("generation-{}", number - 1),
            format!("generation-{number}"),
        );
        let file = format!("{number}.checkpoint");
        let begin = Instant::now();
        let (clock, ticked) = (monotonic(&bed, &before), ticks(&bed, &before));
        bed.save(&before, &file);
        bed.delete(&before);
        std::thread::sleep(SAVED);
        bed.restore(&after, &file, None);
        let (now, ticking) = (monotonic(&bed, &after), ticks(&bed, &after));
        let ran = begin.elapsed() - SAVED;
        assert!(
            now >= clock,
            "generation {number}: the clock went back from {clock} to {now}"
        );
        assert!(
            now - clock <= ran.as_secs_f64() + 0.5,
            "generation {number}: the clock jumped from {clock} to {now} in {ran:?}"
        );
        check_wall_clock(&bed, &after);
        let told = bed.sh(&after, TOLD_GENERATIONS);
        assert_eq!(told, number.to_string(), "changes of the generation id");
        assert!(
            ticking >= ticked,
            "generation {number}: ticks {ticked}, then {ticking}"
        );
        bed.sh(
            &after,
            &format!(
                "until test $(cat /run/ticks) -gt {}; do sleep 0.05; done",
                ticking + 2
            ),
        );
    }
    bed.sh(
        "generation-3",
        "until test -e /run/slept; do sleep 0.1; done",
    );
    let slept = seconds(&bed.sh("generation-3", "cat /run/slept"));
    assert!(slept >= 5.0, "the sleep ended early: {slept}");
    assert!(
        slept < 5.0 + SAVED.as_secs_f64(),
        "the sleep ended late: {slept}"
    );
    let script = "touch /run/stop; while pgrep -f '[p]rogram.py' > /dev/null; do sleep 0.1; done; cat /run/output";
    assert_eq!(bed.sh("generation-3", script), "ok");
    let complaints = bed.sh(
        "generation-3",
        "dmesg --level=emerg,alert,crit,err,warn | grep -iE 'clock|lockup|stall|tsc' || :",
    );
    assert_eq!(complaints, "");
}
