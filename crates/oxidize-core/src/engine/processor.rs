//! [`LogitsProcessor`]: code of the caller that changes the logits of a request, or ends its answer.

use std::fmt;
use std::ops::ControlFlow;

/// Code that sees the logits before each token of an answer. It may change them, or end the answer.
///
/// It runs on the engine's thread, between two steps: requests that run beside this one wait while it works. It must
/// not wait for an answer of the same engine.
///
/// Closures are processors:
///
/// ```
/// use oxidize::Request;
/// use std::ops::ControlFlow;
///
/// // Forbids token 13 among the first ten.
/// let request = Request::new("Once upon a time").logits_processor(|answer: &[u32], logits: &mut [f32]| {
///     if let Some(logit) = logits.get_mut(13).filter(|_| answer.len() < 10) {
///         *logit = f32::NEG_INFINITY;
///     }
///     Ok(ControlFlow::Continue(()))
/// });
/// ```
pub trait LogitsProcessor: Send + Sync {
    /// Changes the logits of the token that follows `answer`, the tokens generated so far.
    ///
    /// `Break` ends the answer before that token. An error ends the request.
    fn process(&self, answer: &[u32], logits: &mut [f32]) -> Result<ControlFlow<()>, String>;
}

impl<F> LogitsProcessor for F
where
    F: Fn(&[u32], &mut [f32]) -> Result<ControlFlow<()>, String> + Send + Sync,
{
    fn process(&self, answer: &[u32], logits: &mut [f32]) -> Result<ControlFlow<()>, String> {
        self(answer, logits)
    }
}

impl fmt::Debug for dyn LogitsProcessor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogitsProcessor")
    }
}
