//! Stop strings over streamed text: passes on what cannot be part of one, holds back what may be the
//! beginning of one, and cuts the answer where one is complete.

use super::SamplingError;

/// Most stop strings of a request.
pub(super) const MAX_STOPS: usize = 64;
/// Longest stop string.
pub(super) const MAX_STOP_BYTES: usize = 4096;

/// Watches a stream of text for stop strings, in time linear in the text.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<Automaton>,
    held: String,
    stopped: bool,
}

/// What one piece of text led to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopStep {
    /// Text that is certain now, to be shown to the user.
    pub text: String,
    /// The stop string that ended the answer, by its place in the list. Later text is ignored.
    pub stopped_by: Option<usize>,
}

/// Knuth–Morris–Pratt: how much of one stop string the text ends with.
#[derive(Debug, Clone)]
pub(super) struct Automaton {
    stop: Vec<u8>,
    /// For a prefix of each length, the longest shorter prefix that is also its suffix.
    failure: Vec<usize>,
    matched: usize,
}

impl StopMatcher {
    /// A matcher for these strings, each of 1 to 4096 bytes, at most 64 of them.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<Self, SamplingError> {
        if stops.len() > MAX_STOPS {
            return Err(SamplingError::TooMany {
                field: "stop",
                asked: stops.len(),
                limit: MAX_STOPS,
            });
        }
        let automata = stops
            .iter()
            .map(|stop| {
                let stop = stop.as_ref();
                if stop.is_empty() || stop.len() > MAX_STOP_BYTES {
                    let value = format!("{} bytes long", stop.len());
                    return Err(SamplingError::parameter(
                        "stop",
                        value,
                        "strings of 1 to 4096 bytes",
                    ));
                }
                Ok(Automaton::new(stop.as_bytes()))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            stops: automata,
            held: String::new(),
            stopped: false,
        })
    }

    /// Takes the next piece of text.
    pub fn push(&mut self, text: &str) -> StopStep {
        if self.stopped {
            return StopStep::default();
        }
        if self.stops.is_empty() {
            return StopStep {
                text: text.to_owned(),
                stopped_by: None,
            };
        }
        let seen = self.held.len();
        self.held.push_str(text);
        for (offset, byte) in text.bytes().enumerate() {
            // Of several that end here the longest began first.
            let mut found: Option<(usize, usize)> = None;
            for (index, stop) in self.stops.iter_mut().enumerate() {
                if stop.step(byte) && found.is_none_or(|(_, length)| stop.stop.len() > length) {
                    found = Some((index, stop.stop.len()));
                }
            }
            if let Some((index, length)) = found {
                self.stopped = true;
                self.held.truncate(seen + offset + 1 - length);
                return StopStep {
                    text: std::mem::take(&mut self.held),
                    stopped_by: Some(index),
                };
            }
        }
        let open = self
            .stops
            .iter()
            .map(|stop| stop.matched)
            .max()
            .unwrap_or(0);
        // A match begins where a stop string's first character does, so this is a character boundary.
        let rest = self.held.split_off(self.held.len() - open);
        StopStep {
            text: std::mem::replace(&mut self.held, rest),
            stopped_by: None,
        }
    }

    /// The answer is over: what was held back turned out to be plain text.
    pub fn finish(&mut self) -> String {
        self.stopped = true;
        std::mem::take(&mut self.held)
    }
}

impl Automaton {
    /// The string that is looked for.
    pub(super) fn string(&self) -> &[u8] {
        &self.stop
    }

    /// What is missing of the string after each of its beginnings that the text ends with.
    pub(super) fn open_endings(&self) -> impl Iterator<Item = &[u8]> {
        let beginnings = std::iter::successors(Some(self.matched), |&matched| {
            self.failure.get(matched).copied()
        });
        beginnings
            .take_while(|&matched| matched > 0)
            .filter_map(|matched| self.stop.get(matched..))
    }

