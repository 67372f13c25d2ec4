//! [`RequestOptions`]: a request as JSON, and its form for the engine.

use std::collections::BTreeMap;

use oxidize_core::ChatTemplate;
use oxidize_core::chat::{
    Conversation, Message, MessageFormat, MessageParser, MessageParserOptions, Thinking,
};
use oxidize_core::engine::{Prompt, Request};
use oxidize_core::grammar::Grammar;
use oxidize_core::model::Model;
use oxidize_core::sampling::{MirostatMode, SamplerKind, SamplingParams};
use serde::Deserialize;
use serde_json::{Map, Value as Json};

use crate::error::Failure;

/// A request: a prompt, its settings, and the form of the answer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RequestOptions {
    /// Text to continue.
    pub prompt: Option<String>,
    /// Token ids to continue.
    pub tokens: Option<Vec<u32>>,
    /// Conversation to answer.
    pub messages: Option<Vec<Message>>,
    /// Tools that the model may call, in OpenAI's form.
    pub tools: Option<Vec<Json>>,
    /// `auto` or `none`.
    pub tool_choice: Option<String>,
    /// Documents for the chat template.
    pub documents: Option<Vec<Json>>,
    /// Variables for the chat template.
    pub template_args: Option<Map<String, Json>>,
    /// Continues the last message, which is the assistant's.
    pub continue_final_message: Option<bool>,
    /// Reasoning before the answer.
    pub thinking: Option<bool>,
    /// Maximum tokens of reasoning.
    pub thinking_budget: Option<usize>,

    /// Maximum tokens to generate.
    pub max_tokens: Option<usize>,
    /// Minimum tokens to generate.
    pub min_tokens: Option<u32>,
    /// Texts that end the answer.
    pub stop: Option<OneOrMany>,
    /// Token ids that end the answer.
    pub stop_tokens: Option<Vec<u32>>,
    /// Continues past tokens that end the answer.
    pub ignore_eos: Option<bool>,
    /// Texts that the answer never contains.
    pub banned_strings: Option<Vec<String>>,

    /// JSON schema of the answer.
    pub schema: Option<Json>,
    /// An answer that is a JSON object.
    pub json: Option<bool>,
    /// GBNF grammar of the answer.
    pub grammar: Option<String>,
    /// Regular expression that matches the whole answer.
    pub regex: Option<String>,
    /// Lark grammar of the answer.
    pub lark: Option<String>,
    /// Texts, one of which is the answer.
    pub choice: Option<Vec<String>>,

    /// Temperature; 0 takes the most likely token.
    pub temperature: Option<f32>,
    /// Keeps the k most likely tokens.
    pub top_k: Option<u32>,
    /// Keeps the most likely tokens with this total probability.
    pub top_p: Option<f32>,
    /// Drops tokens with less than this fraction of the highest probability.
    pub min_p: Option<f32>,
    /// Locally typical sampling.
    pub typical_p: Option<f32>,
    /// Tail-free sampling.
    pub tfs_z: Option<f32>,
    /// Top-nσ sampling.
    pub top_n_sigma: Option<f32>,
    /// XTC: probability.
    pub xtc_probability: Option<f32>,
    /// XTC: threshold.
    pub xtc_threshold: Option<f32>,
    /// Dynamic temperature: range.
    pub dynatemp_range: Option<f32>,
    /// Dynamic temperature: exponent.
    pub dynatemp_exponent: Option<f32>,
    /// Mirostat: 0, 1 or 2.
    pub mirostat: Option<u8>,
    /// Mirostat: target entropy.
    pub mirostat_tau: Option<f32>,
    /// Mirostat: learning rate.
    pub mirostat_eta: Option<f32>,
    /// DRY: multiplier.
    pub dry_multiplier: Option<f32>,
    /// DRY: base.
    pub dry_base: Option<f32>,
    /// DRY: length of repetitions that is not penalized.
    pub dry_allowed_length: Option<u16>,
    /// DRY: number of last tokens that are searched.
    pub dry_penalty_last_n: Option<i32>,
    /// DRY: strings that end a repetition.
    pub dry_sequence_breakers: Option<Vec<String>>,
    /// Repetition penalty.
    pub repeat_penalty: Option<f32>,
    /// Number of last tokens that are penalized.
    pub repeat_last_n: Option<i32>,
    /// Frequency penalty.
    pub frequency_penalty: Option<f32>,
    /// Presence penalty.
    pub presence_penalty: Option<f32>,
    /// Penalizes newlines, too.
    pub penalize_newline: Option<bool>,
    /// Biases of logits by token id.
    pub logit_bias: Option<BTreeMap<String, f32>>,
    /// Samplers in order.
    pub samplers: Option<Vec<String>>,
    /// Seed of the sampler.
    pub seed: Option<u64>,
    /// Log probabilities of the tokens, and of this number of most likely ones.
    pub logprobs: Option<u8>,

    /// Scales of the LoRA adapters.
    pub adapters: Option<Vec<f32>>,
    /// Scheduling priority.
    pub priority: Option<i32>,
    /// Reports the progress of the prompt.
    pub progress: Option<bool>,
}

