//! Hyper-parameters of a model, read from GGUF metadata or `config.json` and checked for
//! consistency.
//!
//! Everything that may differ between layers is resolved ([`super::layers`]), so that the builder
//! only looks it up.

use super::ModelError;
pub use super::recurrent::{Multipliers, RecurrentParams};
use super::source::{Key, MAX_LAYERS, Source, key};
use super::{ActivationRule, Alibi, Arch, Mixer, QkNorm, Scales, TemperatureRule};
use crate::file::{Format, ModelFile};
use crate::graph::{
    Activation, AttentionMask, ExpertGroups, Gating, GroupScore, NormKind, Rope, RopeLayout,
    Temperature, Window, Xielu,
};
use serde_json::Value;

/// Hyper-parameters of a model.
#[derive(Clone, Debug)]
pub struct Hparams {
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Context length that the model was trained for.
    pub n_ctx_train: usize,
    /// Epsilon of the norms.
    pub epsilon: f32,
    /// True if attention and feed-forward layer read the same input.
    pub parallel: bool,
    /// Scale of embeddings.
    pub embedding_scale: f32,
    /// Scale of what attention and feed-forward layers add to the residual stream.
    pub residual_scale: f32,
    /// Scale of logits.
    pub logit_scale: f32,
    /// Soft cap of attention scores.
    pub attention_softcap: Option<f32>,
    /// Soft cap of logits.
    pub logit_softcap: Option<f32>,
    /// Scale of values.
    pub value_scale: f32,
    /// Bound on the elements of queries, keys and values.
    pub qkv_limit: Option<f32>,
    /// ALiBi: exponent of the largest slope.
    pub max_alibi_bias: Option<f32>,
    /// Pairing of the elements that RoPE rotates together.
    pub rope_layout: RopeLayout,
    /// Kinds of RoPE; layers refer to them by index.
    pub ropes: Vec<Rope>,
    /// Context length before RoPE scaling.
    pub rope_original_context: usize,
    /// Attention mask.
    pub mask: AttentionMask,
    /// Relative position biases (T5).
    pub relative: Option<RelativeParams>,
    /// Layers of the encoder, in encoder-decoder models.
    pub n_encoder_layers: usize,
    /// First token of the decoder, in encoder-decoder models.
    pub decoder_start: Option<u32>,
    /// Temperature tuning, used in layers with [`LayerParams::temperature`].
    pub temperature: Option<Temperature>,
    /// True if queries and keys are normalized without weights.
    pub unweighted_qk_norm: bool,
    /// Ranks and widths of latent attention.
    pub mla: Option<MlaParams>,
    /// Shape of recurrent parts.
    pub recurrent: Option<RecurrentParams>,
    /// Multipliers of Falcon-H1.
    pub multipliers: Multipliers,
    /// RWKV: GGUF halves the residual stream after each group of this many layers and scales the
    /// later weights to match. In other files the value does not affect the weights.
    pub halve_every: Option<usize>,
    /// Activation of feed-forward layers.
    pub activation: Activation,
    /// Mixture of experts.
    pub moe: Option<MoeParams>,
    /// Width of per-layer embeddings; zero if there are none.
    pub n_embd_per_layer: usize,
    /// Parameters of AltUp.
    pub altup: Option<AltUpParams>,
    /// Parameters of each layer.
    pub layers: Vec<LayerParams>,
    /// Layers in the file, including those for multi-token prediction.
    pub n_layers_in_file: usize,
}

/// Parameters of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerParams {
    /// True if the layer has a recurrent part.
    pub recurrent: bool,
    /// Query heads; zero without attention.
    pub n_heads: usize,
    /// Key and value heads; zero if attention is only a projection.
    pub n_kv_heads: usize,
    /// Elements of a query or key head.
    pub key_dim: usize,
    /// Elements of a value head.
    pub value_dim: usize,
    /// Scale of attention scores.
    pub query_scale: f32,
    /// Width of the feed-forward layer; zero if there is none.
    pub n_ff: usize,
    /// Attention window; `None` for full attention.
    pub window: Option<Window>,
    /// Index into [`Hparams::ropes`]; `None` without RoPE.
    pub rope: Option<usize>,
    /// True if [`Hparams::temperature`] applies.
    pub temperature: bool,
    /// Layer whose keys and values are used: this layer or an earlier one.
    pub kv_layer: usize,
    /// Threshold of sparse activations, in standard deviations above the mean.
    pub sparsity: Option<f32>,
    /// Parameters of xIELU, if the metadata contains them.
    pub xielu: Option<Xielu>,
}

