//! Architectures as data: one static descriptor for each, read by one [builder](crate::builder).
//!
//! [`hparams`] reads the hyper-parameters of a model; [`names`] maps tensor names. Code outside
//! this directory never asks for an architecture by name.

mod bert;
mod cohere;
pub mod config;
mod deepseek;
mod describe;
mod error;
mod experts;
mod gemma;
mod glm;
mod gpt;
mod granite;
pub mod hparams;
mod layers;
mod lfm;
mod llama;
mod mamba;
pub mod names;
mod phi;
mod qwen;
mod recurrent;
mod ropes;
mod rwkv;
mod source;
mod t5;

use crate::file::{Format, ModelFile};
use crate::graph::{Activation, Gating, GroupScore, KeySharing, NormKind, RopeLayout};
use serde_json::Value;

pub use describe::{ArchSummary, Property};
pub use error::ModelError;
pub(crate) use hparams::MAX_CONTEXT;
pub use hparams::{Hparams, LayerParams};
pub use names::TensorRole;

/// Descriptor of an architecture: the choices that differ between families.
///
/// Optional tensors are recognized by their presence in the file; the descriptor defines what they
/// mean.
#[derive(Debug)]
pub struct Arch {
    /// `general.architecture` in GGUF files.
    pub name: &'static str,
    /// `architectures` in `config.json`.
    pub hf_classes: &'static [&'static str],
    /// Further condition on `config.json`, where two families share a class.
    pub hf_when: Option<fn(&Value) -> bool>,
    /// Family of quantization recipes ([`crate::recipe`]).
    pub recipe_family: Family,

    /// Norm of the residual stream.
    pub norm: NormKind,
    /// True if norms have weights. Those of OLMo 1 have none.
    pub norm_weights: bool,
    /// True if the input of attention and feed-forward layers is normalized.
    pub pre_norm: bool,
    /// Offset that Hugging Face files omit from norm weights: Gemma stores `weight − 1`.
    pub hf_norm_offset: f32,
    /// True if attention and feed-forward layer read the same input, unless the file says
    /// otherwise.
    pub parallel: bool,

    /// Pairing of the elements that RoPE rotates together.
    pub rope: RopeLayouts,
    /// Pairs of a head rotated by time, height and width (multi-section RoPE), unless the file says
    /// otherwise. Heads of another width are divided in the same proportion.
    pub rope_sections: Option<[usize; 3]>,
    /// Layers that apply RoPE to queries and keys.
    pub rope_layers: RopeLayers,
    /// Use of linear position biases (ALiBi).
    pub alibi: Alibi,
    /// Fraction of a head that RoPE rotates, unless `config.json` says otherwise.
    pub hf_rotary_share: f32,
    /// Unused rows before position 0 in a table of learned positions.
    pub position_offset: usize,
    /// Positions that `config.json` counts although they do not exist, such as the unused rows in
    /// some families.
    pub hf_extra_positions: usize,

    /// True if attention is causal, unless the file says otherwise.
    pub causal: bool,
    /// Encoder that reads the prompt, in encoder-decoder models.
    pub encoder: Option<&'static Arch>,
    /// Kind of attention.
    pub mixer: Mixer,
    /// True if layers may lack attention, all of it but the output projection, or the feed-forward
    /// layer.
    pub pruned: bool,
    /// Recurrent part of the layers.
    pub recurrent: Option<RecurrentSpec>,
    /// Layers with windowed attention, unless the file lists them.
    pub windows: Windows,
    /// Kind of window.
    pub window_kind: WindowKind,
    /// RoPE base of windowed layers, for GGUF files without one.
    pub window_rope_base: Option<f32>,
    /// Scale of attention scores.
    pub query_scale: QueryScale,
    /// Place of the norms of queries and keys.
    pub qk_norm: QkNorm,
    /// Activation of the attention gate, where the file has one.
    pub attention_gate: Activation,
    /// True if each query head is followed by a gate on its result.
    pub gated_queries: bool,
    /// True if value heads are normalized, without weights.
    pub value_norm: bool,
    /// True if keys serve as values where a layer has no values of its own.
    pub keys_as_values: bool,
    /// Rule for scaling attention at large positions (temperature tuning).
    pub temperature: TemperatureRule,
    /// Row order of Hugging Face matrices that contain q, k and v.
    pub hf_qkv: QkvLayout,

    /// Activation of the feed-forward layers.
    pub activation: ActivationRule,
    /// gpt-oss: bound on both halves of a gated unit.
    pub glu_limit: Option<f32>,
    /// Default width of the feed-forward layers.
    pub default_ff: DefaultFf,
    /// True if the feed-forward length in the file counts both halves (Qwen 1).
    pub ff_counts_both: bool,
    /// Default router settings, for models with experts.
    pub moe: MoeSpec,
    /// Gemma 3n: true if the threshold of sparse activations uses the unbiased variance.
    pub unbiased_sparsity: bool,

    /// Scales of embeddings, residuals and logits.
    pub scales: Scales,

    /// Names in `config.json` that differ from Llama's, as pairs of Llama's name and this family's.
    pub hf_keys: &'static [(&'static str, &'static str)],
    /// GGUF names that differ from the default.
    pub gguf_names: &'static [(TensorRole, &'static str)],
    /// Hugging Face names that differ from Llama's. A role may have several; the first that the
    /// file contains is used.
    pub hf_names: &'static [(TensorRole, &'static str)],
    /// Tensors that Hugging Face files store as inputs × outputs.
    pub hf_transposed: &'static [TensorRole],
    /// True if the rows of gate and up alternate in Hugging Face matrices that contain both.
    pub hf_gate_up_alternate: bool,
    /// Differences between GGUF and Hugging Face matrices.
    pub gguf_form: GgufForm,
}

