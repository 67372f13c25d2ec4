//! Requests: a prompt, options, and what an answer must look like. A request is built once and submitted as often as
//! needed.

use std::ffi::c_char;
use std::sync::{Mutex, MutexGuard, PoisonError};

use oxidize_core::chat::{ChatOptions, Conversation, Message, Thinking};
use oxidize_core::engine::{Prompt, Request};
use oxidize_core::sampling::{MirostatMode, SamplerKind, SamplingParams};
use oxidize_core::{ChatTemplate, Error, Grammar};
use serde_json::{Map, Value as Json};

use crate::handle::{self, Kind};
use crate::model::ModelHandle;
use crate::pointer::{self, Options};
use crate::status::{Failure, Status, entry};

/// Handle of a request.
pub type RequestHandle = u64;

/// Seed of `oxidize_request_options` that draws a new one for each answer.
pub const RANDOM_SEED: u64 = u64::MAX;

/// Options of a request. `oxidize_request_options_init` sets all fields.
///
/// Samplers have the names, meanings and defaults of llama.cpp.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RequestOptions {
    /// Size of this struct, set by `oxidize_request_options_init`.
    pub size: usize,
    /// Maximum tokens of the answer; 0 for as many as the context holds.
    pub max_tokens: u64,
    /// Until there are so many tokens, nothing but a complete grammar ends the answer.
    pub min_tokens: u32,
    /// Requests with a higher priority run first. Default 0.
    pub priority: i32,
    /// Requests with different salts share no cached prefix. Default 0.
    pub cache_salt: u64,
    /// 1 computes the whole prompt, even if a prefix of it is cached. Default 0.
    pub ignore_cache: i32,
    /// 1 continues past the tokens with which the model ends its answers. Default 0.
    pub ignore_eos: i32,
    /// 1 includes control tokens in the text. Default 0.
    pub render_special: i32,
    /// Log probabilities: -1 reports none, 0 that of each token, n also those of the n most likely tokens. Default -1.
    pub n_probs: i32,
    /// Seed of the random numbers, or `OXIDIZE_RANDOM_SEED`, the default.
    pub seed: u64,
    /// Divides the logits; 0 takes the most likely token.
    pub temperature: f32,
    /// Range of the dynamic temperature around `temperature`; 0 is off.
    pub dynatemp_range: f32,
    /// Exponent of the dynamic temperature.
    pub dynatemp_exponent: f32,
    /// Keeps the k most likely tokens; 0 is off.
    pub top_k: u32,
    /// Keeps the most likely tokens with this total probability; 1 is off.
    pub top_p: f32,
    /// Keeps tokens with this fraction of the probability of the most likely one; 0 is off.
    pub min_p: f32,
    /// Locally typical sampling; 1 is off.
    pub typical_p: f32,
    /// Tail-free sampling; 1 is off.
    pub tfs_z: f32,
    /// Keeps logits within so many standard deviations of the largest; 0 is off.
    pub top_n_sigma: f32,
    /// Probability per step that XTC removes the top choices; 0 is off.
    pub xtc_probability: f32,
    /// Minimum probability of a top choice for XTC; above 0.5 is off.
    pub xtc_threshold: f32,
    /// Version of Mirostat, 1 or 2; 0 is off.
    pub mirostat: u32,
    /// Target surprise of Mirostat in bits.
    pub mirostat_tau: f32,
    /// Learning rate of Mirostat.
    pub mirostat_eta: f32,
    /// Strength of DRY's penalty on repetitions; 0 is off.
    pub dry_multiplier: f32,
    /// Growth of DRY's penalty per repeated token.
    pub dry_base: f32,
    /// Longest repetition that DRY does not penalize.
    pub dry_allowed_length: u32,
    /// Number of recent tokens that DRY searches; 0 is off, -1 is all.
    pub dry_penalty_last_n: i32,
    /// Divides the logits of recent tokens; 1 is off.
    pub repeat_penalty: f32,
    /// Number of recent tokens to penalize; 0 is off, -1 is all.
    pub repeat_last_n: i32,
    /// Subtracted from a logit per recent occurrence of its token; 0 is off.
    pub frequency_penalty: f32,
    /// Subtracted from a logit if its token occurred recently; 0 is off.
    pub presence_penalty: f32,
}

// SAFETY: integers and floats.
unsafe impl Options for RequestOptions {
    const NAME: &'static str = "oxidize_request_options";
    const FIRST_SIZE: usize = size_of::<RequestOptions>();

    fn defaults() -> RequestOptions {
        RequestOptions::of(&SamplingParams::default())
    }
}

