//! The one table of names: what each tensor is called in GGUF and in Hugging Face files.
//!
//! `{}` stands for the layer, `{e}` for the expert where a file keeps experts apart. The ending
//! (`.weight`, `.bias`) is added by the reader.

use super::Arch;
use crate::file::Format;

/// What a tensor is for, as its two names (Hugging Face's as Llama has it).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorRole {
    /// In GGUF.
    pub gguf: &'static str,
    /// In Hugging Face files of the Llama family.
    pub hf: &'static str,
}

macro_rules! roles {
    ($($(#[$doc:meta])* $role:ident = $gguf:literal, $hf:literal;)*) => {
        $($(#[$doc])* pub const $role: TensorRole = TensorRole { gguf: $gguf, hf: $hf };)*
    };
}

roles! {
    /// Token embeddings.
    TOKEN_EMBEDDING = "token_embd", "model.embed_tokens";
    /// Norm before the logits.
    OUTPUT_NORM = "output_norm", "model.norm";
    /// Projection to logits; where it is missing, the embeddings serve.
    OUTPUT = "output", "lm_head";
    /// Factors of the RoPE frequencies (Llama 3).
    ROPE_FREQS = "rope_freqs", "";
    /// Norm before attention.
    ATTN_NORM = "blk.{}.attn_norm", "model.layers.{}.input_layernorm";
    /// Queries.
    ATTN_Q = "blk.{}.attn_q", "model.layers.{}.self_attn.q_proj";
    /// Keys.
    ATTN_K = "blk.{}.attn_k", "model.layers.{}.self_attn.k_proj";
    /// Values.
    ATTN_V = "blk.{}.attn_v", "model.layers.{}.self_attn.v_proj";
    /// Norm of each query head.
    ATTN_Q_NORM = "blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_norm";
    /// Norm of each key head.
    ATTN_K_NORM = "blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_norm";
    /// Projection of the attention's result.
    ATTN_OUTPUT = "blk.{}.attn_output", "model.layers.{}.self_attn.o_proj";
    /// Norm after attention.
    ATTN_POST_NORM = "blk.{}.post_attention_norm", "";
    /// Norm before the feed-forward layer.
    FFN_NORM = "blk.{}.ffn_norm", "model.layers.{}.post_attention_layernorm";
    /// The gated half.
    FFN_GATE = "blk.{}.ffn_gate", "model.layers.{}.mlp.gate_proj";
    /// The other half.
    FFN_UP = "blk.{}.ffn_up", "model.layers.{}.mlp.up_proj";
    /// Back to the width of the stream.
    FFN_DOWN = "blk.{}.ffn_down", "model.layers.{}.mlp.down_proj";
    /// Norm after the feed-forward layer.
    FFN_POST_NORM = "blk.{}.post_ffw_norm", "";
    /// Which experts a token goes to.
    FFN_ROUTER = "blk.{}.ffn_gate_inp", "model.layers.{}.mlp.gate";
    /// Gated halves of all experts.
    FFN_GATE_EXPERTS = "blk.{}.ffn_gate_exps", "model.layers.{}.mlp.experts.{e}.gate_proj";
    /// Other halves of all experts.
    FFN_UP_EXPERTS = "blk.{}.ffn_up_exps", "model.layers.{}.mlp.experts.{e}.up_proj";
    /// Ways back of all experts.
    FFN_DOWN_EXPERTS = "blk.{}.ffn_down_exps", "model.layers.{}.mlp.experts.{e}.down_proj";
}

impl TensorRole {
    /// The tensor's name in a file of this format, without ending; `None` where the format has none.
    pub fn name(&self, arch: &Arch, format: Format, layer: usize) -> Option<String> {
        let pattern = match format {
            Format::Gguf { .. } => self.gguf,
            _ => arch
                .hf_names
                .iter()
                .find(|(role, _)| role.gguf == self.gguf)
                .map_or(self.hf, |(_, name)| name),
        };
        (!pattern.is_empty()).then(|| pattern.replacen("{}", &layer.to_string(), 1))
    }
}
