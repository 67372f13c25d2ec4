//! [`ReasoningFields`]: reasoning on or off and its budget, under the names of all APIs.

use oxidize_core::chat::{Conversation, Thinking};
use serde::Deserialize;
use serde_json::Value as Json;
use utoipa::ToSchema;

use crate::error::{ApiError, ApiResult};

/// Fields that turn reasoning on or off, or limit it.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct ReasoningFields {
    /// `none` turns reasoning off. Other efforts, such as `low`, `medium` and `high`, turn it on and are passed
    /// to the chat template.
    pub reasoning_effort: Option<String>,
    /// Reasoning in one object.
    pub reasoning: Option<ReasoningObject>,
    /// Turns reasoning on or off.
    pub enable_thinking: Option<bool>,
    /// Reasoning in Anthropic's form, or true or false.
    pub thinking: Option<ThinkingField>,
    /// Maximum number of tokens of reasoning, after which the answer follows. 0 turns reasoning off, and -1 is no
    /// limit.
    #[serde(
        alias = "thinking_token_budget",
        alias = "thinking_budget_tokens",
        alias = "reasoning_budget",
        alias = "reasoning_budget_tokens"
    )]
    #[schema(minimum = -1, maximum = 2147483647)]
    pub thinking_budget: Option<i64>,
    /// False leaves reasoning out of the response.
    pub include_reasoning: Option<bool>,
}

/// Reasoning in one object, as in OpenAI's responses and OpenRouter's chat completions.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct ReasoningObject {
    /// Effort, as in `reasoning_effort`.
    pub effort: Option<String>,
    /// Maximum number of tokens of reasoning.
    #[schema(minimum = -1, maximum = 2147483647)]
    pub max_tokens: Option<i64>,
    /// Turns reasoning on or off.
    pub enabled: Option<bool>,
    /// Leaves reasoning out of the response.
    pub exclude: Option<bool>,
}

/// Reasoning in Anthropic's form, or a boolean.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ThinkingField {
    /// On or off.
    Switch(bool),
    /// Anthropic's object.
    Object(ThinkingObject),
}

/// Reasoning in Anthropic's form.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct ThinkingObject {
    /// `enabled`, `disabled` or `adaptive`.
    #[serde(rename = "type")]
    #[schema(pattern = "^(enabled|disabled|adaptive)$")]
    pub kind: String,
    /// Maximum number of tokens of reasoning.
    #[schema(minimum = 0, maximum = 2147483647)]
    pub budget_tokens: Option<i64>,
}

impl ThinkingObject {
    /// The setting of the type.
    fn thinking(&self) -> ApiResult<Thinking> {
        match self.kind.as_str() {
            "enabled" => Ok(Thinking::On),
            "disabled" => Ok(Thinking::Off),
            "adaptive" => Ok(Thinking::Auto),
            other => {
                let shown: String = other.chars().take(32).collect();
                Err(ApiError::bad_request(format!(
                    "`thinking.type` is {shown:?}; it must be enabled, disabled or adaptive"
                )))
            }
        }
    }
}

impl ReasoningFields {
    /// Effort that the request asks for.
    pub fn effort(&self) -> Option<&str> {
        let of_object = self.reasoning.as_ref().and_then(|o| o.effort.as_deref());
        self.reasoning_effort.as_deref().or(of_object)
    }

    /// True if the response has no reasoning.
    pub fn is_hidden(&self) -> bool {
        let excluded = self.reasoning.as_ref().and_then(|object| object.exclude);
        self.include_reasoning == Some(false) || excluded == Some(true)
    }

    /// Applies the fields to a conversation.
    pub fn apply(&self, conversation: &mut Conversation) -> ApiResult<()> {
        let object = self.reasoning.clone().unwrap_or_default();
        let (mut thinking, mut budget) = (Thinking::Auto, None);
        match &self.thinking {
            Some(ThinkingField::Switch(on)) => thinking = switch(*on),
            Some(ThinkingField::Object(object)) => {
                thinking = object.thinking()?;
                budget = object.budget_tokens.map(|n| ("thinking.budget_tokens", n));
            }
            None => {}
        }
        if let Some(effort) = self.effort() {
            thinking = set_effort(conversation, effort);
        }
        // Clients of vLLM switch reasoning by variables of the template.
        let variables = ["enable_thinking", "thinking"];
        let variable = variables
            .iter()
            .find_map(|name| conversation.template_args.get(*name)?.as_bool());
        if let Some(on) = self.enable_thinking.or(object.enabled).or(variable) {
            thinking = switch(on);
        }
        let max_tokens = object.max_tokens.map(|n| ("reasoning.max_tokens", n));
        let own = self.thinking_budget.map(|n| ("thinking_budget", n));
        if let Some((field, n)) = own.or(max_tokens).or(budget) {
            conversation.thinking_budget = limit(field, n)?;
        }
        conversation.thinking = thinking;
        Ok(())
    }
}

