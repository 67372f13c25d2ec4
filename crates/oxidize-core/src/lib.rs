//! The library behind oxidize: files → model → plan → tokens.

pub mod chat;
pub mod sampling;
