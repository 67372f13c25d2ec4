//! A small vocabulary of any kind, and a text to encode with it.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| oxidize_fuzz::tokenizer(data));
