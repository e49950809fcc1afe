//! libFuzzer target of `agent_protocol::fuzz::hello`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| agent_protocol::fuzz::hello(data));
