//! `oxidize chat`: an interactive conversation.

use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use oxidize_core::chat::{ChatOptions, ChatTemplate, Conversation, Message, RenderedPrompt};
use oxidize_core::engine::{Engine, Request};
use oxidize_core::grammar::Grammar;
use oxidize_core::model::Model;
use oxidize_core::sampling::SamplingParams;
use rustyline::error::ReadlineError;
use signal_hook::consts::SIGINT;

use crate::answer::AnswerPrinter;
use crate::beam_args::BeamArgs;
use crate::console::{outln, status};
use crate::conversation::{self, ChatArgs};
use crate::grammar_args::GrammarArgs;
use crate::model_args::ModelArgs;
use crate::model_path::{find_model, flag_or_argument};
use crate::sampling_args::SamplingArgs;
use crate::speculation_args::SpeculationArgs;
use crate::style;

/// Chat with a model interactively
#[derive(Args)]
pub(crate) struct Chat {
    /// GGUF file, safetensors directory, or name of a model in the cache [default: SmolLM2-135M-Instruct]
    #[arg(value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Model, as a flag
    #[arg(
        short = 'm',
        long = "model",
        value_name = "MODEL",
        env = "OXIDIZE_MODEL"
    )]
    model_flag: Option<PathBuf>,
    /// Maximum number of tokens per answer [default: until the end of text or a full context]
    #[arg(
        short = 'n',
        long = "predict",
        visible_alias = "max-tokens",
        value_name = "N"
    )]
    predict: Option<usize>,
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
}

/// Interval at which Ctrl-C is checked while a long prompt is computed.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

const HELP: &str = "\
/help                 show this list
/clear                clear the conversation
/system [TEXT]        show or set the system prompt
/set [NAME VALUE]     show the settings, or set temp, top-k, top-p, min-p, repeat-penalty, seed or n
/think [on|off|auto|N] show or set reasoning before answers; N is the maximum number of its tokens
/save FILE            save the conversation to a JSON file
/load FILE            load a conversation from a JSON file
/quit                 quit (also Ctrl-D)
End a line with \\ to continue on the next line, or enclose several lines in \"\"\" lines.
Press Ctrl-C to stop an answer.";

impl Chat {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let model = self
            .model_args
            .load(&find_model(flag_or_argument(self.model_flag, self.model)?)?)?;
        let template = match self.chat.template(&model)? {
            Some(template) => template,
            // ChatML is the most common format.
            None => ChatTemplate::builtin("chatml", ChatOptions::default())?,
        };
        let mut session = Session {
            engine: self.model_args.engine(model.clone(), &self.speculation)?,
            params: self.sampling.params(model.sampling_defaults())?,
            system: self.chat.system_message()?,
            messages: Vec::new(),
            first: 0,
            grammar: self.grammar.grammar()?,
            predict: self.predict,
            beams: self.beams,
            model_args: self.model_args,
            stop: stop_on_interrupt()?,
            model,
            template,
            chat: self.chat,
        };
        let mut input = Input::new()?;
        if input.is_terminal() {
            let dim = style::for_stderr().dim;
            status!("{dim}/help lists the commands, Ctrl-D quits{dim:#}");
        }
        while let Some(line) = input.read()? {
            let line = line.trim();
            if let Some(command) = line.strip_prefix('/') {
                match session.handle_command(command) {
                    Ok(true) => break,
                    Ok(false) => {}
                    Err(error) => print_error(&error),
                }
            } else if !line.is_empty() {
                // Remove a question that failed and continue the conversation.
                if let Err(error) = session.answer(line) {
                    session.messages.pop();
                    print_error(&error);
                }
            }
        }
        input.save_history();
        Ok(())
    }
}

fn print_error(error: &anyhow::Error) {
    let red = style::for_stderr().error;
    status!("{red}error{red:#}: {error:#}");
}

/// Returns the flag that Ctrl-C sets.
fn stop_on_interrupt() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGINT, stop.clone()).context("Ctrl-C")?;
    Ok(stop)
}