    /// For a string that is not empty.
    pub(super) fn new(stop: &[u8]) -> Self {
        let mut automaton = Self {
            stop: stop.to_vec(),
            failure: vec![0, 0],
            matched: 0,
        };
        for &byte in stop.iter().skip(1) {
            automaton.step(byte);
            automaton.failure.push(automaton.matched);
        }
        automaton.matched = 0;
        automaton
    }

    /// Takes a byte; true when the stop string is complete.
    pub(super) fn step(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.stop[self.matched] != byte {
            self.matched = self.failure[self.matched];
        }
        if self.stop[self.matched] == byte {
            self.matched += 1;
        }
        if self.matched == self.stop.len() {
            self.matched = self.failure.get(self.matched).copied().unwrap_or(0);
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::Rng;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops).unwrap();
        let mut out = String::new();
        for piece in pieces {
            let step = matcher.push(piece);
            out += &step.text;
            if step.stopped_by.is_some() {
                return (out, step.stopped_by);
            }
        }
        out += &matcher.finish();
        (out, None)
    }

    #[test]
    fn cuts_before_the_stop_string_across_pieces() {
        assert_eq!(
            run(&["\nUser:"], &["Hello", "\nUs", "er: hi"]),
            ("Hello".into(), Some(0))
        );
        assert_eq!(
            run(&["\nUser:"], &["Hello\nUs", "e it"]),
            ("Hello\nUse it".into(), None)
        );
        assert_eq!(run(&["aab"], &["aaa", "ab"]), ("aa".into(), Some(0)));
        assert_eq!(run(&["b", "abb"], &["aab"]), ("aa".into(), Some(0)));
        assert_eq!(
            run(&["x", "é!"], &["caf", "é", "!x"]),
            ("caf".into(), Some(1))
        );
        assert_eq!(run(&[], &["as is"]), ("as is".into(), None));
    }

    #[test]
    fn holds_back_no_more_than_a_possible_beginning() {
        let mut matcher = StopMatcher::new(&["STOP"]).unwrap();
        assert_eq!(matcher.push("abcST").text, "abc");
        assert_eq!(matcher.push("ST").text, "ST");
        assert_eq!(matcher.push("x").text, "STx");
        assert_eq!(matcher.push("é").text, "é");
    }

    #[test]
    fn text_after_the_stop_is_ignored() {
        let mut matcher = StopMatcher::new(&["."]).unwrap();
        assert_eq!(
            matcher.push("a.b"),
            StopStep {
                text: "a".into(),
                stopped_by: Some(0)
            }
        );
        assert_eq!(matcher.push("c"), StopStep::default());
        assert_eq!(matcher.finish(), "");
    }

    #[test]
    fn agrees_with_a_search_in_the_whole_text() {
        let mut rng = Rng::new(5);
        let letters = ["a", "b", "é"];
        let mut word = |max: u64| -> String {
            (0..1 + rng.next_u64() % max)
                .map(|_| letters[(rng.next_u64() % 3) as usize])
                .collect()
        };
        for _ in 0..2000 {
            let stops = [word(4), word(4)];
            let pieces: Vec<String> = (0..6).map(|_| word(3)).collect();
            let whole: String = pieces.concat();
            // The first end of any match; the longest of those that end there.
            let ends = |stop: &str| whole.find(stop).map(|start| start + stop.len());
            let want = match (ends(&stops[0]), ends(&stops[1])) {
                (None, None) => whole.clone(),
                (a, b) => {
                    let end = a.into_iter().chain(b).min().unwrap();
                    let at_end = stops.iter().filter(|stop| whole[..end].ends_with(*stop));
                    whole[..end - at_end.map(|stop| stop.len()).max().unwrap()].to_owned()
                }
            };
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            assert_eq!(
                run(&[&stops[0], &stops[1]], &pieces).0,
                want,
                "{stops:?} in {pieces:?}"
            );
        }
    }

    #[test]
    fn bad_stop_strings_are_refused() {
        assert!(StopMatcher::new(&[""]).is_err());
        assert!(StopMatcher::new(&["x".repeat(5000)]).is_err());
        assert!(StopMatcher::new(&vec!["x"; 65]).is_err());
    }
}
