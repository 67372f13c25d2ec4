//! Architectures as data: a static descriptor for each, read by the one decoder builder.
//!
//! [`hparams`] reads the numbers of a particular model, [`names`] knows what its tensors are
//! called. Nothing outside this folder asks for an architecture by name.

mod bert;
mod cohere;
pub mod config;
mod deepseek;
mod describe;
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
use crate::mix::Family;
use crate::model::ModelError;
use serde_json::Value;

pub use describe::{Knob, Outline};
pub use hparams::{Hparams, LayerParams};
pub use names::TensorRole;

/// What sets one family of models apart from the others.
///
/// Which optional tensors a layer has is told by the file; this says what they mean.
#[derive(Debug)]
pub struct Arch {
    /// `general.architecture` in GGUF files.
    pub name: &'static str,
    /// `architectures` in `config.json`.
    pub hf_classes: &'static [&'static str],
    /// What else a `config.json` must say, where two families share a class.
    pub hf_when: Option<fn(&Value) -> bool>,
    /// Whose rules a mix of types follows.
    pub mix_family: Family,

    /// The norm of the residual stream.
    pub norm: NormKind,
    /// Whether norms have weights; OLMo's first have none.
    pub norm_weights: bool,
    /// Whether the input of attention and feed-forward layer is normalised.
    pub pre_norm: bool,
    /// What Hugging Face files leave out of norm weights: Gemma stores `weight − 1`.
    pub hf_norm_offset: f32,
    /// Whether attention and feed-forward layer read the same input, where the file does not say.
    pub parallel: bool,

    /// Which elements of a head turn together, in each kind of file.
    pub rope: RopeLayouts,
    /// Pairs of a head that turn by time, height and width, where pictures may come between and the
    /// file does not say; those of other heads are in proportion.
    pub rope_sections: Option<[usize; 3]>,
    /// Which layers turn queries and keys at all.
    pub rope_layers: RopeLayers,
    /// Whether scores fall with distance instead.
    pub alibi: Alibi,
    /// The share of a head that turns, where a `config.json` does not say.
    pub hf_rotary_share: f32,
    /// Rows before position 0 in a table of learned positions.
    pub position_offset: usize,
    /// Positions that a `config.json` counts and that are not there: such rows, in some families.
    pub hf_extra_positions: usize,

    /// Whether tokens see only those before them, where the file does not say.
    pub causal: bool,
    /// What reads the prompt, where that is not the decoder itself.
    pub encoder: Option<&'static Arch>,
    /// How tokens see each other, in layers with attention.
    pub mixer: Mixer,
    /// Whether layers may lack attention, or all of it but a projection, or the feed-forward half.
    pub pruned: bool,
    /// What layers have that keep a state instead of keys and values.
    pub recurrent: Option<RecurrentSpec>,
    /// Which layers see only a window, where the file does not say it layer by layer.
    pub windows: Windows,
    /// What a window is.
    pub window_kind: WindowKind,
    /// RoPE base of windowed layers, where GGUF files do not say it.
    pub window_rope_base: Option<f32>,
    /// What scores are scaled by.
    pub query_scale: QueryScale,
    /// Where queries and keys are normalised, if they are.
    pub qk_norm: QkNorm,
    /// What a gate on attention goes through, where the file has one.
    pub attention_gate: Activation,
    /// Whether each query head is followed by a gate on its result.
    pub gated_queries: bool,
    /// Whether value heads are normalised, without weights.
    pub value_norm: bool,
    /// Whether keys serve as values where a layer has no values of its own.
    pub keys_as_values: bool,
    /// Whether attention sharpens far out.
    pub temperature: TemperatureRule,
    /// The order of rows where Hugging Face files keep q, k and v in one matrix.
    pub hf_qkv: QkvLayout,

    /// The function of the feed-forward layers.
    pub activation: ActivationRule,
    /// gpt-oss: the bound on both halves of a gated unit.
    pub glu_limit: Option<f32>,
    /// Width of the feed-forward layers, where the file does not say.
    pub default_ff: DefaultFf,
    /// Whether the feed-forward length of the file counts both halves (Qwen 1).
    pub ff_counts_both: bool,
    /// What the router does, where there are experts and the file does not say.
    pub moe: MoeSpec,
    /// Gemma 3n: whether the threshold of sparse activations uses the unbiased variance.
    pub unbiased_sparsity: bool,

    /// How embeddings, residuals and logits are scaled.
    pub scales: Scales,

    /// Names in `config.json` that differ from Llama's; the first of each pair is that.
    pub hf_keys: &'static [(&'static str, &'static str)],
    /// GGUF names that differ from the usual.
    pub gguf_names: &'static [(TensorRole, &'static str)],
    /// Hugging Face names that differ from Llama's. A role may have several: the first that the
    /// file has is taken.
    pub hf_names: &'static [(TensorRole, &'static str)],
    /// Tensors that Hugging Face files keep as inputs × outputs.
    pub hf_transposed: &'static [TensorRole],
    /// Whether rows of gate and up alternate where Hugging Face files keep both in one matrix.
    pub hf_gate_up_alternate: bool,
    /// What GGUF makes of matrices that Hugging Face files keep together.
    pub gguf_form: GgufForm,
}

