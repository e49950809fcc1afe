//! libFuzzer target of `cas_store::testing::fuzz::pack_footer`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cas_store::testing::fuzz::pack_footer(data));
