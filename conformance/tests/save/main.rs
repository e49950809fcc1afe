//! Saving machines and going back, with a real guest and the real binary.
//!
//! `$SMOLVM` is the binary, `$SMOLVM_HOME` a home with a kernel and the image `debian`; without them
//! the tests say that they are skipped. Each test works in a home of its own. With `SMOLVM_LONG=1`
//! what is sampled is done in full.

mod archive;
mod bed;
mod booted;
mod branch;
mod branch_many;
mod branch_ready;
mod disk;
mod each_write;
mod ended;
mod filling;
mod full_disk;
mod history;
mod independent;
mod inside;
mod instant;
mod killed;
mod many_saves;
mod memory;
mod pause;
mod phases;
mod prune;
mod refused;
mod time;
mod undo;
mod verify;
