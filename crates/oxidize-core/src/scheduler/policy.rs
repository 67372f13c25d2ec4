//! Scheduling policy, kept apart from the bookkeeping: the rank of a sequence, and the division of a step's
//! token budget among prompts.

/// Order of sequences for admission, for blocks and (reversed) for preemption. Smaller is better. A rank
/// never changes, so waiting time counts: a level of priority equals a fixed number of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    /// Step of arrival, earlier by a number of steps per level of priority.
    virtual_step: i64,
    /// Number of arrivals before, which makes ranks unique.
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

/// Permission for a prompt to take tokens of a step's budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    /// Index of the prompt.
    pub(super) prompt: usize,
    /// Maximum tokens in this turn.
    pub(super) max_tokens: usize,
}

/// Order in which prompts take tokens from `budget`. `pending` are their remaining tokens, best rank first.
///
/// Half of the budget goes to the first prompt, so that the sequence of best rank always advances. Then the
/// shortest prompts take what they need, so that a short prompt does not wait for a long one. The rest goes
/// to the first prompt.
pub(super) fn prefill_turns(pending: &[usize], budget: usize) -> Vec<Turn> {
    let mut by_length: Vec<usize> = (1..pending.len()).collect();
    by_length.sort_by_key(|&prompt| pending.get(prompt));
    let first = |max_tokens| {
        (!pending.is_empty()).then_some(Turn {
            prompt: 0,
            max_tokens,
        })
    };
    first(budget.div_ceil(2))
        .into_iter()
        .chain(by_length.into_iter().map(|prompt| Turn {
            prompt,
            max_tokens: budget,
        }))
        .chain(first(budget))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_outweighs_priority() {
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
    fn first_prompt_gets_half_and_short_ones_the_rest() {
        let turns: Vec<_> = prefill_turns(&[1000, 300, 20], 65)
            .iter()
            .map(|t| (t.prompt, t.max_tokens))
            .collect();
        assert_eq!(turns, [(0, 33), (2, 65), (1, 65), (0, 65)]);
        assert!(prefill_turns(&[], 64).is_empty());
    }
}