/// Splitting and fusing of Hugging Face matrices in GGUF files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GgufForm {
    /// True if a matrix of queries, keys and values is split into three.
    pub split_qkv: bool,
    /// True if gate and up of the experts stay in one stack.
    pub fused_experts: bool,
    /// True if the up-projection of compressed keys and values (MLA) is split into two, in the form
    /// that is applied to queries.
    pub absorbed_kv: bool,
    /// True if a matrix of gate and up is split into two.
    pub split_gate_up: bool,
    /// True if the multipliers of the configuration are folded into the weights (Falcon-H1).
    pub folded_multipliers: bool,
    /// Tensors whose names lack the `.weight` or `.bias` suffix.
    pub bare: &'static [TensorRole],
}

/// Form of the GGUF files of most families.
const DEFAULT_FORM: GgufForm = GgufForm {
    split_qkv: false,
    fused_experts: false,
    absorbed_kv: false,
    split_gate_up: false,
    folded_multipliers: false,
    bare: &[],
};

/// Families whose quantization recipes differ ([`crate::recipe`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// All other families.
    #[default]
    Default,
    /// Llama; its largest model has a rule of its own.
    Llama,
    /// Falcon; its feed-forward layers are less sensitive.
    Falcon,
}

/// RoPE pairings of each file format.
#[derive(Clone, Copy, Debug)]
pub struct RopeLayouts {
    /// In GGUF, whose converter permutes the weights of some families.
    pub gguf: RopeLayout,
    /// In safetensors.
    pub hf: RopeLayout,
}

/// Pairs consist of an element of each half of the head, in both formats.
const HALVES: RopeLayouts = RopeLayouts {
    gguf: RopeLayout::Halves,
    hf: RopeLayout::Halves,
};

/// Pairs are neighboring elements, in both formats.
const INTERLEAVED: RopeLayouts = RopeLayouts {
    gguf: RopeLayout::Interleaved,
    hf: RopeLayout::Interleaved,
};

/// Pairs are neighbors in GGUF only: its converter permutes the rows of q and k.
const PERMUTED: RopeLayouts = RopeLayouts {
    gguf: RopeLayout::Interleaved,
    hf: RopeLayout::Halves,
};

/// Layers that apply RoPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeLayers {
    /// All layers.
    All,
    /// No layer: positions are learned or linear biases.
    None,
    /// All but every n-th layer, unless the file lists them.
    AllButEvery(usize),
    /// Layers with a window, if there are any; else all.
    Windowed,
    /// All layers if the file says so; otherwise none.
    IfGiven,
}

/// Linear position biases (ALiBi, Press et al. 2022).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Alibi {
    /// Used if the metadata contains the maximum bias.
    IfGiven,
    /// Used in all models, with this maximum bias.
    Always(f32),
    /// Used in models with this number of layers, instead of RoPE (Baichuan).
    IfLayers(usize, f32),
}

/// Kind of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixer {
    /// Softmax attention over cached keys and values.
    Attention,
    /// Multi-head latent attention: the cache holds compressed keys and values.
    Mla,
}

/// Recurrent parts of a family.
#[derive(Clone, Copy, Debug)]
pub struct RecurrentSpec {
    /// Kind of recurrence.
    pub kind: RecurrentKind,
    /// Layers that have them.
    pub layers: RecurrentLayers,
    /// Mamba: default of whether steps, B and C are normalized without weights.
    pub inner_norms: bool,
    /// Mamba 2: true if `transformers` also normalizes each group of heads separately.
    pub hf_norm_groups: bool,
    /// Assignment of value heads to key heads in GGUF files.
    pub gguf_sharing: KeySharing,
}