/// A text or a list of texts.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum OneOrMany {
    /// A text.
    One(String),
    /// A list of texts.
    Many(Vec<String>),
}

/// A request for the engine, and the parser of its answer.
pub(crate) struct Prepared {
    pub(crate) request: Request,
    pub(crate) parser: Option<MessageParser>,
}

/// A conversation as the model's chat template renders it.
pub(crate) struct Rendered {
    pub(crate) text: String,
    pub(crate) tokens: Vec<u32>,
}

impl RequestOptions {
    /// Parses a request.
    pub fn parse(json: &str) -> Result<RequestOptions, Failure> {
        serde_json::from_str(json).map_err(|error| Failure::invalid(format!("request: {error}")))
    }

    /// Renders the prompt and checks the settings.
    pub(crate) fn prepare(self, model: &Model) -> Result<Prepared, Failure> {
        let grammar = self.form()?;
        let sampling = self.sampling(model.sampling_defaults())?;
        let (prompt, parser) = self.input(model)?;
        let mut request = Request::new(prompt.0);
        request.reasoning = prompt.1;
        request.render_special = parser.is_some();
        request.sampling = Some(sampling);
        request.grammar = grammar;
        request.max_tokens = self.max_tokens;
        request.ignore_eos = self.ignore_eos.unwrap_or(false);
        request.adapters = self.adapters;
        request.priority = self.priority.unwrap_or(0);
        request.report_progress = self.progress.unwrap_or(false);
        Ok(Prepared { request, parser })
    }

    /// Renders the conversation.
    pub(crate) fn render(self, model: &Model) -> Result<Rendered, Failure> {
        let template = template(model)?;
        let conversation = self.conversation()?;
        let prompt = conversation
            .render(&template, model.tokenizer()?)
            .map_err(oxidize_core::Error::from)?;
        Ok(Rendered {
            text: prompt.text,
            tokens: prompt.tokens,
        })
    }

    #[allow(clippy::type_complexity, reason = "used once")]
    fn input(
        &self,
        model: &Model,
    ) -> Result<
        (
            (Prompt, Option<oxidize_core::chat::Reasoning>),
            Option<MessageParser>,
        ),
        Failure,
    > {
        match (&self.prompt, &self.tokens, &self.messages) {
            (Some(text), None, None) => Ok(((text.clone().into(), None), None)),
            (None, Some(tokens), None) => Ok(((tokens.clone().into(), None), None)),
            (None, None, Some(_)) => {
                let template = template(model)?;
                let conversation = self.conversation()?;
                let prompt = conversation
                    .render(&template, model.tokenizer()?)
                    .map_err(oxidize_core::Error::from)?;
                let options = MessageParserOptions {
                    reasoning: true,
                    tools: conversation.tools.as_ref(),
                    prompt: &prompt.text,
                    stream_calls: false,
                };
                let parser = MessageParser::new(&MessageFormat::of(&template), &options);
                Ok(((prompt.tokens.into(), prompt.reasoning), Some(parser)))
            }
            _ => Err(Failure::invalid(
                "a request has one of prompt, tokens and messages",
            )),
        }
    }

    fn conversation(&self) -> Result<Conversation, Failure> {
        let messages = self.messages.clone().unwrap_or_default();
        if messages.is_empty() {
            return Err(Failure::invalid("messages must not be empty"));
        }
        let offered = match self.tool_choice.as_deref() {
            None | Some("auto") => true,
            Some("none") => false,
            Some(other) => {
                return Err(Failure::invalid(format!(
                    "toolChoice is {other:?}; auto and none are supported"
                )));
            }
        };
        let tools = self
            .tools
            .clone()
            .filter(|tools| offered && !tools.is_empty());
        Ok(Conversation {
            messages,
            tools: tools.map(Json::Array),
            documents: self.documents.clone().map(Json::Array),
            template_args: self.template_args.clone().unwrap_or_default(),
            continue_final_message: self.continue_final_message,
            thinking: match self.thinking {
                None => Thinking::Auto,
                Some(true) => Thinking::On,
                Some(false) => Thinking::Off,
            },
            thinking_budget: self.thinking_budget,
            ..Conversation::default()
        })
    }

