//! The `oxidize` command: parses the command line and runs one verb of [`commands`].

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
    match Cli::parse_from(arguments()).verb.run() {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever closes the pipe, as `head` does, has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let text = format!("{error:#}").replace('\n', " ");
            let red = style::for_stderr().error;
            eprintln!("{red}error{red:#}: {text}");
            oxidize_quantize::commands::exit_code(&error)
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let mut causes = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    causes.any(|error| error.kind() == ErrorKind::BrokenPipe)
}
