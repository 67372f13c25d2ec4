//! Quantization recipes: the type of each matrix under a name such as Q4_K_M. The rules follow
//! `llama_tensor_get_type` of llama.cpp's quantizer. [`crate::synth`] and the quantizer use them.

use oxidize_kernels::quant::TensorType::{self, *};

use crate::arch::TensorRole;
use crate::arch::names::*;

pub use crate::arch::Family;

/// Quantization recipe: a base type for most matrices, and other types for the sensitive ones.
#[derive(Clone, Copy, Debug)]
pub struct QuantRecipe {
    /// Name, such as `Q4_K_M`.
    pub name: &'static str,
    /// Value of `general.file_type` in GGUF files.
    pub file_type: u32,
    /// Type of most matrices.
    pub base: TensorType,
    rules: &'static [Rule],
}

/// Type of the matrices of a role in some layers. The first rule that matches applies.
type Rule = (TensorRole, LayerFilter, TensorType);

/// Properties of a model that recipes depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelInfo {
    /// Number of layers.
    pub n_layers: usize,
    /// Query heads per key and value head.
    pub heads_per_kv: usize,
    /// Experts per layer; 0 if the model has none.
    pub n_experts: usize,
    /// True if the token embeddings are also the output matrix.
    pub tied: bool,
    /// True if there is an importance matrix.
    pub importance: bool,
    /// Family of the model.
    pub family: Family,
}

#[derive(Clone, Copy, Debug)]
enum LayerFilter {
    Always,
    /// Models with at least four query heads per key and value head.
    SharedHeads,
    /// Models with at least four query heads per key and value head, or at least four experts.
    SharedHeadsOrExperts,
    FirstLayers(usize),
    /// The first 1/n of the layers.
    FirstPart(usize),
    /// The first 1/n of the layers, without an importance matrix.
    FirstPartUnweighted(usize),
    /// The first 1/n of the layers, with an importance matrix.
    FirstPartWeighted(usize),
    /// All layers, without an importance matrix.
    Unweighted,
    /// The first and the last eighth of the layers, and every third layer between.
    EdgesAndThirds,
    /// All layers but the first and the last eighth.
    Middle,
}
use LayerFilter::*;

