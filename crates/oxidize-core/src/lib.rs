//! The library behind oxidize: files → model → plan → tokens.

pub mod kv;
pub mod scheduler;
