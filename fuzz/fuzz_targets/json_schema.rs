//! A JSON schema, followed where it compiles.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| oxidize_fuzz::json_schema(data));