impl RequestOptions {
    fn of(sampling: &SamplingParams) -> RequestOptions {
        RequestOptions {
            size: size_of::<RequestOptions>(),
            max_tokens: 0,
            min_tokens: sampling.min_tokens,
            priority: 0,
            cache_salt: 0,
            ignore_cache: 0,
            ignore_eos: 0,
            render_special: 0,
            n_probs: -1,
            seed: RANDOM_SEED,
            temperature: sampling.temperature,
            dynatemp_range: sampling.dynatemp_range,
            dynatemp_exponent: sampling.dynatemp_exponent,
            top_k: sampling.top_k,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            typical_p: sampling.typical_p,
            tfs_z: sampling.tfs_z,
            top_n_sigma: sampling.top_n_sigma,
            xtc_probability: sampling.xtc_probability,
            xtc_threshold: sampling.xtc_threshold,
            mirostat: match sampling.mirostat.mode {
                MirostatMode::Off => 0,
                MirostatMode::V1 => 1,
                MirostatMode::V2 => 2,
            },
            mirostat_tau: sampling.mirostat.tau,
            mirostat_eta: sampling.mirostat.eta,
            dry_multiplier: sampling.dry.multiplier,
            dry_base: sampling.dry.base,
            dry_allowed_length: sampling.dry.allowed_length,
            dry_penalty_last_n: sampling.dry.penalty_last_n,
            repeat_penalty: sampling.repeat_penalty,
            repeat_last_n: sampling.repeat_last_n,
            frequency_penalty: sampling.frequency_penalty,
            presence_penalty: sampling.presence_penalty,
        }
    }

    fn sampling(&self) -> Result<SamplingParams, Failure> {
        let mut sampling = SamplingParams {
            temperature: self.temperature,
            dynatemp_range: self.dynatemp_range,
            dynatemp_exponent: self.dynatemp_exponent,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical_p,
            tfs_z: self.tfs_z,
            top_n_sigma: self.top_n_sigma,
            xtc_probability: self.xtc_probability,
            xtc_threshold: self.xtc_threshold,
            repeat_penalty: self.repeat_penalty,
            repeat_last_n: self.repeat_last_n,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            min_tokens: self.min_tokens,
            seed: (self.seed != RANDOM_SEED).then_some(self.seed),
            n_probs: match self.n_probs {
                -1 => None,
                n => Some(u32::try_from(n).map_err(|_| {
                    Failure::argument(format!("n_probs is {n}; it must be -1 (none) or more"))
                })?),
            },
            ..SamplingParams::default()
        };
        sampling.mirostat.mode = match self.mirostat {
            0 => MirostatMode::Off,
            1 => MirostatMode::V1,
            2 => MirostatMode::V2,
            other => {
                let message = format!("mirostat is {other}; it must be 0, 1 or 2");
                return Err(Failure::argument(message));
            }
        };
        sampling.mirostat.tau = self.mirostat_tau;
        sampling.mirostat.eta = self.mirostat_eta;
        sampling.dry.multiplier = self.dry_multiplier;
        sampling.dry.base = self.dry_base;
        sampling.dry.allowed_length = self.dry_allowed_length;
        sampling.dry.penalty_last_n = self.dry_penalty_last_n;
        sampling.validate().map_err(Error::from)?;
        Ok(sampling)
    }
}

/// Sets options to their defaults: the sampling settings that the authors of `model` recommend, or with 0 those of
/// llama.cpp. `size` is `sizeof(oxidize_request_options)`.
///
/// # Safety
///
/// `options` is null, or points to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_request_options_init(
    options: *mut RequestOptions,
    size: usize,
    model: ModelHandle,
) -> Status {
    entry(|| {
        let sampling = match model {
            0 => SamplingParams::default(),
            model => handle::get::<oxidize_core::Model>(model)?.sampling_defaults(),
        };
        // SAFETY: the caller promises `size` writable bytes, or null.
        unsafe { pointer::write_options(options, size, RequestOptions::of(&sampling)) }
    })
}

/// A request that is being built.
pub(crate) struct RequestBuilder(Mutex<Parts>);

#[derive(Clone)]
struct Parts {
    /// The prompt and the options that are not for sampling.
    request: Request,
    /// Sampling settings of the options; `None` for the model's.
    sampling: Option<SamplingParams>,
    samplers: Option<Vec<SamplerKind>>,
    stop: Vec<String>,
    stop_tokens: Vec<u32>,
    logit_bias: Vec<(u32, f32)>,
}

impl Kind for RequestBuilder {
    const NAME: &'static str = "a request";
}