/// Kind of recurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecurrentKind {
    /// Gated short convolution (LFM2).
    ShortConv,
    /// Mamba: a selective state space per channel.
    Mamba,
    /// Mamba 2: a selective state space per head.
    Mamba2,
    /// Gated delta rule.
    DeltaNet,
    /// Gated delta rule with a decay for each channel (Kimi).
    KimiDelta,
    /// RWKV 4.
    Rwkv4,
    /// RWKV 6.
    Rwkv6,
    /// RWKV 7.
    Rwkv7,
}

/// Layers that are recurrent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecurrentLayers {
    /// Layers that the file lists as having no attention; all if it has no list.
    Listed,
    /// As `Listed`, but all except every n-th if the file has no list.
    AllButEvery(usize),
    /// As `Listed`; in addition, a layer is either a mixer or a feed-forward layer.
    Exclusive,
    /// All layers, in parallel with attention.
    Parallel,
}

/// Layers with windowed attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows {
    /// No layer; a window in the metadata is ignored.
    Never,
    /// All layers, if the metadata contains a window.
    All,
    /// All but every n-th layer.
    AllButEvery(usize),
    /// All but every n-th layer, where the first is full.
    FullFirst(usize),
}

/// Kind of attention window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowKind {
    /// Sliding window over the last positions.
    Sliding,
    /// Chunk that contains the position; the size applies unless the file has one.
    Chunk(usize),
}

/// Scale of attention scores, unless the file contains one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryScale {
    /// `1 / √head_dim`.
    HeadDim,
    /// As `HeadDim`, but `1 / √(embedding / heads)` in the model with this number of layers (Gemma
    /// 27B).
    HeadDimUnlessLayers(usize),
    /// No scale: queries and keys are normalized.
    One,
}

/// Norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// Before RoPE, where the file has weights for them.
    BeforeRope,
    /// After RoPE, where the file has weights for them.
    AfterRope,
    /// After RoPE, without weights, in layers with RoPE, unless the model has this many experts
    /// (Llama 4).
    UnweightedAfterRope(usize),
}

/// Rule for scaling queries at large positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TemperatureRule {
    /// In all layers, if the metadata contains the scale.
    IfGiven,
    /// In layers without RoPE, with this default scale and period.
    WithoutRope(f32, usize),
}

/// Row order of a matrix that contains q, k and v.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkvLayout {
    /// All of q, then all of k, then all of v.
    Concatenated,
    /// For each key head: its query heads, the key, the value.
    Grouped,
}

/// Activation of feed-forward layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivationRule {
    /// Activation named in `config.json`; this one in GGUF.
    Named(Activation),
    /// This activation; `config.json` is ignored.
    Always(Activation),
    /// xIELU, whose parameters are learned.
    Xielu,
    /// Approximate GELU in gated layers, else ReLU (T5).
    ReluOrGatedGelu,
}

/// Default width of feed-forward layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultFf {
    /// Four times the embedding width.
    Quadruple,
    /// 8/3 of the embedding width, rounded up to a multiple of 256.
    TwoThirds,
}

impl DefaultFf {
    fn of(self, n_embd: usize) -> usize {
        match self {
            DefaultFf::Quadruple => 4 * n_embd,
            DefaultFf::TwoThirds => (8 * n_embd / 3).next_multiple_of(256),
        }
    }
}

/// Scales of embeddings, residuals and logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scales {
    /// From the metadata; logits are divided by their scale (Granite).
    Given,
    /// From the metadata; logits are multiplied by their scale (Cohere).
    GivenMultiply,
    /// Embeddings are multiplied by the root of their width (Gemma).
    SqrtWidth,
    /// From the metadata, with the definitions of MiniCPM.
    MiniCpm,
}

/// Default router settings of a mixture of experts.
#[derive(Clone, Copy, Debug)]
pub struct MoeSpec {
    /// Function from router logits to weights.
    pub gating: Gating,
    /// True if the weights of the selected experts are scaled to sum to one.
    pub renormalize: bool,
    /// Score of a group of experts, in group-limited routing.
    pub group_score: GroupScore,
    /// True if the weight multiplies an expert's input instead of its output.
    pub apply_router_weight_on_input: bool,
}