/// All recipes.
pub static RECIPES: &[QuantRecipe] = &[
    recipe("F32", 0, F32, &[]),
    recipe("F16", 1, F16, &[]),
    recipe("BF16", 32, BF16, &[]),
    recipe("Q8_0", 7, Q8_0, &[]),
    recipe("INT8", 7, INT8, &[]),
    recipe(
        "Q4_0",
        2,
        Q4_0,
        &[
            (OUTPUT, Always, Q6_K),
            (FFN_DOWN, FirstPartWeighted(8), Q4_1),
        ],
    ),
    recipe("Q4_1", 3, Q4_1, &[(OUTPUT, Always, Q6_K)]),
    recipe(
        "Q5_0",
        8,
        Q5_0,
        &[
            (OUTPUT, Always, Q6_K),
            (FFN_DOWN, FirstPartWeighted(8), Q5_1),
        ],
    ),
    recipe("Q5_1", 9, Q5_1, &[(OUTPUT, Always, Q6_K)]),
    recipe(
        "Q2_K",
        10,
        Q2_K,
        &[
            (OUTPUT, Always, Q6_K),
            (ATTN_V, SharedHeads, Q4_K),
            (ATTN_V, Always, Q3_K),
            (ATTN_OUTPUT, Always, Q3_K),
            (FFN_DOWN, Always, Q3_K),
        ],
    ),
    recipe(
        "Q2_K_S",
        21,
        Q2_K,
        &[
            (OUTPUT, Always, Q6_K),
            (ATTN_V, SharedHeads, Q4_K),
            (FFN_DOWN, FirstPart(8), Q4_K),
        ],
    ),
    recipe("Q3_K_S", 11, Q3_K, &[(OUTPUT, Always, Q6_K)]),
    recipe(
        "Q3_K_M",
        12,
        Q3_K,
        &[
            (OUTPUT, Always, Q6_K),
            (ATTN_V, FirstLayers(2), Q5_K),
            (ATTN_V, Always, Q4_K),
            (ATTN_OUTPUT, Always, Q4_K),
            (FFN_DOWN, FirstPart(16), Q5_K),
            (FFN_DOWN, Always, Q4_K),
        ],
    ),
    recipe(
        "Q3_K_L",
        13,
        Q3_K,
        &[
            (OUTPUT, Always, Q6_K),
            (ATTN_V, Always, Q5_K),
            (ATTN_OUTPUT, Always, Q5_K),
            (FFN_DOWN, Always, Q5_K),
        ],
    ),
    recipe(
        "Q4_K_S",
        14,
        Q4_K,
        &[
            (OUTPUT, Always, Q6_K),
            (ATTN_V, FirstLayers(4), Q5_K),
            (FFN_DOWN, FirstPart(8), Q5_K),
        ],
    ),
    recipe("Q4_K_M", 15, Q4_K, LARGE_EDGES),
    recipe("Q5_K_S", 16, Q5_K, &[(OUTPUT, Always, Q6_K)]),
    recipe("Q5_K_M", 17, Q5_K, LARGE_EDGES),
    recipe("Q6_K", 18, Q6_K, &[]),
    recipe("IQ1_S", 24, IQ1_S, UNDER_TWO_BITS),
    recipe("IQ1_M", 31, IQ1_M, UNDER_TWO_BITS),
    recipe("IQ2_XXS", 19, IQ2_XXS, TWO_BITS),
    recipe("IQ2_XS", 20, IQ2_XS, TWO_BITS),
    recipe("IQ2_S", 28, IQ2_XS, ABOVE_TWO_BITS),
    recipe("IQ2_M", 29, IQ2_S, ABOVE_TWO_BITS),
    recipe(
        "IQ3_XXS",
        23,
        IQ3_XXS,
        &[
            (OUTPUT, Always, Q5_K),
            (TOKEN_EMBEDDING, Always, IQ3_S),
            (ATTN_Q, Always, IQ2_S),
            (ATTN_K, Always, IQ2_S),
            (ATTN_V, SharedHeads, Q4_K),
            (ATTN_V, Unweighted, IQ3_S),
            (ATTN_OUTPUT, Always, IQ3_S),
            (FFN_DOWN, FirstPartUnweighted(8), Q4_K),
            (FFN_DOWN, Unweighted, Q3_K),
        ],
    ),
    recipe(
        "IQ3_XS",
        22,
        IQ3_S,
        &[
            (OUTPUT, Always, Q6_K),
            (ATTN_Q, Always, IQ3_XXS),
            (ATTN_K, Always, IQ3_XXS),
            (ATTN_V, SharedHeads, Q4_K),
            (FFN_GATE, Middle, IQ3_XXS),
            (FFN_UP, Middle, IQ3_XXS),
        ],
    ),
    recipe(
        "IQ3_S",
        26,
        IQ3_S,
        &[(OUTPUT, Always, Q6_K), (ATTN_V, SharedHeads, Q4_K)],
    ),
    recipe(
        "IQ3_M",
        27,
        IQ3_S,
        &[
            (OUTPUT, Always, Q6_K),
            (ATTN_V, Always, Q4_K),
            (ATTN_OUTPUT, Always, Q4_K),
            (FFN_DOWN, FirstPart(8), Q4_K),
        ],
    ),
    recipe("IQ4_NL", 25, IQ4_NL, UNEVEN_FOUR_BITS),
    recipe("IQ4_XS", 30, IQ4_XS, UNEVEN_FOUR_BITS),
    recipe("TQ1_0", 36, TQ1_0, TERNARY),
    recipe("TQ2_0", 37, TQ2_0, TERNARY),
    recipe("MXFP4", 38, MXFP4, &[(OUTPUT, Always, Q8_0)]),
    recipe("MXFP4_MOE", 38, Q8_0, &[(EXPERTS, Always, MXFP4)]),
    recipe("NVFP4", 39, NVFP4, &[(OUTPUT, Always, Q6_K)]),
];

