//! [`ReasoningTracker`]: follows the reasoning of an answer token by token, and ends it when its budget is used
//! up.

use crate::chat::{OpeningMarker, Reasoning};

/// Progress of an answer that may begin with reasoning.
#[derive(Clone, Debug)]
pub(super) struct ReasoningTracker {
    reasoning: Reasoning,
    state: State,
    n_tokens: usize,
    /// The last bytes, which may contain the beginning of a marker.
    text: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but whitespace so far; the model may open the reasoning.
    Start,
    /// This many tokens of the opening marker are there; the others follow.
    Opening(usize),
    /// In the reasoning; this many of the markers at its end have been seen.
    Inside(usize),
    /// This many tokens that close the reasoning are there; the others follow.
    Closing(usize),
    /// The answer itself.
    Answer,
}

impl ReasoningTracker {
    pub(super) fn new(reasoning: Reasoning) -> ReasoningTracker {
        let state = match reasoning.open {
            Some(_) => State::Start,
            None => State::Inside(0),
        };
        let mut tracker = ReasoningTracker {
            reasoning,
            state,
            n_tokens: 0,
            text: Vec::new(),
        };
        tracker.check_budget();
        tracker
    }

    /// Number of tokens of reasoning so far.
    pub(super) fn n_tokens(&self) -> usize {
        self.n_tokens.saturating_sub(self.reasoning.n_header)
    }

    /// True if the next token cannot belong to the answer.
    pub(super) fn precedes_answer(&self) -> bool {
        !matches!(self.state, State::Start | State::Answer)
    }

    /// Next token of a marker that has to be completed.
    pub(super) fn forced(&self) -> Option<u32> {
        match (self.state, &self.reasoning.open) {
            (State::Opening(n), Some(open)) => open.tokens.get(n).copied(),
            (State::Closing(n), _) => self.reasoning.close.get(n).copied(),
            _ => None,
        }
    }

    /// Token with which the model may open the reasoning now.
    pub(super) fn opening_token(&self) -> Option<u32> {
        match (self.state, &self.reasoning.open) {
            (State::Start, Some(open)) => open.tokens.first().copied(),
            _ => None,
        }
    }

    /// Ends the reasoning: the next tokens close it.
    pub(super) fn close(&mut self) {
        self.enter(State::Closing(0));
    }

    /// Begins the opening marker with its first token; the others follow.
    pub(super) fn open(&mut self) {
        self.enter(State::Opening(1));
    }

    /// Ends the wait for reasoning, because the answer has begun.
    pub(super) fn skip(&mut self) {
        self.enter(State::Answer);
    }

    /// Adds a token that stands for the bytes `piece`.
    pub(super) fn accept(&mut self, piece: &[u8]) {
        match self.state {
            State::Start => self.start(piece),
            State::Opening(n) => self.enter(State::Opening(n + 1)),
            State::Inside(_) => self.inside(piece),
            State::Closing(n) => self.enter(State::Closing(n + 1)),
            State::Answer => {}
        }
    }

    fn start(&mut self, piece: &[u8]) {
        self.text.extend_from_slice(piece);
        let marker = self.reasoning.open.as_ref().map_or("", |open| open.text);
        let begun = self.text.trim_ascii_start();
        if begun.starts_with(marker.as_bytes()) {
            self.text.clear();
            self.enter(State::Inside(0));
        } else if !marker.as_bytes().starts_with(begun) {
            self.enter(State::Answer);
        }
    }

    fn inside(&mut self, piece: &[u8]) {
        self.n_tokens += 1;
        self.text.extend_from_slice(piece);
        while let State::Inside(n) = self.state {
            let Some(marker) = self.reasoning.end.get(n) else {
                return self.enter(State::Answer);
            };
            let marker = marker.as_bytes();
            match self.text.windows(marker.len()).position(|at| at == marker) {
                Some(at) => {
                    self.text.drain(..at + marker.len());
                    self.state = State::Inside(n + 1);
                }
                None => {
                    let kept = self.text.len().min(marker.len() - 1);
                    self.text.drain(..self.text.len() - kept);
                    break;
                }
            }
        }
        self.check_budget();
    }

    /// Closes the reasoning if the budget is used up and the model has not begun to close it.
    fn check_budget(&mut self) {
        let budget = self.reasoning.budget.unwrap_or(usize::MAX);
        let end = budget.saturating_add(self.reasoning.n_header);
        if self.state == State::Inside(0) && self.n_tokens >= end {
            self.close();
        }
    }