/// What GGUF takes apart, or keeps together, of the matrices of Hugging Face files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GgufForm {
    /// Whether queries, keys and values in one matrix become three.
    pub split_qkv: bool,
    /// Whether both halves of experts in one stack stay so.
    pub fused_experts: bool,
    /// Whether the up-projection of compressed keys and values becomes two, ready to be applied to
    /// queries.
    pub absorbed_kv: bool,
    /// Whether both halves of a feed-forward layer in one matrix become two.
    pub split_gate_up: bool,
    /// Whether factors of the configuration are in the weights (Falcon-H1).
    pub folded_multipliers: bool,
    /// Tensors whose names lack the usual ending.
    pub bare: &'static [TensorRole],
}

/// What GGUF files of most families look like.
const USUAL_FORM: GgufForm = GgufForm {
    split_qkv: false,
    fused_experts: false,
    absorbed_kv: false,
    split_gate_up: false,
    folded_multipliers: false,
    bare: &[],
};

/// The layout of rotary embeddings in each kind of file.
#[derive(Clone, Copy, Debug)]
pub struct RopeLayouts {
    /// In GGUF, whose converter permutes the weights of some families.
    pub gguf: RopeLayout,
    /// In safetensors.
    pub hf: RopeLayout,
}

/// Pairs are halves of a head in both kinds of file.
const HALVES: RopeLayouts = RopeLayouts {
    gguf: RopeLayout::Halves,
    hf: RopeLayout::Halves,
};

/// Pairs are neighbours in both kinds of file.
const INTERLEAVED: RopeLayouts = RopeLayouts {
    gguf: RopeLayout::Interleaved,
    hf: RopeLayout::Interleaved,
};

/// GGUF's converter permutes the rows of q and k so that pairs are neighbours.
const PERMUTED: RopeLayouts = RopeLayouts {
    gguf: RopeLayout::Interleaved,
    hf: RopeLayout::Halves,
};

/// Which layers have rotary embeddings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeLayers {
    /// All.
    All,
    /// None: positions are learned, or scores fall with distance.
    None,
    /// All but each n-th, where the file does not list them.
    AllButEvery(usize),
    /// Those with a window, if there are any; else all.
    Windowed,
    /// All where the file says so; none where it says nothing.
    IfGiven,
}

/// Linear biases by distance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Alibi {
    /// Where the metadata gives their largest slope.
    IfGiven,
    /// In all models, with this exponent.
    Always(f32),
    /// In the model of this many layers, which then has no rotary embedding (Baichuan).
    IfLayers(usize, f32),
}

/// How tokens see each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixer {
    /// Softmax attention over keys and values.
    Attention,
    /// Multi-head latent attention: keys and values are kept compressed.
    Mla,
}

/// The recurrent parts of a family.
#[derive(Clone, Copy, Debug)]
pub struct RecurrentSpec {
    /// What they compute.
    pub kind: RecurrentKind,
    /// Which layers have them.
    pub layers: RecurrentLayers,
    /// Mamba: whether steps, and what is written and read, are normalised although the file has no
    /// weights for it, where the file does not say.
    pub inner_norms: bool,
    /// Mamba 2: whether each group of heads has its own norm in Hugging Face's reading as well.
    pub hf_norm_groups: bool,
    /// How heads of values share those of keys in GGUF files.
    pub gguf_sharing: KeySharing,
}

/// What a recurrent part computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecurrentKind {
    /// A gated convolution over a few tokens.
    ShortConv,
    /// A state space whose channels are each their own.
    Mamba,
    /// A state space with heads.
    Mamba2,
    /// The gated delta rule.
    DeltaNet,
    /// The same with a decay for each channel.
    KimiDelta,
    /// RWKV 4.
    Rwkv4,
    /// RWKV 6.
    Rwkv6,
    /// RWKV 7.
    Rwkv7,
}

/// Which layers are recurrent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecurrentLayers {
    /// Those that the file lists as having no attention; all where it lists nothing.
    Listed,
    /// The same, but all except each n-th where it lists nothing.
    AllButEvery(usize),
    /// As listed, and a layer is a mixer or a feed-forward layer, not both.
    Alone,
    /// All, beside attention.
    Beside,
}

/// Which layers attend to a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows {
    /// None: a window in the metadata is not meant for this graph.
    Never,
    /// All layers, if the metadata gives a window.
    All,
    /// All but each n-th.
    AllButEvery(usize),
    /// Each n-th is full, beginning with the first.
    FullFirst(usize),
}

