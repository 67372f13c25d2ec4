//! [`Mix`]: which type each matrix gets under a name such as Q4_K_M, as llama.cpp's quantiser
//! chooses them for a Llama without an importance matrix.

use oxidize_kernels::quant::TensorType::{self, *};

use super::{Shape, SynthesisError};
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

#[derive(Clone, Copy, Debug)]
enum Where {
    Always,
    /// In models whose key and value heads serve at least four query heads each.
    SharedHeads,
    FirstLayers(usize),
    /// The first so-manieth part of the layers.
    FirstPart(usize),
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
    mix("Q4_0", 2, Q4_0, &[(OUTPUT, Always, Q6_K)]),
    mix("Q4_1", 3, Q4_1, &[(OUTPUT, Always, Q6_K)]),
    mix("Q5_0", 8, Q5_0, &[(OUTPUT, Always, Q6_K)]),
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
    mix(
        "Q4_K_M",
        15,
        Q4_K,
        &[
            (OUTPUT, Always, Q6_K),
            (ATTN_V, EdgesAndThirds, Q6_K),
            (FFN_DOWN, EdgesAndThirds, Q6_K),
        ],
    ),
    mix("Q5_K_S", 16, Q5_K, &[(OUTPUT, Always, Q6_K)]),
    mix(
        "Q5_K_M",
        17,
        Q5_K,
        &[
            (OUTPUT, Always, Q6_K),
            (ATTN_V, EdgesAndThirds, Q6_K),
            (FFN_DOWN, EdgesAndThirds, Q6_K),
        ],
    ),
    mix("Q6_K", 18, Q6_K, &[]),
    mix(
        "IQ1_S",
        24,
        IQ1_S,
        &[
            (OUTPUT, Always, Q5_K),
            (TOKEN_EMBEDDING, Always, Q2_K),
            (ATTN_V, SharedHeads, Q4_K),
            (ATTN_V, Always, Q2_K),
            (ATTN_OUTPUT, Always, IQ2_XXS),
            (FFN_DOWN, FirstPart(8), Q2_K),
        ],
    ),
    mix(
        "IQ1_M",
        31,
        IQ1_M,
        &[
            (OUTPUT, Always, Q5_K),
            (TOKEN_EMBEDDING, Always, Q2_K),
            (ATTN_V, SharedHeads, Q4_K),
            (ATTN_V, Always, Q2_K),
            (ATTN_OUTPUT, Always, IQ2_XXS),
            (FFN_DOWN, FirstPart(8), Q2_K),
        ],
    ),
    mix(
        "IQ2_XXS",
        19,
        IQ2_XXS,
        &[
            (OUTPUT, Always, Q5_K),
            (TOKEN_EMBEDDING, Always, Q2_K),
            (ATTN_V, SharedHeads, Q4_K),
            (ATTN_V, Always, Q2_K),
            (FFN_DOWN, FirstPart(8), Q2_K),
        ],
    ),
    mix(
        "IQ2_XS",
        20,
        IQ2_XS,
        &[
            (OUTPUT, Always, Q5_K),
            (TOKEN_EMBEDDING, Always, Q2_K),
            (ATTN_V, SharedHeads, Q4_K),
            (ATTN_V, Always, Q2_K),
            (FFN_DOWN, FirstPart(8), Q2_K),
        ],
    ),
    mix(
        "IQ2_S",
        28,
        IQ2_XS,
        &[
            (OUTPUT, Always, Q5_K),
            (TOKEN_EMBEDDING, Always, IQ3_S),
            (ATTN_V, SharedHeads, Q4_K),
            (ATTN_V, Always, IQ3_S),
            (ATTN_OUTPUT, Always, IQ3_S),
            (FFN_DOWN, FirstPart(8), IQ3_S),
        ],
    ),
    mix(
        "IQ2_M",
        29,
        IQ2_S,
        &[
            (OUTPUT, Always, Q5_K),
            (TOKEN_EMBEDDING, Always, IQ3_S),
            (ATTN_V, SharedHeads, Q4_K),
            (ATTN_V, Always, IQ3_S),
            (ATTN_OUTPUT, Always, IQ3_S),
            (FFN_DOWN, FirstPart(8), IQ3_S),
        ],
    ),
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
            (ATTN_V, Always, IQ3_S),
            (ATTN_OUTPUT, Always, IQ3_S),
            (FFN_DOWN, FirstPart(8), Q4_K),
            (FFN_DOWN, Always, Q3_K),
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
    mix(
        "IQ4_NL",
        25,
        IQ4_NL,
        &[
            (OUTPUT, Always, Q6_K),
            (ATTN_V, SharedHeads, Q5_K),
            (FFN_DOWN, FirstPart(8), Q5_K),
        ],
    ),
    mix(
        "IQ4_XS",
        30,
        IQ4_XS,
        &[
            (OUTPUT, Always, Q6_K),
            (ATTN_V, SharedHeads, Q5_K),
            (FFN_DOWN, FirstPart(8), Q5_K),
        ],
    ),
    mix(
        "TQ1_0",
        36,
        TQ1_0,
        &[(OUTPUT, Always, Q6_K), (TOKEN_EMBEDDING, Always, Q4_K)],
    ),
    mix(
        "TQ2_0",
        37,
        TQ2_0,
        &[(OUTPUT, Always, Q6_K), (TOKEN_EMBEDDING, Always, Q4_K)],
    ),
    mix("MXFP4", 38, MXFP4, &[(OUTPUT, Always, Q8_0)]),
    mix("NVFP4", 39, NVFP4, &[(OUTPUT, Always, Q6_K)]),
];

