//! [`Readback`]: the results that a session returns to the host, and waiting for them.

use super::{BackendError, Session};
use crate::threads::block_on;
use std::future::poll_fn;

/// Results of the last batch that the host reads next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readback {
    /// All outputs, for [`Session::output`]; every other result can be computed from them.
    Outputs,
    /// The largest logits of each output, up to this number of them, for [`Session::top_k`].
    TopK(usize),
    /// The tokens of [`Session::sample_greedy`], for [`Session::sampled`].
    Sampled,
}

impl dyn Session + '_ {
    /// Completes the batches that were run, so that the results that `readback` names can be read without waiting. On the
    /// CPU the future is ready at once. Dropping the future leaves the work as it is; another call goes on with it.
    pub async fn finish(&mut self, readback: Readback) -> Result<(), BackendError> {
        poll_fn(|context| self.poll_finish(readback, context)).await
    }

    /// Waits until `finish` is complete. Fails where a thread cannot wait for a device, as in a browser.
    pub fn finish_blocking(&mut self, readback: Readback) -> Result<(), BackendError> {
        block_on(self.finish(readback)).unwrap_or(Err(BackendError::WouldBlock))
    }
}
