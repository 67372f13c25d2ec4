//! `oxidize embed`: texts to vectors.

use std::io::{Read, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, ValueEnum};
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::embedding::{Embedder, EmbedderConfig, Pooling};
use oxidize_core::tokenizer::{EncodeOptions, TokenPair};

use crate::model_args::{ModelArgs, find_model};

/// Turn texts into vectors
#[derive(Args)]
pub(crate) struct Embed {
    /// The model
    #[arg(short = 'm', long, value_name = "MODEL", env = "OXIDIZE_MODEL")]
    model: Option<PathBuf>,
    /// The texts; standard input, whole, where there are none
    text: Vec<String>,
    /// File whose lines are texts
    #[arg(short = 'f', long, value_name = "FILE", conflicts_with = "text")]
    file: Option<PathBuf>,
    /// What a text's vector is made of [default: what the model says, else mean]
    #[arg(long, value_enum)]
    pooling: Option<PoolingName>,
    /// Judge each text together with this one: for classifiers that rank answers
    #[arg(long, value_name = "TEXT")]
    query: Option<String>,
    /// Scale vectors to length one
    #[arg(long)]
    normalize: bool,
    /// Print as OpenAI's API does, instead of a vector a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    args: ModelArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum PoolingName {
    /// The mean over the tokens
    Mean,
    /// The last token
    Last,
    /// The first token
    Cls,
    /// A vector for each token
    None,
    /// The scores of the model's classifier
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
            n_threads: self.args.threads,
        };
        let mut embedder = Embedder::new(&model, &Cpu::default(), &config)?;
        let (embeddings, n_tokens) = match &self.query {
            Some(query) => {
                let pair = |text: &String| tokenizer.encode_pair(query, text, true);
                let pairs: Vec<TokenPair> = texts.iter().map(pair).collect();
                let n_tokens: usize = pairs.iter().map(|pair| pair.tokens.len()).sum();
                (embedder.embed_pairs(&pairs)?, n_tokens)
            }
            None => {
                let encode = |text: &String| tokenizer.encode(text, EncodeOptions::default());
                let texts: Vec<Vec<u32>> = texts.iter().map(encode).collect();
                (embedder.embed(&texts)?, texts.iter().map(Vec::len).sum())
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
