//! Dequantizes blocks of any bytes in any type.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| oxidize_fuzz::dequantize_block(data));
