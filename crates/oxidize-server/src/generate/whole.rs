//! [`collect`]: whole answers, for clients that do not stream.

use futures_util::StreamExt;

use super::{End, Generation, Part, Piece, TokenInfo};
use crate::error::{ApiError, ApiResult};

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Whole {
    /// Thoughts before the answer.
    pub reasoning: String,
    /// The answer itself.
    pub content: String,
    /// The calls: id, name, arguments.
    pub calls: Vec<Call>,
    /// The tokens, if asked for.
    pub tokens: Vec<TokenInfo>,
    /// How it ended.
    pub end: End,
}

/// A whole tool call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Call {
    /// Names the call.
    pub id: String,
    /// What is called.
    pub name: String,
    /// JSON text.
    pub arguments: String,
}

/// Waits for all answers, in the order of their prompts.
pub async fn collect(mut generation: Generation) -> ApiResult<Vec<Whole>> {
    #[derive(Default)]
    struct Partial {
        reasoning: String,
        content: String,
        calls: Vec<Call>,
        tokens: Vec<TokenInfo>,
    }
    let mut partial: Vec<Partial> = generation
        .choices
        .iter()
        .map(|_| Partial::default())
        .collect();
    let mut whole = Vec::new();
    while let Some(piece) = generation.next().await {
        match piece? {
            Piece::Part {
                choice,
                part,
                tokens,
            } => {
                let Some(answer) = partial.get_mut(choice) else {
                    continue;
                };
                answer.tokens.extend(tokens);
                match part {
                    Part::Reasoning(text) => answer.reasoning.push_str(&text),
                    Part::Content(text) => answer.content.push_str(&text),
                    Part::CallStart { id, name, .. } => answer.calls.push(Call {
                        id,
                        name,
                        arguments: String::new(),
                    }),
                    Part::CallArguments { index, text } => {
                        if let Some(call) = answer.calls.get_mut(index) {
                            call.arguments.push_str(&text);
                        }
                    }
                }
            }
            Piece::End(mut end) => {
                let Some(answer) = partial.get_mut(end.choice).map(std::mem::take) else {
                    continue;
                };
                let mut tokens = answer.tokens;
                tokens.append(&mut end.tokens);
                whole.push(Whole {
                    reasoning: answer.reasoning,
                    content: answer.content,
                    calls: answer.calls,
                    tokens,
                    end: *end,
                });
            }
        }
    }
    whole.sort_by_key(|answer| answer.end.choice);
    Ok(whole)
}

/// Waits for the answer of a job that has one.
pub async fn collect_one(generation: Generation) -> ApiResult<Whole> {
    let answer = collect(generation).await?.into_iter().next();
    answer.ok_or_else(|| ApiError::internal("no answer"))
}
