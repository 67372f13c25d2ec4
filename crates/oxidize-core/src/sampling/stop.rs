//! Stop strings in streamed text: passes on text that cannot be part of one, holds back possible
//! prefixes, and ends the answer before a complete one.

use super::SamplingError;

/// Limit on the stop strings of a request.
pub(super) const MAX_STOPS: usize = 64;
/// Limit on the length of a stop string in bytes.
pub(super) const MAX_STOP_BYTES: usize = 4096;

/// Detects stop strings in a stream of text, in linear time.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<Automaton>,
    held: String,
    stopped: bool,
}

/// Result of [`StopMatcher::push`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopStep {
    /// Text that is not part of a stop string and can be output.
    pub text: String,
    /// Index of the stop string that ended the answer. Later text is ignored.
    pub stopped_by: Option<usize>,
}

/// Knuth–Morris–Pratt automaton of one string.
#[derive(Debug, Clone)]
pub(super) struct Automaton {
    stop: Vec<u8>,
    /// Length of the longest proper border of each prefix, by prefix length.
    failure: Vec<usize>,
    matched: usize,
}

impl StopMatcher {
    /// Creates a matcher for at most 64 strings of 1 to 4096 bytes.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<Self, SamplingError> {
        if stops.len() > MAX_STOPS {
            return Err(SamplingError::TooMany {
                field: "stop",
                requested: stops.len(),
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

    /// Adds text to the stream.
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
            // Of several matches that end here, the longest starts first.
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
        // A match starts at the first character of a stop string, so this is a character boundary.
        let rest = self.held.split_off(self.held.len() - open);
        StopStep {
            text: std::mem::replace(&mut self.held, rest),
            stopped_by: None,
        }
    }

    /// Ends the stream and returns the text held back.
    pub fn finish(&mut self) -> String {
        self.stopped = true;
        std::mem::take(&mut self.held)
    }
}

impl Automaton {
    /// String that the automaton matches.
    pub(super) fn string(&self) -> &[u8] {
        &self.stop
    }

    /// Missing suffixes of the string: one for each of its prefixes that the text ends with.
    pub(super) fn missing_suffixes(&self) -> impl Iterator<Item = &[u8]> {
        let prefix_lengths = std::iter::successors(Some(self.matched), |&matched| {
            self.failure.get(matched).copied()
        });
        prefix_lengths
            .take_while(|&matched| matched > 0)
            .filter_map(|matched| self.stop.get(matched..))
    }

    /// Creates an automaton for a string that is not empty.
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

    /// Advances by a byte. Returns true if the string is complete.
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
    fn cuts_before_a_stop_string_that_spans_pieces() {
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
    fn holds_back_only_possible_prefixes() {
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
    fn agrees_with_a_search_of_the_whole_text() {
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
            // The match that ends first; the longest of those that end there.
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
    fn invalid_stop_strings_are_rejected() {
        assert!(StopMatcher::new(&[""]).is_err());
        assert!(StopMatcher::new(&["x".repeat(5000)]).is_err());
        assert!(StopMatcher::new(&vec!["x"; 65]).is_err());
    }
}
