//! PID 1 of the guest: runs what the engine asks for.

fn main() {}