/// Multi-head latent attention (DeepSeek V2).
#[derive(Clone, Debug, PartialEq)]
pub struct MlaParams {
    /// Rank of the queries; `None` if they are not compressed.
    pub q_rank: Option<usize>,
    /// Rank of keys and values.
    pub kv_rank: usize,
    /// Elements of a query or key head without RoPE.
    pub nope_dim: usize,
    /// Elements of a query or key head with RoPE.
    pub rope_dim: usize,
    /// Elements of a value head.
    pub value_dim: usize,
}

/// Relative position biases (T5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelativeParams {
    /// Number of distance buckets.
    pub n_buckets: usize,
    /// Distance from which on all share the last bucket.
    pub max_distance: usize,
}

/// Mixture of experts.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeParams {
    /// Experts of a layer.
    pub n_experts: usize,
    /// Experts used per token.
    pub n_expert_used: usize,
    /// Width of an expert.
    pub n_ff: usize,
    /// Function from router logits to weights.
    pub gating: Gating,
    /// True if the weights of the selected experts are scaled to sum to one.
    pub renormalize: bool,
    /// Scale of the weights.
    pub scale: f32,
    /// Group-limited routing.
    pub groups: Option<ExpertGroups>,
}

/// Alternating updates (AltUp) of several streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AltUpParams {
    /// Number of streams.
    pub n_streams: usize,
    /// Stream that layers compute on.
    pub active: usize,
}

const LAYERS: Key = key(
    "block_count",
    &["num_hidden_layers", "n_layer", "n_layers", "num_layers"],
);
const DECODER_LAYERS: Key = key("decoder_block_count", &["num_decoder_layers"]);
const EXTRA_LAYERS: Key = key("nextn_predict_layers", &[]);
const EMBD: Key = key("embedding_length", &["hidden_size", "n_embd", "d_model"]);
pub(super) const CONTEXT: Key = key(
    "context_length",
    &[
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
        "seq_length",
        "n_ctx",
        "model_max_length",
    ],
);
pub(super) const KEY_DIM: Key = key("attention.key_length", &["head_dim", "kv_channels", "d_kv"]);
pub(super) const VALUE_DIM: Key = key(
    "attention.value_length",
    &["v_head_dim", "head_dim", "d_kv"],
);
pub(super) const FF: Key = key(
    "feed_forward_length",
    &[
        "intermediate_size_mlp",
        "shared_intermediate_size",
        "intermediate_size",
        "n_inner",
        "ffn_dim",
        "d_ff",
        "ffn_hidden_size",
        "ffn_config.ffn_hidden_size",
    ],
);

/// Bounds on values from a file, far above those of any real model.
pub(super) const MAX_WIDTH: usize = 1 << 20;
pub(super) const MAX_HEADS: usize = 1 << 14;
pub(crate) const MAX_CONTEXT: usize = 1 << 30;
const MAX_EXPERTS: usize = 4096;
pub(super) const MAX_FF: usize = 1 << 24;