impl RequestBuilder {
    fn lock(&self) -> MutexGuard<'_, Parts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The request, for an engine of `model`.
    pub(crate) fn build(&self, model: &oxidize_core::Model) -> Result<Request, Failure> {
        let parts = self.lock().clone();
        if matches!(&parts.request.prompt, Prompt::Tokens(tokens) if tokens.is_empty()) {
            return Err(Failure::argument("the request has no prompt"));
        }
        let mut sampling = parts.sampling.unwrap_or_else(|| model.sampling_defaults());
        sampling.samplers = parts.samplers.unwrap_or(sampling.samplers);
        sampling.stop = parts.stop;
        sampling.stop_tokens = parts.stop_tokens;
        sampling.logit_bias = parts.logit_bias;
        Ok(parts.request.sampling(sampling))
    }
}

/// Changes a request.
fn change(
    request: RequestHandle,
    change: impl FnOnce(&mut Parts) -> Result<(), Failure>,
) -> Result<Status, Failure> {
    let request = handle::get::<RequestBuilder>(request)?;
    change(&mut request.lock())?;
    Ok(Status::Ok)
}

/// Makes a request without a prompt. With null, the sampling settings are those of the model that answers it. On
/// failure, `*request` is 0.
///
/// # Safety
///
/// `options` is null or initialized. `request` points to room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_request_new(
    options: *const RequestOptions,
    request: *mut RequestHandle,
) -> Status {
    entry(|| {
        // SAFETY: the caller promises room for a handle, and options of the size that their first field says, or null.
        let (given, options) = unsafe {
            pointer::write("request", request, 0)?;
            (!options.is_null(), pointer::options(options)?)
        };
        let sampling = match given {
            true => Some(options.sampling()?),
            false => None,
        };
        let mut inner = Request::new(Vec::new());
        inner.max_tokens = match options.max_tokens {
            0 => None,
            n => Some(usize::try_from(n).unwrap_or(usize::MAX)),
        };
        inner.priority = options.priority;
        inner.cache_salt = options.cache_salt;
        inner.ignore_cache = options.ignore_cache != 0;
        inner.ignore_eos = options.ignore_eos != 0;
        inner.render_special = options.render_special != 0;
        let handle = handle::insert(RequestBuilder(Mutex::new(Parts {
            request: inner,
            sampling,
            samplers: None,
            stop: Vec::new(),
            stop_tokens: Vec::new(),
            logit_bias: Vec::new(),
        })))?;
        // SAFETY: the caller promises room for a handle.
        unsafe { pointer::write("request", request, handle)? };
        Ok(Status::Ok)
    })
}

/// Frees a request. Answers to it go on.
#[unsafe(no_mangle)]
pub extern "C" fn oxidize_request_free(request: RequestHandle) -> Status {
    entry(|| {
        handle::remove::<RequestBuilder>(request)?;
        Ok(Status::Ok)
    })
}

/// Sets the prompt to a text to continue. Special tokens such as BOS are added as the model expects.
///
/// # Safety
///
/// `text` points to `text_length` bytes, or ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_request_set_text(
    request: RequestHandle,
    text: *const c_char,
    text_length: usize,
) -> Status {
    entry(|| {
        // SAFETY: the caller promises a text of `text_length` bytes.
        let text = unsafe { pointer::text("text", text, text_length)? };
        change(request, |parts| {
            parts.request.prompt = Prompt::Text(text.to_owned());
            Ok(())
        })
    })
}

/// Sets the prompt to tokens, which are used as they are.
///
/// # Safety
///
/// `tokens` points to `n_tokens` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_request_set_tokens(
    request: RequestHandle,
    tokens: *const u32,
    n_tokens: usize,
) -> Status {
    entry(|| {
        // SAFETY: the caller promises `n_tokens` elements.
        let tokens = unsafe { pointer::slice("tokens", tokens, n_tokens)? };
        change(request, |parts| {
            parts.request.prompt = Prompt::Tokens(tokens.to_vec());
            Ok(())
        })
    })
}

/// Adds a message to the prompt, which becomes a conversation if it is none. `role` is "system", "user", "assistant" or
/// another that the chat template knows.
///
/// # Safety
///
/// `role` points to `role_length` bytes, or ends with NUL; so does `text` with `text_length`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_request_add_message(
    request: RequestHandle,
    role: *const c_char,
    role_length: usize,
    text: *const c_char,
    text_length: usize,
) -> Status {
    entry(|| {
        // SAFETY: the caller promises texts of these lengths.
        let (role, text) = unsafe {
            (
                pointer::text("role", role, role_length)?,
                pointer::text("text", text, text_length)?,
            )
        };
        change(request, |parts| {
            let message = Message::new(role, text);
            match &mut parts.request.prompt {
                Prompt::Chat(conversation) => conversation.messages.push(message),
                prompt => *prompt = Prompt::Chat(Conversation::new().push(message)),
            }
            Ok(())
        })
    })
}

