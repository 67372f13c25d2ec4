//! `oxidize run`: one prompt, one answer, as it comes.

use std::io::{IsTerminal, Read, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use oxidize_core::engine::{Event, Finished, Request};
use oxidize_core::model::Model;
use oxidize_core::tokenizer::EncodeOptions;

use crate::conversation::{self, ChatArgs};
use crate::grammar_args::GrammarArgs;
use crate::model_args::{ModelArgs, find_model};
use crate::sampling_args::SamplingArgs;
use crate::style;

/// Answer one prompt
#[derive(Args)]
pub(crate) struct Run {
    /// GGUF file, safetensors directory, or the name of a model in the cache [default: SmolLM2-135M-Instruct]
    #[arg(value_name = "MODEL")]
    model: Option<PathBuf>,
    /// The prompt; read from standard input where it is neither here nor in --prompt or --file
    #[arg(value_name = "PROMPT")]
    prompt: Option<String>,
    /// The model, as a flag
    #[arg(
        short = 'm',
        long = "model",
        value_name = "MODEL",
        env = "OXIDIZE_MODEL"
    )]
    model_flag: Option<PathBuf>,
    /// The prompt, as a flag
    #[arg(short = 'p', long = "prompt", value_name = "PROMPT")]
    prompt_flag: Option<String>,
    /// Reads the prompt from a file
    #[arg(short = 'f', long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Most tokens of the answer [default: until the model ends or the context is full]
    #[arg(
        short = 'n',
        long = "predict",
        visible_alias = "max-tokens",
        value_name = "N"
    )]
    predict: Option<usize>,
    /// Continues the prompt as plain text, without the model's chat template
    #[arg(long)]
    raw: bool,
    /// Goes on past the model's end of text
    #[arg(long)]
    ignore_eos: bool,
    /// Prints one JSON object: text, tokens, prompt_tokens, timings
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    chat: ChatArgs,
    #[command(flatten)]
    model_args: ModelArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    grammar: GrammarArgs,
}

impl Run {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let (model_name, positional_prompt) = match (&self.model_flag, self.model, self.prompt) {
            // With -m, the first word is the prompt.
            (Some(flag), Some(first), None) => (
                Some(flag.clone()),
                Some(first.to_string_lossy().into_owned()),
            ),
            (flag, first, prompt) => (flag.clone().or(first), prompt),
        };
        let prompt = read_prompt(positional_prompt.or(self.prompt_flag), self.file)?;
        anyhow::ensure!(!prompt.is_empty(), "the prompt is empty");
        let model = self.model_args.load(&find_model(model_name)?)?;
        let tokens = encode(&model, &prompt, self.raw, &self.chat)?;
        anyhow::ensure!(!tokens.is_empty(), "the prompt has no tokens");
        let engine = self.model_args.engine(model.clone())?;
        let request = Request {
            tokens: tokens.clone(),
            sampling: self.sampling.params(model.sampling_defaults())?,
            grammar: self.grammar.grammar()?,
            max_tokens: self.predict,
            ignore_eos: self.ignore_eos,
            ..Request::default()
        };
        let mut out = std::io::stdout().lock();
        let (mut text, mut answer) = (String::new(), Vec::new());
        for event in engine.submit(request)? {
            let (piece, finished) =
                match event.map_err(|error| conversation::explain(error, &model))? {
                    Event::Token(token) => {
                        answer.push(token.id);
                        (token.text, None)
                    }
                    Event::Finished(finished) => (finished.text.clone(), Some(finished)),
                };
            if !self.json {
                out.write_all(piece.as_bytes())?;
                out.flush()?;
            }
            text.push_str(&piece);
            let Some(finished) = finished else { continue };
            if self.json {
                let report = serde_json::json!({
                    "text": text,
                    "tokens": answer,
                    "prompt_tokens": tokens,
                    "finish_reason": conversation::reason_name(finished.reason),
                    "timings": conversation::timings_json(&finished),
                });
                writeln!(out, "{report}")?;
            } else {
                if !text.ends_with('\n') {
                    writeln!(out)?;
                }
                show_speed(&finished);
            }
        }
        Ok(())
    }
}

fn read_prompt(given: Option<String>, file: Option<PathBuf>) -> anyhow::Result<String> {
    if let Some(path) = file {
        return std::fs::read_to_string(&path).with_context(|| path.display().to_string());
    }
    if let Some(prompt) = given {
        return Ok(prompt);
    }
    let mut input = std::io::stdin();
    if input.is_terminal() {
        anyhow::bail!("no prompt: give it as an argument, with -f FILE, or on standard input");
    }
    let mut prompt = String::new();
    input
        .read_to_string(&mut prompt)
        .context("standard input")?;
    Ok(prompt)
}

/// The tokens of a prompt, through the chat template unless it is to be continued as it is.
fn encode(model: &Model, prompt: &str, raw: bool, chat: &ChatArgs) -> anyhow::Result<Vec<u32>> {
    let template = if raw { None } else { chat.template(model)? };
    match template {
        Some(template) => {
            let messages = chat.first_messages(prompt)?;
            conversation::render(model, &template, &messages)
        }
        None => {
            let options = EncodeOptions {
                add_special: true,
                parse_special: true,
            };
            Ok(model.tokenizer()?.encode(prompt, options))
        }
    }
}

/// One line on standard error: how fast it went.
pub(crate) fn show_speed(finished: &Finished) {
    let dim = style::for_stderr().dim;
    eprintln!("{dim}{}{dim:#}", conversation::speed(finished));
}