impl Hparams {
    /// Reads and checks the hyper-parameters of `file`.
    pub fn read(file: &ModelFile, arch: &Arch) -> Result<Hparams, ModelError> {
        let source = Source::new(file, arch);
        let n_listed = match source.optional(&LAYERS, 1, MAX_LAYERS)? {
            Some(n) => n,
            None => source
                .listed_layers()
                .ok_or_else(|| source.missing(&LAYERS))?,
        };
        // In files with two stacks, the first count is the encoder's.
        let (n_encoder_layers, n_listed) = match arch.encoder {
            None => (0, n_listed),
            Some(_) => {
                let decoder = source.optional(&DECODER_LAYERS, 1, MAX_LAYERS)?;
                (n_listed, decoder.unwrap_or(n_listed))
            }
        };
        // Layers for multi-token prediction come last and are not run.
        let n_extra = source.optional(&EXTRA_LAYERS, 0, n_listed - 1)?;
        let n_layers = n_listed - n_extra.unwrap_or(0);
        let n_embd = source.required(&EMBD, 1, MAX_WIDTH)?;
        // Recurrent state does not grow with the context, so files of recurrent models may omit its
        // length.
        let unsaid = if arch.recurrent.is_some() {
            1 << 20
        } else {
            2048
        };
        let n_ctx_train = source.optional(&CONTEXT, 1, MAX_CONTEXT)?.unwrap_or(unsaid);
        let n_ctx_train = match source.config {
            Some(_) => n_ctx_train.saturating_sub(arch.hf_extra_positions).max(1),
            None => n_ctx_train,
        };
        let mla = match arch.mixer {
            Mixer::Mla => Some(source.mla()?),
            Mixer::Attention => None,
        };
        let mut layers = source.layers(arch, n_embd, (n_layers, n_listed), mla.as_ref())?;
        let rope_dims: Vec<usize> = match &mla {
            Some(mla) => vec![mla.rope_dim],
            None => source.head_dims(&layers),
        };
        let (ropes, yarn_scale) = source.ropes(arch, &rope_dims)?;
        let max_alibi_bias = source.alibi(arch, n_layers)?;
        let moe = source.moe(arch)?;
        let temperature = source.temperature(arch)?;
        source.rope_layers(arch, &mut layers, &ropes, max_alibi_bias.is_some())?;
        for layer in &mut layers {
            layer.temperature = temperature.is_some()
                && (arch.temperature == TemperatureRule::IfGiven || layer.rope.is_none());
            if mla.is_some() {
                layer.query_scale *= yarn_scale * yarn_scale;
            }
        }
        let (embedding_scale, residual_scale, logit_scale) =
            source.scales(arch, n_embd, n_layers)?;
        let epsilon = source.epsilon(arch)?;
        let recurrent = arch
            .recurrent
            .map(|spec| source.recurrent(spec, n_embd, epsilon))
            .transpose()?;
        Ok(Hparams {
            n_embd,
            n_ctx_train,
            epsilon,
            recurrent,
            multipliers: source.multipliers()?,
            halve_every: source
                .optional(
                    &key("rescale_every_n_layers", &["rescale_every"]),
                    0,
                    MAX_LAYERS,
                )?
                .filter(|&n| n > 0),
            parallel: source
                .flag(&key(
                    "use_parallel_residual",
                    &["use_parallel_residual", "parallel_attn"],
                ))?
                .unwrap_or(arch.parallel),
            embedding_scale,
            residual_scale,
            logit_scale,
            attention_softcap: source
                .positive(&key("attn_logit_softcapping", &["attn_logit_softcapping"]))?,
            logit_softcap: source.positive(&key(
                "final_logit_softcapping",
                &["final_logit_softcapping"],
            ))?,
            value_scale: source
                .positive(&key("attention.value_scale", &["attention_value_scale"]))?
                .unwrap_or(1.0),
            qkv_limit: source.positive(&key(
                "attention.clamp_kqv",
                &["clip_qkv", "attn_config.clip_qkv"],
            ))?,
            max_alibi_bias,
            mask: source.attention_mask(arch)?,
            relative: source.relative()?,
            n_encoder_layers,
            decoder_start: source.decoder_start(arch)?,
            rope_layout: source.rope_layout(arch, file.format())?,
            rope_original_context: source.rope_original_context(n_ctx_train)?,
            ropes,
            temperature,
            unweighted_qk_norm: source.unweighted_qk_norm(arch, moe.as_ref())?,
            mla,
            activation: source.activation(arch)?,
            moe,
            n_embd_per_layer: source
                .optional(
                    &key(
                        "embedding_length_per_layer_input",
                        &["hidden_size_per_layer_input"],
                    ),
                    0,
                    MAX_WIDTH,
                )?
                .unwrap_or(0),
            altup: source.altup()?,
            layers,
            n_layers_in_file: n_listed,
        })
    }
}

