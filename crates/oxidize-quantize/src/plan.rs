//! [`Plan`]: the type of each tensor of a quantized model.
//!
//! Types come from a quantization recipe such as Q4_K_M, from patterns of tensor names, or, with a target
//! size, from measured errors (see [`crate::target`]).

use std::collections::{BTreeMap, HashMap};

use oxidize_core::arch::Arch;
use oxidize_core::file::ModelFile;
use oxidize_core::recipe::{
    EXPERTS, Family, ModelInfo, QuantRecipe, RECIPES, role_of, whole_blocks,
};
use oxidize_kernels::quant::{self, TensorType};
use regex::Regex;

use crate::error::{Error, Result};
use crate::importance::Importance;
use crate::tensor::Tensor;

/// Returns the tensor type of this name, or an error if weights cannot be stored as it.
pub fn weight_type(name: &str) -> Result<TensorType, String> {
    // `can_quantize` also holds for the types of activations.
    let of_weights = |ty: &TensorType| {
        quant::can_quantize(*ty)
            && ty.gguf_id().is_some()
            && !matches!(ty, TensorType::Q8_1 | TensorType::Q8_K)
    };
    TensorType::from_name(name)
        .filter(of_weights)
        .ok_or_else(|| format!("{name} is not a type for weights"))
}

/// Parameters that determine the tensor types.
#[derive(Clone, Debug)]
pub struct QuantizeParams {
    /// The quantization recipe.
    pub recipe: QuantRecipe,
    /// Use the recipe's base type for every matrix.
    pub pure: bool,
    /// Types for tensors whose names match; the first match applies.
    pub patterns: Vec<(Regex, TensorType)>,
    /// Type of the output matrix, which computes the logits.
    pub output: Option<TensorType>,
    /// Type of the token embeddings.
    pub embedding: Option<TensorType>,
    /// Keep the type of the output matrix.
    pub leave_output: bool,
}

impl QuantizeParams {
    /// Parameters with a recipe and no overrides.
    pub fn new(recipe: QuantRecipe) -> QuantizeParams {
        QuantizeParams {
            recipe,
            pure: false,
            patterns: Vec::new(),
            output: None,
            embedding: None,
            leave_output: false,
        }
    }

    /// Adds an override given as `REGEX=TYPE`.
    pub fn pattern(&mut self, text: &str) -> Result<()> {
        let wrong = |problem: String| Error::Pattern {
            pattern: text.to_owned(),
            problem,
        };
        let (pattern, ty) = text
            .rsplit_once('=')
            .ok_or_else(|| wrong("expected REGEX=TYPE".into()))?;
        let ty = weight_type(ty).map_err(wrong)?;
        let pattern = Regex::new(pattern).map_err(|error| wrong(error.to_string()))?;
        self.patterns.push((pattern, ty));
        Ok(())
    }
}

/// The type of each tensor, in tensor order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Tensor types.
    pub types: Vec<TensorType>,
    /// Number of tensors with a fallback type, since their row length is not a multiple of the block size.
    pub fallbacks: usize,
}

impl QuantizeParams {
    /// The type that an override sets for this tensor.
    pub fn override_for(&self, tensor: &Tensor<'_>, info: &ModelInfo) -> Option<TensorType> {
        use oxidize_core::arch::names::{OUTPUT, TOKEN_EMBEDDING};
        let role = role_of(&tensor.name);
        // Tied embeddings also compute the logits.
        let makes_logits = role == Some(OUTPUT) || (role == Some(TOKEN_EMBEDDING) && info.tied);
        if self.leave_output && makes_logits {
            return Some(tensor.ty);
        }
        let embedding = self.embedding.filter(|_| role == Some(TOKEN_EMBEDDING));
        let output = self.output.filter(|_| makes_logits);
        let pattern = |(pattern, _): &&(Regex, TensorType)| pattern.is_match(&tensor.name);
        let patterns = || Some(self.patterns.iter().find(pattern)?.1);
        embedding.or(output).or_else(patterns)
    }

    /// Patterns that match no quantizable tensor.
    pub fn unmatched_patterns<'a>(
        &'a self,
        tensors: &'a [Tensor<'_>],
    ) -> impl Iterator<Item = &'a Regex> {
        let patterns = self.patterns.iter().map(|(pattern, _)| pattern);
        patterns.filter(|pattern| {
            let mut quantized = tensors.iter().filter(|tensor| is_quantizable(tensor));
            !quantized.any(|tensor| pattern.is_match(&tensor.name))
        })
    }
}

