//! Each layer embedded alone.

/// The Rust code in README.md is compiled with the tests of documentation.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;
