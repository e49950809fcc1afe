//! libFuzzer target of `agent_protocol::fuzz::exec_output`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| agent_protocol::fuzz::exec_output(data));
