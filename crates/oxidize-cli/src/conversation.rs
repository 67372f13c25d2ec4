//! Chat templates, prompt rendering and timing output, shared by `run` and `chat`.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use oxidize_core::Error;
use oxidize_core::chat::{ChatOptions, ChatTemplate, Conversation, Message, Thinking};
use oxidize_core::engine::{Completion, EngineError, FinishReason};
use oxidize_core::model::Model;
use oxidize_core::sampling::SamplingError;

use crate::console::status;

/// Arguments of the chat template.
#[derive(Args, Clone)]
#[command(next_help_heading = "Chat")]
pub(crate) struct ChatArgs {
    /// Set the system prompt
    #[arg(long = "system-prompt", visible_alias = "sys", value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Read the system prompt from a file
    #[arg(
        long = "system-prompt-file",
        value_name = "FILE",
        conflicts_with = "system"
    )]
    system_file: Option<PathBuf>,
    /// Use a built-in chat template by name, or Jinja source, instead of the model's template
    #[arg(long, value_name = "NAME|JINJA")]
    chat_template: Option<String>,
    /// Read the chat template from a file
    #[arg(long, value_name = "FILE", conflicts_with = "chat_template")]
    chat_template_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) thinking: ThinkingArgs,
}

/// Arguments of reasoning.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct ThinkingArgs {
    /// Let the model reason before it answers: on, off, or auto for the default of its chat template
    #[arg(
        long,
        value_name = "on|off|auto",
        default_value_t,
        hide_default_value = true,
        env = "OXIDIZE_THINK"
    )]
    pub(crate) think: Thinking,
    /// Maximum number of reasoning tokens, after which the answer follows; 0 turns reasoning off [default: no
    /// limit]
    #[arg(
        long,
        visible_alias = "reasoning-budget",
        value_name = "N",
        env = "OXIDIZE_THINK_BUDGET"
    )]
    pub(crate) think_budget: Option<usize>,
}

impl ChatArgs {
    /// The requested template, or the model's template if it has one.
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

    /// The system message, if set.
    pub(crate) fn system_message(&self) -> anyhow::Result<Option<Message>> {
        let text = match &self.system_file {
            Some(path) => {
                Some(std::fs::read_to_string(path).with_context(|| path.display().to_string())?)
            }
            None => self.system.clone(),
        };
        Ok(text.map(|text| Message::new("system", text)))
    }

    /// A conversation of the system message, if there is one, and `prompt`.
    pub(crate) fn conversation(&self, prompt: &str) -> anyhow::Result<Conversation> {
        let system = self.system_message()?;
        let conversation = Conversation::from_iter(system).user(prompt);
        Ok(self.with_thinking(conversation))
    }

    /// The conversation with the settings of reasoning.
    pub(crate) fn with_thinking(&self, conversation: Conversation) -> Conversation {
        Conversation {
            thinking: self.thinking.think,
            thinking_budget: self.thinking.think_budget,
            ..conversation
        }
    }
}

/// Adds the tensor that causes NaN logits to an error.
pub(crate) fn explain(error: Error, model: &Model) -> anyhow::Error {
    let bad_logits = matches!(
        &error,
        Error::Engine(EngineError::Sampling(SamplingError::BadLogit { .. }))
    );
    let cause = if bad_logits {
        model.find_not_finite()
    } else {
        None
    };
    let error = anyhow::Error::from(error);
    match cause {
        Some(name) => error.context(format!(
            "{}: tensor {name:?} has a NaN or infinite element",
            model.file().path().display()
        )),
        None => error,
    }
}

/// The `finish_reason` of JSON output.
pub(crate) fn reason_name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::EndOfText => "stop",
        FinishReason::StopString(_) => "stop_string",
        FinishReason::StopToken(_) => "stop_token",
        FinishReason::Length => "length",
        FinishReason::ContextFull => "context_full",
        _ => "other",
    }
}

/// Prints a notice if the context is full.
pub(crate) fn note_full_context(reason: FinishReason, n_ctx: usize) {
    if reason == FinishReason::ContextFull {
        status!("stopped: the context of {n_ctx} tokens is full; use -c for a larger one");
    }
}

/// Tokens per second; 0 if no time passed.
fn rate(tokens: usize, seconds: f64) -> f64 {
    if seconds > 0.0 {
        tokens as f64 / seconds
    } else {
        0.0
    }
}

/// Number of computed prompt tokens, and of tokens timed in the generation phase: the first generated token
/// is part of the prompt phase.
fn measured(finished: &Completion) -> (usize, usize) {
    (
        finished.prompt_tokens - finished.cached_tokens,
        finished.generated_tokens.saturating_sub(1),
    )
}

/// Timings for JSON output, with the field names of llama-server.
pub(crate) fn timings_json(finished: &Completion) -> serde_json::Value {
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
        "reasoning_n": finished.reasoning_tokens,
        "predicted_ms": generation_s * 1e3,
        "predicted_per_second": rate(generated, generation_s),
        "queued_ms": finished.timings.queued.as_secs_f64() * 1e3,
        "draft_n": finished.drafts.drafted,
        "draft_n_accepted": finished.drafts.accepted,
        "seed": finished.seed,
    })
}

/// Speed as one line of text.
pub(crate) fn speed(finished: &Completion) -> String {
    let (prompt, generated) = measured(finished);
    let cached = match finished.cached_tokens {
        0 => String::new(),
        n => format!(" ({n} cached)"),
    };
    let reasoning = match finished.reasoning_tokens {
        0 => String::new(),
        n => format!(" ({n} reasoning)"),
    };
    let drafts = match finished.drafts.acceptance() {
        Some(rate) => format!(
            " · {} drafted, {:.0}% accepted",
            finished.drafts.drafted,
            100.0 * rate
        ),
        None => String::new(),
    };
    // The first token is part of the prompt phase, so a single token has no generation speed.
    let answer = match finished.generated_tokens {
        n @ (0 | 1) => format!("{n} token{}", if n == 0 { "s" } else { "" }),
        n => {
            let speed = rate(generated, finished.timings.generation.as_secs_f64());
            format!("{n} tokens{reasoning}, {speed:.1} tok/s")
        }
    };
    format!(
        "prompt {} tokens{cached}, {:.1} tok/s · answer {answer}{drafts}",
        finished.prompt_tokens,
        rate(prompt, finished.timings.prompt.as_secs_f64()),
    )
}
