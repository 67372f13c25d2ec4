//! What `run` and `chat` share: the template, rendering, and what is said about an answer.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use oxidize_core::Error;
use oxidize_core::chat::{ChatInput, ChatOptions, ChatTemplate, Message};
use oxidize_core::engine::{EngineError, FinishReason, Finished};
use oxidize_core::model::Model;
use oxidize_core::sampling::SamplingError;
use oxidize_core::tokenizer::EncodeOptions;

/// How conversations are put into words.
#[derive(Args, Clone)]
#[command(next_help_heading = "Chat")]
pub(crate) struct ChatArgs {
    /// What the model is told before the conversation
    #[arg(long = "system-prompt", visible_alias = "sys", value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// The same, from a file
    #[arg(
        long = "system-prompt-file",
        value_name = "FILE",
        conflicts_with = "system"
    )]
    system_file: Option<PathBuf>,
    /// A built-in chat template by name, or Jinja source, instead of the model's own
    #[arg(long, value_name = "NAME|JINJA")]
    chat_template: Option<String>,
    /// A chat template from a file
    #[arg(long, value_name = "FILE", conflicts_with = "chat_template")]
    chat_template_file: Option<PathBuf>,
}

impl ChatArgs {
    /// The template that was asked for, or the model's own, if it has one.
    pub(crate) fn template(&self, model: &Model) -> anyhow::Result<Option<ChatTemplate>> {
        let options = ChatOptions::default();
        if let Some(path) = &self.chat_template_file {
            let source =
                std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
            return Ok(Some(ChatTemplate::new(&source, options)?));
        }
        match &self.chat_template {
            Some(source) if source.contains("{%") || source.contains("{{") => {
                Ok(Some(ChatTemplate::new(source, options)?))
            }
            Some(name) => Ok(Some(ChatTemplate::builtin(name, options)?)),
            None => Ok(model.chat_template()?),
        }
    }

    /// The system message, if there is one.
    pub(crate) fn system_message(&self) -> anyhow::Result<Option<Message>> {
        let text = match &self.system_file {
            Some(path) => {
                Some(std::fs::read_to_string(path).with_context(|| path.display().to_string())?)
            }
            None => self.system.clone(),
        };
        Ok(text.map(|text| Message::new("system", text)))
    }

    /// A conversation that begins with `prompt`.
    pub(crate) fn first_messages(&self, prompt: &str) -> anyhow::Result<Vec<Message>> {
        Ok(self
            .system_message()?
            .into_iter()
            .chain([Message::new("user", prompt)])
            .collect())
    }
}

/// The tokens of a conversation, up to where the model is to speak.
pub(crate) fn render(
    model: &Model,
    template: &ChatTemplate,
    messages: &[Message],
) -> anyhow::Result<Vec<u32>> {
    let tokenizer = model.tokenizer()?;
    let text_of = |id: Option<u32>| {
        id.and_then(|id| tokenizer.token_text(id))
            .unwrap_or_default()
    };
    let text = template.render(&ChatInput {
        messages,
        add_generation_prompt: true,
        bos_token: text_of(tokenizer.bos()),
        eos_token: text_of(tokenizer.eos()),
        ..ChatInput::default()
    })?;
    let mut tokens = tokenizer.encode(
        &text,
        EncodeOptions {
            add_special: true,
            parse_special: true,
        },
    );
    // Most templates write the first token themselves.
    if let Some(bos) = tokenizer.bos()
        && tokens.starts_with(&[bos, bos])
    {
        tokens.remove(0);
    }
    Ok(tokens)
}

/// Adds what can be found out about an error that comes from the weights.
pub(crate) fn explain(error: Error, model: &Model) -> anyhow::Error {
    let bad_logits = matches!(
        &error,
        Error::Engine(EngineError::Sampling(SamplingError::BadLogit { .. }))
    );
    let culprit = if bad_logits {
        model.find_not_finite()
    } else {
        None
    };
    let error = anyhow::Error::from(error);
    match culprit {
        Some(name) => error.context(format!(
            "{}: tensor {name:?} has an element that is not a number",
            model.file().path().display()
        )),
        None => error,
    }
}

/// How an answer ended, for scripts.
pub(crate) fn reason_name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::EndOfText => "stop",
        FinishReason::StopString(_) => "stop_string",
        FinishReason::Length => "length",
        _ => "other",
    }
}

/// Tokens per second, where there is something to divide.
fn rate(tokens: usize, seconds: f64) -> f64 {
    if seconds > 0.0 {
        tokens as f64 / seconds
    } else {
        0.0
    }
}

/// Tokens that were computed for the prompt, and those whose time the generation phase measures:
/// the first token comes with the prompt.
fn measured(finished: &Finished) -> (usize, usize) {
    (
        finished.prompt_tokens - finished.cached_tokens,
        finished.generated_tokens.saturating_sub(1),
    )
}

/// Timings for scripts, named as llama-server names them.
pub(crate) fn timings_json(finished: &Finished) -> serde_json::Value {
    let (prompt, generated) = measured(finished);
    let (prompt_s, generation_s) = (
        finished.timings.prompt.as_secs_f64(),
        finished.timings.generation.as_secs_f64(),
    );
    serde_json::json!({
        "prompt_n": finished.prompt_tokens,
        "cache_n": finished.cached_tokens,
        "prompt_ms": prompt_s * 1e3,
        "prompt_per_second": rate(prompt, prompt_s),
        "predicted_n": finished.generated_tokens,
        "predicted_ms": generation_s * 1e3,
        "predicted_per_second": rate(generated, generation_s),
        "queued_ms": finished.timings.queued.as_secs_f64() * 1e3,
        "draft_n": finished.drafts.drafted,
        "draft_n_accepted": finished.drafts.accepted,
        "seed": finished.seed,
    })
}

/// One line about the speed, for people.
pub(crate) fn speed(finished: &Finished) -> String {
    let (prompt, generated) = measured(finished);
    let cached = match finished.cached_tokens {
        0 => String::new(),
        n => format!(" ({n} cached)"),
    };
    let drafts = match finished.drafts.acceptance() {
        Some(share) => format!(
            " · {} guessed, {:.0}% right",
            finished.drafts.drafted,
            100.0 * share
        ),
        None => String::new(),
    };
    // The first token comes with the prompt: a single one has no speed of its own.
    let answer = match finished.generated_tokens {
        n @ (0 | 1) => format!("{n} token{}", if n == 0 { "s" } else { "" }),
        n => {
            let speed = rate(generated, finished.timings.generation.as_secs_f64());
            format!("{n} tokens, {speed:.1} tok/s")
        }
    };
    format!(
        "prompt {} tokens{cached}, {:.1} tok/s · answer {answer}{drafts}",
        finished.prompt_tokens,
        rate(prompt, finished.timings.prompt.as_secs_f64()),
    )
}
