//! libFuzzer target of `cow_disk::testing::fuzz_overlay`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cow_disk::testing::fuzz_overlay(data));
