//! [`DraftController`]: decides from measured times whether drafting pays.

/// Steps without drafts before the first ones with drafts.
const FIRST_PLAIN: u32 = 3;
/// Steps with drafts that are evaluated together.
const TRIAL: u32 = 8;
/// Interval of steps without drafts, which keep the comparison up to date as the context grows.
const PLAIN_EVERY: u32 = 64;
/// Length of the first pause in steps. It doubles for each pause that follows without a success.
const FIRST_PAUSE: u32 = 16;
const MAX_PAUSE: u32 = 1024;
/// Weight of a new measurement in the moving average.
const SMOOTHING: f64 = 0.25;

/// A trial ends early after this many steps if they take [`HOPELESS`] times as long per token as plain ones.
const SHORT_TRIAL: u32 = 3;
const HOPELESS: f64 = 1.5;

/// Decides from measured times when to draft.
#[derive(Debug)]
pub(crate) struct DraftController {
    /// Seconds per token without drafts.
    plain: Option<f64>,
    /// Remaining steps without drafts.
    plain_left: u32,
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

impl Default for DraftController {
    fn default() -> DraftController {
        DraftController {
            plain: None,
            plain_left: FIRST_PLAIN,
            next_pause: FIRST_PAUSE,
            trial: Trial::default(),
            since_plain: 0,
        }
    }
}

impl DraftController {
    /// True if the next step should have drafts.
    pub(crate) fn should_draft(&self) -> bool {
        self.plain_left == 0
    }

    /// Records a step without drafts that produced `tokens`.
    pub(crate) fn plain_step(&mut self, seconds: f64, tokens: usize) {
        self.plain_left = self.plain_left.saturating_sub(1);
        self.since_plain = 0;
        if tokens > 0 {
            let new = seconds / tokens as f64;
            self.plain = Some(self.plain.map_or(new, |old| old + SMOOTHING * (new - old)));
        }
    }

    /// Records a step with drafts that produced `tokens`; `seconds` includes drafting.
    pub(crate) fn draft_step(&mut self, seconds: f64, tokens: usize) {
        self.trial.steps += 1;
        self.trial.seconds += seconds;
        self.trial.tokens += tokens;
        self.since_plain += 1;
        if self.since_plain >= PLAIN_EVERY {
            self.plain_left = 1;
        }
        let seconds_per_token = self.trial.seconds / self.trial.tokens.max(1) as f64;
        let slower_by = |factor| {
            self.plain
                .is_some_and(|plain| seconds_per_token >= factor * plain)
        };
        let is_hopeless = self.trial.steps >= SHORT_TRIAL && slower_by(HOPELESS);
        if self.trial.steps < TRIAL && !is_hopeless {
            return;
        }
        let is_slower = slower_by(1.0);
        self.trial = Trial::default();
        if is_slower {
            self.plain_left = self.next_pause;
            self.next_pause = (2 * self.next_pause).min(MAX_PAUSE);
        } else {
            self.next_pause = FIRST_PAUSE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fraction of steps with drafts if such a step takes `seconds` and produces `tokens`, while a
    /// plain step takes one second and produces one token.
    fn draft_fraction(seconds: f64, tokens: usize) -> f64 {
        let mut controller = DraftController::default();
        let mut drafted = 0;
        for _ in 0..10_000 {
            if controller.should_draft() {
                drafted += 1;
                controller.draft_step(seconds, tokens);
            } else {
                controller.plain_step(1.0, 1);
            }
        }
        f64::from(drafted) / 10_000.0
    }

    #[test]
    fn drafts_while_it_pays_and_hardly_otherwise() {
        assert!(draft_fraction(2.0, 3) > 0.95);
        assert!(draft_fraction(1.1, 1) < 0.02);
        assert!(draft_fraction(3.0, 2) < 0.02);
    }

    #[test]
    fn gives_up_early_if_drafts_are_slow() {
        let mut controller = DraftController::default();
        (0..FIRST_PLAIN).for_each(|_| controller.plain_step(1.0, 1));
        (0..SHORT_TRIAL).for_each(|_| controller.draft_step(3.0, 1));
        assert!(!controller.should_draft());
    }

    #[test]
    fn resumes_when_drafts_become_accurate() {
        let mut controller = DraftController::default();
        let mut late_drafts = 0;
        for step in 0..6_000 {
            // Drafts are wrong at first and right later.
            if controller.should_draft() {
                controller.draft_step(1.5, if step < 1_000 { 1 } else { 4 });
                late_drafts += u32::from(step >= 3_000);
            } else {
                controller.plain_step(1.0, 1);
            }
        }
        assert!(late_drafts > 2_800, "{late_drafts}");
    }
}
