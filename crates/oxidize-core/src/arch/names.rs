//! Names of all tensors in GGUF and in Hugging Face files.
//!
//! `{}` is the layer, `{e}` the expert in files with a tensor for each expert. The reader appends
//! the suffix (`.weight`, `.bias`).

use super::Arch;
use crate::file::Format;

/// Role of a tensor, identified by its GGUF name and its Hugging Face name in the Llama family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorRole {
    /// GGUF name.
    pub gguf: &'static str,
    /// Hugging Face name in the Llama family.
    pub hf: &'static str,
}

macro_rules! roles {
    ($($(#[$doc:meta])* $role:ident = $gguf:literal, $hf:literal;)*) => {
        $($(#[$doc])* pub const $role: TensorRole = TensorRole { gguf: $gguf, hf: $hf };)*

        /// All roles.
        pub const ROLES: &[TensorRole] = &[$($role),*];
    };
}

roles! {
    /// Token embeddings.
    TOKEN_EMBEDDING = "token_embd", "model.embed_tokens";
    /// Norm of the token embeddings.
    TOKEN_EMBEDDING_NORM = "token_embd_norm", "";
    /// Learned position embeddings.
    POSITION_EMBEDDING = "position_embd", "";
    /// Embeddings of token types (BERT segments); only the first row is used.
    TOKEN_TYPES = "token_types", "";
    /// Dense layer of the classifier.
    CLASSIFIER = "cls", "";
    /// Output projection of the classifier.
    CLASSIFIER_OUTPUT = "cls.output", "";
    /// First dense layer of sentence embeddings.
    EMBEDDING_DENSE_2 = "dense_2", "2_Dense.linear";
    /// Second dense layer of sentence embeddings.
    EMBEDDING_DENSE_3 = "dense_3", "3_Dense.linear";
    /// Final norm.
    OUTPUT_NORM = "output_norm", "model.norm";
    /// Projection to logits; models without it use the embeddings.
    OUTPUT = "output", "lm_head";
    /// Divisors of the RoPE frequencies (Llama 3).
    ROPE_FREQS = "rope_freqs", "";
    /// Divisors of the RoPE frequencies in short contexts (LongRoPE).
    ROPE_FACTORS_SHORT = "rope_factors_short", "";
    /// Divisors of the RoPE frequencies in long contexts (LongRoPE).
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
    /// Attention sinks: one extra score per head, without a value.
    ATTN_SINKS = "blk.{}.attn_sinks", "model.layers.{}.self_attn.sinks";
    /// Norm between attention and its output projection (BitNet).
    ATTN_SUB_NORM = "blk.{}.attn_sub_norm", "model.layers.{}.self_attn.attn_sub_norm";
    /// Gate of the attention output.
    ATTN_GATE = "blk.{}.attn_gate", "model.layers.{}.self_attn.gate_proj";
    /// Output projection of attention.
    ATTN_OUTPUT = "blk.{}.attn_output", "model.layers.{}.self_attn.o_proj";
    /// Norm after attention.
    ATTN_POST_NORM = "blk.{}.post_attention_norm", "";

    /// Norm of the residual stream after the attention's residual connection.
    ATTN_SUM_NORM = "blk.{}.attn_output_norm", "";
    /// T5: relative position biases.
    ATTN_RELATIVE = "blk.{}.attn_rel_b", "";
    /// T5: norm before cross-attention.
    CROSS_NORM = "dec.blk.{}.cross_attn_norm", "decoder.block.{}.layer.1.layer_norm";
    /// T5: queries of cross-attention.
    CROSS_Q = "dec.blk.{}.cross_attn_q", "decoder.block.{}.layer.1.EncDecAttention.q";
    /// T5: keys of cross-attention.
    CROSS_K = "dec.blk.{}.cross_attn_k", "decoder.block.{}.layer.1.EncDecAttention.k";
    /// T5: values of cross-attention.
    CROSS_V = "dec.blk.{}.cross_attn_v", "decoder.block.{}.layer.1.EncDecAttention.v";
    /// T5: output projection of cross-attention.
    CROSS_OUTPUT = "dec.blk.{}.cross_attn_o", "decoder.block.{}.layer.1.EncDecAttention.o";

    /// MLA: down-projection of queries.
    ATTN_Q_A = "blk.{}.attn_q_a", "model.layers.{}.self_attn.q_a_proj";
    /// MLA: norm of the compressed queries.
    ATTN_Q_A_NORM = "blk.{}.attn_q_a_norm", "model.layers.{}.self_attn.q_a_layernorm";
    /// MLA: up-projection of queries.
    ATTN_Q_B = "blk.{}.attn_q_b", "model.layers.{}.self_attn.q_b_proj";
    /// MLA: down-projection to compressed keys and values and to the RoPE part of the key.
    ATTN_KV_A = "blk.{}.attn_kv_a_mqa", "model.layers.{}.self_attn.kv_a_proj_with_mqa";
    /// MLA: norm of the compressed keys and values.
    ATTN_KV_A_NORM = "blk.{}.attn_kv_a_norm", "model.layers.{}.self_attn.kv_a_layernorm";
    /// MLA: up-projection of keys and values, by head.
    ATTN_KV_B = "blk.{}.attn_kv_b", "model.layers.{}.self_attn.kv_b_proj";
    /// MLA: key part of the up-projection, transposed so that it can be applied to queries.
    ATTN_K_B = "blk.{}.attn_k_b", "";
    /// MLA: value part of the up-projection.
    ATTN_V_B = "blk.{}.attn_v_b", "";

    /// LFM2: projection to both gates and the input of the short convolution.
    SHORTCONV_IN = "blk.{}.shortconv.in_proj", "model.layers.{}.conv.in_proj";
    /// LFM2: convolution.
    SHORTCONV_CONV = "blk.{}.shortconv.conv", "model.layers.{}.conv.conv";
    /// LFM2: output projection.
    SHORTCONV_OUT = "blk.{}.shortconv.out_proj", "model.layers.{}.conv.out_proj";

    /// Mamba: projection to input and gate; in Mamba 2 also to B, C and steps.
    SSM_IN = "blk.{}.ssm_in", "model.layers.{}.mamba.in_proj";
    /// Convolution before a recurrent part.
    SSM_CONV = "blk.{}.ssm_conv1d", "model.layers.{}.mamba.conv1d";
    /// Mamba: projection to steps, B and C.
    SSM_X = "blk.{}.ssm_x", "model.layers.{}.mamba.x_proj";
    /// Mamba: up-projection of low-rank steps.
    SSM_DT = "blk.{}.ssm_dt", "model.layers.{}.mamba.dt_proj";
    /// Bias of steps that are not projected.
    SSM_DT_BIAS = "blk.{}.ssm_dt", "model.layers.{}.mamba.dt_bias";
    /// Decay rates of the state.
    SSM_A = "blk.{}.ssm_a", "model.layers.{}.mamba.A_log";
    /// Mamba: factor of the skip connection around the state.
    SSM_D = "blk.{}.ssm_d", "model.layers.{}.mamba.D";
    /// Jamba: norm of the steps.
    SSM_DT_NORM = "blk.{}.ssm_dt_norm", "model.layers.{}.mamba.dt_layernorm";
    /// Jamba: norm of B.
    SSM_B_NORM = "blk.{}.ssm_b_norm", "model.layers.{}.mamba.b_layernorm";
    /// Jamba: norm of C.
    SSM_C_NORM = "blk.{}.ssm_c_norm", "model.layers.{}.mamba.c_layernorm";
    /// Norm of the output of a recurrent part.
    SSM_NORM = "blk.{}.ssm_norm", "model.layers.{}.mamba.norm";
    /// Output projection of a recurrent part.
    SSM_OUT = "blk.{}.ssm_out", "model.layers.{}.mamba.out_proj";

    /// Delta net: queries, keys, values and gates, grouped by key head.
    DELTA_QKVZ = "blk.{}.ssm_in", "model.layers.{}.linear_attn.in_proj_qkvz";
    /// Delta net: queries, keys and values.
    DELTA_QKV = "blk.{}.attn_qkv", "model.layers.{}.linear_attn.in_proj_qkv";
    /// Delta net: gates.
    DELTA_GATE = "blk.{}.attn_gate", "model.layers.{}.linear_attn.in_proj_z";
    /// Delta net: learning rates (beta) and decays (alpha), grouped by key head.
    DELTA_BETA_ALPHA = "blk.{}.ssm_ba", "model.layers.{}.linear_attn.in_proj_ba";
    /// Delta net: learning rates (beta).
    DELTA_BETA = "blk.{}.ssm_beta", "model.layers.{}.linear_attn.in_proj_b";
    /// Delta net: decays (alpha).
    DELTA_ALPHA = "blk.{}.ssm_alpha", "model.layers.{}.linear_attn.in_proj_a";
    /// Kimi: convolution of queries.
    KIMI_Q_CONV = "blk.{}.ssm_conv1d_q", "model.layers.{}.self_attn.q_conv1d";
    /// Kimi: convolution of keys.
    KIMI_K_CONV = "blk.{}.ssm_conv1d_k", "model.layers.{}.self_attn.k_conv1d";
    /// Kimi: convolution of values.
    KIMI_V_CONV = "blk.{}.ssm_conv1d_v", "model.layers.{}.self_attn.v_conv1d";
    /// Kimi: down-projection for the decay.
    KIMI_F_A = "blk.{}.ssm_f_a", "model.layers.{}.self_attn.f_a_proj";
    /// Kimi: up-projection for the decay.
    KIMI_F_B = "blk.{}.ssm_f_b", "model.layers.{}.self_attn.f_b_proj";
    /// Kimi: down-projection for the gate.
    KIMI_G_A = "blk.{}.ssm_g_a", "model.layers.{}.self_attn.g_a_proj";
    /// Kimi: up-projection for the gate.
    KIMI_G_B = "blk.{}.ssm_g_b", "model.layers.{}.self_attn.g_b_proj";

    /// RWKV 6: token-shift weights of the input of the low-rank projections.
    TIME_MIX_LERP_X = "blk.{}.time_mix_lerp_x", "rwkv.blocks.{}.attention.time_maa_x";
    /// RWKV: token-shift weights of all projections in one tensor.
    TIME_MIX_LERP_FUSED = "blk.{}.time_mix_lerp_fused", "";
    /// RWKV: token-shift weights of the decay.
    TIME_MIX_LERP_W = "blk.{}.time_mix_lerp_w", "model.blocks.{}.attention.x_w";
    /// RWKV: token-shift weights of keys.
    TIME_MIX_LERP_K = "blk.{}.time_mix_lerp_k", "model.blocks.{}.attention.x_k";
    /// RWKV: token-shift weights of values.
    TIME_MIX_LERP_V = "blk.{}.time_mix_lerp_v", "model.blocks.{}.attention.x_v";
    /// RWKV: token-shift weights of receptance.
    TIME_MIX_LERP_R = "blk.{}.time_mix_lerp_r", "model.blocks.{}.attention.x_r";
    /// RWKV: token-shift weights of the gate.
    TIME_MIX_LERP_G = "blk.{}.time_mix_lerp_g", "model.blocks.{}.attention.x_g";
    /// RWKV 7: token-shift weights of the learning rate.
    TIME_MIX_LERP_A = "blk.{}.time_mix_lerp_a", "model.blocks.{}.attention.x_a";
    /// RWKV 6: down-projection of the token-dependent shift weights; RWKV 7: of the decay.
    TIME_MIX_W1 = "blk.{}.time_mix_w1", "model.blocks.{}.attention.w1";
    /// RWKV 6 and 7: up-projection after `TIME_MIX_W1`.
    TIME_MIX_W2 = "blk.{}.time_mix_w2", "model.blocks.{}.attention.w2";
    /// RWKV 7: bias of the decay.
    TIME_MIX_W0 = "blk.{}.time_mix_w0", "model.blocks.{}.attention.w0";
    /// RWKV 6: down-projection of the decay.
    TIME_MIX_DECAY_W1 = "blk.{}.time_mix_decay_w1", "rwkv.blocks.{}.attention.time_decay_w1";
    /// RWKV 6: up-projection of the decay.
    TIME_MIX_DECAY_W2 = "blk.{}.time_mix_decay_w2", "rwkv.blocks.{}.attention.time_decay_w2";
    /// RWKV 6: bias of the decay.
    TIME_MIX_DECAY = "blk.{}.time_mix_decay", "rwkv.blocks.{}.attention.time_decay";
    /// RWKV 6: factor of the token's own value (bonus).
    TIME_MIX_FIRST = "blk.{}.time_mix_first", "rwkv.blocks.{}.attention.time_faaaa";
    /// RWKV 7: bias of the learning rate.
    TIME_MIX_A0 = "blk.{}.time_mix_a0", "model.blocks.{}.attention.a0";
    /// RWKV 7: down-projection of the learning rate.
    TIME_MIX_A1 = "blk.{}.time_mix_a1", "model.blocks.{}.attention.a1";
    /// RWKV 7: up-projection of the learning rate.
    TIME_MIX_A2 = "blk.{}.time_mix_a2", "model.blocks.{}.attention.a2";
    /// RWKV 7: bias of the residual weight of the first layer's values.
    TIME_MIX_V0 = "blk.{}.time_mix_v0", "model.blocks.{}.attention.v0";
    /// RWKV 7: down-projection of that weight.
    TIME_MIX_V1 = "blk.{}.time_mix_v1", "model.blocks.{}.attention.v1";
    /// RWKV 7: up-projection of that weight.
    TIME_MIX_V2 = "blk.{}.time_mix_v2", "model.blocks.{}.attention.v2";
    /// RWKV 7: down-projection of the gate.
    TIME_MIX_G1 = "blk.{}.time_mix_g1", "model.blocks.{}.attention.g1";
    /// RWKV 7: up-projection of the gate.
    TIME_MIX_G2 = "blk.{}.time_mix_g2", "model.blocks.{}.attention.g2";
    /// RWKV 7: factors of the removal key.
    TIME_MIX_K_K = "blk.{}.time_mix_k_k", "model.blocks.{}.attention.k_k";
    /// RWKV 7: effect of the learning rate on keys.
    TIME_MIX_K_A = "blk.{}.time_mix_k_a", "model.blocks.{}.attention.k_a";
    /// RWKV 7: factor of the token's own value (bonus).
    TIME_MIX_R_K = "blk.{}.time_mix_r_k", "model.blocks.{}.attention.r_k";
    /// RWKV: receptance (queries).
    TIME_MIX_RECEPTANCE = "blk.{}.time_mix_receptance", "model.blocks.{}.attention.receptance";
    /// RWKV: keys.
    TIME_MIX_KEY = "blk.{}.time_mix_key", "model.blocks.{}.attention.key";
    /// RWKV: values.
    TIME_MIX_VALUE = "blk.{}.time_mix_value", "model.blocks.{}.attention.value";
    /// RWKV 6: gate.
    TIME_MIX_GATE = "blk.{}.time_mix_gate", "model.blocks.{}.attention.gate";
    /// RWKV: norm of each head's output.
    TIME_MIX_NORM = "blk.{}.time_mix_ln", "model.blocks.{}.attention.ln_x";
    /// RWKV: output projection.
    TIME_MIX_OUTPUT = "blk.{}.time_mix_output", "model.blocks.{}.attention.output";
    /// RWKV: token-shift weights of the keys of channel mixing.
    CHANNEL_MIX_LERP_K = "blk.{}.channel_mix_lerp_k", "model.blocks.{}.feed_forward.x_k";
    /// RWKV 6: token-shift weights of the gate of channel mixing.
    CHANNEL_MIX_LERP_R = "blk.{}.channel_mix_lerp_r", "rwkv.blocks.{}.feed_forward.time_maa_r";
    /// RWKV: up-projection of channel mixing.
    CHANNEL_MIX_KEY = "blk.{}.channel_mix_key", "model.blocks.{}.feed_forward.key";
    /// RWKV: down-projection of channel mixing.
    CHANNEL_MIX_VALUE = "blk.{}.channel_mix_value", "model.blocks.{}.feed_forward.value";
    /// RWKV 6: gate of channel mixing.
    CHANNEL_MIX_RECEPTANCE =
        "blk.{}.channel_mix_receptance", "rwkv.blocks.{}.feed_forward.receptance";

    /// Norm before the feed-forward layer.
    FFN_NORM = "blk.{}.ffn_norm", "model.layers.{}.post_attention_layernorm";
    /// Gate projection.
    FFN_GATE = "blk.{}.ffn_gate", "model.layers.{}.mlp.gate_proj";
    /// Up-projection.
    FFN_UP = "blk.{}.ffn_up", "model.layers.{}.mlp.up_proj";
    /// Gate and up-projection in one matrix; GGUF uses the name of the up-projection.
    FFN_GATE_UP = "blk.{}.ffn_up", "model.layers.{}.mlp.gate_up_proj";
    /// Norm before the down-projection (BitNet).
    FFN_SUB_NORM = "blk.{}.ffn_sub_norm", "model.layers.{}.mlp.ffn_sub_norm";
    /// Down-projection.
    FFN_DOWN = "blk.{}.ffn_down", "model.layers.{}.mlp.down_proj";
    /// Norm of the residual stream after the feed-forward layer's residual connection.
    FFN_SUM_NORM = "blk.{}.layer_output_norm", "";
    /// Norm after the feed-forward layer.
    FFN_POST_NORM = "blk.{}.post_ffw_norm", "";
    /// xIELU: α of positive inputs. GGUF stores the parameters of xIELU in its metadata.
    FFN_XIELU_ALPHA_P = "", "model.layers.{}.mlp.act_fn.alpha_p";
    /// xIELU: α of negative inputs.
    FFN_XIELU_ALPHA_N = "", "model.layers.{}.mlp.act_fn.alpha_n";
    /// xIELU: β.
    FFN_XIELU_BETA = "", "model.layers.{}.mlp.act_fn.beta";
    /// xIELU: ε.
    FFN_XIELU_EPSILON = "", "model.layers.{}.mlp.act_fn.eps";

    /// Router.
    FFN_ROUTER = "blk.{}.ffn_gate_inp", "model.layers.{}.mlp.gate";
    /// Factors of the router's input (Gemma 4).
    FFN_ROUTER_SCALE = "blk.{}.ffn_gate_inp.scale", "model.layers.{}.router.scale";
    /// Bias added to expert weights for the selection only.
    FFN_SELECTION_BIAS = "blk.{}.exp_probs_b", "model.layers.{}.mlp.gate.e_score_correction_bias";
    /// Gate projections of all experts.
    FFN_GATE_EXPERTS = "blk.{}.ffn_gate_exps", "model.layers.{}.mlp.experts.{e}.gate_proj";
    /// Up-projections of all experts.
    FFN_UP_EXPERTS = "blk.{}.ffn_up_exps", "model.layers.{}.mlp.experts.{e}.up_proj";
    /// Gate and up-projections of all experts in one tensor.
    FFN_GATE_UP_EXPERTS = "blk.{}.ffn_gate_up_exps", "model.layers.{}.mlp.experts.gate_up_proj";
    /// Down-projections of all experts.
    FFN_DOWN_EXPERTS = "blk.{}.ffn_down_exps", "model.layers.{}.mlp.experts.{e}.down_proj";
    /// Factor of each expert's output (Gemma 4).
    FFN_EXPERT_SCALE = "blk.{}.ffn_down_exps.scale", "model.layers.{}.router.per_expert_scale";
    /// Gate projection of the shared experts.
    FFN_GATE_SHARED = "blk.{}.ffn_gate_shexp", "model.layers.{}.mlp.shared_experts.gate_proj";
    /// Up-projection of the shared experts.
    FFN_UP_SHARED = "blk.{}.ffn_up_shexp", "model.layers.{}.mlp.shared_experts.up_proj";
    /// Gate and up-projection of the shared experts in one matrix; GGUF uses the name of the
    /// up-projection.
    FFN_GATE_UP_SHARED = "blk.{}.ffn_up_shexp", "";
    /// Down-projection of the shared experts.
    FFN_DOWN_SHARED = "blk.{}.ffn_down_shexp", "model.layers.{}.mlp.shared_experts.down_proj";
    /// Gate of the shared experts' output (Qwen).
    FFN_SHARED_GATE = "blk.{}.ffn_gate_inp_shexp", "model.layers.{}.mlp.shared_expert_gate";
    /// Norm of the dense layer's output, in layers with both a dense layer and experts (Gemma 4).
    FFN_POST_NORM_DENSE = "blk.{}.post_ffw_norm_1", "model.layers.{}.post_feedforward_layernorm_1";
    /// Norm before the experts, in layers with both.
    FFN_NORM_EXPERTS = "blk.{}.pre_ffw_norm_2", "model.layers.{}.pre_feedforward_layernorm_2";
    /// Norm of the experts' output, in layers with both.
    FFN_POST_NORM_EXPERTS =
        "blk.{}.post_ffw_norm_2", "model.layers.{}.post_feedforward_layernorm_2";

    /// Factor of a layer's output (Gemma 4).
    LAYER_SCALE = "blk.{}.layer_output_scale", "model.layers.{}.layer_scalar";
    /// Per-layer embeddings of tokens (Gemma 3n and 4).
    PER_LAYER_EMBEDDING = "per_layer_token_embd", "model.embed_tokens_per_layer";
    /// Projection of the token embedding to per-layer embeddings.
    PER_LAYER_PROJECTION = "per_layer_model_proj", "model.per_layer_model_projection";
    /// Norm of that projection, by layer.
    PER_LAYER_NORM = "per_layer_proj_norm", "model.per_layer_projection_norm";
    /// Gate of a per-layer embedding.
    PER_LAYER_GATE = "blk.{}.inp_gate", "model.layers.{}.per_layer_input_gate";
    /// Output projection of a per-layer embedding.
    PER_LAYER_OUTPUT = "blk.{}.proj", "model.layers.{}.per_layer_projection";
    /// Norm of that output.
    PER_LAYER_POST_NORM = "blk.{}.post_norm", "model.layers.{}.post_per_layer_input_norm";

    /// AltUp: projections of the embedding to further streams.
    ALTUP_PROJECTION = "altup_proj", "model.altup_projections.{e}";
    /// AltUp: projections of further streams before the logits.
    ALTUP_UNEMBED = "altup_unembd_proj", "model.altup_unembed_projections.{e}";
    /// AltUp: projection to the modalities, from which the coefficients are computed.
    ALTUP_ROUTER = "blk.{}.altup_router", "model.layers.{}.altup.modality_router";
    /// AltUp: norm before the router.
    ALTUP_ROUTER_NORM = "blk.{}.altup_router_norm", "model.layers.{}.altup.router_norm";
    /// AltUp: coefficients of the prediction.
    ALTUP_PREDICT = "blk.{}.altup_predict_coef", "model.layers.{}.altup.prediction_coefs";
    /// AltUp: coefficients of the correction.
    ALTUP_CORRECT = "blk.{}.altup_correct_coef", "model.layers.{}.altup.correction_coefs";
    /// AltUp: factors of the corrected stream.
    ALTUP_CORRECT_SCALE = "blk.{}.altup_correct_scale", "model.layers.{}.altup.correct_output_scale";
    /// LAuReL: down-projection.
    LAUREL_DOWN = "blk.{}.laurel_l", "model.layers.{}.laurel.linear_left";
    /// LAuReL: up-projection.
    LAUREL_UP = "blk.{}.laurel_r", "model.layers.{}.laurel.linear_right";
    /// LAuReL: norm of the result.
    LAUREL_NORM = "blk.{}.laurel_post_norm", "model.layers.{}.laurel.post_laurel_norm";
}

/// RWKV 6: token shifts, in the order of `TIME_MIX_LERP_FUSED`.
pub const RWKV6_SHIFTS: &[TensorRole] = &[
    TIME_MIX_LERP_W,
    TIME_MIX_LERP_K,
    TIME_MIX_LERP_V,
    TIME_MIX_LERP_R,
    TIME_MIX_LERP_G,
];

/// RWKV 7: token shifts, in the order of `TIME_MIX_LERP_FUSED`.
pub const RWKV7_SHIFTS: &[TensorRole] = &[
    TIME_MIX_LERP_R,
    TIME_MIX_LERP_W,
    TIME_MIX_LERP_K,
    TIME_MIX_LERP_V,
    TIME_MIX_LERP_A,
    TIME_MIX_LERP_G,
];

impl TensorRole {
    /// Suffix of the tensor name in GGUF.
    pub fn gguf_ending(&self) -> &'static str {
        match *self {
            SSM_A | SSM_D | FFN_ROUTER_SCALE | FFN_EXPERT_SCALE => "",
            FFN_SELECTION_BIAS | SSM_DT_BIAS => ".bias",
            _ => ".weight",
        }
    }

    /// True if each layer has a tensor of its own.
    pub fn is_per_layer(&self, arch: &Arch) -> bool {
        let own = arch.hf_names.iter().filter(|(role, _)| role == self);
        let mut names = own.map(|(_, name)| *name).chain([self.gguf, self.hf]);
        names.any(|name| name.contains("{}"))
    }

    /// Possible names of the tensor in a file of this format, without suffix, most likely first.
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