/// Six bits for the output and for the matrices that the residual stream is most sensitive to.
const LARGE_EDGES: &[Rule] = &[
    (OUTPUT, Always, Q6_K),
    (ATTN_V, EdgesAndThirds, Q6_K),
    (FFN_DOWN, EdgesAndThirds, Q6_K),
];

/// Exceptions from base types of less than two bits.
const UNDER_TWO_BITS: &[Rule] = &[
    (OUTPUT, Always, Q5_K),
    (TOKEN_EMBEDDING, Always, Q2_K),
    (ATTN_V, SharedHeadsOrExperts, Q4_K),
    (ATTN_V, Always, Q2_K),
    (ATTN_OUTPUT, Always, IQ2_XXS),
    (FFN_DOWN, FirstPart(8), Q2_K),
];

/// Exceptions from base types of about two bits.
const TWO_BITS: &[Rule] = &[
    (OUTPUT, Always, Q5_K),
    (TOKEN_EMBEDDING, Always, Q2_K),
    (ATTN_V, SharedHeadsOrExperts, Q4_K),
    (ATTN_V, Always, Q2_K),
    (FFN_DOWN, FirstPart(8), Q2_K),
];

/// Exceptions from base types of more than two bits.
const ABOVE_TWO_BITS: &[Rule] = &[
    (OUTPUT, Always, Q5_K),
    (TOKEN_EMBEDDING, Always, IQ3_S),
    (ATTN_V, SharedHeadsOrExperts, Q4_K),
    (ATTN_V, Always, IQ3_S),
    (ATTN_OUTPUT, Always, IQ3_S),
    (FFN_DOWN, FirstPart(8), IQ3_S),
];

/// Exceptions from non-linear types of four bits.
const UNEVEN_FOUR_BITS: &[Rule] = &[
    (OUTPUT, Always, Q6_K),
    (ATTN_V, SharedHeads, Q5_K),
    (FFN_DOWN, FirstPartUnweighted(8), Q5_K),
];

/// Exceptions from ternary base types.
const TERNARY: &[Rule] = &[(OUTPUT, Always, Q6_K), (TOKEN_EMBEDDING, Always, Q4_K)];

const fn recipe(
    name: &'static str,
    file_type: u32,
    base: TensorType,
    rules: &'static [Rule],
) -> QuantRecipe {
    QuantRecipe {
        name,
        file_type,
        base,
        rules,
    }
}

/// Role for the matrices of experts in recipes that treat all of them alike.
pub const EXPERTS: TensorRole = FFN_UP_EXPERTS;

/// Short names of common recipes.
const ALIASES: &[(&str, &str)] = &[("Q3_K", "Q3_K_M"), ("Q4_K", "Q4_K_M"), ("Q5_K", "Q5_K_M")];

impl QuantRecipe {
    /// Recipe with this name. The name of a type without a recipe of its own stands for the first recipe with
    /// that base type, and `Q3_K`, `Q4_K` and `Q5_K` for their `_M` recipes.
    pub fn named(name: &str) -> Option<QuantRecipe> {
        let alias = ALIASES
            .iter()
            .find(|(alias, _)| alias.eq_ignore_ascii_case(name));
        let name = alias.map_or(name, |(_, full)| full);
        let found = RECIPES
            .iter()
            .find(|recipe| recipe.name.eq_ignore_ascii_case(name))
            .or_else(|| {
                let ty = TensorType::from_name(name)?;
                RECIPES.iter().find(|recipe| recipe.base == ty)
            });
        found.copied()
    }

    /// Recipe with the base type for every matrix, including embeddings and output.
    #[must_use]
    pub fn pure(self) -> QuantRecipe {
        QuantRecipe { rules: &[], ..self }
    }

