//! Memory is the same after any number of saves and restores.

use sha2::{Digest, Sha256};

use crate::bed::{Bed, Saved, long};

const PATTERN: &str = include_str!("guest/pattern.py");

fn ask(bed: &Bed, name: &str, question: &str) -> String {
    let script = format!(
        "rm -f /run/pattern.answer; echo '{question}' > /run/pattern.fifo; \
         until test -e /run/pattern.answer; do \
             pgrep -f '[p]rogram.py' > /dev/null || {{ cat /run/output; exit 1; }}; sleep 0.05; \
         done; cat /run/pattern.answer"
    );
    bed.sh(name, &script)
}

/// Compares pages as the guest sees them with what the point holds at their physical addresses;
/// returns the addresses.
fn compare_pages(pages: &str, saved: &Saved) -> Vec<u64> {
    let compare = |line: &str| {
        let (gpa, hash) = line.split_once(' ').expect("address and hash");
        let gpa = gpa.parse().expect("an address");
        let mut digest = Sha256::new();
        digest.update(saved.page(gpa));
        let found: String = digest
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(found, hash, "page at {gpa:#x}");
        gpa
    };
    let addresses: Vec<u64> = pages.lines().map(compare).collect();
    assert!(addresses.len() >= 16, "{pages}");
    addresses
}

#[test]
fn memory_stays_the_same_over_five_generations() {
    let Some(bed) = Bed::open("memory_stays_the_same_over_five_generations") else {
        return;
    };
    bed.boot("generation-0", &[]);
    bed.python("generation-0", PATTERN, if long() { "96" } else { "8" });
    for number in 1..=5 {
        let (before, after) = (
            format!("generation-{}", number - 1),
            format!("generation-{number}"),
        );
        // Pages change, and some become zero, between any two points.
        ask(&bed, &before, &format!("change {number}"));
        let hash = ask(&bed, &before, "hash");
        let pages = ask(&bed, &before, "pages 64");
        let file = format!("{number}.checkpoint");
        bed.save(&before, &file);
        let saved = Saved::open(&bed.path(&file));
        saved.verify();
        compare_pages(&pages, &saved);
        bed.delete(&before);
        bed.restore(&after, &file, None);
        // Saved at once, before anything runs in it: the same memory again.
        let again = format!("{number}-again.checkpoint");
        bed.save(&after, &again);
        let saved = Saved::open(&bed.path(&again));
        saved.verify();
        compare_pages(&pages, &saved);
        assert_eq!(ask(&bed, &after, "hash"), hash, "generation {number}");
        bed.restore("again", &again, None);
        assert_eq!(
            ask(&bed, "again", "hash"),
            hash,
            "generation {number}, saved at once"
        );
        bed.delete("again");
    }
}

/// Takes memory page by page until the zone above the hole has as little left as this many MiB: what is
/// allocated next begins above the hole and goes on below it.
const EAT: &str = r#"
import mmap, sys
def free_above():
    zone = open("/proc/zoneinfo").read().split("zone   Normal")[1]
    return int(zone.split("pages free")[1].split()[0])
held = []
while free_above() > int(sys.argv[1]) << 8:
    held.append(mmap.mmap(-1, 1 << 20))
    for at in range(0, 1 << 20, 4096):
        held[-1][at] = 1
open("/run/eaten", "w").close()
import signal; signal.pause()
"#;

/// A machine of 4 GiB has its last GiB above the hole for devices.
#[test]
fn memory_on_both_sides_of_the_hole_is_kept() {
    let Some(bed) = Bed::open("memory_on_both_sides_of_the_hole_is_kept") else {
        return;
    };
    bed.boot("large", &["--mem", "4G"]);
    bed.put("large", "/root/eat.py", EAT);
    bed.sh(
        "large",
        "setsid python3 /root/eat.py 32 < /dev/null > /run/eat.output 2>&1 & \
         until test -e /run/eaten; do kill -0 $! || { cat /run/eat.output; exit 1; }; sleep 0.1; done",
    );
    bed.python("large", PATTERN, "64");
    let hash = ask(&bed, "large", "hash");
    let pages = ask(&bed, "large", "pages 512");
    bed.save("large", "large.checkpoint");
    let saved = Saved::open(&bed.path("large.checkpoint"));
    let addresses = compare_pages(&pages, &saved);
    let above = addresses.iter().filter(|gpa| **gpa >= 4 << 30).count();
    assert!(above > 0 && above < addresses.len(), "{above} above");
    bed.delete("large");
    bed.restore("restored", "large.checkpoint", None);
    assert_eq!(ask(&bed, "restored", "hash"), hash);
}
