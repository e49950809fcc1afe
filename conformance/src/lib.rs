//! One test body for every backend.

pub mod skip;
