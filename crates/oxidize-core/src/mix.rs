//! [`Mix`]: which type each matrix gets under a name such as Q4_K_M, as llama.cpp's quantiser
//! chooses them. [`crate::synth`] makes models up by it, the quantiser makes them of others.

use oxidize_kernels::quant::TensorType::{self, *};

use crate::arch::TensorRole;
use crate::arch::names::*;

/// A way to store a model: a type for most matrices, and others for the sensitive ones.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// What people call it.
    pub name: &'static str,
    /// `general.file_type` of GGUF files.
    pub file_type: u32,
    /// What most matrices are stored as.
    pub base: TensorType,
    rules: &'static [Rule],
}

/// A role whose matrices, in some layers, are of another type. The first rule that fits is taken.
type Rule = (TensorRole, Where, TensorType);

/// What a mix looks at beside a matrix itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traits {
    /// Layers of the model.
    pub n_layers: usize,
    /// Query heads that share a key and value head.
    pub heads_per_kv: usize,
    /// Experts of a layer; 0 where it has none.
    pub n_experts: usize,
    /// Whether the embeddings also make the logits.
    pub tied: bool,
    /// Whether there is an importance matrix.
    pub importance: bool,
    /// Whose rules it has.
    pub family: Family,
}

/// Families that a mix treats in ways of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// Most.
    #[default]
    Usual,
    /// Llama, whose largest has a rule of its own.
    Llama,
    /// Falcon, whose feed-forward layers are less sensitive than others'.
    Falcon,
}

#[derive(Clone, Copy, Debug)]
enum Where {
    Always,
    /// In models whose key and value heads serve at least four query heads each.
    SharedHeads,
    /// The same, or with four experts or more.
    SharedHeadsOrExperts,
    FirstLayers(usize),
    /// The first so-manieth part of the layers.
    FirstPart(usize),
    /// The same, without an importance matrix.
    FirstPartUnweighted(usize),
    /// The same, with one.
    FirstPartWeighted(usize),
    /// Everywhere, without an importance matrix.
    Unweighted,
    /// The first and the last eighth, and each third layer between.
    EdgesAndThirds,
    /// All but the first and the last eighth.
    Middle,
}
use Where::*;