    /// Type of a matrix with rows of `inputs` elements.
    pub fn tensor_type(
        &self,
        role: TensorRole,
        layer: usize,
        info: &ModelInfo,
        inputs: usize,
    ) -> TensorType {
        // Embeddings that are also the output matrix are as sensitive as an output matrix.
        let role = if role == TOKEN_EMBEDDING && info.tied {
            OUTPUT
        } else {
            role
        };
        let is_mixed = !self.rules.is_empty();
        let whole = inputs.is_multiple_of(self.base.block_len());
        if role == OUTPUT && is_mixed && (info.family == Family::Falcon || !whole) {
            return whole_blocks(Q8_0, inputs);
        }
        let fits = |&&(of, place, _): &&Rule| of == role && place.contains(layer, info);
        let rule = self.rules.iter().find(fits).map(|rule| rule.2);
        let mut ty = rule.unwrap_or(self.base);
        if is_mixed && info.n_experts == 8 {
            ty = self.type_with_eight_experts(role).unwrap_or(ty);
        }
        if is_mixed && info.family == Family::Falcon {
            ty = self.type_in_falcon(role, layer, info).unwrap_or(ty);
        }
        let is_llama = info.family == Family::Llama;
        let largest = is_llama && info.n_layers == 80 && info.heads_per_kv > 1;
        if largest && role == ATTN_V && is_mixed && !self.is_tiny() && matches!(ty, Q3_K | Q4_K) {
            ty = Q5_K;
        }
        whole_blocks(ty, inputs)
    }

    /// True if the base type has about two bits or less; such recipes have rules of their own.
    fn is_tiny(&self) -> bool {
        matches!(self.base, IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S)
    }

    /// Exceptions for models with eight experts, in which attention is so small a part of the weights that
    /// more bits for it cost little.
    fn type_with_eight_experts(&self, role: TensorRole) -> Option<TensorType> {
        let more_for_output = self.base != Q2_K || self.name == "Q2_K";
        let more_for_output = more_for_output
            && !matches!(self.name, "Q3_K_L" | "Q5_K_S" | "Q5_K_M")
            && self.base.bits_per_weight() < 4.51
            && !matches!(self.base, Q4_0 | TQ1_0 | TQ2_0 | MXFP4 | NVFP4);
        match role {
            ATTN_V | ATTN_K if self.is_tiny() && role == ATTN_K => Some(Q4_K),
            ATTN_V | ATTN_K if !self.is_tiny() => Some(Q8_0),
            ATTN_OUTPUT if self.is_tiny() || more_for_output => Some(Q5_K),
            _ => None,
        }
    }

    /// Exceptions for Falcon models.
    fn type_in_falcon(
        &self,
        role: TensorRole,
        layer: usize,
        info: &ModelInfo,
    ) -> Option<TensorType> {
        let more_bits = EdgesAndThirds.contains(layer, info);
        match (self.name, role) {
            ("Q3_K_L", ATTN_OUTPUT) => Some(Q4_K),
            (_, ATTN_OUTPUT) if !self.is_tiny() => Some(self.base),
            ("Q3_K_M", FFN_DOWN) if layer < info.n_layers / 16 => Some(Q5_K),
            ("Q3_K_M", FFN_DOWN) => Some(if more_bits { Q4_K } else { Q3_K }),
            ("Q3_K_L", FFN_DOWN) => Some(Q4_K),
            ("Q4_K_M", FFN_DOWN) if layer < info.n_layers / 16 => Some(Q6_K),
            ("Q4_K_M", FFN_DOWN) => Some(if more_bits { Q5_K } else { Q4_K }),
            ("Q4_K_S", FFN_DOWN) => Some(Q4_K),
            _ => None,
        }
    }
}

impl LayerFilter {
    fn contains(self, layer: usize, info: &ModelInfo) -> bool {
        let n = info.n_layers;
        let edge = layer < n / 8 || layer >= 7 * n / 8;
        match self {
            Always => true,
            SharedHeads => info.heads_per_kv >= 4,
            SharedHeadsOrExperts => info.heads_per_kv >= 4 || info.n_experts >= 4,
            FirstLayers(count) => layer < count,
            FirstPart(part) => layer < n / part,
            FirstPartUnweighted(part) => layer < n / part && !info.importance,
            FirstPartWeighted(part) => layer < n / part && info.importance,
            Unweighted => !info.importance,
            EdgesAndThirds => edge || (layer - n / 8) % 3 == 2,
            Middle => !edge,
        }
    }
}

