//! The tokens of the sequence so far, as far back as a stage needs them.

use std::collections::VecDeque;

/// The last tokens accepted, at most a window of them.
#[derive(Debug, Clone)]
pub(crate) struct History {
    tokens: VecDeque<u32>,
    /// `None` keeps everything.
    window: Option<usize>,
}

impl History {
    /// A window given as in llama.cpp: −1 keeps everything.
    pub(crate) fn new(last_n: i32) -> Self {
        Self {
            tokens: VecDeque::new(),
            window: usize::try_from(last_n).ok(),
        }
    }

    /// Adds a token and returns the one that left the window for it.
    pub(crate) fn push(&mut self, token: u32) -> Option<u32> {
        self.tokens.push_back(token);
        match self.window {
            Some(window) if self.tokens.len() > window => self.tokens.pop_front(),
            _ => None,
        }
    }

    /// Oldest first, in one slice.
    pub(crate) fn as_slice(&mut self) -> &[u32] {
        self.tokens.make_contiguous()
    }
}
