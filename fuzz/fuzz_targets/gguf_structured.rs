//! Writes a GGUF file of arbitrary values, reads it back and writes it again.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| oxidize_fuzz::gguf_structured(data));
