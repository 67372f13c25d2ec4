//! Encodes a text with a small vocabulary of any kind.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| oxidize_fuzz::tokenizer(data));