impl Plan {
    /// Chooses the types of the tensors of a model.
    pub fn new(tensors: &[Tensor<'_>], params: &QuantizeParams, info: &ModelInfo) -> Plan {
        let positions = role_positions(tensors);
        let mut fallbacks = 0;
        let types = tensors.iter().map(|tensor| {
            if !is_quantizable(tensor) {
                return tensor.unquantized_type;
            }
            let ty = choose(tensor, params, info, &positions);
            let columns = tensor.columns() as usize;
            let whole = whole_blocks(ty, columns);
            let plain = choose_for_columns(tensor, params, info, &positions, 256);
            fallbacks += usize::from(whole != plain);
            whole
        });
        Plan {
            types: types.collect(),
            fallbacks,
        }
    }

    /// Total bytes of all tensors.
    pub fn bytes(&self, tensors: &[Tensor<'_>]) -> u64 {
        let sizes = tensors.iter().zip(&self.types);
        sizes
            .filter_map(|(tensor, ty)| ty.bytes_for(tensor.elements()))
            .sum()
    }

    /// The recipe of the type that takes most bytes, for the file type key of a plan without a recipe.
    pub fn nearest_recipe(&self, tensors: &[Tensor<'_>]) -> QuantRecipe {
        let mut bytes: BTreeMap<&str, u64> = BTreeMap::new();
        for (tensor, ty) in tensors.iter().zip(&self.types) {
            *bytes.entry(ty.name()).or_default() += ty.bytes_for(tensor.elements()).unwrap_or(0);
        }
        let largest = bytes.iter().max_by_key(|(_, bytes)| **bytes);
        largest
            .and_then(|(name, _)| QuantRecipe::named(name))
            .unwrap_or(RECIPES[0])
    }

    /// Average bits per weight.
    pub fn bits_per_weight(&self, tensors: &[Tensor<'_>]) -> f64 {
        let elements: u64 = tensors.iter().map(Tensor::elements).sum();
        self.bytes(tensors) as f64 * 8.0 / elements.max(1) as f64
    }

    /// Returns an error if a tensor has a low-bit type that requires importance and none is known.
    pub fn check_importance(
        &self,
        tensors: &[Tensor<'_>],
        recipe: &QuantRecipe,
        importance: Option<&Importance>,
    ) -> Result<()> {
        use TensorType::{IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_XXS, Q2_K};
        let needs = |tensor: &Tensor<'_>, ty: TensorType| {
            let low_bit = matches!(ty, IQ1_M | IQ1_S | IQ2_S | IQ2_XS | IQ2_XXS | IQ3_XXS);
            let low_bit = low_bit || (ty == Q2_K && recipe.name == "Q2_K_S");
            let is_table = [
                "output.weight",
                "token_embd.weight",
                "per_layer_token_embd.weight",
            ];
            low_bit && tensor.ty != ty && !is_table.contains(&tensor.name.as_str())
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
    params: &QuantizeParams,
    info: &ModelInfo,
    positions: &HashMap<&str, RolePosition>,
) -> TensorType {
    choose_for_columns(tensor, params, info, positions, tensor.columns() as usize)
}

/// The type of a tensor, computed for this row length.
fn choose_for_columns(
    tensor: &Tensor<'_>,
    params: &QuantizeParams,
    info: &ModelInfo,
    positions: &HashMap<&str, RolePosition>,
    columns: usize,
) -> TensorType {
    use oxidize_core::arch::names::FFN_DOWN;
    let role = role_of(&tensor.name);
    if let Some(ty) = params.override_for(tensor, info) {
        return ty;
    }
    if params.pure || !params.recipe.base.is_quantized() {
        return params.recipe.base;
    }
    if tensor.matrices() > 1 && params.recipe.name == "MXFP4_MOE" {
        return params.recipe.tensor_type(EXPERTS, 0, info, columns);
    }
    let Some(role) = role else {
        return params.recipe.base;
    };
    let position = positions
        .get(tensor.name.as_str())
        .copied()
        .unwrap_or_default();
    // Models with experts have several feed-forward matrices per layer, so the layer index counts.
    let of_layer = role == FFN_DOWN && info.n_experts > 1;
    let layer = if of_layer {
        position.layer
    } else {
        position.index
    };
    // For attn_v, llama.cpp counts the layers that have the matrix.
    let info = ModelInfo {
        n_layers: if role == oxidize_core::arch::names::ATTN_V {
            position.of
        } else {
            info.n_layers
        },
        ..*info
    };
    params.recipe.tensor_type(role, layer, &info, columns)
}

/// Position of a tensor among the tensors of its role.
#[derive(Clone, Copy, Default)]
struct RolePosition {
    /// Layer index.
    layer: usize,
    /// Index among the tensors of the role.
    index: usize,
    /// Number of tensors of the role.
    of: usize,
}

/// The position of each tensor, ordered by layer.
fn role_positions<'t>(tensors: &'t [Tensor<'_>]) -> HashMap<&'t str, RolePosition> {
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
    let mut positions = HashMap::new();
    for list in by_role.values_mut() {
        list.sort();
        for (index, (layer, name)) in list.iter().enumerate() {
            let (layer, of) = (*layer, list.len());
            positions.insert(*name, RolePosition { layer, index, of });
        }
    }
    positions
}

/// True if a tensor is quantizable: a matrix, and none of the small matrices that quality depends on.
pub fn is_quantizable(tensor: &Tensor<'_>) -> bool {
    /// Name parts of matrices that are never quantized.
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
    // Trailing dimensions of size 1 do not count.
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

/// The properties of a GGUF model that a recipe depends on.
pub fn model_info(file: &ModelFile, importance: bool) -> ModelInfo {
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
    ModelInfo {
        n_layers: count("block_count"),
        heads_per_kv: heads / kv_heads.max(1),
        n_experts: count("expert_count"),
        tied: file.tensor("output.weight").is_none(),
        importance,
        // Files of unknown architectures can be quantized too.
        family: Arch::detect(file).map_or_else(|_| Family::default(), |arch| arch.recipe_family),
    }
}
