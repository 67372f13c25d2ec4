//! [`GenerationRequest`]: what the request of any API comes down to, before its model is loaded.

use oxidize_core::chat::{
    CallReader, Conversation, MessageParser, MessageParserOptions, RenderedPrompt, Thinking,
};
use oxidize_core::engine::{BeamParams, MAX_BEAMS, Request};
use oxidize_core::grammar::Grammar;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use super::MAX_ANSWERS;
use crate::auth::Client;
use crate::error::{ApiError, ApiResult};
use crate::models::Loaded;
use crate::prompt::{Infill, Prompt};
use crate::sampling::{SamplingFields, with_scales};
use crate::tools::Tools;

/// A request for generated text.
#[derive(Clone, Debug)]
pub struct GenerationRequest {
    /// Name of the model; the default model if `None`.
    pub model: Option<String>,
    /// The input of the model.
    pub input: Input,
    /// Number of answers to each prompt.
    pub n: usize,
    /// Search for the most likely answers, or a choice among more answers than are returned.
    pub search: Search,
    /// Sampling parameters of the request.
    pub sampling: SamplingFields,
    /// `Some(k)` reports the log probability of each token and of the `k` most likely ones.
    pub n_probs: Option<u32>,
    /// Grammar of the answers.
    pub grammar: Option<Grammar>,
    /// Maximum number of tokens of an answer; up to the end of the context if `None`.
    pub max_tokens: Option<usize>,
    /// `Some(k)` reports the log probability of each token of the prompt and of the `k` most likely ones.
    pub prompt_logprobs: Option<u32>,
    /// Reports the progress of the prompt.
    pub progress: bool,
}

/// Search for the answers that are returned.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Search {
    /// None: every answer is returned.
    #[default]
    Off,
    /// The most likely per token of this many answers are returned.
    BestOf(usize),
    /// Beam search.
    Beams(BeamParams),
}

/// Fields of a request that searches for answers.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
pub struct SearchFields {
    /// Number of answers or beams of which the best `n` are returned.
    #[schema(minimum = 1, maximum = 128)]
    pub best_of: Option<u32>,
    /// Beam search with `best_of` (or else `n`) beams, at most 64.
    pub use_beam_search: Option<bool>,
    /// Beams are compared by log probability divided by length to this power.
    #[schema(minimum = -10, maximum = 10)]
    pub length_penalty: Option<f32>,
}

impl SearchFields {
    /// The search for `n` answers.
    pub fn search(&self, n: usize) -> ApiResult<Search> {
        let best_of = self.best_of.map(|best_of| best_of as usize);
        if let Some(best_of) = best_of.filter(|&best_of| best_of < n || best_of > MAX_ANSWERS) {
            return Err(ApiError::bad_request(format!(
                "best_of is {best_of}; it must be between n, which is {n}, and {MAX_ANSWERS}"
            )));
        }
        let length_penalty = self.length_penalty.unwrap_or(1.0);
        if !(-MAX_LENGTH_PENALTY..=MAX_LENGTH_PENALTY).contains(&length_penalty) {
            return Err(ApiError::bad_request(format!(
                "length_penalty is {length_penalty}; it must be between -{MAX_LENGTH_PENALTY} and {MAX_LENGTH_PENALTY}"
            )));
        }
        let candidates = best_of.unwrap_or(n);
        if !self.use_beam_search.unwrap_or(false) {
            return Ok(match candidates > n {
                true => Search::BestOf(candidates),
                false => Search::Off,
            });
        }
        if candidates > MAX_BEAMS {
            return Err(ApiError::bad_request(format!(
                "use_beam_search with {candidates} beams (the larger of n and best_of); 1 to {MAX_BEAMS} are supported"
            )));
        }
        Ok(Search::Beams(BeamParams {
            beams: candidates,
            length_penalty,
        }))
    }
}

/// Largest exponent of the length in the score of a beam.
const MAX_LENGTH_PENALTY: f32 = 10.0;

/// The input of a model.
#[derive(Clone, Debug)]
pub enum Input {
    /// A conversation to continue, rendered with the model's chat template.
    Chat(Box<Chat>),
    /// Prompts to continue as they are.
    Prompt(Prompt),
    /// A gap to fill.
    Infill(Infill),
}

/// A conversation and how its answer is parsed.
#[derive(Clone, Debug, Default)]
pub struct Chat {
    /// Messages and template variables. Its tools are set from [`Chat::tools`].
    pub conversation: Conversation,
    /// Tools of the request and `tool_choice`.
    pub tools: Tools,
    /// Leaves reasoning in the content of the answer.
    pub inline_reasoning: bool,
    /// Leaves reasoning out of the answer.
    pub hide_reasoning: bool,
    /// Reports tool calls while they are generated.
    pub stream_calls: bool,
}

impl From<Chat> for Input {
    fn from(chat: Chat) -> Input {
        Input::Chat(Box::new(chat))
    }
}

impl From<Prompt> for Input {
    fn from(prompt: Prompt) -> Input {
        Input::Prompt(prompt)
    }
}

impl From<Infill> for Input {
    fn from(infill: Infill) -> Input {
        Input::Infill(infill)
    }
}

/// Parser of the text of an answer.
#[derive(Clone, Debug, Default)]
pub enum ResponseParser {
    /// All text is content.
    #[default]
    Text,
    /// Text is split into reasoning, content and tool calls.
    Message(Box<MessageParser>),
    /// All text after the reasoning is tool calls.
    Calls(Option<Box<MessageParser>>, CallReader),
}

