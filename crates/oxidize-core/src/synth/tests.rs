//! Made-up models load, run, and hold sensible numbers, whatever they are stored as.

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

fn made(shape: Shape, mix: Mix) -> ModelFile {
    let mut bytes = Vec::new();
    let synthesis = Synthesis {
        shape,
        mix,
        seed: 1,
    };
    synthesis.write(&mut bytes, |_, _| {}).unwrap();
    ModelFile::from_bytes(bytes, &OpenOptions::default()).unwrap()
}

fn type_of(file: &ModelFile, tensor: &str) -> TensorType {
    file.tensor(tensor).unwrap().ty
}

#[test]
fn every_mix_holds_weights_of_the_same_spread() {
    for mix in MIXES {
        let file = made(small(), *mix);
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
            let name = format!("{} {} {}", mix.name, tensor.name, tensor.ty);
            assert!((0.01..0.04).contains(&deviation), "{name}: {deviation}");
        }
    }
}

#[test]
fn a_made_up_model_runs_and_its_logits_differ() {
    for mix in ["Q4_K_M", "F16", "IQ1_M"] {
        let model = Model::from_file(made(small(), Mix::named(mix).unwrap())).unwrap();
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
        assert!(logits.iter().all(|x| x.is_finite()), "{mix}");
        let mut sorted = logits.to_vec();
        sorted.sort_by(f32::total_cmp);
        sorted.dedup();
        let share = sorted.len() as f64 / logits.len() as f64;
        assert!(
            share > 0.7,
            "{mix}: {share} of the rows are unlike any other"
        );
    }
}

#[test]
fn a_mix_spends_bits_where_llama_cpp_does() {
    let file = made(small(), Mix::named("q4_k_m").unwrap());
    assert_eq!(type_of(&file, "token_embd.weight"), TensorType::Q6_K);
    assert_eq!(type_of(&file, "blk.0.attn_q.weight"), TensorType::Q4_K);
    let down = |layer: usize| type_of(&file, &format!("blk.{layer}.ffn_down.weight"));
    let more_bits = (0..8).filter(|&layer| down(layer) == TensorType::Q6_K);
    assert_eq!(more_bits.collect::<Vec<_>>(), [0, 3, 6, 7]);

    let pure = made(small(), Mix::named("q4_k_m").unwrap().pure());
    assert_eq!(type_of(&pure, "token_embd.weight"), TensorType::Q4_K);
    assert_eq!(type_of(&pure, "blk.0.ffn_down.weight"), TensorType::Q4_K);
}

#[test]
fn rows_that_are_no_whole_blocks_get_a_type_of_smaller_ones() {
    let shape = Shape {
        n_embd: 192,
        n_heads: 3,
        ..small()
    };
    let file = made(shape, Mix::named("Q4_K_M").unwrap());
    assert_eq!(type_of(&file, "token_embd.weight"), TensorType::Q8_0);
    assert_eq!(type_of(&file, "blk.1.ffn_up.weight"), TensorType::Q5_0);
    assert_eq!(type_of(&file, "blk.1.ffn_down.weight"), TensorType::Q4_K);
}

#[test]
fn impossible_models_are_refused() {
    let refused = |shape: Shape| {
        let mix = Mix::named("F16").unwrap();
        let seed = 0;
        let result = Synthesis { shape, mix, seed }.write(std::io::sink(), |_, _| {});
        assert!(matches!(
            result,
            Err(Error::Synthesis(SynthesisError::Shape(_)))
        ));
    };
    refused(Shape {
        n_heads: 3,
        ..small()
    });
    refused(Shape {
        n_kv_heads: 3,
        ..small()
    });
    refused(Shape {
        n_vocab: 100,
        ..small()
    });
    refused(Shape {
        n_layers: 0,
        ..small()
    });
    assert!(Mix::named("Q4_Q").is_none());
    assert!(Shape::named("2b").is_err());
}

#[test]
fn vocabularies_have_no_token_twice() {
    let mut tokens = vocabulary::tokens(50_000);
    assert_eq!(tokens.len(), 50_000);
    tokens.sort();
    tokens.dedup();
    assert_eq!(tokens.len(), 50_000);
}