/// Sets the prompt to a conversation in JSON: a list of messages in the format of OpenAI's API, or an object with
/// `messages` and any of `tools`, `documents`, `template_args`, `add_generation_prompt`, `continue_final_message`,
/// `thinking` (true or false) and `thinking_budget`.
///
/// # Safety
///
/// `json` points to `json_length` bytes, or ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_request_set_conversation(
    request: RequestHandle,
    json: *const c_char,
    json_length: usize,
) -> Status {
    entry(|| {
        // SAFETY: the caller promises a text of `json_length` bytes.
        let json = unsafe { pointer::text("json", json, json_length)? };
        let conversation = parse_conversation(json)?;
        change(request, |parts| {
            parts.request.prompt = Prompt::Chat(conversation);
            Ok(())
        })
    })
}

fn parse_conversation(text: &str) -> Result<Conversation, Failure> {
    let invalid = |what: &str, problem: &dyn std::fmt::Display| {
        Failure::argument(format!("conversation: {what}{problem}"))
    };
    let json: Json = serde_json::from_str(text).map_err(|error| invalid("", &error))?;
    let mut fields = match json {
        Json::Object(fields) => fields,
        Json::Array(_) => Map::from_iter([("messages".to_owned(), json)]),
        _ => return Err(invalid("", &"neither a list nor an object")),
    };
    let messages = fields.remove("messages").unwrap_or_default();
    let mut conversation = Conversation {
        messages: serde_json::from_value(messages)
            .map_err(|error| invalid("messages: ", &error))?,
        ..Conversation::default()
    };
    for (name, value) in fields {
        let flag = || {
            let expected = || invalid(&name, &" must be true or false");
            value.as_bool().ok_or_else(expected)
        };
        match name.as_str() {
            _ if value.is_null() => {}
            "tools" => conversation.tools = Some(value),
            "documents" => conversation.documents = Some(value),
            "template_args" => match value {
                Json::Object(arguments) => conversation.template_args = arguments,
                _ => return Err(invalid(&name, &" must be an object")),
            },
            "add_generation_prompt" => conversation.add_generation_prompt = flag()?,
            "continue_final_message" => conversation.continue_final_message = Some(flag()?),
            "thinking" => {
                conversation.thinking = if flag()? { Thinking::On } else { Thinking::Off };
            }
            "thinking_budget" => {
                let budget = value.as_u64().and_then(|n| usize::try_from(n).ok());
                let expected = || invalid(&name, &" must be a number of tokens");
                conversation.thinking_budget = Some(budget.ok_or_else(expected)?);
            }
            _ => return Err(invalid(&name, &" is not known")),
        }
    }
    Ok(conversation)
}

/// Copies the prompt of a request, as `model` reads it, into `buffer`: a conversation rendered with the chat template, a
/// text as it is, or the text of tokens.
///
/// # Safety
///
/// `buffer` points to `capacity` writable bytes; `length` is null or points to room for a length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_request_render(
    request: RequestHandle,
    model: ModelHandle,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Status {
    entry(|| {
        let request = handle::get::<RequestBuilder>(request)?;
        let model = handle::get::<oxidize_core::Model>(model)?;
        let prompt = request.lock().request.prompt.clone();
        let text = match prompt {
            Prompt::Text(text) => text,
            Prompt::Tokens(tokens) => model.tokenizer()?.decode(&tokens),
            Prompt::Chat(conversation) => {
                let template = match model.chat_template()? {
                    Some(template) => template,
                    None => ChatTemplate::builtin("chatml", ChatOptions::default())?,
                };
                conversation.render(&template, model.tokenizer()?)?.text
            }
            _ => return Err(Failure::argument("the request has no prompt")),
        };
        // SAFETY: the caller promises `capacity` bytes, and room for a length or null.
        unsafe { pointer::write_text(&text, buffer, capacity, length) }
    })
}

