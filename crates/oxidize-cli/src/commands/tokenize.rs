//! `oxidize tokenize`: encodes text and decodes tokens.

use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::tokenizer::{DecodeOptions, EncodeOptions, Tokenizer};

use crate::console::outln;
use crate::model_path::find_model;

/// Convert text to tokens, or tokens to text with --decode
#[derive(Args)]
pub(crate) struct Tokenize {
    /// Model with the tokenizer, or a tokenizer alone: a GGUF file without weights, tokenizer.json,
    /// tokenizer.model, tekken.json, a tiktoken file, or a directory with one of them
    #[arg(short = 'm', long, value_name = "MODEL", env = "OXIDIZE_MODEL")]
    model: Option<PathBuf>,
    /// Text to tokenize [default: standard input]
    text: Option<String>,
    /// Print a JSON object with tokens and pieces
    #[arg(long)]
    json: bool,
    /// Do not add the special tokens at the start and end
    #[arg(long)]
    no_bos: bool,
    /// Treat the names of control tokens as plain text
    #[arg(long)]
    no_parse_special: bool,
    /// Decode token ids to text
    #[arg(
        long,
        value_name = "1,2,3",
        value_delimiter = ',',
        conflicts_with = "text"
    )]
    decode: Option<Vec<u32>>,
}

impl Tokenize {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let tokenizer = open(&find_model(self.model)?)?;
        let tokens = match self.decode {
            Some(tokens) => {
                let n_vocab = tokenizer.vocab_size();
                if let Some(token) = tokens.iter().find(|&&token| token as usize >= n_vocab) {
                    anyhow::bail!(
                        "token {token} is out of range: the vocabulary has {n_vocab} tokens"
                    );
                }
                if !self.json {
                    outln!(
                        "{}",
                        tokenizer.decode_with(
                            &tokens,
                            DecodeOptions {
                                render_special: true,
                                ..DecodeOptions::default()
                            }
                        )
                    )?;
                    return Ok(());
                }
                tokens
            }
            None => {
                let text = self.text.map_or_else(
                    || {
                        let mut text = String::new();
                        std::io::stdin()
                            .read_to_string(&mut text)
                            .context("standard input")?;
                        anyhow::Ok(text)
                    },
                    Ok,
                )?;
                let options = EncodeOptions {
                    add_special: !self.no_bos,
                    parse_special: !self.no_parse_special,
                };
                tokenizer.encode(&text, options)
            }
        };
        let pieces = |token: &u32| {
            let piece = tokenizer.piece(*token).unwrap_or_default();
            String::from_utf8_lossy(piece).into_owned()
        };
        let mut out = BufWriter::new(std::io::stdout().lock());
        if self.json {
            let pieces: Vec<String> = tokens.iter().map(pieces).collect();
            let json = serde_json::json!({ "tokens": tokens, "pieces": pieces });
            writeln!(out, "{json}")?;
        } else {
            for token in &tokens {
                writeln!(out, "{token:>8}  {:?}", pieces(token))?;
            }
        }
        Ok(out.flush()?)
    }
}

/// Opens the tokenizer of a model, or a file with only a tokenizer.
fn open(path: &Path) -> anyhow::Result<Tokenizer> {
    let no_model = match ModelFile::open(path, &OpenOptions::default()) {
        Ok(file) => return Ok(Tokenizer::from_file(&file)?),
        Err(error) => error,
    };
    if path.extension().is_some_and(|end| end == "gguf") || !path.exists() {
        return Err(no_model.into());
    }
    Tokenizer::open(path).with_context(|| no_model.to_string())
}
