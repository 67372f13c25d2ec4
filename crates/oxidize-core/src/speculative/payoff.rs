//! Whether guessing pays: the time a token takes with guesses against the time it takes without.

/// Steps without guesses before the first ones with.
const FIRST_PLAIN: u32 = 3;
/// Steps with guesses that are judged together.
const TRIAL: u32 = 8;
/// How often a step goes without, so that the comparison stays fair while the context grows.
const PLAIN_EVERY: u32 = 64;
/// Steps of the first pause; each one that follows without a success is twice as long.
const FIRST_PAUSE: u32 = 16;
const LONGEST_PAUSE: u32 = 1024;
/// The weight of a new measurement.
const NEW: f64 = 0.25;

/// Decides from measured times when to guess.
#[derive(Debug)]
pub(crate) struct Payoff {
    /// Seconds for a token without guesses.
    plain: Option<f64>,
    /// Steps to go without guesses.
    rest: u32,
    next_pause: u32,
    trial: Trial,
    since_plain: u32,
}

#[derive(Debug, Default)]
struct Trial {
    steps: u32,
    seconds: f64,
    tokens: usize,
}

impl Default for Payoff {
    fn default() -> Payoff {
        Payoff {
            plain: None,
            rest: FIRST_PLAIN,
            next_pause: FIRST_PAUSE,
            trial: Trial::default(),
            since_plain: 0,
        }
    }
}

impl Payoff {
    /// Whether the next step should have guesses.
    pub(crate) fn wants_guesses(&self) -> bool {
        self.rest == 0
    }

    /// A step without guesses gave so many tokens.
    pub(crate) fn plain_step(&mut self, seconds: f64, tokens: usize) {
        self.rest = self.rest.saturating_sub(1);
        self.since_plain = 0;
        if tokens > 0 {
            let new = seconds / tokens as f64;
            self.plain = Some(self.plain.map_or(new, |old| old + NEW * (new - old)));
        }
    }

    /// A step with guesses, the time for guessing included, gave so many tokens.
    pub(crate) fn guessed_step(&mut self, seconds: f64, tokens: usize) {
        self.trial.steps += 1;
        self.trial.seconds += seconds;
        self.trial.tokens += tokens;
        self.since_plain += 1;
        if self.since_plain >= PLAIN_EVERY {
            self.rest = 1;
        }
        if self.trial.steps < TRIAL {
            return;
        }
        let trial = std::mem::take(&mut self.trial);
        let took = trial.seconds / trial.tokens.max(1) as f64;
        if self.plain.is_some_and(|plain| took >= plain) {
            self.rest = self.next_pause;
            self.next_pause = (2 * self.next_pause).min(LONGEST_PAUSE);
        } else {
            self.next_pause = FIRST_PAUSE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share of steps with guesses when such a step takes `seconds` and gives `tokens`, while a
    /// plain one takes a second and gives one.
    fn share(seconds: f64, tokens: usize) -> f64 {
        let mut payoff = Payoff::default();
        let mut guessed = 0;
        for _ in 0..10_000 {
            if payoff.wants_guesses() {
                guessed += 1;
                payoff.guessed_step(seconds, tokens);
            } else {
                payoff.plain_step(1.0, 1);
            }
        }
        f64::from(guessed) / 10_000.0
    }

    #[test]
    fn goes_on_while_it_pays_and_nearly_stops_when_it_does_not() {
        assert!(share(2.0, 3) > 0.95);
        assert!(share(1.1, 1) < 0.02);
        assert!(share(3.0, 2) < 0.02);
    }

    #[test]
    fn comes_back_when_the_text_changes() {
        let mut payoff = Payoff::default();
        let mut guessed_late = 0;
        for step in 0..6_000 {
            // At first guesses are wrong, later they are right.
            if payoff.wants_guesses() {
                payoff.guessed_step(1.5, if step < 1_000 { 1 } else { 4 });
                guessed_late += u32::from(step >= 3_000);
            } else {
                payoff.plain_step(1.0, 1);
            }
        }
        assert!(guessed_late > 2_800, "{guessed_late}");
    }
}
