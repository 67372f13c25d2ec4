//! What clients of llama-server ask: texts to continue, tokens, and the state of the server.

pub mod completion;
pub mod server;
pub mod text;
