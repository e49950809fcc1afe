//! libFuzzer target of `agent_protocol::fuzz::log_output`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| agent_protocol::fuzz::log_output(data));
