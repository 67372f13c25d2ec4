//! A GGUF file out of arbitrary values: written, read back, written again.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| oxidize_fuzz::gguf_structured(data));
