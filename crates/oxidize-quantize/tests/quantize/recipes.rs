//! Types and bytes equal those of llama.cpp's quantizer.

use std::collections::BTreeMap;

use oxidize_core::recipe::{QuantRecipe, RECIPES};
use oxidize_quantize::plan::{Plan, QuantizeParams, model_info};
use oxidize_quantize::quantize::{Options, tensors_of};

use super::{fingerprint, open, params, quantized, synthetic, tiny};

/// Fingerprints of the tiny model quantized by llama.cpp.
const LLAMA_CPP: [(&str, u64); 5] = [
    ("Q4_0", 0xb8a9_230d_11db_479b),
    ("Q4_1", 0xc56d_4af9_6d42_ec00),
    ("Q5_0", 0x93e8_676a_2106_fa13),
    ("Q5_1", 0x5d4e_f795_1d95_c17d),
    ("Q8_0", 0x78aa_ac20_9d24_c0a8),
];

pub(crate) fn legacy_types_are_bit_identical_to_llama_cpp() {
    let dir = tempfile::tempdir().unwrap();
    for (ty, expected) in LLAMA_CPP {
        let path = dir.path().join("out.gguf");
        quantized(&tiny(), &path, &params(ty), &Options::default()).unwrap();
        assert_eq!(fingerprint(&path), expected, "{ty}");
    }
}

/// `fixtures/quantize/types.tsv` has the types of `llama-quantize --dry-run` for a Llama model of 32 layers,
/// without and with an importance matrix: recipe, kind, role, types in order of layers.
pub(crate) fn every_recipe_chooses_the_types_of_llama_cpp() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let shape = oxidize_core::synth::Shape {
        n_layers: 32,
        n_heads: 8,
        n_kv_heads: 2,
        tied: false,
        ..oxidize_core::synth::Shape::named("tiny").unwrap()
    };
    let recipe = QuantRecipe::named("F16").unwrap();
    let synthesis = oxidize_core::synth::Synthesis {
        shape,
        recipe,
        seed: 0,
    };
    synthesis.save(&path, |_, _| {}).unwrap();
    let file = open(&path);
    let tensors = tensors_of(&file);
    let table = include_str!("../../../../fixtures/quantize/types.tsv");
    let mut checked = 0;
    for line in table.lines() {
        let [recipe, kind, role, runs] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        let expected: Vec<&str> = runs
            .split(' ')
            .flat_map(|run| {
                let (ty, n) = run.split_once('*').unwrap();
                std::iter::repeat_n(ty, n.parse().unwrap())
            })
            .collect();
        let plan = Plan::new(
            &tensors,
            &params(recipe),
            &model_info(&file, kind == "imatrix"),
        );
        let mut ours = BTreeMap::new();
        for (tensor, ty) in tensors.iter().zip(&plan.types) {
            let mut parts = tensor.name.trim_end_matches(".weight").split('.');
            let (layer, name) = match (parts.next(), parts.next(), parts.next()) {
                (Some("blk"), Some(layer), Some(name)) => (layer.parse().unwrap(), name),
                (Some(name), ..) => (0, name),
                _ => continue,
            };
            if name == role {
                ours.insert(layer, ty.name());
            }
        }
        let ours: Vec<&str> = ours.into_values().collect::<Vec<_>>();
        assert_eq!(ours, expected, "{recipe} {kind} {role}");
        checked += 1;
    }
    assert!(checked > 500, "{checked}");
}

pub(crate) fn overrides_take_precedence_over_the_recipe() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    synthetic(&path, "F16", 8);
    let file = open(&path);
    let tensors = tensors_of(&file);
    let info = model_info(&file, false);
    let type_of = |params: &QuantizeParams, name: &str| {
        let plan = Plan::new(&tensors, params, &info);
        let at = tensors.iter().position(|tensor| tensor.name == name);
        plan.types[at.unwrap()].name()
    };
    let mut asked = params("Q4_K_M");
    asked.pattern(r"blk\.[0-3]\.ffn_down=Q8_0").unwrap();
    asked.pattern("ffn_down=Q2_K").unwrap();
    assert_eq!(type_of(&asked, "blk.2.ffn_down.weight"), "Q8_0");
    assert_eq!(type_of(&asked, "blk.5.ffn_down.weight"), "Q2_K");
    assert_eq!(type_of(&asked, "blk.5.ffn_norm.weight"), "F32");
    assert_eq!(type_of(&asked, "token_embd.weight"), "Q6_K");
    asked.embedding = Some(oxidize_kernels::quant::TensorType::Q5_K);
    assert_eq!(type_of(&asked, "token_embd.weight"), "Q5_K");
    let mut floats = params("F16");
    floats.pattern("ffn_down=Q8_0").unwrap();
    assert_eq!(type_of(&floats, "blk.2.ffn_down.weight"), "Q8_0");
    assert_eq!(type_of(&floats, "blk.2.ffn_up.weight"), "F16");
    let pure = QuantizeParams {
        pure: true,
        ..params("Q4_K_M")
    };
    assert_eq!(type_of(&pure, "token_embd.weight"), "Q4_K");
    assert!(asked.pattern("ffn_down").is_err());
    assert!(asked.pattern("ffn_down=Q9").is_err());
    assert!(asked.pattern("(=Q8_0").is_err());
}

/// Every recipe writes a file that loads, with the planned size.
pub(crate) fn every_recipe_writes_a_model() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.gguf"), dir.path().join("out.gguf"));
    synthetic(&input, "F16", 1);
    for recipe in RECIPES {
        let file = open(&input);
        let tensors = tensors_of(&file);
        let plan = Plan::new(&tensors, &params(recipe.name), &model_info(&file, false));
        let bytes = plan.bytes(&tensors);
        quantized(&input, &output, &params(recipe.name), &Options::default()).unwrap();
        let made = open(&output);
        let total: u64 = made.tensors().iter().map(|tensor| tensor.bytes).sum();
        assert_eq!(total, bytes, "{}", recipe.name);
        assert_eq!(
            made.metadata().u64("general.file_type"),
            Some(recipe.file_type.into())
        );
        oxidize_core::model::Model::from_file(made).unwrap();
    }
}