/// Defaults. A descriptor lists only its differences.
const BASE: Arch = Arch {
    name: "",
    hf_classes: &[],
    hf_when: None,
    recipe_family: Family::Default,
    norm: NormKind::Rms,
    norm_weights: true,
    pre_norm: true,
    hf_norm_offset: 0.0,
    parallel: false,
    rope: HALVES,
    rope_sections: None,
    rope_layers: RopeLayers::All,
    alibi: Alibi::IfGiven,
    hf_rotary_share: 1.0,
    position_offset: 0,
    hf_extra_positions: 0,
    causal: true,
    encoder: None,
    mixer: Mixer::Attention,
    pruned: false,
    recurrent: None,
    windows: Windows::Never,
    window_kind: WindowKind::Sliding,
    window_rope_base: None,
    query_scale: QueryScale::HeadDim,
    qk_norm: QkNorm::BeforeRope,
    attention_gate: Activation::Sigmoid,
    gated_queries: false,
    value_norm: false,
    keys_as_values: false,
    temperature: TemperatureRule::IfGiven,
    hf_qkv: QkvLayout::Concatenated,
    activation: ActivationRule::Named(Activation::Silu),
    glu_limit: None,
    default_ff: DefaultFf::Quadruple,
    ff_counts_both: false,
    moe: MOE,
    unbiased_sparsity: false,
    scales: Scales::Given,
    hf_keys: &[],
    gguf_names: &[],
    hf_names: &[],
    hf_transposed: &[],
    hf_gate_up_alternate: false,
    gguf_form: DEFAULT_FORM,
};

/// Default router settings.
const MOE: MoeSpec = MoeSpec {
    gating: Gating::Softmax,
    renormalize: true,
    group_score: GroupScore::TwoBest,
    apply_router_weight_on_input: false,
};

/// Defaults of recurrent parts.
const RECURRENT: RecurrentSpec = RecurrentSpec {
    kind: RecurrentKind::Mamba2,
    layers: RecurrentLayers::Listed,
    inner_norms: false,
    hf_norm_groups: false,
    gguf_sharing: KeySharing::Grouped,
};

/// All supported architectures. A GGUF name selects the first descriptor with that name.
pub static ARCHS: &[&Arch] = &[
    &llama::LLAMA,
    &llama::MISTRAL,
    &llama::MIXTRAL,
    &llama::MISTRAL3,
    &llama::LLAMA4,
    &llama::SMOLLM3,
    &llama::SEED_OSS,
    &llama::ARCEE,
    &llama::APERTUS,
    &llama::BAICHUAN,
    &llama::INTERNLM2,
    &llama::EXAONE,
    &llama::EXAONE4,
    &llama::XVERSE,
    &llama::REFACT,
    &llama::DECI,
    &llama::BITNET,
    &llama::ORION,
    &llama::ERNIE4_5,
    &llama::ERNIE4_5_MOE,
    &llama::HUNYUAN_DENSE,
    &llama::HUNYUAN_MOE,
    &llama::HELIUM,
    &granite::GRANITE,
    &granite::GRANITEMOE,
    &granite::GRANITE_SWA,
    &granite::MINICPM,
    &qwen::QWEN,
    &qwen::QWEN2,
    &qwen::QWEN2VL,
    &qwen::QWEN2MOE,
    &qwen::QWEN3,
    &qwen::QWEN3MOE,
    &qwen::QWEN3VL,
    &qwen::QWEN3VLMOE,
    &qwen::MELLUM,
    &qwen::MIMO2,
    &gemma::GEMMA,
    &gemma::GEMMA2,
    &gemma::GEMMA3,
    &gemma::VAULTGEMMA,
    &gemma::GEMMA3N,
    &gemma::GEMMA3N_HF,
    &gemma::GEMMA4,
    &glm::CHATGLM,
    &glm::CHATGLM_HF,
    &glm::GLM4,
    &glm::GLM4MOE,
    &phi::PHI2,
    &phi::PHI3,
    &phi::PHI3_HF,
    &phi::PHIMOE,
    &phi::PHIMOE_HF,
    &gpt::GPT2,
    &gpt::STARCODER,
    &gpt::CODESHELL,
    &gpt::STARCODER2,
    &gpt::GPTJ,
    &gpt::GPTNEOX,
    &gpt::BLOOM,
    &gpt::FALCON,
    &gpt::MPT,
    &gpt::OPT,
    &gpt::STABLELM,
    &gpt::NEMOTRON,
    &cohere::COMMAND_R,
    &cohere::COHERE2,
    &cohere::OLMO,
    &cohere::OLMO2,
    &cohere::OLMOE,
    &deepseek::DEEPSEEK,
    &deepseek::DEEPSEEK2,
    &deepseek::DEEPSEEK_V2,
    &deepseek::DEEPSEEK_V3,
    &deepseek::MINICPM3,
    &deepseek::DOTS1,
    &deepseek::BAILINGMOE,
    &deepseek::BAILINGMOE2,
    &experts::GPT_OSS,
    &experts::DBRX,
    &experts::MINIMAX_M2,
    &experts::AFMOE,
    &experts::EXAONE_MOE,
    &experts::HY_V3,
    &experts::LAGUNA,
    &lfm::LFM2,
    &lfm::LFM2MOE,
    &mamba::MAMBA,
    &mamba::FALCON_MAMBA,
    &mamba::MAMBA2,
    &mamba::FALCON_H1,
    &mamba::JAMBA,
    &mamba::NEMOTRON_H,
    &mamba::NEMOTRON_H_MOE,
    &granite::GRANITEHYBRID,
    &granite::BAMBA,
    &qwen::QWEN3NEXT,
    &qwen::QWEN35,
    &qwen::QWEN35MOE,
    &deepseek::KIMI_LINEAR,
    &rwkv::RWKV4,
    &rwkv::RWKV6,
    &rwkv::RWKV7,
    &bert::BERT,
    &bert::ROBERTA,
    &bert::NOMIC_BERT,
    &bert::NOMIC_BERT_MOE,
    &bert::MODERN_BERT,
    &bert::JINA_BERT_V2,
    &bert::JINA_BERT_V3,
    &gemma::GEMMA_EMBEDDING,
    &t5::T5,
    &t5::T5_ENCODER,
];

