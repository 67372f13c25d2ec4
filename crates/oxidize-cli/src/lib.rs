//! The `oxidize` command as a function: [`run`] parses a command line and runs a subcommand of [`commands`].
//!
//! The program of this crate and the one that the Python package installs are both this function.

// `println!` panics on a closed pipe; `outln!` and `status!` do not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod answer;
mod args;
mod bandwidth;
mod beam_args;
mod commands;
mod console;
mod conversation;
mod grammar_args;
mod load_quant;
mod model_args;
mod model_path;
mod npy;
mod progress;
mod sampling_args;
mod serve_args;
mod signals;
mod speculation_args;
mod stdin;
mod style;

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches, Parser};
use oxidize_core::backend::cpu::check_isa;
use oxidize_core::io::raise_file_limit;

use crate::console::{is_broken_pipe, status};

/// Run, serve, quantize and evaluate large language models from GGUF and safetensors files
#[derive(Parser)]
#[command(
    name = "oxidize",
    version,
    propagate_version = true,
    max_term_width = 100
)]
struct Cli {
    #[command(subcommand)]
    command: commands::Command,
}

/// Short flags of llama.cpp with more than one letter, which `clap` would split.
const LONG_SHORTS: &[&str] = &[
    "-ctk", "-ctv", "-fa", "-hf", "-md", "-ngl", "-np", "-sys", "-ub",
];

/// `arguments` with [`LONG_SHORTS`] rewritten to long flags: `-ctk` becomes `--ctk`.
fn with_long_flags(
    arguments: impl IntoIterator<Item = OsString>,
) -> impl Iterator<Item = OsString> {
    arguments.into_iter().map(|argument| {
        let known = argument.to_str().filter(|text| LONG_SHORTS.contains(text));
        known.map_or_else(|| argument.clone(), |text| format!("-{text}").into())
    })
}

/// Runs the command line `arguments`, whose first one is the name of the program, and returns its exit status.
///
/// Long-running subcommands install handlers of SIGINT and SIGTERM.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    raise_file_limit();
    let mut parser = args::accept_words_for_flags(Cli::command());
    let parsed = parser.try_get_matches_from_mut(with_long_flags(arguments));
    let command = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli.command,
        Err(error) => {
            let error = error.format(&mut parser);
            // Nobody reads a closed pipe.
            let _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(signals::FAILURE);
        }
    };
    let checked = check_isa().map_err(anyhow::Error::from);
    match checked.and_then(|()| command.run()) {
        Ok(()) => 0,
        Err(error) if is_broken_pipe(&error) => 0,
        Err(error) => {
            let text = format!("{error:#}").replace('\n', " ");
            let red = style::for_stderr().error;
            status!("{red}error{red:#}: {text}");
            signals::exit_code(&error)
        }
    }
}
