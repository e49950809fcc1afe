//! libFuzzer target of `snapshot_format::testing::lineage_line`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| snapshot_format::testing::lineage_line(data));