impl ResponseParser {
    /// True if the text must contain control tokens, because some of them enclose reasoning and calls.
    fn needs_special(&self) -> bool {
        matches!(self, Self::Message(_) | Self::Calls(Some(_), _))
    }
}

/// A [`GenerationRequest`] in terms of a model's engine.
#[derive(Debug)]
pub struct Prepared {
    /// Token ids of each prompt.
    pub prompts: Vec<Vec<u32>>,
    /// Everything but the prompt.
    pub request: Request,
    /// Parser of each answer.
    pub parser: ResponseParser,
    /// Leaves reasoning out of the answers.
    pub hide_reasoning: bool,
}

impl GenerationRequest {
    /// A request for one answer to each prompt of `input`, by the default model.
    pub fn new(input: impl Into<Input>) -> GenerationRequest {
        GenerationRequest {
            model: None,
            input: input.into(),
            n: 1,
            search: Search::Off,
            sampling: SamplingFields::default(),
            n_probs: None,
            grammar: None,
            max_tokens: None,
            prompt_logprobs: None,
            progress: false,
        }
    }

    /// Number of answers to each prompt that are generated.
    pub fn n_candidates(&self) -> usize {
        match self.search {
            Search::Off => self.n,
            Search::BestOf(candidates) => candidates,
            Search::Beams(params) => params.beams,
        }
    }

    /// Number of answers that are generated for all prompts together.
    pub fn n_answers(&self) -> usize {
        let prompts = match &self.input {
            Input::Prompt(prompt) => prompt.count(),
            Input::Chat(_) | Input::Infill(_) => 1,
        };
        prompts.saturating_mul(self.n_candidates())
    }

    /// Renders and encodes the prompts and resolves the parameters against the defaults of `model`.
    pub fn prepare(self, model: &Loaded, client: &Client) -> ApiResult<Prepared> {
        let tokenizer = model.tokenizer()?;
        let mut grammar = self.grammar;
        let mut parser = ResponseParser::Text;
        let (mut reasoning, mut hide_reasoning) = (None, false);
        let prompts = match self.input {
            Input::Prompt(prompt) => prompt.tokens(tokenizer),
            Input::Infill(infill) => vec![infill.tokens(tokenizer)?],
            Input::Chat(chat) => {
                hide_reasoning = chat.hide_reasoning;
                let (prompt, chat_parser, forced) = chat.prepare(model)?;
                if forced.is_some() && grammar.is_some() {
                    return Err(ApiError::bad_request(
                        "a required tool call and a response format exclude each other",
                    ));
                }
                grammar = forced.or(grammar);
                parser = chat_parser;
                reasoning = prompt.reasoning;
                vec![prompt.tokens]
            }
        };
        let mut sampling = self.sampling.params(&model.defaults, tokenizer)?;
        sampling.n_probs = match self.search {
            Search::Off => self.n_probs,
            Search::BestOf(_) => self.n_probs.or(Some(0)),
            Search::Beams(_) if self.n_probs.is_some() || self.prompt_logprobs.is_some() => {
                return Err(ApiError::not_supported(
                    "use_beam_search and log probabilities exclude each other",
                ));
            }
            Search::Beams(_) => None,
        };
        let scales = self.sampling.lora.as_deref().unwrap_or_default();
        let request = Request {
            sampling: Some(sampling),
            grammar,
            max_tokens: self.max_tokens,
            ignore_eos: self.sampling.ignore_eos.unwrap_or(false),
            adapters: Some(with_scales(model.adapter_scales(), scales)?),
            render_special: parser.needs_special(),
            reasoning,
            drafts: self.sampling.drafts.params(model.drafts)?,
            priority: client.priority(self.sampling.priority),
            cache_salt: client.salt() ^ self.sampling.cache_salt.as_deref().map_or(0, salt_of),
            ignore_cache: !self.sampling.cache_prompt.unwrap_or(true),
            prompt_logprobs: self.prompt_logprobs,
            report_progress: self.progress,
            ..Request::default()
        };
        Ok(Prepared {
            prompts,
            request,
            parser,
            hide_reasoning,
        })
    }
}

/// Namespace of the prefix cache for the salt of a request.
fn salt_of(text: &str) -> u64 {
    let digest = Sha256::digest(text.as_bytes());
    let (first, _) = digest.split_at(8);
    first
        .iter()
        .fold(0, |salt, &byte| salt << 8 | u64::from(byte))
}

impl Chat {
    /// The prompt, the parser of the answer, and the grammar of a required tool call.
    fn prepare(
        mut self,
        model: &Loaded,
    ) -> ApiResult<(RenderedPrompt, ResponseParser, Option<Grammar>)> {
        self.conversation.tools = self.tools.offered();
        if self.conversation.thinking == Thinking::Auto {
            self.conversation.thinking = model.thinking;
        }
        let budget = &mut self.conversation.thinking_budget;
        *budget = budget.or(model.thinking_budget);
        let prompt = self
            .conversation
            .render(&model.template, model.tokenizer()?)?;
        let forced = self.tools.forced();
        let options = MessageParserOptions {
            reasoning: !self.inline_reasoning || forced.is_some(),
            tools: self
                .conversation
                .tools
                .as_ref()
                .filter(|_| forced.is_none()),
            prompt: &prompt.text,
            stream_calls: self.stream_calls,
        };
        let parser = || Box::new(MessageParser::new(model.template.format(), &options));
        let parser = match &forced {
            Some(_) => {
                let reasoning = prompt.reasoning.is_some().then(parser);
                ResponseParser::Calls(reasoning, CallReader::default())
            }
            None => ResponseParser::Message(parser()),
        };
        Ok((prompt, parser, forced))
    }
}
