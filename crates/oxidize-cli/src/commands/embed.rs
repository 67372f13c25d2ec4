//! `oxidize embed`: embeddings of texts.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, ValueEnum};
use oxidize_core::Error;
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::embedding::{Embedder, EmbedderConfig, Pooling};
use oxidize_core::engine::EngineError;
use oxidize_core::tokenizer::{EncodeOptions, TokenPair};

use crate::console::status;
use crate::model_args::ModelArgs;
use crate::model_path::find_model;
use crate::stdin;

/// Maximum number of blank lines that a warning lists.
const MAX_LISTED: usize = 10;

/// Compute embeddings of texts
#[derive(Args)]
pub(crate) struct Embed {
    /// Embedding or reranking model
    #[arg(short = 'm', long, value_name = "MODEL", env = "OXIDIZE_MODEL")]
    model: Option<PathBuf>,
    /// Texts to embed [default: standard input as one text]
    text: Vec<String>,
    /// Read texts from a file, one per line; blank lines are skipped
    #[arg(short = 'f', long, value_name = "FILE", conflicts_with = "text")]
    file: Option<PathBuf>,
    /// Pooling of token embeddings [default: from the model, else mean]
    #[arg(long, value_enum)]
    pooling: Option<PoolingName>,
    /// Score each text together with this query, for reranking models
    #[arg(long, value_name = "TEXT")]
    query: Option<String>,
    /// Normalize vectors to length 1
    #[arg(long)]
    normalize: bool,
    /// Print the JSON format of OpenAI's API instead of one vector per line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    args: ModelArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum PoolingName {
    /// Mean of all tokens
    Mean,
    /// Last token
    Last,
    /// First token
    Cls,
    /// One vector per token
    None,
    /// Scores of a classifier
    Rank,
}

impl From<PoolingName> for Pooling {
    fn from(name: PoolingName) -> Pooling {
        match name {
            PoolingName::Mean => Pooling::Mean,
            PoolingName::Last => Pooling::Last,
            PoolingName::Cls => Pooling::Cls,
            PoolingName::None => Pooling::None,
            PoolingName::Rank => Pooling::Rank,
        }
    }
}

impl Embed {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let texts = self.texts()?;
        let model = self.args.load(&find_model(self.model)?)?;
        let tokenizer = model.tokenizer()?;
        let config = EmbedderConfig {
            n_ctx: self.args.context(&model),
            max_batch_tokens: self.args.batch_size,
            pooling: self.pooling.map(Pooling::from),
            normalize: self.normalize,
            repack: self.args.repack,
            n_threads: self.args.threads,
            ..EmbedderConfig::default()
        };
        let mut embedder = Embedder::with_backend(&model, &Cpu::default(), &config)?;
        let (embedded, lengths): (_, Vec<usize>) = match &self.query {
            Some(query) => {
                let pair = |text: &Text| tokenizer.encode_pair(query, &text.text, true);
                let pairs: Vec<TokenPair> = texts.iter().map(pair).collect();
                let lengths = pairs.iter().map(|pair| pair.tokens.len()).collect();
                (embedder.embed_token_pairs(&pairs), lengths)
            }
            None => {
                let encode = |text: &Text| tokenizer.encode(&text.text, EncodeOptions::default());
                let inputs: Vec<Vec<u32>> = texts.iter().map(encode).collect();
                let lengths = inputs.iter().map(Vec::len).collect();
                (embedder.embed_tokens(&inputs), lengths)
            }
        };
        let embeddings = embedded.map_err(|error| name_line(error, &texts, &lengths))?;
        let n_tokens: usize = lengths.iter().sum();
        let mut out = std::io::stdout().lock();
        if self.json {
            let entry = |(index, vectors): (usize, Vec<Vec<f32>>)| {
                vectors.into_iter().map(move |vector| {
                    serde_json::json!({ "object": "embedding", "index": index, "embedding": vector })
                })
            };
            let data: Vec<_> = embeddings.into_iter().enumerate().flat_map(entry).collect();
            let list = serde_json::json!({
                "object": "list",
                "data": data,
                "model": model.file().path().file_name().map(|name| name.to_string_lossy()),
                "usage": { "prompt_tokens": n_tokens, "total_tokens": n_tokens },
            });
            writeln!(out, "{list}")?;
        } else {
            for vector in embeddings.iter().flatten() {
                let numbers: Vec<String> = vector.iter().map(f32::to_string).collect();
                writeln!(out, "{}", numbers.join(" "))?;
            }
        }
        Ok(())
    }

    fn texts(&self) -> anyhow::Result<Vec<Text>> {
        if let Some(path) = &self.file {
            let content = std::fs::read_to_string(path);
            let content = content.with_context(|| path.display().to_string())?;
            return texts_of(path, &content);
        }
        let plain = |text: String| Text { text, origin: None };
        if !self.text.is_empty() {
            return Ok(self.text.iter().cloned().map(plain).collect());
        }
        Ok(vec![plain(stdin::read()?)])
    }
}

/// A text to embed.
struct Text {
    text: String,
    /// File and line, for messages.
    origin: Option<String>,
}

/// The texts of a file, one per line. Blank lines are skipped with a warning.
fn texts_of(path: &Path, content: &str) -> anyhow::Result<Vec<Text>> {
    let mut texts = Vec::new();
    let mut blank = Vec::new();
    for (index, line) in content.lines().enumerate() {
        let number = index + 1;
        match line.trim().is_empty() {
            true => blank.push(number.to_string()),
            false => texts.push(Text {
                text: line.to_owned(),
                origin: Some(format!("{}, line {number}", path.display())),
            }),
        }
    }
    anyhow::ensure!(!texts.is_empty(), "{}: no text", path.display());
    let listed: Vec<&str> = blank.iter().take(MAX_LISTED).map(String::as_str).collect();
    let more = match blank.len() - listed.len() {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    match listed.as_slice() {
        [] => {}
        [one] => status!(
            "warning: {}: line {one} is blank and skipped",
            path.display()
        ),
        lines => status!(
            "warning: {}: lines {}{more} are blank and skipped",
            path.display(),
            lines.join(", ")
        ),
    }
    Ok(texts)
}

/// Adds the line of the text to an error about its length.
fn name_line(error: Error, texts: &[Text], lengths: &[usize]) -> anyhow::Error {
    let length = match &error {
        Error::Engine(EngineError::TextLength { tokens, .. }) => Some(*tokens),
        _ => None,
    };
    let at = lengths.iter().position(|&n| Some(n) == length);
    let origin = at.and_then(|at| texts.get(at)?.origin.clone());
    let error = anyhow::Error::from(error);
    match origin {
        Some(origin) => error.context(origin),
        None => error,
    }
}
