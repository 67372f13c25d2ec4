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
    /// Norm of the token embeddings.
    TOKEN_EMBEDDING_NORM = "token_embd_norm", "";
    /// Learned positions.
    POSITION_EMBEDDING = "position_embd", "";
    /// Norm before the logits.
    OUTPUT_NORM = "output_norm", "model.norm";
    /// Projection to logits; where it is missing, the embeddings serve.
    OUTPUT = "output", "lm_head";
    /// Factors of the RoPE frequencies (Llama 3).
    ROPE_FREQS = "rope_freqs", "";
    /// Factors of the RoPE frequencies in short contexts (LongRoPE).
    ROPE_FACTORS_SHORT = "rope_factors_short", "";
    /// Factors of the RoPE frequencies in long contexts.
    ROPE_FACTORS_LONG = "rope_factors_long", "";

    /// Norm before attention.
    ATTN_NORM = "blk.{}.attn_norm", "model.layers.{}.input_layernorm";
    /// Queries, keys and values in one matrix.
    ATTN_QKV = "blk.{}.attn_qkv", "model.layers.{}.self_attn.qkv_proj";
    /// Queries.
    ATTN_Q = "blk.{}.attn_q", "model.layers.{}.self_attn.q_proj";
    /// Keys.
    ATTN_K = "blk.{}.attn_k", "model.layers.{}.self_attn.k_proj";
    /// Values.
    ATTN_V = "blk.{}.attn_v", "model.layers.{}.self_attn.v_proj";
    /// Keys and values in one matrix.
    ATTN_KV = "", "";
    /// Norm of each query head.
    ATTN_Q_NORM = "blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_norm";
    /// Norm of each key head.
    ATTN_K_NORM = "blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_norm";
    /// Scores that take weight and give nothing, one a head.
    ATTN_SINKS = "blk.{}.attn_sinks", "model.layers.{}.self_attn.sinks";
    /// Norm between attention and its projection (BitNet).
    ATTN_SUB_NORM = "blk.{}.attn_sub_norm", "model.layers.{}.self_attn.attn_sub_norm";
    /// Gate on the attention's result.
    ATTN_GATE = "blk.{}.attn_gate", "model.layers.{}.self_attn.gate_proj";
    /// Projection of the attention's result.
    ATTN_OUTPUT = "blk.{}.attn_output", "model.layers.{}.self_attn.o_proj";
    /// Norm after attention.
    ATTN_POST_NORM = "blk.{}.post_attention_norm", "";

    /// MLA: down-projection of queries.
    ATTN_Q_A = "blk.{}.attn_q_a", "model.layers.{}.self_attn.q_a_proj";
    /// MLA: norm of the compressed queries.
    ATTN_Q_A_NORM = "blk.{}.attn_q_a_norm", "model.layers.{}.self_attn.q_a_layernorm";
    /// MLA: up-projection of queries.
    ATTN_Q_B = "blk.{}.attn_q_b", "model.layers.{}.self_attn.q_b_proj";
    /// MLA: compressed keys and values, and the part of the key that turns.
    ATTN_KV_A = "blk.{}.attn_kv_a_mqa", "model.layers.{}.self_attn.kv_a_proj_with_mqa";
    /// MLA: norm of the compressed keys and values.
    ATTN_KV_A_NORM = "blk.{}.attn_kv_a_norm", "model.layers.{}.self_attn.kv_a_layernorm";
    /// MLA: up-projection of keys and values, head by head.
    ATTN_KV_B = "blk.{}.attn_kv_b", "model.layers.{}.self_attn.kv_b_proj";
    /// MLA: the keys' part of it, transposed so that it can be applied to queries.
    ATTN_K_B = "blk.{}.attn_k_b", "";
    /// MLA: the values' part of it.
    ATTN_V_B = "blk.{}.attn_v_b", "";

    /// Norm before the feed-forward layer.
    FFN_NORM = "blk.{}.ffn_norm", "model.layers.{}.post_attention_layernorm";
    /// The gated half.
    FFN_GATE = "blk.{}.ffn_gate", "model.layers.{}.mlp.gate_proj";
    /// The other half.
    FFN_UP = "blk.{}.ffn_up", "model.layers.{}.mlp.up_proj";
    /// Both halves in one matrix; GGUF does not give it a name of its own.
    FFN_GATE_UP = "blk.{}.ffn_up", "model.layers.{}.mlp.gate_up_proj";
    /// Norm between the halves and the way back (BitNet).
    FFN_SUB_NORM = "blk.{}.ffn_sub_norm", "model.layers.{}.mlp.ffn_sub_norm";
    /// Back to the width of the stream.
    FFN_DOWN = "blk.{}.ffn_down", "model.layers.{}.mlp.down_proj";
    /// Norm after the feed-forward layer.
    FFN_POST_NORM = "blk.{}.post_ffw_norm", "";
    /// xIELU's parameters, which GGUF keeps in its metadata.
    FFN_XIELU_ALPHA_P = "", "model.layers.{}.mlp.act_fn.alpha_p";
    /// Likewise.
    FFN_XIELU_ALPHA_N = "", "model.layers.{}.mlp.act_fn.alpha_n";
    /// Likewise.
    FFN_XIELU_BETA = "", "model.layers.{}.mlp.act_fn.beta";
    /// Likewise.
    FFN_XIELU_EPSILON = "", "model.layers.{}.mlp.act_fn.eps";

    /// Which experts a token goes to.
    FFN_ROUTER = "blk.{}.ffn_gate_inp", "model.layers.{}.mlp.gate";
    /// Factors on the router's input (Gemma 4).
    FFN_ROUTER_SCALE = "blk.{}.ffn_gate_inp.scale", "model.layers.{}.router.scale";
    /// Added to expert weights when they are compared.
    FFN_SELECTION_BIAS = "blk.{}.exp_probs_b", "model.layers.{}.mlp.gate.e_score_correction_bias";
    /// Gated halves of all experts.
    FFN_GATE_EXPERTS = "blk.{}.ffn_gate_exps", "model.layers.{}.mlp.experts.{e}.gate_proj";
    /// Other halves of all experts.
    FFN_UP_EXPERTS = "blk.{}.ffn_up_exps", "model.layers.{}.mlp.experts.{e}.up_proj";
    /// Both halves of all experts.
    FFN_GATE_UP_EXPERTS = "blk.{}.ffn_gate_up_exps", "model.layers.{}.mlp.experts.gate_up_proj";
    /// Ways back of all experts.
    FFN_DOWN_EXPERTS = "blk.{}.ffn_down_exps", "model.layers.{}.mlp.experts.{e}.down_proj";
    /// A factor on each expert's result (Gemma 4).
    FFN_EXPERT_SCALE = "blk.{}.ffn_down_exps.scale", "model.layers.{}.router.per_expert_scale";
    /// The gated half of the experts that every token uses.
    FFN_GATE_SHARED = "blk.{}.ffn_gate_shexp", "model.layers.{}.mlp.shared_experts.gate_proj";
    /// Their other half.
    FFN_UP_SHARED = "blk.{}.ffn_up_shexp", "model.layers.{}.mlp.shared_experts.up_proj";
    /// Both of their halves in one matrix; GGUF does not give it a name of its own.
    FFN_GATE_UP_SHARED = "blk.{}.ffn_up_shexp", "";
    /// Their way back.
    FFN_DOWN_SHARED = "blk.{}.ffn_down_shexp", "model.layers.{}.mlp.shared_experts.down_proj";
    /// How much a token uses them (Qwen).
    FFN_SHARED_GATE = "blk.{}.ffn_gate_inp_shexp", "model.layers.{}.mlp.shared_expert_gate";
    /// Norm of the dense half's result where experts stand beside it (Gemma 4).
    FFN_POST_NORM_DENSE = "blk.{}.post_ffw_norm_1", "model.layers.{}.post_feedforward_layernorm_1";
    /// Norm before the experts that stand beside a dense half.
    FFN_NORM_EXPERTS = "blk.{}.pre_ffw_norm_2", "model.layers.{}.pre_feedforward_layernorm_2";
    /// Norm of their result.
    FFN_POST_NORM_EXPERTS =
        "blk.{}.post_ffw_norm_2", "model.layers.{}.post_feedforward_layernorm_2";

    /// A factor on all that a layer gives out (Gemma 4).
    LAYER_SCALE = "blk.{}.layer_output_scale", "model.layers.{}.layer_scalar";
    /// Embeddings of a token for every layer (Gemma 3n and 4).
    PER_LAYER_EMBEDDING = "per_layer_token_embd", "model.embed_tokens_per_layer";
    /// Projection of the token embedding to all layers.
    PER_LAYER_PROJECTION = "per_layer_model_proj", "model.per_layer_model_projection";
    /// Norm of one layer's share of it.
    PER_LAYER_NORM = "per_layer_proj_norm", "model.per_layer_projection_norm";
    /// From the stream to the width of a per-layer embedding.
    PER_LAYER_GATE = "blk.{}.inp_gate", "model.layers.{}.per_layer_input_gate";
    /// And back.
    PER_LAYER_OUTPUT = "blk.{}.proj", "model.layers.{}.per_layer_projection";
    /// Norm of what a layer adds of its own embedding.
    PER_LAYER_POST_NORM = "blk.{}.post_norm", "model.layers.{}.post_per_layer_input_norm";

    /// AltUp: from the embedding to the further streams.
    ALTUP_PROJECTION = "altup_proj", "model.altup_projections.{e}";
    /// AltUp: from the further streams to what the logits are made of.
    ALTUP_UNEMBED = "altup_unembd_proj", "model.altup_unembed_projections.{e}";
    /// AltUp: what the coefficients are computed from.
    ALTUP_ROUTER = "blk.{}.altup_router", "model.layers.{}.altup.modality_router";
    /// AltUp: norm before the router.
    ALTUP_ROUTER_NORM = "blk.{}.altup_router_norm", "model.layers.{}.altup.router_norm";
    /// AltUp: coefficients of the prediction.
    ALTUP_PREDICT = "blk.{}.altup_predict_coef", "model.layers.{}.altup.prediction_coefs";
    /// AltUp: coefficients of the correction.
    ALTUP_CORRECT = "blk.{}.altup_correct_coef", "model.layers.{}.altup.correction_coefs";
    /// AltUp: factors on the corrected stream.
    ALTUP_CORRECT_SCALE = "blk.{}.altup_correct_scale", "model.layers.{}.altup.correct_output_scale";
    /// LAuReL: down-projection.
    LAUREL_DOWN = "blk.{}.laurel_l", "model.layers.{}.laurel.linear_left";
    /// LAuReL: up-projection.
    LAUREL_UP = "blk.{}.laurel_r", "model.layers.{}.laurel.linear_right";
    /// LAuReL: norm of the result.
    LAUREL_NORM = "blk.{}.laurel_post_norm", "model.layers.{}.laurel.post_laurel_norm";
}

impl TensorRole {
    /// What the tensor may be called in a file of this format, without ending, likeliest first.
    pub fn names(&self, arch: &Arch, format: Format, layer: usize) -> Vec<String> {
        let (overrides, usual) = match format {
            Format::Gguf { .. } => (arch.gguf_names, self.gguf),
            _ => (arch.hf_names, self.hf),
        };
        let mut patterns: Vec<&str> = overrides
            .iter()
            .filter(|(role, _)| role == self)
            .map(|(_, name)| *name)
            .collect();
        if patterns.is_empty() {
            patterns.push(usual);
        }
        patterns.retain(|pattern| !pattern.is_empty());
        let layer = layer.to_string();
        patterns
            .iter()
            .map(|pattern| pattern.replacen("{}", &layer, 1))
            .collect()
    }
}
