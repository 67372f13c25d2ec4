//! `oxidize embed`: embeddings of texts.

use std::io::{Read, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, ValueEnum};
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::embedding::{Embedder, EmbedderConfig, Pooling};
use oxidize_core::tokenizer::{EncodeOptions, TokenPair};

use crate::model_args::{ModelArgs, find_model};

/// Compute embeddings of texts
#[derive(Args)]
pub(crate) struct Embed {
    /// Embedding or reranking model
    #[arg(short = 'm', long, value_name = "MODEL", env = "OXIDIZE_MODEL")]
    model: Option<PathBuf>,
    /// Texts to embed [default: standard input as one text]
    text: Vec<String>,
    /// Read texts from a file, one per line
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
        };
        let mut embedder = Embedder::with_backend(&model, &Cpu::default(), &config)?;
        let (embeddings, n_tokens) = match &self.query {
            Some(query) => {
                let pair = |text: &String| tokenizer.encode_pair(query, text, true);
                let pairs: Vec<TokenPair> = texts.iter().map(pair).collect();
                let n_tokens: usize = pairs.iter().map(|pair| pair.tokens.len()).sum();
                (embedder.embed_token_pairs(&pairs)?, n_tokens)
            }
            None => {
                let encode = |text: &String| tokenizer.encode(text, EncodeOptions::default());
                let texts: Vec<Vec<u32>> = texts.iter().map(encode).collect();
                (
                    embedder.embed_tokens(&texts)?,
                    texts.iter().map(Vec::len).sum(),
                )
            }
        };
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

    fn texts(&self) -> anyhow::Result<Vec<String>> {
        if let Some(path) = &self.file {
            let text = std::fs::read_to_string(path);
            let text = text.with_context(|| path.display().to_string())?;
            return Ok(text.lines().map(str::to_owned).collect());
        }
        if !self.text.is_empty() {
            return Ok(self.text.clone());
        }
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .context("standard input")?;
        Ok(vec![text])
    }
}