struct Session {
    engine: Engine,
    model: Model,
    template: ChatTemplate,
    params: SamplingParams,
    system: Option<Message>,
    messages: Vec<Message>,
    /// Number of the oldest messages that are left out of the prompt, since the context is full.
    first: usize,
    grammar: Option<Grammar>,
    predict: Option<usize>,
    beams: BeamArgs,
    model_args: ModelArgs,
    stop: Arc<AtomicBool>,
    /// Settings of reasoning, among others that are no longer used.
    chat: ChatArgs,
}

impl Session {
    /// Generates an answer and streams it to standard output.
    fn answer(&mut self, text: &str) -> anyhow::Result<()> {
        self.messages.push(Message::new("user", text));
        let prompt = self.fitting_prompt()?;
        let mut answer = AnswerPrinter::new(&self.template, &prompt);
        let request = Request {
            prompt: prompt.tokens.into(),
            reasoning: prompt.reasoning,
            render_special: answer.needs_special(),
            sampling: Some(self.params.clone()),
            grammar: self.grammar.clone(),
            max_tokens: self.predict,
            ..Request::default()
        };
        self.stop.store(false, Ordering::Relaxed);
        if self.beams.is_set() {
            return self.search(&request, answer);
        }
        let mut stream = self.engine.submit(request)?;
        loop {
            let token = match stream.recv_timeout(POLL_INTERVAL) {
                Poll::Ready(Some(token)) => Some(token),
                Poll::Ready(None) => break,
                Poll::Pending => None,
            };
            if self.stop.swap(false, Ordering::Relaxed) {
                answer.finish()?;
                let dim = style::for_stderr().dim;
                status!("{dim}stopped{dim:#}");
                break;
            }
            let Some(token) = token else { continue };
            let token = token.map_err(|error| conversation::explain(error, &self.model))?;
            answer.push(&token.text)?;
        }
        if let Some(finished) = stream.completion() {
            answer.finish()?;
            let dim = style::for_stderr().dim;
            status!("{dim}{}{dim:#}", conversation::speed(finished));
            conversation::note_full_context(finished.finish_reason, self.engine.n_ctx());
        }
        self.messages.push(answer.into_message());
        Ok(())
    }

    /// Renders the conversation without its oldest turns if it leaves too little of the context to the answer.
    fn fitting_prompt(&mut self) -> anyhow::Result<RenderedPrompt> {
        let n_ctx = self.engine.n_ctx();
        let reserved = self.predict.unwrap_or(usize::MAX).min(n_ctx / 4);
        let whole = self.prompt(self.first)?;
        if whole.tokens.len() + reserved <= n_ctx {
            return Ok(whole);
        }
        // The rest of the prompt is computed anew, so more is left out than needed for this answer alone.
        let (mut first, mut prompt) = (self.first, None);
        while prompt.as_ref().unwrap_or(&whole).tokens.len() > n_ctx / 2 {
            let later = self.messages.iter().skip(first + 1);
            let Some(turn) = later.into_iter().position(|m| m.role == "user") else {
                break;
            };
            first += 1 + turn;
            prompt = Some(self.prompt(first)?);
        }
        let Some(prompt) = prompt.filter(|prompt| prompt.tokens.len() < n_ctx) else {
            // The last question alone is too long, or there is nothing else.
            return Ok(whole);
        };
        if self.first == 0 {
            let dim = style::for_stderr().dim;
            status!(
                "{dim}the context of {n_ctx} tokens is full: the oldest turns are left out from now on; \
                 /clear starts over, -c sets the size{dim:#}"
            );
        }
        self.first = first;
        Ok(prompt)
    }

    /// Renders the system message and the messages from `first` on.
    fn prompt(&self, first: usize) -> anyhow::Result<RenderedPrompt> {
        let messages = self.system.iter().chain(self.messages.iter().skip(first));
        let conversation = Conversation::from_iter(messages.cloned());
        let conversation = self.chat.with_thinking(conversation);
        Ok(conversation.render(&self.template, self.model.tokenizer()?)?)
    }

    /// Replaces the conversation.
    fn set_messages(&mut self, messages: Vec<Message>) {
        self.messages = messages;
        self.first = 0;
    }

