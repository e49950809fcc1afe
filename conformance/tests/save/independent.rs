//! A machine stands alone: what it was made from may go.

use std::fs;

use smolvm_engine::{MachineState, StartOptions, StopOptions};

use crate::bed::{Bed, machine};

#[test]
fn checkpoint_store_image_and_kernel_may_go_right_after_create() {
    let Some(bed) = Bed::open("checkpoint_store_image_and_kernel_may_go_right_after_create") else {
        return;
    };
    bed.boot("source", &[]);
    bed.sh(
        "source",
        "echo disk > /root/file; echo memory > /run/file; sync",
    );
    bed.save("source", "first.checkpoint");
    bed.sh("source", "echo later > /root/file");
    bed.save("source", "second.checkpoint");
    bed.delete("source");
    bed.create_from("restored", "second.checkpoint", Some("~1"))
        .expect("create");
    let paths = ["first.checkpoint", "second.checkpoint", "store"].map(|name| bed.path(name));
    for path in &paths {
        fs::remove_dir_all(path).expect("remove");
    }
    for part in ["images", "kernels", "store"] {
        // The default store was never used.
        let path = bed.home().join(part);
        if path.exists() {
            fs::remove_dir_all(path).expect("remove");
        }
    }
    bed.start("restored").expect("start");
    assert_eq!(
        bed.sh("restored", "cat /root/file /run/file"),
        "disk\nmemory"
    );
    bed.sh("restored", "echo own > /root/own; sync");
    bed.save("restored", "third.checkpoint");
    let name = machine("restored");
    let stopped = bed
        .engine
        .stop(&name, StopOptions::default())
        .expect("stop");
    assert!(!stopped.forced);
    let mut cold = StartOptions::default();
    cold.cold = true;
    bed.engine.start(&name, cold).expect("cold start");
    let found = bed.sh(
        "restored",
        "cat /root/file /root/own; test -e /run/file || echo booted",
    );
    assert_eq!(found, "disk\nown\nbooted");
    assert_eq!(bed.state("restored"), MachineState::Running);
    // The point that it saved since holds all that is needed, too.
    bed.delete("restored");
    fs::remove_dir_all(bed.path("store")).expect("remove");
    bed.restore("again", "third.checkpoint", Some("~1"));
    assert_eq!(bed.sh("again", "cat /root/file /run/file"), "disk\nmemory");
}
