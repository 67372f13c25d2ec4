//! Parses an answer with reasoning and tool calls, at once and in pieces.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| oxidize_fuzz::answer(data));
