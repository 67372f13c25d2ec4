//! Blocks of any bytes in any type, turned into floats.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| oxidize_fuzz::dequantize_block(data));
