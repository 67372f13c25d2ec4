//! Reasoning of model families: the tags around it, and [`Reasoning`], how it may begin and end in the answer
//! to a prompt.

use crate::tokenizer::{EncodeOptions, Tokenizer};

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

/// Reasoning that precedes the answer to a prompt. An engine follows it to apply grammars to the answer alone
/// and to end the reasoning when its [budget](Reasoning::budget) is used up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reasoning {
    /// Marker that opens it, if the model has yet to write it; `None` if the prompt ends inside the reasoning.
    pub(crate) open: Option<OpeningMarker>,
    /// Markers that end it, in the order in which the model writes them.
    pub(crate) end: Vec<&'static str>,
    /// Tokens that end it when the budget is used up.
    pub(crate) close: Vec<u32>,
    /// Number of tokens at its beginning that belong to a header and do not count.
    pub(crate) n_header: usize,
    /// Maximum number of tokens; no limit if `None`.
    pub budget: Option<usize>,
}

/// Marker that opens reasoning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OpeningMarker {
    pub(crate) text: &'static str,
    pub(crate) tokens: Vec<u32>,
}

/// Place of the end of a prompt with respect to reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PromptEnd {
    /// The prompt has opened the reasoning.
    Inside,
    /// The model may open it.
    Before,
}

impl Reasoning {
    /// Reasoning between tags.
    pub(super) fn tagged(
        tags: ReasoningTags,
        end: PromptEnd,
        budget: Option<usize>,
        tokenizer: &Tokenizer,
    ) -> Reasoning {
        Reasoning {
            open: (end == PromptEnd::Before).then(|| OpeningMarker {
                text: tags.open,
                tokens: markers(tokenizer, tags.open),
            }),
            end: vec![tags.close],
            close: markers(tokenizer, &tags.closing_text()),
            n_header: 0,
            budget,
        }
    }

    /// Reasoning in the analysis channel of the Harmony format. A header comes first.
    pub(super) fn harmony(budget: Option<usize>, tokenizer: &Tokenizer) -> Reasoning {
        let header = markers(tokenizer, "<|channel|>analysis<|message|>");
        let close = format!("<|end|><|start|>assistant{HARMONY_ANSWER}");
        Reasoning {
            open: None,
            end: vec!["<|channel|>final", "<|message|>"],
            close: markers(tokenizer, &close),
            n_header: header.len(),
            budget,
        }
    }
}

/// Header of the answer in the Harmony format.
pub(super) const HARMONY_ANSWER: &str = "<|channel|>final<|message|>";

impl ReasoningTags {
    /// Text that ends reasoning: XML tags have a line of their own, control tokens do not.
    pub(super) fn closing_text(self) -> String {
        if self.close.starts_with("</") {
            format!("\n{}\n\n", self.close)
        } else {
            self.close.to_owned()
        }
    }

    /// Reasoning without content.
    pub(super) fn empty_block(self) -> String {
        format!("{}{}", self.open, self.closing_text())
    }
}

fn markers(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let options = EncodeOptions {
        add_special: false,
        parse_special: true,
    };
    tokenizer.encode(text, options)
}
