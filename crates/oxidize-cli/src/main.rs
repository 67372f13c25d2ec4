//! The `oxidize` command: parses the command line and runs one verb of [`commands`].

// They panic where nobody reads: `say!` and `remark!` do not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod bandwidth;
mod beam_args;
mod commands;
mod conversation;
mod grammar_args;
mod model_args;
mod npy;
mod sampling_args;
mod speculation_args;
mod style;

use std::process::ExitCode;

use clap::Parser;
use oxidize_core::io::raise_file_limit;
use oxidize_quantize::commands::console::is_unread;
use oxidize_quantize::remark;

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

/// llama.cpp's short flags of more than one letter, which `clap` would take apart.
const LONG_SHORTS: &[&str] = &[
    "-ctk", "-ctv", "-fa", "-hf", "-md", "-ngl", "-np", "-sys", "-ub",
];

/// The arguments, with llama.cpp's spelling of some flags turned into ours: `-ctk` is `--ctk`.
fn arguments() -> impl Iterator<Item = std::ffi::OsString> {
    std::env::args_os().map(|argument| {
        let known = argument.to_str().filter(|text| LONG_SHORTS.contains(text));
        known.map_or_else(|| argument.clone(), |text| format!("-{text}").into())
    })
}

fn main() -> ExitCode {
    raise_file_limit();
    match Cli::parse_from(arguments()).verb.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_unread(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let text = format!("{error:#}").replace('\n', " ");
            let red = style::for_stderr().error;
            remark!("{red}error{red:#}: {text}");
            oxidize_quantize::commands::exit_code(&error)
        }
    }
}
