//! The `oxidize` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    oxidize_cli::run(std::env::args_os()).into()
}
