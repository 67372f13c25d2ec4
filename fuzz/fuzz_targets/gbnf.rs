//! Compiles a GBNF grammar and generates tokens with it.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| oxidize_fuzz::gbnf(data));