impl Hparams {
    /// Hyper-parameters of the encoder, whose layers are all like the decoder's.
    pub(crate) fn of_encoder(&self) -> Hparams {
        let layers = self.layers.iter().take(1).cycle();
        let numbered = |(i, layer): (usize, &LayerParams)| LayerParams {
            kv_layer: i,
            ..layer.clone()
        };
        Hparams {
            mask: AttentionMask::Full,
            layers: layers
                .take(self.n_encoder_layers)
                .enumerate()
                .map(numbered)
                .collect(),
            ..self.clone()
        }
    }
}

impl Source<'_> {
    /// Attention mask.
    pub(super) fn attention_mask(&self, arch: &Arch) -> Result<AttentionMask, ModelError> {
        const CAUSAL: Key = key("attention.causal", &[]);
        const BIDIRECTIONAL: Key = key("", &["use_bidirectional_attention"]);
        if arch.encoder.is_some() {
            return Ok(AttentionMask::CausalAfterEncoder);
        }
        let bidirectional = self.get(&BIDIRECTIONAL) == Some(Value::Bool(true));
        match self.flag(&CAUSAL)?.unwrap_or(arch.causal) && !bidirectional {
            true => Ok(AttentionMask::Causal),
            false => Ok(AttentionMask::Full),
        }
    }

    fn relative(&self) -> Result<Option<RelativeParams>, ModelError> {
        const BUCKETS: Key = key(
            "attention.relative_buckets_count",
            &["relative_attention_num_buckets"],
        );
        const DISTANCE: Key = key("", &["relative_attention_max_distance"]);
        let Some(n_buckets) = self.optional(&BUCKETS, 4, 1 << 10)? else {
            return Ok(None);
        };
        let max_distance = self.optional(&DISTANCE, 1, 1 << 16)?.unwrap_or(128);
        if !n_buckets.is_multiple_of(4) || max_distance <= n_buckets / 2 {
            let problem = format!("{n_buckets} for distances up to {max_distance}");
            return Err(self.bad(&BUCKETS, problem));
        }
        Ok(Some(RelativeParams {
            n_buckets,
            max_distance,
        }))
    }

    fn decoder_start(&self, arch: &Arch) -> Result<Option<u32>, ModelError> {
        const START: Key = key("decoder_start_token_id", &["decoder_start_token_id"]);
        if arch.encoder.is_none() {
            return Ok(None);
        }
        let start = self.optional(&START, 0, 1 << 26)?.unwrap_or(0);
        Ok(Some(start as u32))
    }

    fn mla(&self) -> Result<MlaParams, ModelError> {
        const Q_RANK: Key = key("attention.q_lora_rank", &["q_lora_rank"]);
        const KV_RANK: Key = key("attention.kv_lora_rank", &["kv_lora_rank"]);
        const ROPE: Key = key("rope.dimension_count", &["qk_rope_head_dim"]);
        const KEY: Key = key("attention.key_length_mla", &[]);
        const VALUE: Key = key("attention.value_length_mla", &["v_head_dim"]);
        const NOPE: Key = key("", &["qk_nope_head_dim"]);
        let rope_dim = self.required(&ROPE, 1, MAX_WIDTH)?;
        // Older GGUF files contain the widths of the expanded form instead of the absorbed one.
        let absorbed = self.optional(&KEY, 1, MAX_WIDTH)?;
        let nope_dim = match (self.optional(&NOPE, 1, MAX_WIDTH)?, absorbed) {
            (Some(dim), _) => dim,
            (None, key_dim) => {
                let key_dim = match key_dim {
                    Some(dim) => dim,
                    None => self.required(&KEY_DIM, 1, MAX_WIDTH)?,
                };
                key_dim
                    .checked_sub(rope_dim)
                    .filter(|&dim| dim > 0)
                    .ok_or_else(|| self.bad(&ROPE, format!("{rope_dim} of {key_dim} turn")))?
            }
        };
        let value_dim = match self.optional(&VALUE, 1, MAX_WIDTH)? {
            Some(dim) => dim,
            None => self.optional(&VALUE_DIM, 1, MAX_WIDTH)?.unwrap_or(nope_dim),
        };
        Ok(MlaParams {
            q_rank: self
                .optional(&Q_RANK, 0, MAX_WIDTH)?
                .filter(|&rank| rank > 0),
            kv_rank: self.required(&KV_RANK, 1, MAX_WIDTH)?,
            nope_dim,
            rope_dim,
            value_dim,
        })
    }

    fn moe(&self, arch: &Arch) -> Result<Option<MoeParams>, ModelError> {
        const EXPERTS: Key = key(
            "expert_count",
            &[
                "num_local_experts",
                "num_experts",
                "n_routed_experts",
                "moe_num_experts",
                "ffn_config.moe_num_experts",
            ],
        );
        const USED: Key = key(
            "expert_used_count",
            &[
                "num_experts_per_tok",
                "top_k_experts",
                "num_experts_per_token",
                "moe_k",
                "moe_topk",
                "ffn_config.moe_top_k",
            ],
        );
        const EXPERT_FF: Key = key(
            "expert_feed_forward_length",
            &[
                "moe_intermediate_size",
                "intermediate_size",
                "ffn_config.ffn_hidden_size",
            ],
        );
        const SCALE: Key = key(
            "expert_weights_scale",
            &[
                "routed_scaling_factor",
                "route_scale",
                "router_scaling_factor",
                "moe_routed_scaling_factor",
            ],
        );
        const NORM: Key = key(
            "expert_weights_norm",
            &["norm_topk_prob", "route_norm", "moe_renormalize"],
        );
        let n_experts = self.optional(&EXPERTS, 0, MAX_EXPERTS)?.unwrap_or(0);
        if n_experts == 0 {
            return Ok(None);
        }
        let n_expert_used = self.required(&USED, 1, MAX_EXPERTS)?;
        if n_expert_used > n_experts {
            return Err(self.bad(&USED, format!("{n_expert_used} of {n_experts} experts")));
        }
        let n_ff = match self.optional(&EXPERT_FF, 1, MAX_FF)? {
            Some(n_ff) => n_ff,
            None => self.required(&FF, 1, MAX_FF)?,
        };
        let gating = self.gating(arch)?;
        if matches!(gating, Gating::SparseMixer { .. }) && n_expert_used > n_experts.min(2) {
            return Err(self.bad(
                &USED,
                format!("{n_expert_used}: the router selects 2 experts"),
            ));
        }
        Ok(Some(MoeParams {
            n_experts,
            n_expert_used,
            n_ff,
            gating,
            renormalize: self.flag(&NORM)?.unwrap_or(arch.moe.renormalize),
            scale: self.positive(&SCALE)?.unwrap_or(1.0),
            groups: self.expert_groups(arch.moe.group_score, n_experts, n_expert_used)?,
        }))
    }

    fn gating(&self, arch: &Arch) -> Result<Gating, ModelError> {
        const GATING: Key = key(
            "expert_gating_func",
            &["scoring_func", "score_func", "moe_router_activation_func"],
        );
        const JITTER: Key = key("", &["router_jitter_noise"]);
        if let Gating::SparseMixer { jitter } = arch.moe.gating {
            let jitter = self.positive(&JITTER)?.unwrap_or(jitter);
            return Ok(Gating::SparseMixer { jitter });
        }
        match self.get(&GATING) {
            None => Ok(arch.moe.gating),
            Some(Value::String(name)) if name == "softmax" => Ok(Gating::Softmax),
            Some(Value::String(name)) if name == "sigmoid" => Ok(Gating::Sigmoid),
            Some(value) => match value.as_u64() {
                Some(0) => Ok(arch.moe.gating),
                Some(1) => Ok(Gating::Softmax),
                Some(2) => Ok(Gating::Sigmoid),
                Some(3) => Ok(Gating::SoftmaxChosen),
                _ => Err(self.bad(&GATING, format!("{value} is not supported"))),
            },
        }
    }

    fn expert_groups(
        &self,
        score: GroupScore,
        n_experts: usize,
        n_expert_used: usize,
    ) -> Result<Option<ExpertGroups>, ModelError> {
        const GROUPS: Key = key("expert_group_count", &["n_group", "num_expert_group"]);
        const USED: Key = key("expert_group_used_count", &["topk_group"]);
        const METHOD: Key = key("", &["topk_method"]);
        let n_groups = self.optional(&GROUPS, 0, MAX_EXPERTS)?.unwrap_or(1);
        if n_groups <= 1 || self.get(&METHOD).is_some_and(|m| m == "greedy") {
            return Ok(None);
        }
        let used = self.required(&USED, 1, n_groups)?;
        let size = n_experts / n_groups;
        if !n_experts.is_multiple_of(n_groups) || used * size < n_expert_used {
            let problem = format!("{n_groups} groups of {n_experts} experts, {used} used");
            return Err(self.bad(&GROUPS, problem));
        }
        let groups = ExpertGroups {
            n_groups,
            n_groups_used: used,
            score,
        };
        Ok((used < n_groups).then_some(groups))
    }

    fn epsilon(&self, arch: &Arch) -> Result<f32, ModelError> {
        const NAMES: &[&str] = &[
            "rms_norm_eps",
            "layer_norm_eps",
            "layer_norm_epsilon",
            "layernorm_epsilon",
            "norm_eps",
            "norm_epsilon",
        ];
        const RMS: Key = key("attention.layer_norm_rms_epsilon", NAMES);
        const LAYER: Key = key("attention.layer_norm_epsilon", NAMES);
        let (first, second, usual) = match arch.norm {
            NormKind::Rms => (RMS, LAYER, 1e-6),
            NormKind::Layer => (LAYER, RMS, 1e-5),
        };
        Ok(match self.positive(&first)? {
            Some(epsilon) => epsilon,
            None => self.positive(&second)?.unwrap_or(usual),
        })
    }

    /// Scales of embeddings, residuals and logits.
    fn scales(
        &self,
        arch: &Arch,
        n_embd: usize,
        n_layers: usize,
    ) -> Result<(f32, f32, f32), ModelError> {
        const EMBEDDING: Key = key("embedding_scale", &["embedding_multiplier", "scale_emb"]);
        const RESIDUAL: Key = key("residual_scale", &["residual_multiplier"]);
        const LOGITS: Key = key("logit_scale", &["logits_scaling", "logit_scale"]);
        let embedding = self.positive(&EMBEDDING)?;
        let residual = self.positive(&RESIDUAL)?;
        const HEAD: Key = key("", &["lm_head_multiplier"]);
        let logits = self.positive(&LOGITS)?;
        let head = self.positive(&HEAD)?.unwrap_or(1.0);
        let root = (n_embd as f32).sqrt();
        Ok(match arch.scales {
            Scales::Given => (
                embedding.unwrap_or(1.0),
                residual.unwrap_or(1.0),
                head / logits.unwrap_or(1.0),
            ),
            Scales::GivenMultiply => (
                embedding.unwrap_or(1.0),
                residual.unwrap_or(1.0),
                logits.unwrap_or(1.0),
            ),
            Scales::SqrtWidth => (root, 1.0, 1.0),
            Scales::MiniCpm => {
                let depth = self.positive(&key("", &["scale_depth"]))?.unwrap_or(1.4);
                let base = self.positive(&key("", &["dim_model_base"]))?;
                let divisor = logits.unwrap_or(n_embd as f32 / base.unwrap_or(256.0));
                let residual = residual.unwrap_or(depth / (n_layers as f32).sqrt());
                (embedding.unwrap_or(12.0), residual, 1.0 / divisor)
            }
        })
    }

    fn alibi(&self, arch: &Arch, n_layers: usize) -> Result<Option<f32>, ModelError> {
        const BIAS: Key = key("attention.max_alibi_bias", &["attn_config.alibi_bias_max"]);
        const ON: Key = key("", &["attn_config.alibi", "alibi"]);
        Ok(match arch.alibi {
            Alibi::Always(bias) => Some(bias),
            Alibi::IfLayers(n, bias) => (n == n_layers).then_some(bias),
            Alibi::IfGiven => match self.flag(&ON)? {
                Some(true) => Some(self.positive(&BIAS)?.unwrap_or(8.0)),
                Some(false) => None,
                None => self.positive(&BIAS)?,
            },
        })
    }

    fn temperature(&self, arch: &Arch) -> Result<Option<Temperature>, ModelError> {
        const SCALE: Key = key(
            "attention.temperature_scale",
            &["attn_scale", "rope_parameters.llama_4_scaling_beta"],
        );
        const PERIOD: Key = key(
            "rope.scaling.original_context_length",
            &[
                "floor_scale",
                "rope_parameters.original_max_position_embeddings",
            ],
        );
        const ON: Key = key("", &["attn_temperature_tuning"]);
        if self.flag(&ON)? == Some(false) {
            return Ok(None);
        }
        Ok(match arch.temperature {
            TemperatureRule::IfGiven => match self.positive(&SCALE)? {
                None => None,
                Some(scale) => Some(Temperature {
                    scale,
                    period: self
                        .positive(&PERIOD)?
                        .ok_or_else(|| self.missing(&PERIOD))?,
                    offset: 0.0,
                }),
            },
            TemperatureRule::WithoutRope(scale, period) => Some(Temperature {
                scale: self.positive(&SCALE)?.unwrap_or(scale),
                period: match self.config {
                    Some(_) => self.positive(&PERIOD)?.unwrap_or(period as f32),
                    None => period as f32,
                },
                offset: 1.0,
            }),
        })
    }

    fn unweighted_qk_norm(&self, arch: &Arch, moe: Option<&MoeParams>) -> Result<bool, ModelError> {
        let QkNorm::UnweightedAfterRope(n_without) = arch.qk_norm else {
            return Ok(false);
        };
        let usual = moe.is_none_or(|moe| moe.n_experts != n_without);
        Ok(self.flag(&key("", &["use_qk_norm"]))?.unwrap_or(usual))
    }

    fn rope_layout(&self, arch: &Arch, format: Format) -> Result<RopeLayout, ModelError> {
        if let Format::Gguf { .. } = format {
            return Ok(arch.rope.gguf);
        }
        Ok(match self.flag(&key("", &["rope_interleave"]))? {
            Some(true) => RopeLayout::Interleaved,
            Some(false) => RopeLayout::Halves,
            None => arch.rope.hf,
        })
    }

    fn activation(&self, arch: &Arch) -> Result<Activation, ModelError> {
        const NAME: Key = key(
            "",
            &[
                "hidden_act",
                "hidden_activation",
                "activation_function",
                "activation",
                "ffn_config.ffn_act_fn.name",
            ],
        );
        let usual = match arch.activation {
            ActivationRule::Always(activation) => return Ok(activation),
            ActivationRule::Xielu => return Ok(Activation::Silu),
            ActivationRule::ReluOrGatedGelu => return Ok(Activation::Relu),
            ActivationRule::Named(activation) => activation,
        };
        let Some(value) = self.get(&NAME) else {
            return Ok(usual);
        };
        Ok(match value.as_str() {
            Some("silu" | "swish" | "swiglu") => Activation::Silu,
            Some("gelu") => Activation::GeluErf,
            Some("gelu_new" | "gelu_pytorch_tanh" | "gelu_fast") => Activation::GeluTanh,
            Some("quick_gelu") => Activation::GeluQuick,
            Some("relu") => Activation::Relu,
            Some("relu2") => Activation::ReluSquared,
            _ => return Err(self.bad(&NAME, format!("{value} is not supported"))),
        })
    }

    fn altup(&self) -> Result<Option<AltUpParams>, ModelError> {
        const STREAMS: Key = key("altup.num_inputs", &["altup_num_inputs"]);
        const ACTIVE: Key = key("altup.active_idx", &["altup_active_idx"]);
        let Some(n_streams) = self.optional(&STREAMS, 2, 64)? else {
            return Ok(None);
        };
        let active = self.optional(&ACTIVE, 0, n_streams - 1)?.unwrap_or(0);
        Ok(Some(AltUpParams { n_streams, active }))
    }
}
