//! [`DraftFields`]: speculative decoding of one request, with the names of llama-server and OpenAI.

use oxidize_core::DraftParams;
use serde::Deserialize;
use utoipa::ToSchema;

use crate::error::{ApiError, ApiResult};

/// Fields of speculative decoding. It changes the speed of an answer and not the answer.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct DraftFields {
    /// Maximum number of draft tokens per step; 0 is no speculation.
    #[serde(rename = "speculative.n_max", alias = "n_draft")]
    #[schema(minimum = 0, maximum = 64)]
    pub n_max: Option<u32>,
    /// Minimum number of draft tokens; shorter drafts are dropped.
    #[serde(rename = "speculative.n_min")]
    #[schema(minimum = 0, maximum = 64)]
    pub n_min: Option<u32>,
    /// A draft model stops where its token is less likely than this.
    #[serde(rename = "speculative.p_min")]
    #[schema(minimum = 0, maximum = 1)]
    pub p_min: Option<f32>,
    /// Expected answer, whose tokens are drafted as long as the answer follows it.
    pub prediction: Option<Prediction>,
}

/// Expected answer, in OpenAI's form.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct Prediction {
    /// Always `content`.
    #[serde(rename = "type")]
    #[schema(pattern = "^content$")]
    pub kind: String,
    /// Text, or a list of parts of type `text`.
    pub content: PredictedContent,
}

/// Text, or a list of parts.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum PredictedContent {
    /// Text.
    Text(String),
    /// Parts.
    Parts(Vec<PredictedPart>),
}

/// A part of an expected answer.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct PredictedPart {
    /// Always `text`.
    #[serde(rename = "type")]
    #[schema(pattern = "^text$")]
    pub kind: String,
    /// Text of the part.
    pub text: String,
}

/// Maximum number of draft tokens per step.
const MAX_DRAFT: u32 = 64;

impl DraftFields {
    /// Drafting of the request. Without fields, there is drafting if `by_default`.
    pub fn params(self, by_default: bool) -> ApiResult<DraftParams> {
        for (field, value) in [
            ("speculative.n_max", self.n_max),
            ("speculative.n_min", self.n_min),
        ] {
            if let Some(n) = value.filter(|&n| n > MAX_DRAFT) {
                return Err(ApiError::bad_request(format!(
                    "`{field}` is {n}; it must be at most {MAX_DRAFT}"
                )));
            }
        }
        if let Some(p) = self.p_min.filter(|p| !(0.0..=1.0).contains(p)) {
            return Err(ApiError::bad_request(format!(
                "`speculative.p_min` is {p}; it must be between 0 and 1"
            )));
        }
        let prediction = self.prediction.map(Prediction::text).transpose()?;
        let max_tokens = match self.n_max {
            None if prediction.is_none() && !by_default => Some(0),
            n_max => n_max.map(|n| n as usize),
        };
        Ok(DraftParams {
            max_tokens,
            min_tokens: self.n_min.map(|n| n as usize),
            min_probability: self.p_min,
            prediction,
        })
    }
}

impl Prediction {
    fn text(self) -> ApiResult<String> {
        if self.kind != "content" {
            return Err(ApiError::bad_request("`prediction.type` must be content"));
        }
        match self.content {
            PredictedContent::Text(text) => Ok(text),
            PredictedContent::Parts(parts) => {
                if parts.iter().any(|part| part.kind != "text") {
                    let problem = "`prediction.content` may only have parts of type text";
                    return Err(ApiError::bad_request(problem));
                }
                Ok(parts.into_iter().map(|part| part.text).collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn params(fields: Value, by_default: bool) -> ApiResult<DraftParams> {
        let fields: DraftFields = serde_json::from_value(fields).unwrap();
        fields.params(by_default)
    }

    #[test]
    fn requests_draft_by_default_or_when_asked() {
        assert_eq!(params(json!({}), false).unwrap().max_tokens, Some(0));
        assert_eq!(params(json!({}), true).unwrap().max_tokens, None);
        let asked =
            json!({"speculative.n_max": 5, "speculative.n_min": 2, "speculative.p_min": 0.5});
        let asked = params(asked, false).unwrap();
        assert_eq!((asked.max_tokens, asked.min_tokens), (Some(5), Some(2)));
        assert_eq!(asked.min_probability, Some(0.5));
        let off = params(json!({"speculative.n_max": 0}), true).unwrap();
        assert_eq!(off.max_tokens, Some(0));
        for wrong in [
            json!({"speculative.n_max": 65}),
            json!({"speculative.p_min": 2}),
        ] {
            assert!(params(wrong, true).is_err());
        }
    }

    #[test]
    fn predictions_are_texts_or_parts() {
        for content in [
            json!("one two"),
            json!([{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]),
        ] {
            let fields = json!({"prediction": {"type": "content", "content": content}});
            let params = params(fields, false).unwrap();
            assert_eq!(params.prediction.as_deref(), Some("one two"));
            assert_eq!(params.max_tokens, None);
        }
        let wrong = json!({"prediction": {"type": "image", "content": ""}});
        assert!(params(wrong, false).is_err());
    }
}