/// Returns `ty`, or the nearest type whose blocks divide rows of `n` elements.
pub fn whole_blocks(ty: TensorType, n: usize) -> TensorType {
    let fits = |ty: TensorType| n.is_multiple_of(ty.block_len());
    if fits(ty) {
        return ty;
    }
    let smaller = match ty {
        Q4_K => Q5_0,
        Q5_K => Q5_1,
        Q6_K => Q8_0,
        Q2_K | Q3_K | TQ1_0 | TQ2_0 => Q4_0,
        _ => IQ4_NL,
    };
    if fits(smaller) { smaller } else { F16 }
}

/// Names of all recipes, for messages.
pub fn names() -> String {
    let names: Vec<&str> = RECIPES.iter().map(|recipe| recipe.name).collect();
    names.join(", ")
}

/// Role of a matrix of a GGUF file, as far as recipes distinguish roles. Stacks of experts count as the
/// matrices they consist of.
pub fn role_of(tensor: &str) -> Option<TensorRole> {
    /// The first part that a name contains applies.
    const PARTS: &[(&str, TensorRole)] = &[
        ("attn_qkv.weight", ATTN_V),
        ("attn_kv_b.weight", ATTN_V),
        ("attn_v.weight", ATTN_V),
        ("attn_k.weight", ATTN_K),
        ("attn_q.weight", ATTN_Q),
        ("attn_output.weight", ATTN_OUTPUT),
        ("ffn_up", FFN_UP),
        ("ffn_gate", FFN_GATE),
        ("ffn_down", FFN_DOWN),
    ];
    match tensor {
        "output.weight" => Some(OUTPUT),
        "token_embd.weight" | "per_layer_token_embd.weight" => Some(TOKEN_EMBEDDING),
        _ => PARTS
            .iter()
            .find(|(part, _)| tensor.contains(part))
            .map(|(_, role)| *role),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model_info() -> ModelInfo {
        ModelInfo {
            n_layers: 32,
            heads_per_kv: 4,
            ..ModelInfo::default()
        }
    }

    #[test]
    fn importance_matrix_changes_types() {
        let iq3 = QuantRecipe::named("iq3_xxs").unwrap();
        let weighted = ModelInfo {
            importance: true,
            ..model_info()
        };
        assert_eq!(iq3.tensor_type(FFN_DOWN, 9, &model_info(), 4096), Q3_K);
        assert_eq!(iq3.tensor_type(FFN_DOWN, 9, &weighted, 4096), IQ3_XXS);
        let q4_0 = QuantRecipe::named("Q4_0").unwrap();
        assert_eq!(q4_0.tensor_type(FFN_DOWN, 0, &weighted, 4096), Q4_1);
        assert_eq!(q4_0.tensor_type(FFN_DOWN, 0, &model_info(), 4096), Q4_0);
    }

    #[test]
    fn partial_blocks_get_another_type() {
        let recipe = QuantRecipe::named("Q4_K").unwrap();
        assert_eq!(recipe.name, "Q4_K_M");
        assert_eq!(recipe.tensor_type(ATTN_Q, 0, &model_info(), 576), Q5_0);
        assert_eq!(recipe.tensor_type(OUTPUT, 0, &model_info(), 576), Q8_0);
        assert_eq!(whole_blocks(IQ2_S, 288), IQ4_NL);
        assert_eq!(whole_blocks(Q4_K, 17), F16);
    }

    #[test]
    fn tensor_names_have_roles() {
        assert_eq!(role_of("blk.3.ffn_down_exps.weight"), Some(FFN_DOWN));
        assert_eq!(role_of("blk.3.attn_qkv.weight"), Some(ATTN_V));
        assert_eq!(role_of("output.weight"), Some(OUTPUT));
        assert_eq!(role_of("blk.0.ssm_in.weight"), None);
    }
}
