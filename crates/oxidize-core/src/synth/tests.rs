//! Generated models load, run and have plausible weights with every recipe.

use super::*;
use crate::backend::cpu::Cpu;
use crate::backend::{Batch, SeqSlice, SessionConfig};
use crate::file::{ModelFile, OpenOptions};
use crate::kv::BlockId;
use crate::model::Model;
use crate::tokenizer::EncodeOptions;

fn small() -> Shape {
    Shape {
        n_layers: 8,
        n_ff: 256,
        n_kv_heads: 1,
        n_vocab: 300,
        ..Shape::named("tiny").unwrap()
    }
}

fn generate(shape: Shape, recipe: QuantRecipe) -> ModelFile {
    let mut bytes = Vec::new();
    let synthesis = Synthesis {
        shape,
        recipe,
        seed: 1,
    };
    synthesis.write(&mut bytes, |_, _| {}).unwrap();
    ModelFile::from_bytes(bytes, &OpenOptions::default()).unwrap()
}

fn type_of(file: &ModelFile, tensor: &str) -> TensorType {
    file.tensor(tensor).unwrap().ty
}

#[test]
fn weights_have_the_same_deviation_with_every_recipe() {
    for recipe in RECIPES {
        let file = generate(small(), *recipe);
        for tensor in file.tensors().iter().filter(|t| t.shape.len() == 2) {
            let (mut squares, mut n) = (0.0, 0);
            file.for_each_f32::<Error>(tensor, |floats| {
                assert!(floats.iter().all(|x| x.is_finite()), "{}", tensor.name);
                squares += floats.iter().map(|x| f64::from(x * x)).sum::<f64>();
                n += floats.len();
                Ok(())
            })
            .unwrap();
            let deviation = (squares / n as f64).sqrt();
            let name = format!("{} {} {}", recipe.name, tensor.name, tensor.ty);
            assert!((0.01..0.04).contains(&deviation), "{name}: {deviation}");
        }
    }
}

#[test]
fn generated_model_runs_and_its_logits_differ() {
    for recipe in ["Q4_K_M", "F16", "IQ1_M"] {
        let model =
            Model::from_file(generate(small(), QuantRecipe::named(recipe).unwrap())).unwrap();
        let tokenizer = model.tokenizer().unwrap();
        let tokens = tokenizer.encode("Hi ü", EncodeOptions::default());
        assert_eq!(tokens.first(), Some(&vocabulary::BEGIN));
        assert_eq!(tokenizer.decode(&tokens[1..]).trim_start(), "Hi ü");
        let mut session = model
            .session(&Cpu::default(), &SessionConfig::for_context(64))
            .unwrap();
        let positions: Vec<u32> = (0..tokens.len() as u32).collect();
        let batch = Batch {
            tokens: &tokens,
            positions: &positions,
            sequences: &[SeqSlice {
                slot: 0,
                n_tokens: tokens.len(),
                blocks: &[BlockId(0)],
                ..SeqSlice::default()
            }],
            outputs: &[tokens.len() as u32 - 1],
        };
        session.run(&batch).unwrap();
        let logits = session.output(0).unwrap();
        assert!(logits.iter().all(|x| x.is_finite()), "{recipe}");
        let mut sorted = logits.to_vec();
        sorted.sort_by(f32::total_cmp);
        sorted.dedup();
        let distinct = sorted.len() as f64 / logits.len() as f64;
        assert!(
            distinct > 0.7,
            "{recipe}: only {distinct} of the logits are distinct"
        );
    }
}

#[test]
fn recipe_matches_llama_cpp() {
    let file = generate(small(), QuantRecipe::named("q4_k_m").unwrap());
    assert_eq!(type_of(&file, "token_embd.weight"), TensorType::Q6_K);
    assert_eq!(type_of(&file, "blk.0.attn_q.weight"), TensorType::Q4_K);
    let down = |layer: usize| type_of(&file, &format!("blk.{layer}.ffn_down.weight"));
    let more_bits = (0..8).filter(|&layer| down(layer) == TensorType::Q6_K);
    assert_eq!(more_bits.collect::<Vec<_>>(), [0, 3, 6, 7]);

    let pure = generate(small(), QuantRecipe::named("q4_k_m").unwrap().pure());
    assert_eq!(type_of(&pure, "token_embd.weight"), TensorType::Q4_K);
    assert_eq!(type_of(&pure, "blk.0.ffn_down.weight"), TensorType::Q4_K);
}

#[test]
fn partial_blocks_get_type_with_smaller_blocks() {
    let shape = Shape {
        n_embd: 192,
        n_heads: 3,
        ..small()
    };
    let file = generate(shape, QuantRecipe::named("Q4_K_M").unwrap());
    assert_eq!(type_of(&file, "token_embd.weight"), TensorType::Q8_0);
    assert_eq!(type_of(&file, "blk.1.ffn_up.weight"), TensorType::Q5_0);
    assert_eq!(type_of(&file, "blk.1.ffn_down.weight"), TensorType::Q4_K);
}

#[test]
fn impossible_shapes_are_rejected() {
    let assert_rejected = |shape: Shape| {
        let recipe = QuantRecipe::named("F16").unwrap();
        let seed = 0;
        let result = Synthesis {
            shape,
            recipe,
            seed,
        }
        .write(std::io::sink(), |_, _| {});
        assert!(matches!(
            result,
            Err(Error::Synthesis(SynthesisError::Shape(_)))
        ));
    };
    assert_rejected(Shape {
        n_heads: 3,
        ..small()
    });
    assert_rejected(Shape {
        n_kv_heads: 3,
        ..small()
    });
    assert_rejected(Shape {
        n_vocab: 100,
        ..small()
    });
    assert_rejected(Shape {
        n_layers: 0,
        ..small()
    });
    assert!(QuantRecipe::named("Q4_Q").is_none());
    assert!(Shape::named("2b").is_err());
}

#[test]
fn vocabulary_has_no_duplicates() {
    let mut tokens = vocabulary::tokens(50_000);
    assert_eq!(tokens.len(), 50_000);
    tokens.sort();
    tokens.dedup();
    assert_eq!(tokens.len(), 50_000);
}
