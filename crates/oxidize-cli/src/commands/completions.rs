//! `oxidize completions`: scripts that complete the command line in a shell.

use std::io::Write;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

/// Print a script that completes commands and options in a shell
///
/// For Bash: oxidize completions bash > ~/.local/share/bash-completion/completions/oxidize
#[derive(Args)]
pub(crate) struct Completions {
    /// Shell that runs the script
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut command = crate::Cli::command();
        let name = command.get_name().to_owned();
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, name, &mut script);
        // Written at once, so that a closed pipe is an error here and not a panic in the generator.
        Ok(std::io::stdout().lock().write_all(&script)?)
    }
}
