//! The Qwen family.

use super::{Arch, BASE};

/// Qwen 2 and 2.5: Llama with biases on q, k and v.
pub(super) static QWEN2: Arch = Arch {
    name: "qwen2",
    hf_classes: &["Qwen2ForCausalLM"],
    ..BASE
};

/// Qwen 3: a norm on each head of q and k instead of the biases.
pub(super) static QWEN3: Arch = Arch {
    name: "qwen3",
    hf_classes: &["Qwen3ForCausalLM"],
    ..BASE
};
