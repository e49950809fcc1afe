//! libFuzzer target of `snapshot_format::testing::generation`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| snapshot_format::testing::generation(data));
