//! Recent tokens of a sequence, for the penalties.

use std::collections::VecDeque;

/// Window of the last accepted tokens.
#[derive(Debug, Clone)]
pub(crate) struct History {
    tokens: VecDeque<u32>,
    /// Window size; `None` keeps all tokens.
    window: Option<usize>,
}

impl History {
    /// Creates a window of `last_n` tokens; −1 keeps all, as in llama.cpp.
    pub(crate) fn new(last_n: i32) -> Self {
        Self {
            tokens: VecDeque::new(),
            window: usize::try_from(last_n).ok(),
        }
    }

    /// Adds a token and returns the one that leaves the window, if any.
    pub(crate) fn push(&mut self, token: u32) -> Option<u32> {
        self.tokens.push_back(token);
        match self.window {
            Some(window) if self.tokens.len() > window => self.tokens.pop_front(),
            _ => None,
        }
    }

    /// Tokens in the window, oldest first.
    pub(crate) fn as_slice(&mut self) -> &[u32] {
        self.tokens.make_contiguous()
    }
}
