//! Reads any bytes as each kind of tokenizer file.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| oxidize_fuzz::vocabulary(data));
