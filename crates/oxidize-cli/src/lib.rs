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
mod hub;
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
mod table;

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
    max_term_width = 100,
    after_help = MODEL_NAMES
)]
struct Cli {
    #[command(subcommand)]
    command: commands::Command,
    /// Use only models that are on this machine
    #[arg(long, global = true, env = "OXIDIZE_OFFLINE")]
    offline: bool,
}

/// Names of models, at the end of the help.
const MODEL_NAMES: &str = "\
A MODEL is a path, a name that `oxidize list` shows, or one of these, which are fetched when first used:
  hf:USER/REPO[:QUANT|:FILE]    Hugging Face hub; QUANT is Q4_K_M by default, or `auto`
  -hf USER/REPO[:QUANT]         the same, as in llama.cpp
  ollama:NAME[:TAG]             Ollama's registry
  ms:USER/REPO[:QUANT]          ModelScope
  https://HOST/MODEL.gguf       a web server";

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

/// `arguments` with the `-hf USER/REPO` of llama.cpp as the name `hf:USER/REPO`: the value of `-m` for subcommands that
/// have it, or else an argument.
fn with_hub_names(
    parser: &clap::Command,
    arguments: impl IntoIterator<Item = OsString>,
) -> Vec<OsString> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let mut words = arguments.iter().skip(1).filter_map(|word| word.to_str());
    let subcommand = words.find_map(|word| parser.find_subcommand(word));
    let has_flag = subcommand.is_some_and(|command| {
        let mut flags = command.get_arguments();
        flags.any(|flag| flag.get_short() == Some('m') && flag.get_long() == Some("model"))
    });
    let mut rewritten = Vec::with_capacity(arguments.len() + 1);
    let mut rest = arguments.into_iter();
    while let Some(argument) = rest.next() {
        let value = match argument.to_str() {
            Some("--hf" | "--hf-repo") => rest.next(),
            Some(text) => ["--hf=", "--hf-repo="]
                .iter()
                .find_map(|flag| text.strip_prefix(flag))
                .map(OsString::from),
            None => None,
        };
        let Some(value) = value else {
            rewritten.push(argument);
            continue;
        };
        let mut name = OsString::from("hf:");
        name.push(value);
        rewritten.extend(has_flag.then(|| OsString::from("-m")));
        rewritten.push(name);
    }
    rewritten
}

/// Runs the command line `arguments`, whose first one is the name of the program, and returns its exit status.
///
/// Long-running subcommands install handlers of SIGINT and SIGTERM.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    raise_file_limit();
    let mut parser = args::accept_words_for_flags(Cli::command());
    let arguments = with_hub_names(&parser, with_long_flags(arguments));
    let parsed = parser.try_get_matches_from_mut(arguments);
    let command = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => {
            hub::set_offline(cli.offline);
            cli.command
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hub_names_are_rewritten() {
        let rewritten = |line: &str| {
            let words = line.split(' ').map(OsString::from);
            let words = with_hub_names(&Cli::command(), with_long_flags(words));
            words.join(" ".as_ref()).into_string().unwrap()
        };
        for (line, expected) in [
            (
                "oxidize run -hf u/r:q4_0 Hello",
                "oxidize run -m hf:u/r:q4_0 Hello",
            ),
            ("oxidize serve --hf=u/r", "oxidize serve -m hf:u/r"),
            (
                "oxidize --offline inspect -hf u/r --json",
                "oxidize --offline inspect hf:u/r --json",
            ),
            ("oxidize pull --hf-repo u/r", "oxidize pull hf:u/r"),
            ("oxidize run m.gguf -hf", "oxidize run m.gguf --hf"),
        ] {
            assert_eq!(rewritten(line), expected);
        }
    }
}
