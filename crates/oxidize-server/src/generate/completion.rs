//! [`collect`]: whole answers, for clients that do not stream.

use std::collections::BTreeMap;

use futures_util::StreamExt;

use super::{Delta, End, Generation, Selection, Update};
use crate::answer::{PromptLogprob, TokenLogprob};
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
    /// Tokens of the prompt with their log probabilities, if requested.
    pub prompt: Vec<PromptLogprob>,
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
        prompt: Vec<PromptLogprob>,
    }
    let selection = generation.selection;
    let mut partial: BTreeMap<usize, Partial> = BTreeMap::new();
    let mut completions = Vec::new();
    while let Some(update) = generation.next().await {
        match update? {
            Update::Progress { .. } => {}
            Update::Prompt { choice, tokens } => {
                partial.entry(choice).or_default().prompt = tokens;
            }
            Update::Delta {
                choice,
                delta,
                logprobs,
            } => {
                let answer = partial.entry(choice).or_default();
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
                let answer = partial.remove(&end.choice).unwrap_or_default();
                let mut logprobs = answer.logprobs;
                logprobs.append(&mut end.logprobs);
                completions.push(Completion {
                    reasoning: answer.reasoning,
                    content: answer.content,
                    calls: answer.calls,
                    logprobs,
                    prompt: answer.prompt,
                    end: *end,
                });
            }
        }
    }
    completions.sort_by_key(|completion| completion.end.choice);
    Ok(selection.best(completions))
}

impl Selection {
    /// The most likely answers to each prompt, the best first, of all answers in the order of their prompts.
    fn best(self, completions: Vec<Completion>) -> Vec<Completion> {
        if self.candidates <= self.n {
            return completions;
        }
        let mut best = Vec::new();
        let mut left = completions.into_iter().peekable();
        let mut prompt = 0;
        while left.peek().is_some() {
            let ends = (prompt + 1) * self.candidates;
            let mut group: Vec<Completion> =
                std::iter::from_fn(|| left.next_if(|answer| answer.end.choice < ends)).collect();
            // Stable: answers of a beam search, which have no log probabilities here, are in order.
            group.sort_by(|a, b| b.mean_logprob().total_cmp(&a.mean_logprob()));
            for (index, mut answer) in group.into_iter().take(self.n).enumerate() {
                answer.end.choice = prompt * self.n + index;
                best.push(answer);
            }
            prompt += 1;
        }
        best
    }
}

impl Completion {
    /// Mean log probability of the answer's tokens.
    fn mean_logprob(&self) -> f32 {
        let sum: f32 = self.logprobs.iter().map(|token| token.logprob).sum();
        sum / self.logprobs.len().max(1) as f32
    }
}

/// Waits for the answer of a request that has one.
pub async fn collect_one(generation: Generation) -> ApiResult<Completion> {
    let completion = collect(generation).await?.into_iter().next();
    completion.ok_or_else(|| ApiError::internal("the request has no answer"))
}
