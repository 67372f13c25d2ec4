//! The `oxidize` command.

fn main() {}