impl Arch {
    /// Detects the architecture of a file from its metadata.
    pub fn detect(file: &ModelFile) -> Result<&'static Arch, ModelError> {
        let (wanted, found) = match file.format() {
            Format::Gguf { .. } => {
                let key = "general.architecture";
                let name = file
                    .metadata()
                    .str(key)
                    .ok_or_else(|| ModelError::MissingKey {
                        file: file.path().to_path_buf(),
                        key: key.into(),
                    })?;
                (name, ARCHS.iter().find(|arch| arch.name == name))
            }
            _ => {
                let place = || file.path().with_file_name("config.json");
                let config = file.config();
                let config = config.ok_or_else(|| ModelError::MissingConfig { file: place() })?;
                let class = config
                    .get("architectures")
                    .and_then(|classes| classes.get(0)?.as_str())
                    .ok_or_else(|| ModelError::MissingKey {
                        file: place(),
                        key: "architectures".into(),
                    })?;
                let matches = |arch: &&&Arch| {
                    let when = arch.hf_when.zip(file.config());
                    arch.hf_classes.contains(&class) && when.is_none_or(|(when, it)| when(it))
                };
                // Descriptors with further conditions come after those without.
                (class, ARCHS.iter().rev().find(matches))
            }
        };
        found
            .copied()
            .ok_or_else(|| ModelError::UnknownArchitecture {
                file: file.path().to_path_buf(),
                name: wanted.to_owned(),
                nearest: nearest(wanted),
            })
    }
}

/// Supported names that are most similar to `wanted`, for the error message.
fn nearest(wanted: &str) -> String {
    let wanted = wanted.to_ascii_lowercase();
    let mut names: Vec<(usize, &str)> = ARCHS
        .iter()
        .map(|arch| (edit_distance(&wanted, arch.name), arch.name))
        .collect();
    names.sort();
    names.dedup();
    let names: Vec<&str> = names.into_iter().take(3).map(|(_, name)| name).collect();
    names.join(", ")
}

/// Levenshtein distance.
fn edit_distance(a: &str, b: &str) -> usize {
    // Names from files are cut to bound the size of the table.
    let a: Vec<char> = a.chars().take(64).collect();
    let b: Vec<char> = b.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(ca != cb);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_name_gets_similar_names() {
        assert!(nearest("qwen4").contains("qwen3"));
        assert_eq!(edit_distance("gemma", "gamma3"), 2);
    }

    #[test]
    fn classes_are_unique() {
        // A class selects one descriptor, and a GGUF name the first with that name.
        let plain = ARCHS.iter().filter(|arch| arch.hf_when.is_none());
        let mut classes: Vec<&str> = plain.flat_map(|a| a.hf_classes).copied().collect();
        classes.sort_unstable();
        assert!(classes.windows(2).all(|pair| pair[0] != pair[1]));
        let names: std::collections::BTreeSet<&str> = ARCHS.iter().map(|a| a.name).collect();
        assert!(names.len() >= 60, "{} names", names.len());
    }
}
