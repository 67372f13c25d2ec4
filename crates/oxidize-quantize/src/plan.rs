//! [`Plan`]: which type each tensor of a model gets, and what that makes of its size.
//!
//! Types come from a named mix, from patterns of names, or, with a target size, from the measured
//! errors (see [`crate::target`]).

use std::collections::HashMap;

use oxidize_core::arch::Arch;
use oxidize_core::file::ModelFile;
use oxidize_core::mix::{EXPERTS, Family, Mix, Traits, role_of, whole_blocks};
use oxidize_kernels::quant::{self, TensorType};
use regex::Regex;

use crate::error::{Error, Result};
use crate::importance::Importance;
use crate::tensor::Tensor;

/// The type of this name, if weights are stored so.
pub fn weight_type(name: &str) -> Result<TensorType, String> {
    // Those of activations can be made, too.
    let of_weights = |ty: &TensorType| {
        quant::can_quantize(*ty)
            && ty.gguf_id().is_some()
            && !matches!(ty, TensorType::Q8_1 | TensorType::Q8_K)
    };
    TensorType::from_name(name)
        .filter(of_weights)
        .ok_or_else(|| format!("{name} is not a type that weights can be stored as"))
}

/// What someone wants of the types.
#[derive(Clone, Debug)]
pub struct Wishes {
    /// The mix.
    pub mix: Mix,
    /// The mix's main type for every matrix.
    pub pure: bool,
    /// Types for tensors whose names match; the first that matches counts.
    pub patterns: Vec<(Regex, TensorType)>,
    /// The type of the matrix that makes the logits.
    pub output: Option<TensorType>,
    /// The type of the embeddings.
    pub embedding: Option<TensorType>,
    /// Whether the matrix that makes the logits stays as it is.
    pub leave_output: bool,
}

impl Wishes {
    /// A mix, and nothing special.
    pub fn new(mix: Mix) -> Wishes {
        Wishes {
            mix,
            pure: false,
            patterns: Vec::new(),
            output: None,
            embedding: None,
            leave_output: false,
        }
    }

    /// Adds `PATTERN=TYPE`.
    pub fn pattern(&mut self, text: &str) -> Result<()> {
        let wrong = |problem: String| Error::Pattern {
            pattern: text.to_owned(),
            problem,
        };
        let (pattern, ty) = text
            .rsplit_once('=')
            .ok_or_else(|| wrong("it should be PATTERN=TYPE".into()))?;
        let ty = weight_type(ty).map_err(wrong)?;
        let pattern = Regex::new(pattern).map_err(|error| wrong(error.to_string()))?;
        self.patterns.push((pattern, ty));
        Ok(())
    }
}

/// A type for each tensor, in the order of the tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The types.
    pub types: Vec<TensorType>,
    /// How many tensors got another type than they should, as their rows are not whole blocks.
    pub fallbacks: usize,
}

impl Wishes {
    /// The type that is asked for this very tensor, whatever the mix.
    pub fn fixed(&self, tensor: &Tensor<'_>, traits: &Traits) -> Option<TensorType> {
        use oxidize_core::arch::names::{OUTPUT, TOKEN_EMBEDDING};
        let role = role_of(&tensor.name);
        // Where one table does both jobs, it makes the logits, too.
        let makes_logits = role == Some(OUTPUT) || (role == Some(TOKEN_EMBEDDING) && traits.tied);
        if self.leave_output && makes_logits {
            return Some(tensor.ty);
        }
        let embedding = self.embedding.filter(|_| role == Some(TOKEN_EMBEDDING));
        let output = self.output.filter(|_| makes_logits);
        let pattern = |(pattern, _): &&(Regex, TensorType)| pattern.is_match(&tensor.name);
        let patterns = || Some(self.patterns.iter().find(pattern)?.1);
        embedding.or(output).or_else(patterns)
    }

    /// Patterns that no tensor matches which is quantised at all.
    pub fn unmatched<'a>(&'a self, tensors: &'a [Tensor<'_>]) -> impl Iterator<Item = &'a Regex> {
        let patterns = self.patterns.iter().map(|(pattern, _)| pattern);
        patterns.filter(|pattern| {
            let mut quantised = tensors.iter().filter(|tensor| is_quantizable(tensor));
            !quantised.any(|tensor| pattern.is_match(&tensor.name))
        })
    }
}

