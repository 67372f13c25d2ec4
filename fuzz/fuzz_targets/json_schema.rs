//! Compiles a JSON schema and generates tokens with it.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| oxidize_fuzz::json_schema(data));