    /// Grammar of the answer.
    fn form(&self) -> Result<Option<Grammar>, Failure> {
        let choice = match &self.choice {
            Some(texts) if texts.is_empty() => {
                return Err(Failure::invalid(
                    "choice is empty; it needs a text at least",
                ));
            }
            choice => choice.as_ref().map(Grammar::choice),
        };
        let forms = [
            ("schema", self.schema.clone().map(Grammar::JsonSchema)),
            (
                "json",
                self.json.filter(|&on| on).map(|_| Grammar::JsonObject),
            ),
            ("grammar", self.grammar.clone().map(Grammar::Gbnf)),
            ("regex", self.regex.clone().map(Grammar::Regex)),
            ("lark", self.lark.clone().map(Grammar::Lark)),
            ("choice", choice),
        ];
        let mut given = forms
            .into_iter()
            .filter_map(|(name, form)| Some((name, form?)));
        match (given.next(), given.next()) {
            (Some((first, _)), Some((second, _))) => Err(Failure::invalid(format!(
                "{first} and {second} exclude each other: an answer has one form"
            ))),
            (first, _) => Ok(first.map(|(_, form)| form)),
        }
    }

    /// Sampling settings on top of those of the model.
    fn sampling(&self, mut params: SamplingParams) -> Result<SamplingParams, Failure> {
        macro_rules! set {
            ($($from:ident => $($to:ident).+),* $(,)?) => {
                $(if let Some(value) = self.$from.clone() { params.$($to).+ = value; })*
            };
        }
        set!(
            temperature => temperature,
            top_k => top_k,
            top_p => top_p,
            min_p => min_p,
            typical_p => typical_p,
            tfs_z => tfs_z,
            top_n_sigma => top_n_sigma,
            xtc_probability => xtc_probability,
            xtc_threshold => xtc_threshold,
            dynatemp_range => dynatemp_range,
            dynatemp_exponent => dynatemp_exponent,
            mirostat_tau => mirostat.tau,
            mirostat_eta => mirostat.eta,
            dry_multiplier => dry.multiplier,
            dry_base => dry.base,
            dry_penalty_last_n => dry.penalty_last_n,
            dry_sequence_breakers => dry.sequence_breakers,
            repeat_penalty => repeat_penalty,
            repeat_last_n => repeat_last_n,
            frequency_penalty => frequency_penalty,
            presence_penalty => presence_penalty,
            penalize_newline => penalize_newline,
            min_tokens => min_tokens,
            stop_tokens => stop_tokens,
            banned_strings => banned_strings,
        );
        if let Some(length) = self.dry_allowed_length {
            params.dry.allowed_length = u32::from(length);
        }
        params.mirostat.mode = match self.mirostat {
            None => params.mirostat.mode,
            Some(0) => MirostatMode::Off,
            Some(1) => MirostatMode::V1,
            Some(2) => MirostatMode::V2,
            Some(other) => {
                return Err(Failure::invalid(format!(
                    "mirostat is {other}; it must be 0, 1 or 2"
                )));
            }
        };
        if let Some(names) = &self.samplers {
            let kinds = names.iter().map(|name| name.parse::<SamplerKind>());
            params.samplers = kinds
                .collect::<Result<_, _>>()
                .map_err(|error| Failure::invalid(error.to_string()))?;
        }
        if let Some(biases) = &self.logit_bias {
            let bias = |(token, bias): (&String, &f32)| match token.parse::<u32>() {
                Ok(token) => Ok((token, *bias)),
                Err(_) => Err(Failure::invalid(format!(
                    "logitBias has the key {token:?}, which is not a token id"
                ))),
            };
            params.logit_bias = biases.iter().map(bias).collect::<Result<_, _>>()?;
        }
        match &self.stop {
            None => {}
            Some(OneOrMany::One(text)) => params.stop = vec![text.clone()],
            Some(OneOrMany::Many(texts)) => params.stop.clone_from(texts),
        }
        params.seed = self.seed.or(params.seed);
        params.n_probs = self.logprobs.map(u32::from);
        params
            .validate()
            .map_err(|error| Failure::invalid(error.to_string()))?;
        Ok(params)
    }
}

/// The model's chat template, or ChatML.
fn template(model: &Model) -> Result<ChatTemplate, Failure> {
    if let Some(template) = model.chat_template()? {
        return Ok(template);
    }
    let chatml = ChatTemplate::builtin("chatml", Default::default());
    Ok(chatml.map_err(oxidize_core::Error::from)?)
}
