//! The arguments that give an answer its form, by llama.cpp's names where it has them.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use oxidize_core::grammar::Grammar;

/// The form of the answer: at most one of these.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Form of the answer")]
#[group(multiple = false)]
pub(crate) struct GrammarArgs {
    /// A grammar in GBNF that the answer has to follow
    #[arg(long, value_name = "GBNF")]
    grammar: Option<String>,
    /// The same, from a file
    #[arg(long, value_name = "FILE")]
    grammar_file: Option<PathBuf>,
    /// A JSON schema that the answer has to fit
    #[arg(short = 'j', long, value_name = "SCHEMA")]
    json_schema: Option<String>,
    /// The same, from a file
    #[arg(long, value_name = "FILE")]
    json_schema_file: Option<PathBuf>,
    /// The answer is a JSON object
    #[arg(long)]
    json_object: bool,
    /// A regular expression that matches the whole answer
    #[arg(long, value_name = "REGEX")]
    regex: Option<String>,
    /// A grammar in Lark (llguidance's dialect) that the answer has to follow
    #[arg(long, value_name = "LARK")]
    lark: Option<String>,
    /// The same, from a file
    #[arg(long, value_name = "FILE")]
    lark_file: Option<PathBuf>,
}

impl GrammarArgs {
    /// What was asked for, if anything.
    pub(crate) fn grammar(&self) -> anyhow::Result<Option<Grammar>> {
        let text = |given: &Option<String>, file: &Option<PathBuf>| match (given, file) {
            (Some(text), _) => Ok(Some(text.clone())),
            (None, Some(path)) => read(path).map(Some),
            (None, None) => Ok(None),
        };
        if let Some(gbnf) = text(&self.grammar, &self.grammar_file)? {
            return Ok(Some(Grammar::Gbnf(gbnf)));
        }
        if let Some(schema) = text(&self.json_schema, &self.json_schema_file)? {
            let schema = serde_json::from_str(&schema).context("the schema is not JSON")?;
            return Ok(Some(Grammar::JsonSchema(schema)));
        }
        if let Some(lark) = text(&self.lark, &self.lark_file)? {
            return Ok(Some(Grammar::Lark(lark)));
        }
        if let Some(regex) = &self.regex {
            return Ok(Some(Grammar::Regex(regex.clone())));
        }
        Ok(self.json_object.then_some(Grammar::JsonObject))
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| path.display().to_string())
}
