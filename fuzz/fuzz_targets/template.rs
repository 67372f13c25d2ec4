//! Renders a conversation with a chat template.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| oxidize_fuzz::template(data));