const fn mix(name: &'static str, file_type: u32, base: TensorType, rules: &'static [Rule]) -> Mix {
    Mix {
        name,
        file_type,
        base,
        rules,
    }
}

impl Mix {
    /// The mix called `name`; a type such as Q4_K stands for its plainest mix.
    pub fn named(name: &str) -> Result<Mix, SynthesisError> {
        let found = MIXES
            .iter()
            .find(|mix| mix.name.eq_ignore_ascii_case(name))
            .or_else(|| {
                let ty = TensorType::from_name(name)?;
                MIXES.iter().find(|mix| mix.base == ty)
            });
        found.copied().ok_or_else(|| SynthesisError::UnknownMix {
            name: name.to_owned(),
        })
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
        shape: &Shape,
        inputs: usize,
    ) -> TensorType {
        // Embeddings that also make the logits are as precious as an output matrix.
        let role = if role == TOKEN_EMBEDDING && shape.tied {
            OUTPUT
        } else {
            role
        };
        let fits = |&&(of, place, _): &&Rule| of == role && place.contains(layer, shape);
        let ty = self
            .rules
            .iter()
            .find(fits)
            .map_or(self.base, |rule| rule.2);
        whole_blocks(ty, inputs)
    }
}

impl Where {
    fn contains(self, layer: usize, shape: &Shape) -> bool {
        let n = shape.n_layers;
        let edge = layer < n / 8 || layer >= 7 * n / 8;
        match self {
            Always => true,
            SharedHeads => shape.n_heads >= 4 * shape.n_kv_heads,
            FirstLayers(count) => layer < count,
            FirstPart(part) => layer < n / part,
            EdgesAndThirds => edge || (layer - n / 8) % 3 == 2,
            Middle => !edge,
        }
    }
}

/// The type, or the nearest one whose blocks fill rows of `n` elements.
fn whole_blocks(ty: TensorType, n: usize) -> TensorType {
    let fits = |ty: TensorType| n.is_multiple_of(ty.block_len());
    if fits(ty) {
        return ty;
    }
    let smaller = match ty {
        Q4_K => Q5_0,
        Q5_K => Q5_1,
        Q6_K => Q8_0,
        TQ1_0 | TQ2_0 => Q4_0,
        _ => IQ4_NL,
    };
    if fits(smaller) { smaller } else { F16 }
}

pub(super) fn names() -> String {
    let names: Vec<&str> = MIXES.iter().map(|mix| mix.name).collect();
    names.join(", ")
}
