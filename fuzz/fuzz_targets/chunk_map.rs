//! libFuzzer target of `snapshot_format::testing::chunk_map`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| snapshot_format::testing::chunk_map(data));
