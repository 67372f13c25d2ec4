//! What every API lets a client say about how tokens are chosen, by llama.cpp's and OpenAI's names.

use std::collections::BTreeMap;

use oxidize_core::grammar::Grammar;
use oxidize_core::sampling::{MirostatMode, SamplerKind, SamplingParams};
use oxidize_core::tokenizer::{EncodeOptions, Tokenizer};
use serde::Deserialize;
use serde_json::Value as Json;
use utoipa::ToSchema;

use crate::error::{ApiError, ApiResult};

/// How tokens are chosen. What is not given is the model's own default, or that of llama.cpp.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct SamplingFields {
    /// Temperature; 0 always takes the most likely token.
    #[schema(minimum = 0, maximum = 100)]
    pub temperature: Option<f32>,
    /// Keep the k most likely tokens; 0 is off.
    pub top_k: Option<u32>,
    /// Keep the most likely tokens that hold this share of the probability.
    #[schema(minimum = 0, maximum = 1)]
    pub top_p: Option<f32>,
    /// Drop tokens less likely than this share of the most likely one.
    #[schema(minimum = 0, maximum = 1)]
    pub min_p: Option<f32>,
    /// Locally typical sampling; 1 is off.
    #[serde(alias = "typ_p")]
    #[schema(minimum = 0, maximum = 1)]
    pub typical_p: Option<f32>,
    /// Tail-free sampling; 1 is off.
    #[schema(minimum = 0, maximum = 1)]
    pub tfs_z: Option<f32>,
    /// Keep logits within so many standard deviations of the largest; 0 is off.
    #[schema(minimum = 0, maximum = 10000)]
    pub top_n_sigma: Option<f32>,
    /// Chance that XTC removes the top choices; 0 is off.
    #[schema(minimum = 0, maximum = 1)]
    pub xtc_probability: Option<f32>,
    /// What XTC counts as a top choice.
    #[schema(minimum = 0, maximum = 1)]
    pub xtc_threshold: Option<f32>,
    /// Width of the dynamic temperature; 0 is off.
    #[schema(minimum = 0, maximum = 100)]
    pub dynatemp_range: Option<f32>,
    /// How entropy maps onto the dynamic temperature.
    #[schema(minimum = 0, maximum = 100)]
    pub dynatemp_exponent: Option<f32>,
    /// Mirostat: 0 is off, 1 or 2 its version.
    #[schema(minimum = 0, maximum = 2)]
    pub mirostat: Option<u8>,
    /// Mirostat's target surprise.
    #[schema(minimum = 0, maximum = 100)]
    pub mirostat_tau: Option<f32>,
    /// Mirostat's learning rate.
    #[schema(minimum = 0, maximum = 10)]
    pub mirostat_eta: Option<f32>,
    /// DRY: strength; 0 is off.
    #[schema(minimum = 0, maximum = 10000)]
    pub dry_multiplier: Option<f32>,
    /// DRY: growth with each further repeated token.
    #[schema(minimum = 1, maximum = 10000)]
    pub dry_base: Option<f32>,
    /// DRY: repetitions up to this length are free.
    #[schema(maximum = 1000000)]
    pub dry_allowed_length: Option<u32>,
    /// DRY: how many tokens back it looks; -1 is all.
    #[schema(minimum = -1, maximum = 2147483647)]
    pub dry_penalty_last_n: Option<i32>,
    /// DRY: a repetition does not reach across these strings.
    pub dry_sequence_breakers: Option<Vec<String>>,
    /// Divides the logits of recent tokens; 1 is off.
    #[serde(alias = "repetition_penalty")]
    #[schema(minimum = 0.01, maximum = 100)]
    pub repeat_penalty: Option<f32>,
    /// How many tokens back the penalties look; -1 is all.
    #[schema(minimum = -1, maximum = 2147483647)]
    pub repeat_last_n: Option<i32>,
    /// Penalty for each time a token came up.
    #[schema(minimum = -100, maximum = 100)]
    pub frequency_penalty: Option<f32>,
    /// Penalty on tokens that came up at all.
    #[schema(minimum = -100, maximum = 100)]
    pub presence_penalty: Option<f32>,
    /// Whether the penalties hit newlines.
    #[serde(alias = "penalize_nl")]
    pub penalize_newline: Option<bool>,
    /// Added to logits, by token id or text; `false` bans a token.
    pub logit_bias: Option<LogitBias>,
    /// Same seed, same tokens; below zero is random.
    pub seed: Option<i64>,
    /// The samplers in their order: a list of names, or letters.
    pub samplers: Option<Samplers>,
    /// The answer ends before any of these.
    pub stop: Option<OneOrMany>,
    /// Go on past the model's end of text.
    pub ignore_eos: Option<bool>,
    /// How strongly LoRA adapters count, by their numbers.
    pub lora: Option<Vec<AdapterScale>>,
    /// Higher goes first; at most what the key allows.
    #[schema(minimum = -100, maximum = 100)]
    pub priority: Option<i32>,
}

