//! `oxidize run`: generates one answer and streams it to standard output.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use oxidize_core::chat::Reasoning;
use oxidize_core::engine::{BeamSequence, Completion, Request};
use oxidize_core::model::Model;
use oxidize_core::tokenizer::EncodeOptions;

use crate::answer::AnswerPrinter;
use crate::beam_args::BeamArgs;
use crate::console::{outln, status};
use crate::conversation::{self, ChatArgs};
use crate::grammar_args::GrammarArgs;
use crate::model_args::ModelArgs;
use crate::model_path::{find_model, flag_or_argument, is_from_environment};
use crate::sampling_args::SamplingArgs;
use crate::speculation_args::SpeculationArgs;
use crate::{stdin, style};

/// Generate an answer to a prompt
#[derive(Args)]
pub(crate) struct Run {
    /// GGUF file, safetensors directory, or name of a model in the cache [default: SmolLM2-135M-Instruct]
    #[arg(value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Prompt; text on standard input is added to it [default: standard input]
    #[arg(value_name = "PROMPT")]
    prompt: Option<String>,
    /// Model, as a flag
    #[arg(
        short = 'm',
        long = "model",
        value_name = "MODEL",
        env = "OXIDIZE_MODEL"
    )]
    model_flag: Option<PathBuf>,
    /// Prompt, as a flag
    #[arg(
        short = 'p',
        long = "prompt",
        value_name = "PROMPT",
        conflicts_with_all = ["prompt", "file"]
    )]
    prompt_flag: Option<String>,
    /// Read the prompt from a file
    #[arg(short = 'f', long, value_name = "FILE", conflicts_with = "prompt")]
    file: Option<PathBuf>,
    /// Maximum number of tokens to generate [default: until the end of text or a full context]
    #[arg(
        short = 'n',
        long = "predict",
        visible_alias = "max-tokens",
        value_name = "N"
    )]
    predict: Option<usize>,
    /// Continue the prompt as plain text, without a chat template
    #[arg(long)]
    raw: bool,
    /// Ignore end-of-text tokens and continue
    #[arg(long)]
    ignore_eos: bool,
    /// Print a JSON object with text, tokens, prompt_tokens and timings
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
    #[command(flatten)]
    speculation: SpeculationArgs,
    #[command(flatten)]
    beams: BeamArgs,
    #[command(flatten)]
    infill: InfillArgs,
}

impl Run {
    pub(crate) fn run(mut self) -> anyhow::Result<()> {
        let (model_name, prompt) = self.model_and_prompt()?;
        let gap = self.infill.texts();
        let prompt = match gap {
            Some(_) => String::new(),
            None => read_prompt(prompt, self.file.as_deref())?,
        };
        anyhow::ensure!(gap.is_some() || !prompt.is_empty(), "the prompt is empty");
        let model = self.model_args.load(&find_model(model_name)?)?;
        let Input {
            tokens,
            reasoning,
            mut answer,
        } = match gap {
            Some((before, after)) => Input::plain(
                model
                    .tokenizer()?
                    .infill_prompt(before, after)
                    .context("the model does not support infill: it has no infill tokens")?,
            ),
            None => Input::of_prompt(&model, &prompt, self.raw, &self.chat)?,
        };
        if self.json {
            answer = answer.silent();
        }
        anyhow::ensure!(!tokens.is_empty(), "the prompt has no tokens");
        let request = Request {
            prompt: tokens.clone().into(),
            sampling: Some(self.sampling.params(model.sampling_defaults())?),
            grammar: self.grammar.grammar()?,
            max_tokens: self.predict,
            ignore_eos: self.ignore_eos,
            render_special: answer.needs_special(),
            reasoning,
            ..Request::default()
        };
        if self.beams.is_set() {
            let answers = self
                .beams
                .search(&model, &self.model_args, &request, || true)?;
            return show_answers(&answers, &tokens, answer, self.json);
        }
        let engine = self.model_args.engine(model.clone(), &self.speculation)?;
        let (mut generated, mut logprobs) = (Vec::new(), Vec::new());
        let mut stream = engine.submit(request)?;
        for token in &mut stream {
            let token = token.map_err(|error| conversation::explain(error, &model))?;
            generated.push(token.id);
            if let Some(logprob) = token.logprob {
                logprobs.push(serde_json::json!({
                    "id": token.id, "logprob": logprob, "top": token.top,
                }));
            }
            answer.push(&token.text)?;
        }
        answer.finish()?;
        let finished = stream.completion().context("the engine has stopped")?;
        if self.json {
            let mut report = serde_json::json!({
                "text": answer.text(),
                "tokens": generated,
                "prompt_tokens": tokens,
                "finish_reason": conversation::reason_name(finished.finish_reason),
                "timings": conversation::timings_json(finished),
            });
            if !answer.reasoning().is_empty() {
                report["reasoning"] = answer.reasoning().into();
            }
            if !logprobs.is_empty() {
                report["logprobs"] = logprobs.into();
            }
            outln!("{report}")?;
        } else {
            show_speed(finished);
        }
        conversation::note_full_context(finished.finish_reason, engine.n_ctx());
        Ok(())
    }

