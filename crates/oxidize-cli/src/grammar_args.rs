//! Arguments of constrained output, with llama.cpp's names where it has them.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use oxidize_core::grammar::Grammar;

/// A constraint of the output; at most one can be given.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Constrained output")]
#[group(multiple = false)]
pub(crate) struct GrammarArgs {
    /// Constrain the answer to a GBNF grammar
    #[arg(long, value_name = "GBNF")]
    grammar: Option<String>,
    /// Read the GBNF grammar from a file
    #[arg(long, value_name = "FILE")]
    grammar_file: Option<PathBuf>,
    /// Constrain the answer to a JSON schema
    #[arg(short = 'j', long, value_name = "SCHEMA")]
    json_schema: Option<String>,
    /// Read the JSON schema from a file
    #[arg(long, value_name = "FILE")]
    json_schema_file: Option<PathBuf>,
    /// Constrain the answer to a JSON object
    #[arg(long)]
    json_object: bool,
    /// Constrain the answer to a regular expression that matches it as a whole
    #[arg(long, value_name = "REGEX")]
    regex: Option<String>,
    /// Constrain the answer to a Lark grammar (dialect of llguidance)
    #[arg(long, value_name = "LARK")]
    lark: Option<String>,
    /// Read the Lark grammar from a file
    #[arg(long, value_name = "FILE")]
    lark_file: Option<PathBuf>,
}

impl GrammarArgs {
    /// The requested constraint, if any.
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
