//! libFuzzer target of `agent_protocol::fuzz::tree_item`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| agent_protocol::fuzz::tree_item(data));