    /// Prints the best answer of a beam search, or the best one so far on Ctrl-C.
    fn search(&mut self, request: &Request, mut answer: AnswerPrinter) -> anyhow::Result<()> {
        let go_on = || !self.stop.load(Ordering::Relaxed);
        let answers = self
            .beams
            .search(&self.model, &self.model_args, request, go_on)?;
        let best = answers.into_iter().next();
        answer.push(&best.context("the search found no answer")?.text)?;
        answer.finish()?;
        self.messages.push(answer.into_message());
        Ok(())
    }

    /// Runs a `/` command. Returns true to quit.
    fn handle_command(&mut self, command: &str) -> anyhow::Result<bool> {
        let (name, rest) = command
            .split_once(char::is_whitespace)
            .unwrap_or((command, ""));
        let rest = rest.trim();
        match name {
            "help" | "?" => outln!("{HELP}")?,
            "clear" | "reset" => self.set_messages(Vec::new()),
            "system" if rest.is_empty() => match &self.system {
                Some(message) => outln!("{}", message.text())?,
                None => outln!("(none)")?,
            },
            "system" => self.system = Some(Message::new("system", rest)),
            "set" if rest.is_empty() => self.show_settings()?,
            "set" => self.set(rest)?,
            "think" if rest.is_empty() => {
                let budget = self
                    .chat
                    .thinking
                    .think_budget
                    .map(|n| format!(", at most {n} tokens"));
                outln!("{}{}", self.chat.thinking.think, budget.unwrap_or_default())?;
            }
            "think" => self.set_thinking(rest)?,
            "save" => self.save(Path::new(rest))?,
            "load" => self.load(Path::new(rest))?,
            "quit" | "exit" | "bye" => return Ok(true),
            _ => anyhow::bail!("unknown command /{name}; list the commands with /help"),
        }
        Ok(false)
    }

    fn show_settings(&self) -> std::io::Result<()> {
        let p = &self.params;
        outln!(
            "temp {}\ntop-k {}\ntop-p {}\nmin-p {}",
            p.temperature,
            p.top_k,
            p.top_p,
            p.min_p
        )?;
        outln!("repeat-penalty {}", p.repeat_penalty)?;
        outln!(
            "seed {}",
            p.seed.map_or("random".to_owned(), |seed| seed.to_string())
        )?;
        outln!(
            "n {}",
            self.predict
                .map_or("no limit".to_owned(), |n| n.to_string())
        )
    }

    fn set(&mut self, rest: &str) -> anyhow::Result<()> {
        let (name, value) = rest
            .split_once(char::is_whitespace)
            .context("expected /set NAME VALUE")?;
        let (value, mut p) = (value.trim(), self.params.clone());
        let wrong = || format!("{value:?} is not a value for {name}");
        match name.replace('_', "-").as_str() {
            "temp" | "temperature" => p.temperature = value.parse().with_context(wrong)?,
            "top-k" => p.top_k = value.parse().with_context(wrong)?,
            "top-p" => p.top_p = value.parse().with_context(wrong)?,
            "min-p" => p.min_p = value.parse().with_context(wrong)?,
            "repeat-penalty" => p.repeat_penalty = value.parse().with_context(wrong)?,
            "seed" if value == "random" => p.seed = None,
            "seed" => p.seed = Some(value.parse().with_context(wrong)?),
            "n" => self.predict = Some(value.parse().with_context(wrong)?),
            _ => anyhow::bail!("unknown setting {name:?}; list the settings with /set"),
        }
        p.validate()?;
        self.params = p;
        Ok(())
    }

    /// Sets reasoning to on, off or auto, or limits its tokens.
    fn set_thinking(&mut self, value: &str) -> anyhow::Result<()> {
        let n_tokens: Option<usize> = value.parse().ok();
        if n_tokens.is_some() {
            self.chat.thinking.think_budget = n_tokens;
            return Ok(());
        }
        let thinking = value.parse().map_err(anyhow::Error::msg);
        self.chat.thinking.think = thinking.context("/think")?;
        self.chat.thinking.think_budget = None;
        Ok(())
    }

