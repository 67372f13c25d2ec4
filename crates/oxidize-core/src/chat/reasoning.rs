//! Tags that model families put around reasoning.

/// Opening and closing tag of reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReasoningTags {
    /// Opening tag.
    pub open: &'static str,
    /// Closing tag.
    pub close: &'static str,
}

/// Most common pair; the default if the template contains no tags.
pub(super) const THINK: ReasoningTags = ReasoningTags {
    open: "<think>",
    close: "</think>",
};

static FAMILIES: [ReasoningTags; 10] = [
    ReasoningTags {
        open: "<seed:think>",
        close: "</seed:think>",
    },
    ReasoningTags {
        open: "<mm:think>",
        close: "</mm:think>",
    },
    ReasoningTags {
        open: "[THINK]",
        close: "[/THINK]",
    },
    ReasoningTags {
        open: "<|START_THINKING|>",
        close: "<|END_THINKING|>",
    },
    ReasoningTags {
        open: "<|inner_prefix|>",
        close: "<|inner_suffix|>",
    },
    ReasoningTags {
        open: "<|channel>thought",
        close: "<channel|>",
    },
    ReasoningTags {
        open: "<thinking>",
        close: "</thinking>",
    },
    ReasoningTags {
        open: "<reasoning>",
        close: "</reasoning>",
    },
    ReasoningTags {
        open: "<thought>",
        close: "</thought>",
    },
    THINK,
];

/// Detects the tags in the source and sample output of a template.
pub(super) fn detect(text: &str) -> Option<ReasoningTags> {
    // Some templates remove earlier reasoning and contain only the closing tag.
    FAMILIES
        .iter()
        .find(|tags| text.contains(tags.close))
        .copied()
}
