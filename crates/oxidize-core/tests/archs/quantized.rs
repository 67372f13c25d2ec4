//! Golden models with their matrices quantized to 8 bits give nearly the same results.

use crate::batch_schedule::{config, feed, feed_encoded, feed_whole};
use crate::models::{Golden, Kind, beside, own};
use crate::{distance, for_each_form};
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::file::{ModelFile, OpenOptions, TensorInfo, TensorType};
use oxidize_core::gguf::{WriteError, Writer};
use oxidize_core::model::Model;
use oxidize_golden::{Case, Form};
use oxidize_kernels::quant;
use std::path::Path;

/// Maximum KL divergence of the distributions of tokens, as the mean over positions in nats.
const MAX_KL: f64 = 0.05;
/// Maximum error of the hidden states of encoders, relative to their spread.
const MAX_DISTANCE: f64 = 0.05;

pub(crate) fn eight_bit_outputs_match_pytorch() {
    for_each_form(&own(), check);
}

pub(crate) fn eight_bit_outputs_of_stored_models_match_pytorch() {
    for_each_form(&beside(), check);
}

fn check(golden: &Golden, form: Form, path: &Path) -> Vec<String> {
    if form == Form::Directory {
        return Vec::new();
    }
    let file = ModelFile::open(path, &OpenOptions::default()).unwrap();
    let model =
        ModelFile::from_bytes(quantized(&file), &OpenOptions::default()).and_then(Model::from_file);
    let model = match model {
        Ok(model) => model,
        Err(error) => return vec![format!("{}: {error}", golden.name)],
    };
    let cases = &golden.cases;
    let scores = cases.iter().map(|case| compare(golden.kind, &model, case));
    let scores: Vec<f64> = scores.collect();
    let mean = scores.iter().sum::<f64>() / scores.len() as f64;
    let limit = if golden.kind == Kind::Encoder {
        MAX_DISTANCE
    } else {
        MAX_KL
    };
    println!("{}: {mean:.1e}", golden.name);
    if mean.is_nan() || mean > limit {
        return vec![format!("{}: {mean:.1e} over {limit}", golden.name)];
    }
    Vec::new()
}

fn compare(kind: Kind, model: &Model, case: &Case) -> f64 {
    let backend = Cpu::default();
    let config = config(256);
    let Case {
        tokens,
        decoder_tokens,
        positions,
        logits,
        hidden,
        ..
    } = case;
    match kind {
        Kind::Decoder => {
            let mut session = model.session(&backend, &config).unwrap();
            let ours = feed(session.as_mut(), tokens, &[128]);
            kl_divergence(&ours, logits, positions)
        }
        Kind::EncoderDecoder => {
            let mut session = model.session(&backend, &config).unwrap();
            let ours = feed_encoded(session.as_mut(), 0, tokens, decoder_tokens, &[128]);
            kl_divergence(&ours, logits, positions)
        }
        Kind::Encoder => {
            let mut session = model.embedding_session(&backend, &config).unwrap();
            let ours = feed_whole(session.as_mut(), &[tokens]);
            let width = hidden.len() / positions.len();
            distance(&rows(&ours, width, positions).concat(), hidden)
        }
    }
}

/// The outputs at some positions.
fn rows<'a>(outputs: &'a [f32], width: usize, positions: &[usize]) -> Vec<&'a [f32]> {
    let row = |at: &usize| &outputs[at * width..][..width];
    positions.iter().map(row).collect()
}

/// Mean over positions of the Kullback–Leibler divergence of our distribution from the reference.
fn kl_divergence(ours: &[f32], theirs: &[f32], positions: &[usize]) -> f64 {
    let width = theirs.len() / positions.len();
    let pairs = rows(ours, width, positions)
        .into_iter()
        .zip(theirs.chunks_exact(width));
    let one = |(ours, theirs): (&[f32], &[f32])| -> f64 {
        let (ours, theirs) = (log_softmax(ours), log_softmax(theirs));
        let terms = ours.iter().zip(&theirs).map(|(q, p)| p.exp() * (p - q));
        terms.sum()
    };
    pairs.map(one).sum::<f64>() / positions.len() as f64
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let logits: Vec<f64> = logits.iter().map(|&x| f64::from(x)).collect();
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits.iter().map(|x| (x - max).exp()).sum();
    logits.iter().map(|x| x - max - sum.ln()).collect()
}

/// The file with every matrix of whole blocks as Q8_0.
fn quantized(file: &ModelFile) -> Vec<u8> {
    let fits = |tensor: &TensorInfo| {
        let [columns, rows, ..] = tensor.shape[..] else {
            return false;
        };
        tensor.ty == TensorType::F32 && columns.is_multiple_of(32) && rows > 1
    };
    let mut writer = Writer::new();
    for (key, value) in file.metadata().iter() {
        if !key.starts_with("tokenizer.") {
            writer.key(key, &value).unwrap();
        }
    }
    let mut n_quantized = 0;
    for tensor in file.tensors() {
        let ty = if fits(tensor) {
            TensorType::Q8_0
        } else {
            tensor.ty
        };
        n_quantized += usize::from(ty == TensorType::Q8_0);
        writer.tensor(&tensor.name, ty, &tensor.shape).unwrap();
    }
    assert!(
        n_quantized > 0,
        "nothing to quantize in {}",
        file.path().display()
    );
    let mut bytes = Vec::new();
    writer
        .write(&mut bytes, |planned, out| {
            let tensor = file.tensor(&planned.name).unwrap();
            let data = file.data(tensor).unwrap();
            if planned.ty == tensor.ty {
                out.write_all(&data)?;
                return Ok::<_, WriteError>(());
            }
            let (numbers, _) = data.as_chunks();
            let floats: Vec<f32> = numbers.iter().copied().map(f32::from_le_bytes).collect();
            let mut blocks = vec![0; planned.bytes as usize];
            quant::quantize(planned.ty, &floats, &mut blocks).unwrap();
            Ok(out.write_all(&blocks)?)
        })
        .unwrap();
    bytes
}
