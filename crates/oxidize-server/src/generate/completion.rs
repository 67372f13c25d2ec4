//! [`collect`]: whole answers, for clients that do not stream.

use futures_util::StreamExt;

use super::{Delta, End, Generation, Update};
use crate::answer::TokenLogprob;
use crate::error::{ApiError, ApiResult};

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Completion {
    /// Reasoning before the answer.
    pub reasoning: String,
    /// The answer itself.
    pub content: String,
    /// Tool calls.
    pub calls: Vec<Call>,
    /// Tokens with their log probabilities, if requested.
    pub logprobs: Vec<TokenLogprob>,
    /// Finish reason and usage.
    pub end: End,
}

/// A whole tool call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Call {
    /// Identifier of the call.
    pub id: String,
    /// Name of the function.
    pub name: String,
    /// Arguments as JSON text.
    pub arguments: String,
}

/// Waits for all answers and returns them in the order of their prompts.
pub async fn collect(mut generation: Generation) -> ApiResult<Vec<Completion>> {
    #[derive(Default)]
    struct Partial {
        reasoning: String,
        content: String,
        calls: Vec<Call>,
        logprobs: Vec<TokenLogprob>,
    }
    let mut partial: Vec<Partial> = generation
        .choices
        .iter()
        .map(|_| Partial::default())
        .collect();
    let mut completions = Vec::new();
    while let Some(update) = generation.next().await {
        match update? {
            Update::Delta {
                choice,
                delta,
                logprobs,
            } => {
                let Some(answer) = partial.get_mut(choice) else {
                    continue;
                };
                answer.logprobs.extend(logprobs);
                match delta {
                    Delta::Reasoning(text) => answer.reasoning.push_str(&text),
                    Delta::Content(text) => answer.content.push_str(&text),
                    Delta::CallStart { id, name, .. } => answer.calls.push(Call {
                        id,
                        name,
                        arguments: String::new(),
                    }),
                    Delta::CallArguments { index, text } => {
                        if let Some(call) = answer.calls.get_mut(index) {
                            call.arguments.push_str(&text);
                        }
                    }
                }
            }
            Update::End(mut end) => {
                let Some(answer) = partial.get_mut(end.choice).map(std::mem::take) else {
                    continue;
                };
                let mut logprobs = answer.logprobs;
                logprobs.append(&mut end.logprobs);
                completions.push(Completion {
                    reasoning: answer.reasoning,
                    content: answer.content,
                    calls: answer.calls,
                    logprobs,
                    end: *end,
                });
            }
        }
    }
    completions.sort_by_key(|completion| completion.end.choice);
    Ok(completions)
}

/// Waits for the answer of a request that has one.
pub async fn collect_one(generation: Generation) -> ApiResult<Completion> {
    let completion = collect(generation).await?.into_iter().next();
    completion.ok_or_else(|| ApiError::internal("the request has no answer"))
}