/// How strongly an adapter counts.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
pub struct AdapterScale {
    /// The adapter's number.
    pub id: u32,
    /// 0 is not at all, 1 as it was trained.
    #[schema(minimum = -100, maximum = 100)]
    pub scale: f32,
}

/// A string or several.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum OneOrMany {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

impl OneOrMany {
    /// As a list.
    pub fn list(self) -> Vec<String> {
        match self {
            OneOrMany::One(text) => vec![text],
            OneOrMany::Many(list) => list,
        }
    }
}

/// Samplers by name or letter.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Samplers {
    /// `top_k;top_p` or `kp`.
    Text(String),
    /// One name an entry.
    List(Vec<String>),
}

/// Biases as OpenAI writes them, or as llama.cpp does.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum LogitBias {
    /// `{"15043": -2}`
    Map(BTreeMap<String, Bias>),
    /// `[[15043, -2], ["Hello", false]]`
    List(Vec<(BiasedToken, Bias)>),
}

/// A token by its id, or all tokens of a text.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum BiasedToken {
    /// An id.
    Id(u32),
    /// A text.
    Text(String),
}

/// How much is added; `false` bans.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Bias {
    /// Added to the logit.
    Add(f32),
    /// `false` bans, `true` does nothing.
    Allow(bool),
}

/// Far beyond any repetition that matters, and no number that overflows.
const MAX_DRY_LENGTH: u32 = 1_000_000;
const MAX_PRIORITY: i32 = 100;

impl SamplingFields {
    /// The parameters: the model's defaults with what the client said.
    pub fn params(
        &self,
        base: &SamplingParams,
        tokenizer: &Tokenizer,
    ) -> ApiResult<SamplingParams> {
        let mut params = base.clone();
        macro_rules! set {
            ($($field:ident),*) => { $(if let Some(value) = self.$field { params.$field = value; })* };
        }
        set!(
            temperature,
            top_k,
            top_p,
            min_p,
            typical_p,
            tfs_z,
            top_n_sigma,
            xtc_probability,
            xtc_threshold,
            dynatemp_range,
            dynatemp_exponent,
            repeat_penalty,
            repeat_last_n,
            frequency_penalty,
            presence_penalty,
            penalize_newline
        );
        macro_rules! set_in {
            ($($from:ident => $($to:ident).+),* $(,)?) => {
                $(if let Some(value) = self.$from.clone() { params.$($to).+ = value; })*
            };
        }
        set_in!(
            mirostat_tau => mirostat.tau,
            mirostat_eta => mirostat.eta,
            dry_multiplier => dry.multiplier,
            dry_base => dry.base,
            dry_allowed_length => dry.allowed_length,
            dry_penalty_last_n => dry.penalty_last_n,
            dry_sequence_breakers => dry.sequence_breakers,
        );
        params.mirostat.mode = match self.mirostat {
            None => params.mirostat.mode,
            Some(0) => MirostatMode::Off,
            Some(1) => MirostatMode::V1,
            Some(2) => MirostatMode::V2,
            Some(other) => {
                let message = format!("mirostat is {other}; it must be 0, 1 or 2");
                return Err(ApiError::bad_request(message));
            }
        };
        if params.dry.allowed_length > MAX_DRY_LENGTH {
            let message = format!("dry_allowed_length must be at most {MAX_DRY_LENGTH}");
            return Err(ApiError::bad_request(message));
        }
        if self
            .priority
            .is_some_and(|p| p.unsigned_abs() > MAX_PRIORITY as u32)
        {
            let message = format!("priority must be between -{MAX_PRIORITY} and {MAX_PRIORITY}");
            return Err(ApiError::bad_request(message));
        }
        if let Some(seed) = self.seed {
            params.seed = u64::try_from(seed).ok();
        }
        params.samplers = match &self.samplers {
            None => params.samplers,
            Some(Samplers::Text(text)) => SamplerKind::parse_list(text)?,
            Some(Samplers::List(list)) => {
                let parsed: Result<Vec<SamplerKind>, _> =
                    list.iter().map(|name| name.parse()).collect();
                parsed?
            }
        };
        if let Some(bias) = &self.logit_bias {
            params.logit_bias = bias.resolve(tokenizer)?;
        }
        if let Some(stop) = &self.stop {
            params.stop = stop.clone().list();
        }
        params.validate()?;
        Ok(params)
    }
}