    fn save(&self, path: &Path) -> anyhow::Result<()> {
        anyhow::ensure!(!path.as_os_str().is_empty(), "expected /save FILE");
        let messages: Vec<&Message> = self.system.iter().chain(&self.messages).collect();
        let text = serde_json::to_string_pretty(&messages)?;
        oxidize_core::io::save_atomically(path, |file| {
            file.write_all(text.as_bytes())
                .map_err(oxidize_core::Error::io(path))
        })?;
        Ok(())
    }

    fn load(&mut self, path: &Path) -> anyhow::Result<()> {
        anyhow::ensure!(!path.as_os_str().is_empty(), "expected /load FILE");
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let mut messages: Vec<Message> =
            serde_json::from_str(&text).with_context(|| path.display().to_string())?;
        let has_system = messages
            .first()
            .is_some_and(|message| message.role == "system");
        self.system = has_system.then(|| messages.remove(0));
        self.set_messages(messages);
        Ok(())
    }
}

/// Delimiter of multi-line input.
const QUOTES: &str = "\"\"\"";

/// Result of reading a line.
enum Line {
    Text(String),
    /// Ctrl-C.
    Discarded,
    /// Ctrl-D, or the end of the pipe.
    End,
}

/// Input from a terminal, with editing and history, or from a pipe.
enum Input {
    Terminal(Box<rustyline::DefaultEditor>),
    Pipe(std::io::StdinLock<'static>),
}

impl Input {
    fn new() -> anyhow::Result<Input> {
        if !std::io::stdin().is_terminal() {
            return Ok(Input::Pipe(std::io::stdin().lock()));
        }
        let mut editor = rustyline::DefaultEditor::new()?;
        if let Some(path) = history_file() {
            // The file does not exist on the first start.
            let _ = editor.load_history(&path);
        }
        Ok(Input::Terminal(Box::new(editor)))
    }

    fn is_terminal(&self) -> bool {
        matches!(self, Input::Terminal(_))
    }

    /// Reads the next input, which may have several lines; `None` at the end. Ctrl-C discards the current
    /// input.
    fn read(&mut self) -> anyhow::Result<Option<String>> {
        loop {
            match self.try_read()? {
                Line::Text(text) => {
                    if let Input::Terminal(editor) = self {
                        let _ = editor.add_history_entry(&text);
                    }
                    return Ok(Some(text));
                }
                Line::Discarded => {}
                Line::End => return Ok(None),
            }
        }
    }

    fn try_read(&mut self) -> anyhow::Result<Line> {
        let mut text = match self.line("> ")? {
            Line::Text(text) => text,
            other => return Ok(other),
        };
        if text.trim() == QUOTES {
            let mut lines = Vec::new();
            loop {
                match self.line("… ")? {
                    Line::Text(line) if line.trim() != QUOTES => lines.push(line),
                    Line::Discarded => return Ok(Line::Discarded),
                    _ => break,
                }
            }
            return Ok(Line::Text(lines.join("\n")));
        }
        while let Some(open) = text.strip_suffix('\\') {
            match self.line("… ")? {
                Line::Text(next) => text = format!("{open}\n{next}"),
                Line::Discarded => return Ok(Line::Discarded),
                Line::End => break,
            }
        }
        Ok(Line::Text(text))
    }

    fn line(&mut self, prompt: &str) -> anyhow::Result<Line> {
        match self {
            Input::Terminal(editor) => match editor.readline(prompt) {
                Ok(line) => Ok(Line::Text(line)),
                Err(ReadlineError::Interrupted) => Ok(Line::Discarded),
                Err(ReadlineError::Eof) => Ok(Line::End),
                Err(error) => Err(error.into()),
            },
            Input::Pipe(input) => {
                let mut line = String::new();
                if input.read_line(&mut line).context("standard input")? == 0 {
                    return Ok(Line::End);
                }
                Ok(Line::Text(line.trim_end_matches(['\n', '\r']).to_owned()))
            }
        }
    }

    fn save_history(&mut self) {
        if let (Input::Terminal(editor), Some(path)) = (self, history_file()) {
            // Failing to save the history is not an error.
            let _ = path.parent().map(std::fs::create_dir_all);
            let _ = editor.save_history(&path);
        }
    }
}

fn history_file() -> Option<PathBuf> {
    let set = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))?;
    Some(state.join("oxidize/chat_history"))
}