/// Adds a text that ends the answer and is not part of it.
///
/// # Safety
///
/// `text` points to `text_length` bytes, or ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_request_add_stop(
    request: RequestHandle,
    text: *const c_char,
    text_length: usize,
) -> Status {
    entry(|| {
        // SAFETY: the caller promises a text of `text_length` bytes.
        let text = unsafe { pointer::text("text", text, text_length)? };
        change(request, |parts| {
            let mut stop = parts.stop.clone();
            stop.push(text.to_owned());
            check(SamplingParams {
                stop: stop.clone(),
                ..SamplingParams::default()
            })?;
            parts.stop = stop;
            Ok(())
        })
    })
}

/// Adds a token that ends the answer and is not part of it.
#[unsafe(no_mangle)]
pub extern "C" fn oxidize_request_add_stop_token(request: RequestHandle, token: u32) -> Status {
    entry(|| {
        change(request, |parts| {
            parts.stop_tokens.push(token);
            Ok(())
        })
    })
}

/// Adds `bias` to the logit of a token; minus infinity bans the token.
#[unsafe(no_mangle)]
pub extern "C" fn oxidize_request_add_logit_bias(
    request: RequestHandle,
    token: u32,
    bias: f32,
) -> Status {
    entry(|| {
        change(request, |parts| {
            check(SamplingParams {
                logit_bias: vec![(token, bias)],
                ..SamplingParams::default()
            })?;
            parts.logit_bias.push((token, bias));
            Ok(())
        })
    })
}

fn check(sampling: SamplingParams) -> Result<(), Failure> {
    Ok(sampling.validate().map_err(Error::from)?)
}

/// Sets the order of the samplers: their names, separated by semicolons, such as "top_k;top_p;temperature".
///
/// # Safety
///
/// `names` points to `names_length` bytes, or ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_request_set_samplers(
    request: RequestHandle,
    names: *const c_char,
    names_length: usize,
) -> Status {
    entry(|| {
        // SAFETY: the caller promises a text of `names_length` bytes.
        let names = unsafe { pointer::text("names", names, names_length)? };
        let samplers = SamplerKind::parse_list(names).map_err(Error::from)?;
        change(request, |parts| {
            parts.samplers = Some(samplers);
            Ok(())
        })
    })
}

/// Language of a grammar.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrammarKind {
    /// llama.cpp's GBNF, with the start rule `root`.
    Gbnf = 0,
    /// JSON that matches a JSON schema.
    JsonSchema = 1,
    /// Any JSON object; the text of the grammar is empty or null.
    JsonObject = 2,
    /// Text that matches a regular expression.
    Regex = 3,
    /// llguidance's dialect of Lark, with the start rule `start`.
    Lark = 4,
}

/// Constrains the answer to a grammar. `kind` is one of `oxidize_grammar_kind`. A grammar is compiled when the request is
/// submitted; that is when most of its errors are reported.
///
/// # Safety
///
/// `text` points to `text_length` bytes, or ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_request_set_grammar(
    request: RequestHandle,
    kind: i32,
    text: *const c_char,
    text_length: usize,
) -> Status {
    entry(|| {
        let grammar = if kind == GrammarKind::JsonObject as i32 {
            Grammar::JsonObject
        } else {
            // SAFETY: the caller promises a text of `text_length` bytes.
            let text = unsafe { pointer::text("text", text, text_length)? };
            match kind {
                _ if kind == GrammarKind::Gbnf as i32 => Grammar::Gbnf(text.to_owned()),
                _ if kind == GrammarKind::JsonSchema as i32 => Grammar::json_schema(text)?,
                _ if kind == GrammarKind::Regex as i32 => Grammar::Regex(text.to_owned()),
                _ if kind == GrammarKind::Lark as i32 => Grammar::Lark(text.to_owned()),
                _ => {
                    let message = format!("kind of grammar {kind}; 0 to 4 are known");
                    return Err(Failure::argument(message));
                }
            }
        };
        change(request, |parts| {
            parts.request.grammar = Some(grammar);
            Ok(())
        })
    })
}

/// Sets the scale of each LoRA adapter of the model, in the order of `oxidize_model_with_loras`. Without a call, they
/// have their default scales; adapters beyond `n_scales` are off.
///
/// # Safety
///
/// `scales` points to `n_scales` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_request_set_lora_scales(
    request: RequestHandle,
    scales: *const f32,
    n_scales: usize,
) -> Status {
    entry(|| {
        // SAFETY: the caller promises `n_scales` elements.
        let scales = unsafe { pointer::slice("scales", scales, n_scales)? };
        if let Some(scale) = scales.iter().find(|scale| !scale.is_finite()) {
            let message = format!("scale {scale}; it must be a finite number");
            return Err(Failure::argument(message));
        }
        change(request, |parts| {
            parts.request.adapters = Some(scales.to_vec());
            Ok(())
        })
    })
}
