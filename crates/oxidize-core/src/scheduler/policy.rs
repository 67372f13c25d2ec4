//! Who goes first. Two rules, apart from the bookkeeping so that they can be read and changed by
//! themselves: the rank of a sequence, and how a step's tokens are shared among prompts.

/// The place of a sequence in every order there is: who is let in first, who gets blocks first,
/// who is preempted last. Smaller is better. It never changes, so waiting time counts: a level of
/// priority is worth a fixed number of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    /// The step of arrival, moved into the past by priority.
    virtual_step: i64,
    /// Breaks ties and makes ranks unique.
    arrival: u64,
}

impl Rank {
    pub(super) fn new(step: u64, priority: i32, steps_per_priority: u32, arrival: u64) -> Self {
        // An i32 times a u32 fits in an i64.
        let head_start = i64::from(priority) * i64::from(steps_per_priority);
        let step = i64::try_from(step).unwrap_or(i64::MAX);
        Self {
            virtual_step: step.saturating_sub(head_start),
            arrival,
        }
    }
}

/// A turn to take tokens of a step's budget for a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    /// Which of the prompts.
    pub(super) prompt: usize,
    /// At most so many tokens in this turn.
    pub(super) at_most: usize,
}

/// In which order prompts take from `budget`, given how much of each is left, best rank first.
///
/// Half goes to the first, so that the longest prompt advances; then the shortest take what they
/// can, so that a short question does not wait behind a book; what is left goes to the first.
pub(super) fn prefill_turns(pending: &[usize], budget: usize) -> Vec<Turn> {
    let mut by_length: Vec<usize> = (1..pending.len()).collect();
    by_length.sort_by_key(|&prompt| pending.get(prompt));
    let first = |at_most| (!pending.is_empty()).then_some(Turn { prompt: 0, at_most });
    first(budget.div_ceil(2))
        .into_iter()
        .chain(by_length.into_iter().map(|prompt| Turn {
            prompt,
            at_most: budget,
        }))
        .chain(first(budget))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priority_goes_first_until_waiting_outweighs_it() {
        let rank = |step, priority, arrival| Rank::new(step, priority, 100, arrival);
        assert!(rank(0, 0, 1) < rank(0, 0, 2));
        assert!(rank(50, 1, 2) < rank(0, 0, 1));
        assert!(rank(101, 1, 2) > rank(0, 0, 1));
        assert!(rank(0, -1, 1) > rank(50, 0, 2));
    }

    #[test]
    fn extreme_priorities_do_not_overflow() {
        let best = Rank::new(0, i32::MAX, u32::MAX, 1);
        let worst = Rank::new(u64::MAX, i32::MIN, u32::MAX, 2);
        assert!(best < worst);
    }

    #[test]
    fn the_first_gets_half_and_short_ones_the_rest() {
        let turns: Vec<_> = prefill_turns(&[1000, 300, 20], 65)
            .iter()
            .map(|t| (t.prompt, t.at_most))
            .collect();
        assert_eq!(turns, [(0, 33), (2, 65), (1, 65), (0, 65)]);
        assert!(prefill_turns(&[], 64).is_empty());
    }
}
