//! Types and bytes are those that llama.cpp's quantiser chooses and writes.

use std::collections::BTreeMap;

use oxidize_core::mix::{MIXES, Mix};
use oxidize_quantize::plan::{Plan, Wishes, traits_of};
use oxidize_quantize::quantize::{Options, tensors_of};

use super::{fingerprint, open, quantized, synthetic, tiny, wishes};

/// What llama.cpp's quantiser makes of the checked-in model.
const LLAMA_CPP: [(&str, u64); 5] = [
    ("Q4_0", 0xb8a9_230d_11db_479b),
    ("Q4_1", 0xc56d_4af9_6d42_ec00),
    ("Q5_0", 0x93e8_676a_2106_fa13),
    ("Q5_1", 0x5d4e_f795_1d95_c17d),
    ("Q8_0", 0x78aa_ac20_9d24_c0a8),
];

#[test]
fn plain_types_are_the_same_bits_as_llama_cpps() {
    let dir = tempfile::tempdir().unwrap();
    for (ty, expected) in LLAMA_CPP {
        let path = dir.path().join("out.gguf");
        quantized(&tiny(), &path, &wishes(ty), &Options::default()).unwrap();
        assert_eq!(fingerprint(&path), expected, "{ty}");
    }
}

/// `fixtures/quantize/types.tsv` is what `llama-quantize --dry-run` says of a Llama of 32 layers,
/// without and with an importance matrix: mix, which, role, types in order of layers.
#[test]
fn every_mix_gives_the_types_that_llama_cpp_gives() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let shape = oxidize_core::synth::Shape {
        n_layers: 32,
        n_heads: 8,
        n_kv_heads: 2,
        tied: false,
        ..oxidize_core::synth::Shape::named("tiny").unwrap()
    };
    let mix = Mix::named("F16").unwrap();
    let synthesis = oxidize_core::synth::Synthesis {
        shape,
        mix,
        seed: 0,
    };
    synthesis.save(&path, |_, _| {}).unwrap();
    let file = open(&path);
    let tensors = tensors_of(&file);
    let table = include_str!("../../../../fixtures/quantize/types.tsv");
    let mut checked = 0;
    for line in table.lines() {
        let [mix, kind, role, runs] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        let expected: Vec<&str> = runs
            .split(' ')
            .flat_map(|run| {
                let (ty, n) = run.split_once('*').unwrap();
                std::iter::repeat_n(ty, n.parse().unwrap())
            })
            .collect();
        let plan = Plan::new(&tensors, &wishes(mix), &traits_of(&file, kind == "imatrix"));
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
        assert_eq!(ours, expected, "{mix} {kind} {role}");
        checked += 1;
    }
    assert!(checked > 500, "{checked}");
}

#[test]
fn wishes_come_before_the_mix() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    synthetic(&path, "F16", 8);
    let file = open(&path);
    let tensors = tensors_of(&file);
    let traits = traits_of(&file, false);
    let type_of = |wishes: &Wishes, name: &str| {
        let plan = Plan::new(&tensors, wishes, &traits);
        let at = tensors.iter().position(|tensor| tensor.name == name);
        plan.types[at.unwrap()].name()
    };
    let mut asked = wishes("Q4_K_M");
    asked.pattern(r"blk\.[0-3]\.ffn_down=Q8_0").unwrap();
    asked.pattern("ffn_down=Q2_K").unwrap();
    assert_eq!(type_of(&asked, "blk.2.ffn_down.weight"), "Q8_0");
    assert_eq!(type_of(&asked, "blk.5.ffn_down.weight"), "Q2_K");
    assert_eq!(type_of(&asked, "blk.5.ffn_norm.weight"), "F32");
    assert_eq!(type_of(&asked, "token_embd.weight"), "Q6_K");
    asked.embedding = Some(oxidize_kernels::quant::TensorType::Q5_K);
    assert_eq!(type_of(&asked, "token_embd.weight"), "Q5_K");
    let mut floats = wishes("F16");
    floats.pattern("ffn_down=Q8_0").unwrap();
    assert_eq!(type_of(&floats, "blk.2.ffn_down.weight"), "Q8_0");
    assert_eq!(type_of(&floats, "blk.2.ffn_up.weight"), "F16");
    let pure = Wishes {
        pure: true,
        ..wishes("Q4_K_M")
    };
    assert_eq!(type_of(&pure, "token_embd.weight"), "Q4_K");
    assert!(asked.pattern("ffn_down").is_err());
    assert!(asked.pattern("ffn_down=Q9").is_err());
    assert!(asked.pattern("(=Q8_0").is_err());
}

/// Every mix makes a file that loads, of the size that the plan said.
#[test]
fn every_mix_makes_a_model() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.gguf"), dir.path().join("out.gguf"));
    synthetic(&input, "F16", 1);
    for mix in MIXES {
        let file = open(&input);
        let tensors = tensors_of(&file);
        let plan = Plan::new(&tensors, &wishes(mix.name), &traits_of(&file, false));
        let bytes = plan.bytes(&tensors);
        quantized(&input, &output, &wishes(mix.name), &Options::default()).unwrap();
        let made = open(&output);
        let total: u64 = made.tensors().iter().map(|tensor| tensor.bytes).sum();
        assert_eq!(total, bytes, "{}", mix.name);
        assert_eq!(
            made.metadata().u64("general.file_type"),
            Some(mix.file_type.into())
        );
        oxidize_core::model::Model::from_file(made).unwrap();
    }
}