    /// The model and the prompt of the command line. With `-m`, the first argument is the prompt.
    fn model_and_prompt(&mut self) -> anyhow::Result<(Option<PathBuf>, Option<String>)> {
        let flag = self.model_flag.take();
        let (first, second) = (self.model.take(), self.prompt.take());
        let other = match (&self.prompt_flag, &self.file) {
            (Some(_), _) => Some("-p"),
            (None, Some(_)) => Some("-f"),
            (None, None) => None,
        };
        let (model, prompt) = match (flag, first, second) {
            // OXIDIZE_MODEL is a default; beside -p or -f, the argument can only be the model.
            (Some(flag), Some(first), None) if other.is_none() || !is_from_environment(&flag) => {
                (Some(flag), Some(first.to_string_lossy().into_owned()))
            }
            (flag, first, prompt) => (flag_or_argument(flag, first)?, prompt),
        };
        if let (Some(prompt), Some(other)) = (&prompt, other) {
            anyhow::bail!(
                "two prompts: {other} and {prompt:?}; with -m, the first argument is the prompt"
            );
        }
        Ok((model, prompt.or(self.prompt_flag.take())))
    }
}

/// Arguments of infill, used instead of a prompt.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "Infill")]
struct InfillArgs {
    /// Text before the gap to fill, for models with infill tokens (recommended: --samplers
    /// "top_k;top_p;infill")
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["prompt", "prompt_flag", "file"])]
    fim_prefix: Option<String>,
    /// Text after the gap to fill
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["prompt", "prompt_flag", "file"])]
    fim_suffix: Option<String>,
}

impl InfillArgs {
    /// The texts before and after the gap, if given.
    fn texts(&self) -> Option<(&str, &str)> {
        let text = |part: &Option<String>| part.is_some();
        let given = text(&self.fim_prefix) || text(&self.fim_suffix);
        let before = self.fim_prefix.as_deref().unwrap_or_default();
        let after = self.fim_suffix.as_deref().unwrap_or_default();
        given.then_some((before, after))
    }
}

/// Prints the best answer of a beam search, or all answers as JSON.
fn show_answers(
    answers: &[BeamSequence],
    prompt: &[u32],
    mut answer: AnswerPrinter,
    json: bool,
) -> anyhow::Result<()> {
    let best = answers.first().context("the search found no answer")?;
    answer.push(&best.text)?;
    answer.finish()?;
    if !json {
        return Ok(());
    }
    let beam = |answer: &BeamSequence| {
        serde_json::json!({
            "text": answer.text,
            "tokens": answer.tokens,
            "logprob": answer.logprob,
            "score": answer.score,
            "finish_reason": conversation::reason_name(answer.finish_reason),
        })
    };
    let mut report = serde_json::json!({
        "text": answer.text(),
        "tokens": best.tokens,
        "prompt_tokens": prompt,
        "finish_reason": conversation::reason_name(best.finish_reason),
        "beams": answers.iter().map(beam).collect::<Vec<_>>(),
    });
    if !answer.reasoning().is_empty() {
        report["reasoning"] = answer.reasoning().into();
    }
    Ok(outln!("{report}")?)
}

/// The prompt: that of the command line or of a file, followed by standard input if another program or a file
/// is connected to it.
fn read_prompt(given: Option<String>, file: Option<&Path>) -> anyhow::Result<String> {
    let given = match file {
        Some(path) => {
            Some(std::fs::read_to_string(path).with_context(|| path.display().to_string())?)
        }
        None => given,
    };
    let Some(prompt) = given else {
        if std::io::stdin().is_terminal() {
            anyhow::bail!("no prompt: give it as an argument, with -f FILE, or on standard input");
        }
        return stdin::read();
    };
    if !stdin::is_connected() {
        return Ok(prompt);
    }
    let input = stdin::read()?;
    if input.trim().is_empty() {
        return Ok(prompt);
    }
    Ok(format!("{}\n\n{input}", prompt.trim_end_matches('\n')))
}

/// Input of the model, and the printer of its answer.
struct Input {
    tokens: Vec<u32>,
    reasoning: Option<Reasoning>,
    answer: AnswerPrinter,
}

impl Input {
    /// Tokens that are continued as plain text.
    fn plain(tokens: Vec<u32>) -> Input {
        Input {
            tokens,
            reasoning: None,
            answer: AnswerPrinter::plain(),
        }
    }

    /// A prompt, with the chat template unless `raw` is set.
    fn of_prompt(model: &Model, prompt: &str, raw: bool, chat: &ChatArgs) -> anyhow::Result<Input> {
        let template = if raw { None } else { chat.template(model)? };
        let Some(template) = template else {
            let options = EncodeOptions {
                add_special: true,
                parse_special: true,
            };
            return Ok(Input::plain(model.tokenizer()?.encode(prompt, options)));
        };
        let prompt = chat
            .conversation(prompt)?
            .render(&template, model.tokenizer()?)?;
        Ok(Input {
            answer: AnswerPrinter::new(&template, &prompt),
            tokens: prompt.tokens,
            reasoning: prompt.reasoning,
        })
    }
}

/// Prints the speed on standard error.
pub(crate) fn show_speed(finished: &Completion) {
    let dim = style::for_stderr().dim;
    status!("{dim}{}{dim:#}", conversation::speed(finished));
}
