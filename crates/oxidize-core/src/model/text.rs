//! The text side of a model: tokenizer, chat template and sampling defaults, from its file or the
//! files beside it.

use super::{Model, ModelError};
use crate::chat::{ChatOptions, ChatTemplate};
use crate::error::{Error, Result};
use crate::file::{Format, ModelFile};
use crate::sampling::{SamplerVocab, SamplingParams, TokenPieces, sort_by_bytes};
use crate::tokenizer::Tokenizer;
use serde_json::Value;
use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

impl Model {
    /// The tokenizer, read on first use.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        if let Some(tokenizer) = self.0.tokenizer.get() {
            return Ok(tokenizer);
        }
        let tokenizer = Tokenizer::from_file(self.file())?;
        if tokenizer.vocab_size() > self.n_vocab() {
            return Err(Error::from(ModelError::VocabularySize {
                file: self.file().path().to_path_buf(),
                tokens: tokenizer.vocab_size(),
                rows: self.n_vocab(),
            }));
        }
        Ok(self.0.tokenizer.get_or_init(|| tokenizer))
    }

    /// The model's own chat template, if it has one.
    pub fn chat_template(&self) -> Result<Option<ChatTemplate>> {
        let Some(source) = self.chat_template_source()? else {
            return Ok(None);
        };
        Ok(Some(ChatTemplate::new(&source, ChatOptions::default())?))
    }

    /// The template itself.
    pub fn chat_template_source(&self) -> Result<Option<String>> {
        chat_template_of(self.file())
    }

    /// How the model's authors would have tokens chosen; ours where they do not say.
    pub fn sampling_defaults(&self) -> SamplingParams {
        let file = self.file();
        let config = self.sidecar_json("generation_config.json").ok().flatten();
        let number = |gguf: &str, hf: &str| match &config {
            Some(config) => config.get(hf).and_then(Value::as_f64),
            None => {
                let key = format!("general.sampling.{gguf}");
                file.metadata()
                    .f32(&key)
                    .map(f64::from)
                    .or_else(|| file.metadata().i64(&key).map(|n| n as f64))
            }
        };
        let ours = SamplingParams::default();
        let float = |gguf, hf, ours: f32| number(gguf, hf).map_or(ours, |n| n as f32);
        let greedy = config.as_ref().and_then(|c| c.get("do_sample")) == Some(&Value::Bool(false));
        let theirs = SamplingParams {
            temperature: if greedy {
                0.0
            } else {
                float("temp", "temperature", ours.temperature)
            },
            top_k: number("top_k", "top_k").map_or(ours.top_k, |n| n as u32),
            top_p: float("top_p", "top_p", ours.top_p),
            min_p: float("min_p", "min_p", ours.min_p),
            repeat_penalty: float("penalty_repeat", "repetition_penalty", ours.repeat_penalty),
            ..ours.clone()
        };
        // A default that makes no sense is no reason not to run the model.
        if theirs.validate().is_ok() {
            theirs
        } else {
            ours
        }
    }

    /// What samplers need to know of the vocabulary.
    pub fn sampler_vocab(&self) -> SamplerVocab {
        let tokenizer = self.tokenizer().ok();
        SamplerVocab {
            n_tokens: self.n_vocab(),
            newline: tokenizer.and_then(|t| {
                t.token_id("\n")
                    .or_else(|| t.token_id("<0x0A>"))
                    .or_else(|| t.token_id("Ċ"))
            }),
            pieces: tokenizer.map(|t| Arc::new(Pieces::of(t)) as Arc<dyn TokenPieces>),
        }
    }

    pub(crate) fn sidecar_json(&self, name: &str) -> Result<Option<Value>> {
        sidecar_json(self.file(), name)
    }
}

/// The chat template of a model that need not be loaded, if it has one.
pub fn chat_template_of(file: &ModelFile) -> Result<Option<String>> {
    if let Format::Gguf { .. } = file.format() {
        return Ok(file
            .metadata()
            .str("tokenizer.chat_template")
            .map(str::to_owned));
    }
    if let Some(path) = file.sidecar("chat_template.jinja") {
        return std::fs::read_to_string(&path)
            .map(Some)
            .map_err(Error::io(&path));
    }
    let Some(config) = sidecar_json(file, "tokenizer_config.json")? else {
        return Ok(None);
    };
    let template = match config.get("chat_template") {
        Some(Value::String(template)) => Some(template.clone()),
        // Several, by name.
        Some(Value::Array(list)) => {
            let named = |name: &str| {
                let found = list
                    .iter()
                    .find(|entry| entry.get("name").and_then(Value::as_str) == Some(name));
                found?.get("template")?.as_str().map(str::to_owned)
            };
            named("default")
        }
        _ => None,
    };
    Ok(template)
}

/// A JSON file beside a model that is a directory, if it is there.
pub(crate) fn sidecar_json(file: &ModelFile, name: &str) -> Result<Option<Value>> {
    if let Format::Gguf { .. } = file.format() {
        return Ok(None);
    }
    let Some(path) = file.sidecar(name) else {
        return Ok(None);
    };
    let text = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
    let bad = |error: serde_json::Error| ModelError::BadSidecar {
        file: path.clone(),
        problem: error.to_string(),
    };
    Ok(Some(serde_json::from_str(&text).map_err(bad)?))
}

/// The text of tokens, for samplers that look at it.
struct Pieces {
    tokenizer: Tokenizer,
    /// Sorted when first wanted.
    sorted: OnceLock<Arc<[u32]>>,
}

impl Pieces {
    fn of(tokenizer: &Tokenizer) -> Pieces {
        Pieces {
            tokenizer: tokenizer.clone(),
            sorted: OnceLock::new(),
        }
    }
}

impl TokenPieces for Pieces {
    fn piece(&self, token: u32) -> Option<Cow<'_, [u8]>> {
        if self.tokenizer.is_special(token) {
            return None;
        }
        self.tokenizer.piece(token).map(Cow::Borrowed)
    }

    fn is_end(&self, token: u32) -> bool {
        self.tokenizer.is_end_of_generation(token)
    }

    fn sorted(&self, n_tokens: usize) -> Arc<[u32]> {
        // Of one model, so always as many.
        let sort = || sort_by_bytes(self, n_tokens);
        self.sorted.get_or_init(sort).clone()
    }
}
