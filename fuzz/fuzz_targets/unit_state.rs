//! libFuzzer target of `vmm_core::testing::fuzz_unit_state`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vmm_core::testing::fuzz_unit_state(data));
