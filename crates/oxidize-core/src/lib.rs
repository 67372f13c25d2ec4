//! The library behind oxidize: files → model → plan → tokens.

pub mod sampling;
