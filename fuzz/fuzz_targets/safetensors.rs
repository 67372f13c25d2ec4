//! Opens any bytes as a safetensors file and as its header.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| oxidize_fuzz::safetensors(data));
