//! libFuzzer target of `cas_store::testing::fuzz::pack_index`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = cas_store::testing::fuzz::pack_index(data);
});