/// Applies Ollama's `think`: true, false, or an effort.
pub fn apply_think(conversation: &mut Conversation, think: Option<&Json>) -> ApiResult<()> {
    conversation.thinking = match think {
        None | Some(Json::Null) => return Ok(()),
        Some(Json::Bool(on)) => switch(*on),
        Some(Json::String(effort)) => set_effort(conversation, effort),
        Some(_) => {
            return Err(ApiError::bad_request(
                "`think` must be true, false, or an effort such as \"low\"",
            ));
        }
    };
    Ok(())
}

fn switch(on: bool) -> Thinking {
    if on { Thinking::On } else { Thinking::Off }
}

/// Passes an effort to the template, unless it is `none`.
fn set_effort(conversation: &mut Conversation, effort: &str) -> Thinking {
    if effort == "none" {
        return Thinking::Off;
    }
    let args = &mut conversation.template_args;
    args.entry("reasoning_effort")
        .or_insert_with(|| effort.into());
    Thinking::On
}

/// A number of tokens; negative numbers are no limit.
fn limit(field: &str, n: i64) -> ApiResult<Option<usize>> {
    if n > i64::from(i32::MAX) {
        return Err(ApiError::bad_request(format!(
            "`{field}` is {n}; it must be at most {}",
            i32::MAX
        )));
    }
    Ok(usize::try_from(n).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn apply(fields: Json) -> ApiResult<(Thinking, Option<usize>)> {
        let fields: ReasoningFields = serde_json::from_value(fields).unwrap();
        let mut conversation = Conversation::from("hi");
        fields.apply(&mut conversation)?;
        Ok((conversation.thinking, conversation.thinking_budget))
    }

    #[test]
    fn reasoning_is_switched_by_the_fields_of_all_apis() {
        for off in [
            json!({"reasoning_effort": "none"}),
            json!({"reasoning": {"effort": "none"}}),
            json!({"reasoning": {"enabled": false}}),
            json!({"enable_thinking": false}),
            json!({"thinking": false}),
            json!({"thinking": {"type": "disabled"}}),
        ] {
            assert_eq!(apply(off.clone()).unwrap().0, Thinking::Off, "{off}");
        }
        for on in [
            json!({"reasoning_effort": "high"}),
            json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}),
            json!({"enable_thinking": true}),
        ] {
            assert_eq!(apply(on.clone()).unwrap().0, Thinking::On, "{on}");
        }
        assert_eq!(apply(json!({})).unwrap(), (Thinking::Auto, None));
        assert!(apply(json!({"thinking": {"type": "maybe"}})).is_err());
    }

    #[test]
    fn budgets_have_a_name_in_every_api() {
        for fields in [
            json!({"thinking_budget": 7}),
            json!({"thinking_token_budget": 7}),
            json!({"thinking_budget_tokens": 7}),
            json!({"reasoning_budget": 7}),
            json!({"reasoning": {"max_tokens": 7}}),
            json!({"thinking": {"type": "enabled", "budget_tokens": 7}}),
        ] {
            assert_eq!(apply(fields.clone()).unwrap().1, Some(7), "{fields}");
        }
        assert_eq!(apply(json!({"thinking_budget": -1})).unwrap().1, None);
        let error = apply(json!({"thinking_budget": 1u64 << 40})).unwrap_err();
        assert!(error.to_string().contains("thinking_budget"), "{error}");
    }

    #[test]
    fn efforts_reach_the_template_and_variables_are_kept() {
        let mut conversation = Conversation::from("hi").template_arg("enable_thinking", false);
        ReasoningFields::default().apply(&mut conversation).unwrap();
        assert_eq!(conversation.thinking, Thinking::Off);
        let mut conversation = Conversation::from("hi");
        apply_think(&mut conversation, Some(&json!("low"))).unwrap();
        assert_eq!(conversation.template_args["reasoning_effort"], "low");
        assert_eq!(conversation.thinking, Thinking::On);
        assert!(apply_think(&mut conversation, Some(&json!(3))).is_err());
    }
}
