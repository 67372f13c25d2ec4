//! The marks by which model families set their reasoning apart from the answer.

/// An opening and a closing mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReasoningMarks {
    /// Begins the reasoning.
    pub open: &'static str,
    /// Ends it.
    pub close: &'static str,
}

/// The common pair, also looked for where a template says nothing about reasoning.
pub(super) const THINK: ReasoningMarks = ReasoningMarks {
    open: "<think>",
    close: "</think>",
};

static FAMILIES: [ReasoningMarks; 10] = [
    ReasoningMarks {
        open: "<seed:think>",
        close: "</seed:think>",
    },
    ReasoningMarks {
        open: "<mm:think>",
        close: "</mm:think>",
    },
    ReasoningMarks {
        open: "[THINK]",
        close: "[/THINK]",
    },
    ReasoningMarks {
        open: "<|START_THINKING|>",
        close: "<|END_THINKING|>",
    },
    ReasoningMarks {
        open: "<|inner_prefix|>",
        close: "<|inner_suffix|>",
    },
    ReasoningMarks {
        open: "<|channel>thought",
        close: "<channel|>",
    },
    ReasoningMarks {
        open: "<thinking>",
        close: "</thinking>",
    },
    ReasoningMarks {
        open: "<reasoning>",
        close: "</reasoning>",
    },
    ReasoningMarks {
        open: "<thought>",
        close: "</thought>",
    },
    THINK,
];

/// The marks a template writes, from its source and what it rendered.
pub(super) fn detect(text: &str) -> Option<ReasoningMarks> {
    // Some templates drop earlier reasoning and know the closing mark alone.
    FAMILIES
        .iter()
        .find(|marks| text.contains(marks.close))
        .copied()
}
