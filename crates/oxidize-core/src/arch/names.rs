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

        /// All of them.
        pub const ROLES: &[TensorRole] = &[$($role),*];
    };
}

roles! {
    /// Token embeddings.
    TOKEN_EMBEDDING = "token_embd", "model.embed_tokens";
    /// Norm of the token embeddings.
    TOKEN_EMBEDDING_NORM = "token_embd_norm", "";
    /// Learned positions.
    POSITION_EMBEDDING = "position_embd", "";
    /// What is added to each token by the part of the text it is in; only the first part is used.
    TOKEN_TYPES = "token_types", "";
    /// Into the classifier on top of an encoder.
    CLASSIFIER = "cls", "";
    /// Out of it.
    CLASSIFIER_OUTPUT = "cls.output", "";
    /// The first projection of embeddings.
    EMBEDDING_DENSE_2 = "dense_2", "2_Dense.linear";
    /// The second.
    EMBEDDING_DENSE_3 = "dense_3", "3_Dense.linear";
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

    /// Norm of the stream and what attention added to it.
    ATTN_SUM_NORM = "blk.{}.attn_output_norm", "";
    /// T5: biases by distance.
    ATTN_RELATIVE = "blk.{}.attn_rel_b", "";
    /// T5: norm before the attention to what the encoder has read.
    CROSS_NORM = "dec.blk.{}.cross_attn_norm", "decoder.block.{}.layer.1.layer_norm";
    /// T5: its queries.
    CROSS_Q = "dec.blk.{}.cross_attn_q", "decoder.block.{}.layer.1.EncDecAttention.q";
    /// T5: its keys.
    CROSS_K = "dec.blk.{}.cross_attn_k", "decoder.block.{}.layer.1.EncDecAttention.k";
    /// T5: its values.
    CROSS_V = "dec.blk.{}.cross_attn_v", "decoder.block.{}.layer.1.EncDecAttention.v";
    /// T5: its way back.
    CROSS_OUTPUT = "dec.blk.{}.cross_attn_o", "decoder.block.{}.layer.1.EncDecAttention.o";

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

    /// LFM2: the two gates and the input of a short convolution.
    SHORTCONV_IN = "blk.{}.shortconv.in_proj", "model.layers.{}.conv.in_proj";
    /// LFM2: the convolution.
    SHORTCONV_CONV = "blk.{}.shortconv.conv", "model.layers.{}.conv.conv";
    /// LFM2: the way back.
    SHORTCONV_OUT = "blk.{}.shortconv.out_proj", "model.layers.{}.conv.out_proj";

    /// Mamba: input and gate; in Mamba 2 what is written and read, and the steps, too.
    SSM_IN = "blk.{}.ssm_in", "model.layers.{}.mamba.in_proj";
    /// The convolution before a recurrent part.
    SSM_CONV = "blk.{}.ssm_conv1d", "model.layers.{}.mamba.conv1d";
    /// Mamba: steps, what is written and what is read.
    SSM_X = "blk.{}.ssm_x", "model.layers.{}.mamba.x_proj";
    /// Mamba: from steps of low rank to those of all channels.
    SSM_DT = "blk.{}.ssm_dt", "model.layers.{}.mamba.dt_proj";
    /// What is added to steps where they are not projected.
    SSM_DT_BIAS = "blk.{}.ssm_dt", "model.layers.{}.mamba.dt_bias";
    /// How fast state decays.
    SSM_A = "blk.{}.ssm_a", "model.layers.{}.mamba.A_log";
    /// Mamba: factor on the input that goes past the state.
    SSM_D = "blk.{}.ssm_d", "model.layers.{}.mamba.D";
    /// Jamba: norm of the steps.
    SSM_DT_NORM = "blk.{}.ssm_dt_norm", "model.layers.{}.mamba.dt_layernorm";
    /// Jamba: norm of what is written.
    SSM_B_NORM = "blk.{}.ssm_b_norm", "model.layers.{}.mamba.b_layernorm";
    /// Jamba: norm of what is read.
    SSM_C_NORM = "blk.{}.ssm_c_norm", "model.layers.{}.mamba.c_layernorm";
    /// Norm of what a recurrent part gives out.
    SSM_NORM = "blk.{}.ssm_norm", "model.layers.{}.mamba.norm";
    /// Its way back to the stream.
    SSM_OUT = "blk.{}.ssm_out", "model.layers.{}.mamba.out_proj";

    /// Delta net: queries, keys, values and gates, key head by key head.
    DELTA_QKVZ = "blk.{}.ssm_in", "model.layers.{}.linear_attn.in_proj_qkvz";
    /// Delta net: queries, keys and values.
    DELTA_QKV = "blk.{}.attn_qkv", "model.layers.{}.linear_attn.in_proj_qkv";
    /// Delta net: gates.
    DELTA_GATE = "blk.{}.attn_gate", "model.layers.{}.linear_attn.in_proj_z";
    /// Delta net: how much is replaced and how much decays, key head by key head.
    DELTA_BETA_ALPHA = "blk.{}.ssm_ba", "model.layers.{}.linear_attn.in_proj_ba";
    /// Delta net: how much is replaced.
    DELTA_BETA = "blk.{}.ssm_beta", "model.layers.{}.linear_attn.in_proj_b";
    /// Delta net: how much decays.
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

    /// RWKV 6: how much of the token before is in what the others are computed from.
    TIME_MIX_LERP_X = "blk.{}.time_mix_lerp_x", "rwkv.blocks.{}.attention.time_maa_x";
    /// RWKV: how much of the token before is in each projection's input.
    TIME_MIX_LERP_FUSED = "blk.{}.time_mix_lerp_fused", "";
    /// RWKV: the same for the decay.
    TIME_MIX_LERP_W = "blk.{}.time_mix_lerp_w", "model.blocks.{}.attention.x_w";
    /// RWKV: for keys.
    TIME_MIX_LERP_K = "blk.{}.time_mix_lerp_k", "model.blocks.{}.attention.x_k";
    /// RWKV: for values.
    TIME_MIX_LERP_V = "blk.{}.time_mix_lerp_v", "model.blocks.{}.attention.x_v";
    /// RWKV: for queries.
    TIME_MIX_LERP_R = "blk.{}.time_mix_lerp_r", "model.blocks.{}.attention.x_r";
    /// RWKV: for the gate.
    TIME_MIX_LERP_G = "blk.{}.time_mix_lerp_g", "model.blocks.{}.attention.x_g";
    /// RWKV 7: for the learning rate.
    TIME_MIX_LERP_A = "blk.{}.time_mix_lerp_a", "model.blocks.{}.attention.x_a";
    /// RWKV 6: down-projection of what depends on the token; RWKV 7: of the decay.
    TIME_MIX_W1 = "blk.{}.time_mix_w1", "model.blocks.{}.attention.w1";
    /// Its up-projection.
    TIME_MIX_W2 = "blk.{}.time_mix_w2", "model.blocks.{}.attention.w2";
    /// RWKV 7: what is added to it.
    TIME_MIX_W0 = "blk.{}.time_mix_w0", "model.blocks.{}.attention.w0";
    /// RWKV 6: the decay, down-projection.
    TIME_MIX_DECAY_W1 = "blk.{}.time_mix_decay_w1", "rwkv.blocks.{}.attention.time_decay_w1";
    /// RWKV 6: the decay, up-projection.
    TIME_MIX_DECAY_W2 = "blk.{}.time_mix_decay_w2", "rwkv.blocks.{}.attention.time_decay_w2";
    /// RWKV 6: what is added to it.
    TIME_MIX_DECAY = "blk.{}.time_mix_decay", "rwkv.blocks.{}.attention.time_decay";
    /// RWKV 6: how much of its own value a token reads.
    TIME_MIX_FIRST = "blk.{}.time_mix_first", "rwkv.blocks.{}.attention.time_faaaa";
    /// RWKV 7: the learning rate.
    TIME_MIX_A0 = "blk.{}.time_mix_a0", "model.blocks.{}.attention.a0";
    /// RWKV 7: its down-projection.
    TIME_MIX_A1 = "blk.{}.time_mix_a1", "model.blocks.{}.attention.a1";
    /// RWKV 7: its up-projection.
    TIME_MIX_A2 = "blk.{}.time_mix_a2", "model.blocks.{}.attention.a2";
    /// RWKV 7: how far values look back to the first layer's.
    TIME_MIX_V0 = "blk.{}.time_mix_v0", "model.blocks.{}.attention.v0";
    /// RWKV 7: its down-projection.
    TIME_MIX_V1 = "blk.{}.time_mix_v1", "model.blocks.{}.attention.v1";
    /// RWKV 7: its up-projection.
    TIME_MIX_V2 = "blk.{}.time_mix_v2", "model.blocks.{}.attention.v2";
    /// RWKV 7: down-projection of the gate.
    TIME_MIX_G1 = "blk.{}.time_mix_g1", "model.blocks.{}.attention.g1";
    /// RWKV 7: its up-projection.
    TIME_MIX_G2 = "blk.{}.time_mix_g2", "model.blocks.{}.attention.g2";
    /// RWKV 7: factors of the key that is removed.
    TIME_MIX_K_K = "blk.{}.time_mix_k_k", "model.blocks.{}.attention.k_k";
    /// RWKV 7: how much the learning rate scales keys.
    TIME_MIX_K_A = "blk.{}.time_mix_k_a", "model.blocks.{}.attention.k_a";
    /// RWKV 7: how much of its own value a token reads.
    TIME_MIX_R_K = "blk.{}.time_mix_r_k", "model.blocks.{}.attention.r_k";
    /// RWKV: queries.
    TIME_MIX_RECEPTANCE = "blk.{}.time_mix_receptance", "model.blocks.{}.attention.receptance";
    /// RWKV: keys.
    TIME_MIX_KEY = "blk.{}.time_mix_key", "model.blocks.{}.attention.key";
    /// RWKV: values.
    TIME_MIX_VALUE = "blk.{}.time_mix_value", "model.blocks.{}.attention.value";
    /// RWKV 6: the gate.
    TIME_MIX_GATE = "blk.{}.time_mix_gate", "model.blocks.{}.attention.gate";
    /// RWKV: norm of each head's result.
    TIME_MIX_NORM = "blk.{}.time_mix_ln", "model.blocks.{}.attention.ln_x";
    /// RWKV: the way back.
    TIME_MIX_OUTPUT = "blk.{}.time_mix_output", "model.blocks.{}.attention.output";
    /// RWKV: how much of the token before is in the feed-forward layer's keys.
    CHANNEL_MIX_LERP_K = "blk.{}.channel_mix_lerp_k", "model.blocks.{}.feed_forward.x_k";
    /// RWKV 6: and in its gate.
    CHANNEL_MIX_LERP_R = "blk.{}.channel_mix_lerp_r", "rwkv.blocks.{}.feed_forward.time_maa_r";
    /// RWKV: into the feed-forward layer.
    CHANNEL_MIX_KEY = "blk.{}.channel_mix_key", "model.blocks.{}.feed_forward.key";
    /// RWKV: out of it.
    CHANNEL_MIX_VALUE = "blk.{}.channel_mix_value", "model.blocks.{}.feed_forward.value";
    /// RWKV 6: its gate.
    CHANNEL_MIX_RECEPTANCE =
        "blk.{}.channel_mix_receptance", "rwkv.blocks.{}.feed_forward.receptance";

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
    /// Norm of the stream and what the feed-forward layer added to it.
    FFN_SUM_NORM = "blk.{}.layer_output_norm", "";
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

/// RWKV 6: what its token shifts are mixed by, in the order of the tensor that holds all.
pub const RWKV6_SHIFTS: &[TensorRole] = &[
    TIME_MIX_LERP_W,
    TIME_MIX_LERP_K,
    TIME_MIX_LERP_V,
    TIME_MIX_LERP_R,
    TIME_MIX_LERP_G,
];

/// RWKV 7: the same.
pub const RWKV7_SHIFTS: &[TensorRole] = &[
    TIME_MIX_LERP_R,
    TIME_MIX_LERP_W,
    TIME_MIX_LERP_K,
    TIME_MIX_LERP_V,
    TIME_MIX_LERP_A,
    TIME_MIX_LERP_G,
];

impl TensorRole {
    /// What follows the name of its weight in GGUF.
    pub fn gguf_ending(&self) -> &'static str {
        match *self {
            SSM_A | SSM_D | FFN_ROUTER_SCALE | FFN_EXPERT_SCALE => "",
            FFN_SELECTION_BIAS | SSM_DT_BIAS => ".bias",
            _ => ".weight",
        }
    }

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