impl LogitBias {
    fn resolve(&self, tokenizer: &Tokenizer) -> ApiResult<Vec<(u32, f32)>> {
        let mut biases = Vec::new();
        match self {
            LogitBias::Map(map) => {
                for (token, bias) in map {
                    let token = token.parse().map_err(|_| {
                        let shown: String = token.chars().take(32).collect();
                        ApiError::bad_request(format!("logit_bias: {shown:?} is not a token id"))
                    })?;
                    biases.extend(bias.value().map(|bias| (token, bias)));
                }
            }
            LogitBias::List(list) => {
                for (token, bias) in list {
                    let tokens = match token {
                        BiasedToken::Id(id) => vec![*id],
                        BiasedToken::Text(text) => tokenizer.encode(text, EncodeOptions::PLAIN),
                    };
                    let bias = bias.value();
                    biases.extend(tokens.into_iter().filter_map(|token| Some((token, bias?))));
                }
            }
        }
        Ok(biases)
    }
}

impl Bias {
    fn value(self) -> Option<f32> {
        match self {
            Bias::Add(bias) => Some(bias),
            Bias::Allow(false) => Some(f32::NEG_INFINITY),
            Bias::Allow(true) => None,
        }
    }
}

/// The form of an answer, as OpenAI's clients ask for it.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct ResponseFormat {
    /// `text`, `json_object` or `json_schema`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The schema and its name.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub json_schema: Option<Json>,
    /// The schema itself, where there is nothing else to say.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub schema: Option<Json>,
}

impl ResponseFormat {
    /// The grammar that keeps an answer in this form.
    pub fn grammar(&self) -> ApiResult<Option<Grammar>> {
        let wrapped = self
            .json_schema
            .as_ref()
            .map(|named| named.get("schema").unwrap_or(named));
        let schema = wrapped.or(self.schema.as_ref());
        match (self.kind.as_str(), schema) {
            ("text", _) => Ok(None),
            ("json_object", None) => Ok(Some(Grammar::JsonObject)),
            ("json_object" | "json_schema", Some(schema)) => {
                Ok(Some(Grammar::JsonSchema(schema.clone())))
            }
            ("json_schema", None) => Err(ApiError::bad_request(
                "response_format: json_schema has no schema",
            )),
            (other, _) => {
                let shown: String = other.chars().take(32).collect();
                let known = "text, json_object or json_schema";
                Err(ApiError::bad_request(format!(
                    "response_format: {shown:?} is not {known}"
                )))
            }
        }
    }
}

/// A form of the answer by any of the ways to ask for one; at most one may be used.
pub fn one_grammar(
    response_format: Option<&ResponseFormat>,
    gbnf: Option<&str>,
    schema: Option<&Json>,
) -> ApiResult<Option<Grammar>> {
    let format = response_format
        .map(ResponseFormat::grammar)
        .transpose()?
        .flatten();
    let gbnf = gbnf
        .filter(|text| !text.is_empty())
        .map(|text| Grammar::Gbnf(text.to_owned()));
    let schema = schema
        .filter(|schema| !schema.is_null())
        .cloned()
        .map(Grammar::JsonSchema);
    let mut given = [format, gbnf, schema].into_iter().flatten();
    match (given.next(), given.next()) {
        (_, Some(_)) => Err(ApiError::bad_request(
            "only one of response_format, grammar and json_schema can be honoured",
        )),
        (grammar, None) => Ok(grammar),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn forms_of_answers() {
        let grammar = |json: Json| {
            serde_json::from_value::<ResponseFormat>(json)
                .unwrap()
                .grammar()
        };
        assert_eq!(grammar(json!({"type": "text"})).unwrap(), None);
        assert_eq!(
            grammar(json!({"type": "json_object"})).unwrap(),
            Some(Grammar::JsonObject)
        );
        let schema = json!({"type": "integer"});
        let wanted = Some(Grammar::JsonSchema(schema.clone()));
        let named = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
        assert_eq!(grammar(named).unwrap(), wanted);
        assert_eq!(
            grammar(json!({"type": "json_object", "schema": schema})).unwrap(),
            wanted
        );
        assert!(grammar(json!({"type": "json_schema"})).is_err());
        assert!(grammar(json!({"type": "xml"})).is_err());
        let text = ResponseFormat {
            kind: "text".into(),
            json_schema: None,
            schema: None,
        };
        assert!(
            one_grammar(Some(&text), Some("root ::= \"a\""), None)
                .unwrap()
                .is_some()
        );
        assert!(one_grammar(None, Some("root ::= \"a\""), Some(&schema)).is_err());
    }
}