    /// Enters a state, or the next one if its marker is complete.
    fn enter(&mut self, state: State) {
        let open = |open: &OpeningMarker| open.tokens.len();
        self.state = match state {
            State::Opening(n) if n >= self.reasoning.open.as_ref().map_or(0, open) => {
                State::Inside(0)
            }
            State::Closing(n) if n >= self.reasoning.close.len() => State::Answer,
            state => state,
        };
        self.check_budget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens are the bytes of their text.
    fn reasoning(budget: Option<usize>, opens: bool) -> Reasoning {
        let bytes = |text: &str| text.bytes().map(u32::from).collect();
        Reasoning {
            open: opens.then(|| OpeningMarker {
                text: "<t>",
                tokens: bytes("<t>"),
            }),
            end: vec!["</t>"],
            close: bytes("</t>"),
            n_header: 0,
            budget,
        }
    }

    /// Lets a model write `text`; returns what comes out where the tracker forces tokens, and whether the end is
    /// in the answer.
    fn write(tracker: &mut ReasoningTracker, text: &str) -> String {
        let mut out = String::new();
        for byte in text.bytes() {
            while let Some(token) = tracker.forced() {
                let forced = token as u8;
                tracker.accept(&[forced]);
                out.push(forced as char);
            }
            tracker.accept(&[byte]);
            out.push(byte as char);
        }
        out
    }

    #[test]
    fn the_answer_follows_the_closing_marker() {
        let mut tracker = ReasoningTracker::new(reasoning(None, false));
        assert_eq!(write(&mut tracker, "Hm.</t"), "Hm.</t");
        assert!(tracker.precedes_answer());
        write(&mut tracker, ">");
        assert!(!tracker.precedes_answer());
        assert_eq!(tracker.n_tokens(), 7);
        // A marker within one token, with text around it.
        let mut tracker = ReasoningTracker::new(reasoning(None, false));
        tracker.accept(b"x</t>\n");
        assert!(!tracker.precedes_answer());
    }

    #[test]
    fn the_model_may_open_reasoning_or_answer() {
        let mut tracker = ReasoningTracker::new(reasoning(None, true));
        assert_eq!(tracker.opening_token(), Some(u32::from(b'<')));
        write(&mut tracker, "\n<t>Hm");
        assert!(tracker.precedes_answer() && tracker.n_tokens() == 2);
        let mut tracker = ReasoningTracker::new(reasoning(Some(1), true));
        write(&mut tracker, "<p>");
        assert!(!tracker.precedes_answer() && tracker.opening_token().is_none());
        assert_eq!(tracker.forced(), None);
    }

    #[test]
    fn reasoning_is_closed_when_the_budget_is_used_up() {
        let mut tracker = ReasoningTracker::new(reasoning(Some(3), false));
        assert_eq!(write(&mut tracker, "abcd"), "abc</t>d");
        assert_eq!(tracker.n_tokens(), 3);
        let mut tracker = ReasoningTracker::new(reasoning(Some(0), false));
        assert_eq!(write(&mut tracker, "d"), "</t>d");
        let mut tracker = ReasoningTracker::new(reasoning(Some(2), true));
        assert_eq!(write(&mut tracker, "<t>abcd"), "<t>ab</t>cd");
    }

    #[test]
    fn headers_do_not_count_and_all_end_markers_are_awaited() {
        let mut harmony = reasoning(Some(2), false);
        harmony.n_header = 3;
        harmony.end = vec!["final", "|"];
        let mut tracker = ReasoningTracker::new(harmony.clone());
        assert_eq!(write(&mut tracker, "[a]xyz"), "[a]xy</t>z");
        harmony.budget = Some(6);
        let mut tracker = ReasoningTracker::new(harmony);
        write(&mut tracker, "[a]final json");
        assert!(tracker.precedes_answer() && tracker.forced().is_none());
        write(&mut tracker, "|");
        assert!(!tracker.precedes_answer());
    }

    #[test]
    fn an_opening_marker_that_was_begun_is_completed() {
        let mut tracker = ReasoningTracker::new(reasoning(None, true));
        tracker.open();
        assert_eq!(write(&mut tracker, "x"), "t>x");
        tracker.close();
        assert_eq!(write(&mut tracker, "y"), "</t>y");
        assert!(!tracker.precedes_answer());
    }
}
