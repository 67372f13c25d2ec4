//! `oxidize completions`.

use super::{oxidize, text_file};

#[test]
fn every_shell_has_a_script() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = oxidize(&["completions", shell]).ok();
        for word in ["perplexity", "chat-template", "completions"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let unknown = oxidize(&["completions", "csh"]);
    assert_eq!(unknown.code, Some(2));
    assert!(unknown.stderr.contains("elvish"), "{}", unknown.stderr);
    assert!(oxidize(&["--help"]).ok().contains("completions"));
}

/// Bash itself completes a subcommand and an option.
#[cfg(target_os = "linux")]
#[test]
fn bash_completes_subcommands_and_options() {
    let (_dir, path) = text_file(&oxidize(&["completions", "bash"]).ok());
    let complete = |words: &str, last: &str| {
        let test = format!(
            "source {path}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _oxidize oxidize {last} ''; echo \"${{COMPREPLY[@]}}\""
        );
        let mut bash = std::process::Command::new("bash");
        let output = bash.args(["-c", &test]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(complete("oxidize perp", "perp").trim(), "perplexity");
    let options = complete("oxidize run --js", "--js");
    assert_eq!(
        options.trim(),
        "--json --json-schema --json-schema-file --json-object"
    );
}