/// Every mix that has a name of its own.
pub static MIXES: &[Mix] = &[
    mix("F32", 0, F32, &[]),
    mix("F16", 1, F16, &[]),
    mix("BF16", 32, BF16, &[]),
    mix("Q8_0", 7, Q8_0, &[]),
    mix("INT8", 7, INT8, &[]),
    mix(
        "Q4_0",
        2,
        Q4_0,
        &[
            (OUTPUT, Always, Q6_K),
            (FFN_DOWN, FirstPartWeighted(8), Q4_1),
        ],
    ),
    mix("Q4_1", 3, Q4_1, &[(OUTPUT, Always, Q6_K)]),
    mix(
        "Q5_0",
        8,
        Q5_0,
        &[
            (OUTPUT, Always, Q6_K),
            (FFN_DOWN, FirstPartWeighted(8), Q5_1),
        ],
    ),
    mix("Q5_1", 9, Q5_1, &[(OUTPUT, Always, Q6_K)]),
    mix(
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
    mix(
        "Q2_K_S",
        21,
        Q2_K,
        &[
            (OUTPUT, Always, Q6_K),
            (ATTN_V, SharedHeads, Q4_K),
            (FFN_DOWN, FirstPart(8), Q4_K),
        ],
    ),
    mix("Q3_K_S", 11, Q3_K, &[(OUTPUT, Always, Q6_K)]),
    mix(
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
    mix(
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
    mix(
        "Q4_K_S",
        14,
        Q4_K,
        &[
            (OUTPUT, Always, Q6_K),
            (ATTN_V, FirstLayers(4), Q5_K),
            (FFN_DOWN, FirstPart(8), Q5_K),
        ],
    ),
    mix("Q4_K_M", 15, Q4_K, LARGE_EDGES),
    mix("Q5_K_S", 16, Q5_K, &[(OUTPUT, Always, Q6_K)]),
    mix("Q5_K_M", 17, Q5_K, LARGE_EDGES),
    mix("Q6_K", 18, Q6_K, &[]),
    mix("IQ1_S", 24, IQ1_S, UNDER_TWO_BITS),
    mix("IQ1_M", 31, IQ1_M, UNDER_TWO_BITS),
    mix("IQ2_XXS", 19, IQ2_XXS, TWO_BITS),
    mix("IQ2_XS", 20, IQ2_XS, TWO_BITS),
    mix("IQ2_S", 28, IQ2_XS, ABOVE_TWO_BITS),
    mix("IQ2_M", 29, IQ2_S, ABOVE_TWO_BITS),
    mix(
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
    mix(
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
    mix(
        "IQ3_S",
        26,
        IQ3_S,
        &[(OUTPUT, Always, Q6_K), (ATTN_V, SharedHeads, Q4_K)],
    ),
    mix(
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
    mix("IQ4_NL", 25, IQ4_NL, UNEVEN_FOUR_BITS),
    mix("IQ4_XS", 30, IQ4_XS, UNEVEN_FOUR_BITS),
    mix("TQ1_0", 36, TQ1_0, TERNARY),
    mix("TQ2_0", 37, TQ2_0, TERNARY),
    mix("MXFP4", 38, MXFP4, &[(OUTPUT, Always, Q8_0)]),
    mix("MXFP4_MOE", 38, Q8_0, &[(EXPERTS, Always, MXFP4)]),
    mix("NVFP4", 39, NVFP4, &[(OUTPUT, Always, Q6_K)]),
];

/// The output, and what the residual stream is most sensitive to, in six bits.
const LARGE_EDGES: &[Rule] = &[
    (OUTPUT, Always, Q6_K),
    (ATTN_V, EdgesAndThirds, Q6_K),
    (FFN_DOWN, EdgesAndThirds, Q6_K),
];

/// What formats of less than two bits cannot hold.
const UNDER_TWO_BITS: &[Rule] = &[
    (OUTPUT, Always, Q5_K),
    (TOKEN_EMBEDDING, Always, Q2_K),
    (ATTN_V, SharedHeadsOrExperts, Q4_K),
    (ATTN_V, Always, Q2_K),
    (ATTN_OUTPUT, Always, IQ2_XXS),
    (FFN_DOWN, FirstPart(8), Q2_K),
];

/// What formats of about two bits cannot hold.
const TWO_BITS: &[Rule] = &[
    (OUTPUT, Always, Q5_K),
    (TOKEN_EMBEDDING, Always, Q2_K),
    (ATTN_V, SharedHeadsOrExperts, Q4_K),
    (ATTN_V, Always, Q2_K),
    (FFN_DOWN, FirstPart(8), Q2_K),
];

/// The same with more room.
const ABOVE_TWO_BITS: &[Rule] = &[
    (OUTPUT, Always, Q5_K),
    (TOKEN_EMBEDDING, Always, IQ3_S),
    (ATTN_V, SharedHeadsOrExperts, Q4_K),
    (ATTN_V, Always, IQ3_S),
    (ATTN_OUTPUT, Always, IQ3_S),
    (FFN_DOWN, FirstPart(8), IQ3_S),
];

/// What uneven levels of four bits are less good for.
const UNEVEN_FOUR_BITS: &[Rule] = &[
    (OUTPUT, Always, Q6_K),
    (ATTN_V, SharedHeads, Q5_K),
    (FFN_DOWN, FirstPartUnweighted(8), Q5_K),
];

/// What three values cannot hold.
const TERNARY: &[Rule] = &[(OUTPUT, Always, Q6_K), (TOKEN_EMBEDDING, Always, Q4_K)];

const fn mix(name: &'static str, file_type: u32, base: TensorType, rules: &'static [Rule]) -> Mix {
    Mix {
        name,
        file_type,
        base,
        rules,
    }
}

/// The matrices of experts, where a mix treats all of them alike.
pub const EXPERTS: TensorRole = FFN_UP_EXPERTS;

/// Names that people use for the usual mix of a type.
const ALIASES: &[(&str, &str)] = &[("Q3_K", "Q3_K_M"), ("Q4_K", "Q4_K_M"), ("Q5_K", "Q5_K_M")];

impl Mix {
    /// The mix called `name`; a type such as Q4_K stands for its usual mix.
    pub fn named(name: &str) -> Option<Mix> {
        let alias = ALIASES
            .iter()
            .find(|(alias, _)| alias.eq_ignore_ascii_case(name));
        let name = alias.map_or(name, |(_, usual)| usual);
        let found = MIXES
            .iter()
            .find(|mix| mix.name.eq_ignore_ascii_case(name))
            .or_else(|| {
                let ty = TensorType::from_name(name)?;
                MIXES.iter().find(|mix| mix.base == ty)
            });
        found.copied()
    }

    /// The same type for every matrix, embeddings and output too.
    #[must_use]
    pub fn pure(self) -> Mix {
        Mix { rules: &[], ..self }
    }

    /// What a matrix with rows of `inputs` elements is stored as.
    pub fn tensor_type(
        &self,
        role: TensorRole,
        layer: usize,
        traits: &Traits,
        inputs: usize,
    ) -> TensorType {
        // Embeddings that also make the logits are as precious as an output matrix.
        let role = if role == TOKEN_EMBEDDING && traits.tied {
            OUTPUT
        } else {
            role
        };
        let is_mix = !self.rules.is_empty();
        let whole = inputs.is_multiple_of(self.base.block_len());
        if role == OUTPUT && is_mix && (traits.family == Family::Falcon || !whole) {
            return whole_blocks(Q8_0, inputs);
        }
        let fits = |&&(of, place, _): &&Rule| of == role && place.contains(layer, traits);
        let rule = self.rules.iter().find(fits).map(|rule| rule.2);
        let mut ty = rule.unwrap_or(self.base);
        if is_mix && traits.n_experts == 8 {
            ty = self.among_eight_experts(role).unwrap_or(ty);
        }
        if is_mix && traits.family == Family::Falcon {
            ty = self.in_falcon(role, layer, traits).unwrap_or(ty);
        }
        let is_llama = traits.family == Family::Llama;
        let largest = is_llama && traits.n_layers == 80 && traits.heads_per_kv > 1;
        if largest && role == ATTN_V && is_mix && !self.is_tiny() && matches!(ty, Q3_K | Q4_K) {
            ty = Q5_K;
        }
        whole_blocks(ty, inputs)
    }

    /// Whether it is one of the mixes around two bits, which have rules of their own.
    fn is_tiny(&self) -> bool {
        matches!(self.base, IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S)
    }

    /// With eight experts, attention is so small a part that more bits for it cost little.
    fn among_eight_experts(&self, role: TensorRole) -> Option<TensorType> {
        let spends_on_output = self.base != Q2_K || self.name == "Q2_K";
        let spends_on_output = spends_on_output
            && !matches!(self.name, "Q3_K_L" | "Q5_K_S" | "Q5_K_M")
            && self.base.bits_per_weight() < 4.51
            && !matches!(self.base, Q4_0 | TQ1_0 | TQ2_0 | MXFP4 | NVFP4);
        match role {
            ATTN_V | ATTN_K if self.is_tiny() && role == ATTN_K => Some(Q4_K),
            ATTN_V | ATTN_K if !self.is_tiny() => Some(Q8_0),
            ATTN_OUTPUT if self.is_tiny() || spends_on_output => Some(Q5_K),
            _ => None,
        }
    }

    /// Falcon's own rules.
    fn in_falcon(&self, role: TensorRole, layer: usize, traits: &Traits) -> Option<TensorType> {
        let more = EdgesAndThirds.contains(layer, traits);
        match (self.name, role) {
            ("Q3_K_L", ATTN_OUTPUT) => Some(Q4_K),
            (_, ATTN_OUTPUT) if !self.is_tiny() => Some(self.base),
            ("Q3_K_M", FFN_DOWN) if layer < traits.n_layers / 16 => Some(Q5_K),
            ("Q3_K_M", FFN_DOWN) => Some(if more { Q4_K } else { Q3_K }),
            ("Q3_K_L", FFN_DOWN) => Some(Q4_K),
            ("Q4_K_M", FFN_DOWN) if layer < traits.n_layers / 16 => Some(Q6_K),
            ("Q4_K_M", FFN_DOWN) => Some(if more { Q5_K } else { Q4_K }),
            ("Q4_K_S", FFN_DOWN) => Some(Q4_K),
            _ => None,
        }
    }
}

impl Where {
    fn contains(self, layer: usize, traits: &Traits) -> bool {
        let n = traits.n_layers;
        let edge = layer < n / 8 || layer >= 7 * n / 8;
        match self {
            Always => true,
            SharedHeads => traits.heads_per_kv >= 4,
            SharedHeadsOrExperts => traits.heads_per_kv >= 4 || traits.n_experts >= 4,
            FirstLayers(count) => layer < count,
            FirstPart(part) => layer < n / part,
            FirstPartUnweighted(part) => layer < n / part && !traits.importance,
            FirstPartWeighted(part) => layer < n / part && traits.importance,
            Unweighted => !traits.importance,
            EdgesAndThirds => edge || (layer - n / 8) % 3 == 2,
            Middle => !edge,
        }
    }
}

/// The type, or the nearest one whose blocks fill rows of `n` elements.
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

/// The names of all mixes, for messages.
pub fn names() -> String {
    let names: Vec<&str> = MIXES.iter().map(|mix| mix.name).collect();
    names.join(", ")
}

/// What a matrix of a GGUF file is for, as far as mixes care; stacks of experts count as the
/// matrices they are made of.
pub fn role_of(tensor: &str) -> Option<TensorRole> {
    /// The first that a name contains is taken.
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

    fn traits() -> Traits {
        Traits {
            n_layers: 32,
            heads_per_kv: 4,
            ..Traits::default()
        }
    }

    #[test]
    fn importance_changes_some_mixes() {
        let iq3 = Mix::named("iq3_xxs").unwrap();
        let weighted = Traits {
            importance: true,
            ..traits()
        };
        assert_eq!(iq3.tensor_type(FFN_DOWN, 9, &traits(), 4096), Q3_K);
        assert_eq!(iq3.tensor_type(FFN_DOWN, 9, &weighted, 4096), IQ3_XXS);
        let q4_0 = Mix::named("Q4_0").unwrap();
        assert_eq!(q4_0.tensor_type(FFN_DOWN, 0, &weighted, 4096), Q4_1);
        assert_eq!(q4_0.tensor_type(FFN_DOWN, 0, &traits(), 4096), Q4_0);
    }

    #[test]
    fn rows_that_no_block_fills_get_another_type() {
        let mix = Mix::named("Q4_K").unwrap();
        assert_eq!(mix.name, "Q4_K_M");
        assert_eq!(mix.tensor_type(ATTN_Q, 0, &traits(), 576), Q5_0);
        assert_eq!(mix.tensor_type(OUTPUT, 0, &traits(), 576), Q8_0);
        assert_eq!(whole_blocks(IQ2_S, 288), IQ4_NL);
        assert_eq!(whole_blocks(Q4_K, 17), F16);
    }

    #[test]
    fn names_are_sorted_into_roles() {
        assert_eq!(role_of("blk.3.ffn_down_exps.weight"), Some(FFN_DOWN));
        assert_eq!(role_of("blk.3.attn_qkv.weight"), Some(ATTN_V));
        assert_eq!(role_of("output.weight"), Some(OUTPUT));
        assert_eq!(role_of("blk.0.ssm_in.weight"), None);
    }
}