/// What a window is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowKind {
    /// The last positions.
    Sliding,
    /// The positions of the same chunk; of this size where the file does not say.
    Chunk(usize),
}

/// What attention scores are scaled by, where the file does not say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryScale {
    /// One over the root of the head's width.
    HeadDim,
    /// The same, but in the model of this many layers by `embedding / heads` (Gemma's largest).
    HeadDimUnlessLayers(usize),
    /// Not at all: queries and keys are normalised.
    One,
}

/// Norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// Before they are turned, where the file has weights for it.
    BeforeRope,
    /// After, where the file has weights for it.
    AfterRope,
    /// After, without weights, on layers that turn, unless the model has this many experts (Llama 4).
    UnweightedAfterRope(usize),
}

/// When attention sharpens far out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TemperatureRule {
    /// Where the metadata says so, in all layers.
    IfGiven,
    /// In layers without rotary embedding: factor, period and offset where the file does not say.
    WithoutRope(f32, usize),
}

/// The rows of a matrix that holds q, k and v.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkvLayout {
    /// All of q, all of k, all of v.
    Concatenated,
    /// For each key head: the query heads that share it, its key, its value.
    Grouped,
}

/// The function of feed-forward layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivationRule {
    /// What `config.json` names; this in GGUF.
    Named(Activation),
    /// This, whatever a `config.json` says.
    Always(Activation),
    /// xIELU.
    Xielu,
    /// GELU's approximation where there is a gate, else ReLU (T5).
    ReluOrGatedGelu,
}

/// How wide feed-forward layers are by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultFf {
    /// Four times the stream.
    Quadruple,
    /// Two thirds of that, rounded up to a multiple of 256.
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

/// How values are scaled along the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scales {
    /// As the metadata says; logits are divided by their scale (Granite).
    Given,
    /// As the metadata says; logits are multiplied by their scale (Cohere).
    GivenMultiply,
    /// Embeddings by the root of their width (Gemma).
    SqrtWidth,
    /// MiniCPM's way of counting.
    MiniCpm,
}

/// What a mixture of experts does with its router's logits.
#[derive(Clone, Copy, Debug)]
pub struct MoeSpec {
    /// What turns logits into weights.
    pub gating: Gating,
    /// Whether the chosen weights are scaled to sum to one.
    pub renormalize: bool,
    /// What a group of experts counts for, where routing is limited to groups.
    pub group_score: GroupScore,
    /// Whether the weight multiplies an expert's input.
    pub weigh_input: bool,
}

/// What most families have in common; a descriptor names only its differences.
const BASE: Arch = Arch {
    name: "",
    hf_classes: &[],
    hf_when: None,
    mix_family: Family::Usual,
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
    gguf_form: USUAL_FORM,
};

/// The usual router.
const MOE: MoeSpec = MoeSpec {
    gating: Gating::Softmax,
    renormalize: true,
    group_score: GroupScore::TwoBest,
    weigh_input: false,
};

/// Recurrent parts as most have them.
const RECURRENT: RecurrentSpec = RecurrentSpec {
    kind: RecurrentKind::Mamba2,
    layers: RecurrentLayers::Listed,
    inner_norms: false,
    hf_norm_groups: false,
    gguf_sharing: KeySharing::Runs,
};

/// Every architecture that runs. A GGUF name finds the first with that name.
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
    /// The architecture of a file, from its metadata alone.
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
                let meant = |arch: &&&Arch| {
                    let when = arch.hf_when.zip(file.config());
                    arch.hf_classes.contains(&class) && when.is_none_or(|(when, it)| when(it))
                };
                // Those that ask for more come after those that do not.
                (class, ARCHS.iter().rev().find(meant))
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

/// The supported names that look most like `wanted`, for the error message.
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

/// Levenshtein's distance.
fn edit_distance(a: &str, b: &str) -> usize {
    // Names are short; a hostile one is cut so that the table stays small.
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
    fn an_unknown_name_is_answered_with_its_neighbours() {
        assert!(nearest("qwen4").contains("qwen3"));
        assert_eq!(edit_distance("gemma", "gamma3"), 2);
    }

    #[test]
    fn descriptors_are_told_apart() {
        // A class leads to one descriptor, and a GGUF name to the first that has it.
        let plain = ARCHS.iter().filter(|arch| arch.hf_when.is_none());
        let mut classes: Vec<&str> = plain.flat_map(|a| a.hf_classes).copied().collect();
        classes.sort_unstable();
        assert!(classes.windows(2).all(|pair| pair[0] != pair[1]));
        let names: std::collections::BTreeSet<&str> = ARCHS.iter().map(|a| a.name).collect();
        assert!(names.len() >= 60, "{} names", names.len());
    }
}
