//! The smolvm command.

fn main() {}
