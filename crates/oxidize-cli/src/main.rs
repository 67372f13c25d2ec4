//! The `oxidize` command: parses the command line and runs one verb of [`commands`].

mod commands;
mod style;

use std::io::ErrorKind;
use std::process::ExitCode;

use clap::Parser;

/// Runs large language models from GGUF and safetensors files.
#[derive(Parser)]
#[command(
    name = "oxidize",
    version,
    propagate_version = true,
    max_term_width = 100
)]
struct Cli {
    #[command(subcommand)]
    verb: commands::Verb,
}

fn main() -> ExitCode {
    match Cli::parse().verb.run() {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever closes the pipe, as `head` does, has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let error = format!("{error:#}").replace('\n', " ");
            let red = style::for_stderr().error;
            eprintln!("{red}error{red:#}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let mut causes = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    causes.any(|error| error.kind() == ErrorKind::BrokenPipe)
}
