//! Opens any bytes as a GGUF file.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| oxidize_fuzz::gguf_raw(data));
