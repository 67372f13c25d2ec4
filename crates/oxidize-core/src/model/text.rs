//! Tokenizer, chat template and sampling defaults of a model, from its file or the JSON files of
//! its directory.

use super::{Model, ModelError};
use crate::chat::{
    ChatOptions, ChatTemplate, Conversation, MessageFormat, MessageParserOptions, ParsedMessage,
};
use crate::error::{Error, Result};
use crate::file::{Format, ModelFile};
use crate::sampling::{SamplerVocab, SamplingParams, TokenPieces, sort_by_bytes};
use crate::tokenizer::Tokenizer;
use serde_json::Value;
use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

impl Model {
    /// The tokenizer, built on first use.
    ///
    /// ```no_run
    /// let model = oxidize::Model::load("model.gguf")?;
    /// let tokens = model.tokenizer()?.encode("Hello, world", Default::default());
    /// println!("{} tokens", tokens.len());
    /// # Ok::<(), oxidize::Error>(())
    /// ```
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

    /// The model's chat template, or ChatML for models without one. Parsed once.
    pub(crate) fn chat_template_or_default(&self) -> Result<&ChatTemplate> {
        if let Some(template) = self.0.chat_template.get() {
            return Ok(template);
        }
        let template = match self.chat_template()? {
            Some(template) => template,
            None => ChatTemplate::builtin("chatml", ChatOptions::default())?,
        };
        Ok(self.0.chat_template.get_or_init(|| Arc::new(template)))
    }

    /// Separates the text of an answer into reasoning, content and tool calls, in the format of the model's family.
    ///
    /// `conversation` is the one that was answered. Generate the text with
    /// [`Request::render_special`](crate::engine::Request::render_special): some families mark calls and reasoning by
    /// control tokens.
    ///
    /// ```no_run
    /// use oxidize::{Conversation, Engine, Model, Request};
    ///
    /// let engine = Engine::new(Model::load("Qwen3-0.6B.gguf")?)?;
    /// let conversation = Conversation::from("What is 17 times 23?");
    /// let request = Request::chat(conversation.clone()).render_special();
    /// let text = engine.submit(request)?.text()?;
    /// let message = engine.model().parse_message(&conversation, &text)?;
    /// println!("{} ({} bytes of reasoning)", message.content, message.reasoning.len());
    /// # Ok::<(), oxidize::Error>(())
    /// ```
    pub fn parse_message(&self, conversation: &Conversation, text: &str) -> Result<ParsedMessage> {
        let template = self.chat_template_or_default()?;
        let prompt = conversation.render(template, self.tokenizer()?)?;
        let options = MessageParserOptions {
            reasoning: true,
            tools: conversation.tools.as_ref(),
            prompt: &prompt.text,
            stream_calls: false,
        };
        Ok(ParsedMessage::parse(
            &MessageFormat::of(template),
            &options,
            text,
        ))
    }

    /// Source of the model's chat template.
    pub fn chat_template_source(&self) -> Result<Option<String>> {
        chat_template_of(self.file())
    }

    /// Sampling settings recommended by the model's authors (`generation_config.json`, `general.sampling.*`), completed
    /// with [`SamplingParams::default`].
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
        // Invalid defaults are ignored; they do not prevent the model from running.
        if theirs.validate().is_ok() {
            theirs
        } else {
            ours
        }
    }

    /// Vocabulary for samplers.
    #[cfg_attr(feature = "unstable", visibility::make(pub))]
    pub(crate) fn sampler_vocab(&self) -> SamplerVocab {
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

/// Chat template of a file, without loading the model.
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
        // List of named templates.
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

/// Reads a JSON file from the directory of a model, if it exists.
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

/// Texts of tokens, for samplers that need them.
struct Pieces {
    tokenizer: Tokenizer,
    /// Token ids in the order of their bytes, sorted on first use.
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
        // The number of tokens is constant, so the order can be cached.
        let sort = || sort_by_bytes(self, n_tokens);
        self.sorted.get_or_init(sort).clone()
    }
}
