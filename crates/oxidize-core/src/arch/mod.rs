//! Architectures as data: a static descriptor for each, read by the one decoder builder.
//!
//! [`hparams`] reads the numbers of a particular model, [`names`] knows what its tensors are
//! called. Nothing outside this folder asks for an architecture by name.

mod gemma;
pub mod hparams;
mod llama;
pub mod names;
mod qwen;

use crate::file::{Format, ModelFile};
use crate::graph::{Activation, Gating, NormKind, RopeLayout};
use crate::model::ModelError;

pub use hparams::{Hparams, LayerParams};
pub use names::TensorRole;

/// What sets one family of models apart from the others.
#[derive(Debug)]
pub struct Arch {
    /// `general.architecture` in GGUF files.
    pub name: &'static str,
    /// `architectures` in `config.json`.
    pub hf_classes: &'static [&'static str],
    /// The norm of the residual stream.
    pub norm: NormKind,
    /// What Hugging Face files leave out of norm weights: Gemma stores `weight − 1`.
    pub hf_norm_offset: f32,
    /// Which elements of a head turn together, in each kind of file.
    pub rope: RopeLayouts,
    /// Which layers see only a window, where the file does not say it layer by layer.
    pub windows: Windows,
    /// RoPE base of windowed layers, where GGUF files do not say it.
    pub window_rope_base: Option<f32>,
    /// What scores are scaled by.
    pub query_scale: QueryScale,
    /// The function of the feed-forward layers.
    pub activation: Activation,
    /// How embeddings are scaled.
    pub embedding_scale: EmbeddingScale,
    /// What the router does, where there are experts.
    pub moe: MoeSpec,
    /// Hugging Face names that differ from Llama's.
    pub hf_names: &'static [(TensorRole, &'static str)],
}

/// The layout of rotary embeddings in each kind of file.
#[derive(Clone, Copy, Debug)]
pub struct RopeLayouts {
    /// In GGUF, whose converter permutes the weights of some families.
    pub gguf: RopeLayout,
    /// In safetensors.
    pub hf: RopeLayout,
}

/// Which layers attend to a sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows {
    /// None: a window in the metadata is not meant for this graph.
    Never,
    /// All layers, if the metadata gives a window.
    All,
    /// All but each n-th.
    AllButEvery(usize),
}

/// What attention scores are scaled by, where `config.json` does not say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryScale {
    /// One over the root of the head's width.
    HeadDim,
    /// The same, but in the model of this many layers by `embedding / heads` (Gemma's largest).
    HeadDimUnlessLayers(usize),
}

/// How token embeddings are scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbeddingScale {
    /// As they are.
    One,
    /// By the root of their width.
    SqrtWidth,
}

/// What a mixture of experts does with its router's logits.
#[derive(Clone, Copy, Debug)]
pub struct MoeSpec {
    /// What turns logits into weights.
    pub gating: Gating,
    /// Whether the chosen weights are scaled to sum to one.
    pub renormalize: bool,
}

/// What most families have in common; a descriptor names only its differences.
const BASE: Arch = Arch {
    name: "",
    hf_classes: &[],
    norm: NormKind::Rms,
    hf_norm_offset: 0.0,
    rope: RopeLayouts {
        gguf: RopeLayout::Halves,
        hf: RopeLayout::Halves,
    },
    windows: Windows::Never,
    window_rope_base: None,
    query_scale: QueryScale::HeadDim,
    activation: Activation::Silu,
    embedding_scale: EmbeddingScale::One,
    moe: MoeSpec {
        gating: Gating::Softmax,
        renormalize: true,
    },
    hf_names: &[],
};

/// Every architecture that runs. A GGUF name finds the first with that name.
pub static ARCHS: &[&Arch] = &[
    &llama::LLAMA,
    &llama::MISTRAL,
    &llama::MIXTRAL,
    &qwen::QWEN2,
    &qwen::QWEN3,
    &gemma::GEMMA,
    &gemma::GEMMA2,
    &gemma::GEMMA3,
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
                let class = file
                    .config()
                    .and_then(|config| config.get("architectures")?.get(0)?.as_str())
                    .ok_or_else(|| ModelError::MissingKey {
                        file: file.path().with_file_name("config.json"),
                        key: "architectures".into(),
                    })?;
                (
                    class,
                    ARCHS.iter().find(|arch| arch.hf_classes.contains(&class)),
                )
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
}
