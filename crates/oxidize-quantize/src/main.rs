//! The `oxidize-quantize` program: the verbs of `oxidize` that make model files, and nothing else.

// They panic where nobody reads: `say!` and `remark!` do not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use oxidize_core::io::raise_file_limit;
use oxidize_quantize::commands;
use oxidize_quantize::remark;

/// Makes model files: converts, quantises, splits and merges.
#[derive(Parser)]
#[command(name = "oxidize-quantize", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Convert(commands::convert::Convert),
    Quantize(commands::quantize::Quantize),
    Split(commands::split::Split),
    Merge(commands::split::Merge),
}

fn main() -> ExitCode {
    raise_file_limit();
    let done = match Cli::parse().verb {
        Verb::Convert(args) => args.run(),
        Verb::Quantize(args) => args.run(),
        Verb::Split(args) => args.run(),
        Verb::Merge(args) => args.run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if commands::console::is_unread(&error) => ExitCode::SUCCESS,
        Err(error) => {
            remark!("error: {error:#}");
            commands::exit_code(&error)
        }
    }
}