impl Plan {
    /// The types that `wishes` give to the tensors of a model.
    pub fn new(tensors: &[Tensor<'_>], wishes: &Wishes, traits: &Traits) -> Plan {
        let places = places(tensors);
        let mut fallbacks = 0;
        let types = tensors.iter().map(|tensor| {
            if !is_quantizable(tensor) {
                return tensor.kept_as;
            }
            let ty = choose(tensor, wishes, traits, &places);
            let columns = tensor.columns() as usize;
            let whole = whole_blocks(ty, columns);
            let plain = choose_for_columns(tensor, wishes, traits, &places, 256);
            fallbacks += usize::from(whole != plain);
            whole
        });
        Plan {
            types: types.collect(),
            fallbacks,
        }
    }

    /// Bytes of all tensors together.
    pub fn bytes(&self, tensors: &[Tensor<'_>]) -> u64 {
        let sizes = tensors.iter().zip(&self.types);
        sizes
            .filter_map(|(tensor, ty)| ty.bytes_for(tensor.elements()))
            .sum()
    }

    /// Average bits of a weight.
    pub fn bits_per_weight(&self, tensors: &[Tensor<'_>]) -> f64 {
        let elements: u64 = tensors.iter().map(Tensor::elements).sum();
        self.bytes(tensors) as f64 * 8.0 / elements.max(1) as f64
    }

    /// Refuses a plan by which a tensor would be nothing but noise: one of few bits, without importance.
    pub fn check_importance(
        &self,
        tensors: &[Tensor<'_>],
        mix: &Mix,
        importance: Option<&Importance>,
    ) -> Result<()> {
        use TensorType::{IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_XXS, Q2_K};
        let needs = |tensor: &Tensor<'_>, ty: TensorType| {
            let starved = matches!(ty, IQ1_M | IQ1_S | IQ2_S | IQ2_XS | IQ2_XXS | IQ3_XXS);
            let starved = starved || (ty == Q2_K && mix.name == "Q2_K_S");
            let is_table = [
                "output.weight",
                "token_embd.weight",
                "per_layer_token_embd.weight",
            ];
            starved && tensor.ty != ty && !is_table.contains(&tensor.name.as_str())
        };
        let has = |tensor: &Tensor<'_>| {
            importance.is_some_and(|known| known.entries.contains_key(&tensor.name))
        };
        let mut typed = tensors.iter().zip(&self.types);
        match typed.find(|(tensor, ty)| needs(tensor, **ty) && !has(tensor)) {
            Some((tensor, ty)) => Err(Error::NeedsImportance {
                tensor: tensor.name.clone(),
                ty: *ty,
            }),
            None => Ok(()),
        }
    }
}

fn choose(
    tensor: &Tensor<'_>,
    wishes: &Wishes,
    traits: &Traits,
    places: &HashMap<&str, Place>,
) -> TensorType {
    choose_for_columns(tensor, wishes, traits, places, tensor.columns() as usize)
}

/// The type for a tensor, as if its rows had this length.
fn choose_for_columns(
    tensor: &Tensor<'_>,
    wishes: &Wishes,
    traits: &Traits,
    places: &HashMap<&str, Place>,
    columns: usize,
) -> TensorType {
    use oxidize_core::arch::names::FFN_DOWN;
    let role = role_of(&tensor.name);
    if let Some(ty) = wishes.fixed(tensor, traits) {
        return ty;
    }
    if wishes.pure || !wishes.mix.base.is_quantized() {
        return wishes.mix.base;
    }
    if tensor.matrices() > 1 && wishes.mix.name == "MXFP4_MOE" {
        return wishes.mix.tensor_type(EXPERTS, 0, traits, columns);
    }
    let Some(role) = role else {
        return wishes.mix.base;
    };
    let place = places
        .get(tensor.name.as_str())
        .copied()
        .unwrap_or_default();
    // In models with experts several feed-forward matrices belong to a layer, so the layer itself counts.
    let of_layer = role == FFN_DOWN && traits.n_experts > 1;
    let layer = if of_layer { place.layer } else { place.index };
    // The share of the layers is one of those that have such a matrix, for values.
    let traits = Traits {
        n_layers: if role == oxidize_core::arch::names::ATTN_V {
            place.of
        } else {
            traits.n_layers
        },
        ..*traits
    };
    wishes.mix.tensor_type(role, layer, &traits, columns)
}

/// Which of the tensors with the same job a tensor is.
#[derive(Clone, Copy, Default)]
struct Place {
    /// Its layer.
    layer: usize,
    /// Its number among the tensors with its job.
    index: usize,
    /// How many have that job.
    of: usize,
}

/// The place of each tensor, in order of layers.
fn places<'t>(tensors: &'t [Tensor<'_>]) -> HashMap<&'t str, Place> {
    let layer = |name: &str| -> usize {
        let layer = name
            .strip_prefix("blk.")
            .and_then(|rest| rest.split_once('.'))
            .and_then(|(layer, _)| layer.parse().ok());
        layer.unwrap_or(0)
    };
    let mut by_role: HashMap<&str, Vec<(usize, &str)>> = HashMap::new();
    for tensor in tensors {
        if let Some(role) = role_of(&tensor.name) {
            let list = by_role.entry(role.gguf).or_default();
            list.push((layer(&tensor.name), &tensor.name));
        }
    }
    let mut places = HashMap::new();
    for list in by_role.values_mut() {
        list.sort();
        for (index, (layer, name)) in list.iter().enumerate() {
            let (layer, of) = (*layer, list.len());
            places.insert(*name, Place { layer, index, of });
        }
    }
    places
}

/// Whether a tensor is one that is quantised at all: a matrix, and none of the small ones that a
/// model is sensitive to.
pub fn is_quantizable(tensor: &Tensor<'_>) -> bool {
    /// Parts of the names of matrices that stay as they are.
    const KEPT: &[&str] = &[
        "_norm.weight",
        "ffn_gate_inp.weight",
        "ffn_gate_tid2eid.weight",
        "altup",
        "laurel",
        "per_layer_model_proj",
        "ssm_conv1d",
        "shortconv.conv.weight",
        "indexer.k_proj.weight",
        "indexer.q_proj.weight",
        "time_mix_first.weight",
        "time_mix_w0.weight",
        "time_mix_w1.weight",
        "time_mix_w2.weight",
        "time_mix_v0.weight",
        "time_mix_v1.weight",
        "time_mix_v2.weight",
        "time_mix_a0.weight",
        "time_mix_a1.weight",
        "time_mix_a2.weight",
        "time_mix_g1.weight",
        "time_mix_g2.weight",
        "time_mix_decay_w1.weight",
        "time_mix_decay_w2.weight",
        "time_mix_lerp_fused.weight",
        "attn_rel_b.weight",
        "position_embd",
        "token_types",
    ];
    let name = &tensor.name;
    // Trailing ones are no dimensions.
    let dimensions = tensor
        .shape
        .iter()
        .rposition(|&n| n != 1)
        .map_or(0, |at| at + 1);
    let is_float = matches!(
        tensor.ty,
        TensorType::F64 | TensorType::F32 | TensorType::F16 | TensorType::BF16
    );
    dimensions >= 2
        && name.ends_with("weight")
        && !KEPT.iter().any(|part| name.contains(part))
        && (is_float || tensor.ty.is_quantized())
}

/// What a mix wants to know of a GGUF model.
pub fn traits_of(file: &ModelFile, importance: bool) -> Traits {
    let metadata = file.metadata();
    let arch = metadata.str("general.architecture").unwrap_or("");
    let first = |key: &str| -> Option<u64> {
        let key = format!("{arch}.{key}");
        let array = || metadata.array(&key)?.iter_i64()?.find(|n| *n > 0);
        metadata.u64(&key).or_else(|| u64::try_from(array()?).ok())
    };
    let count = |key: &str| first(key).map_or(0, |n| n as usize);
    let heads = count("attention.head_count");
    let kv_heads = first("attention.head_count_kv").map_or(heads, |n| n as usize);
    Traits {
        n_layers: count("block_count"),
        heads_per_kv: heads / kv_heads.max(1),
        n_experts: count("expert_count"),
        tied: file.tensor("output.weight").is_none(),
        importance,
        // A file of an unknown architecture can be quantised, too.
        family: Arch::detect(file).map_or_else(|_| Family::default(), |arch| arch.mix_family),
    }
}
