//! `oxidize-server`: the server as a binary of its own, for container images and services that need no other
//! subcommand.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::Parser;
use oxidize_core::backend::cpu::{Cpu, check_isa};
use oxidize_server::ServeArgs;

/// Serve large language models over HTTP
#[derive(Parser)]
#[command(name = "oxidize-server", version, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    args: ServeArgs,
}

fn main() -> anyhow::Result<()> {
    let args = Cli::parse_from(arguments()).args;
    if let Err(error) = check_isa() {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
    let specs = args.specs(|path: &Path| -> anyhow::Result<PathBuf> {
        let found = path.exists().then(|| path.to_path_buf());
        found.with_context(|| format!("{}: no such file or directory", path.display()))
    })?;
    Ok(oxidize_server::run(args, specs, Arc::new(Cpu::default()))?)
}

/// The arguments, with two-letter short flags of llama.cpp converted to long flags: `-np` becomes `--np`.
fn arguments() -> impl Iterator<Item = std::ffi::OsString> {
    std::env::args_os().map(|argument| match argument.to_str() {
        Some(text @ ("-np" | "-ub" | "-ctk" | "-ctv")) => format!("-{text}").into(),
        _ => argument,
    })
}
