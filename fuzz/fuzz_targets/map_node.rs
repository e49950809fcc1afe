//! libFuzzer target of `snapshot_format::testing::map_node`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| snapshot_format::testing::map_node(data));
