//! llama-server's own API: completions, tokenization and the state of the server.

pub mod completion;
pub mod server;
pub mod text;
