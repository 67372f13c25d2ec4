//! LoRA adapters: merging into a base model, and conversion to GGUF.

use std::path::Path;

use oxidize_core::file::OpenOptions;
use oxidize_core::gguf::{Value, Writer};
use oxidize_core::lora::Adapter;
use oxidize_core::model::Model;
use oxidize_kernels::quant::TensorType;
use oxidize_quantize::lora::{convert_adapter, merge_adapter};
use oxidize_quantize::quantize::Options;
use oxidize_quantize::workers::Workers;

use super::{open, params, quantized, tiny};

const RANK: usize = 4;

/// Distinct small numbers.
fn number(i: usize) -> f32 {
    ((i * 2_654_435_761) % 1000) as f32 / 5000.0 - 0.1
}

/// Writes a GGUF adapter of two matrices of the tiny model.
fn adapter(path: &Path) {
    let mut writer = Writer::new();
    for (key, value) in [
        ("general.architecture", Value::Str("llama")),
        ("general.type", Value::Str("adapter")),
        ("adapter.type", Value::Str("lora")),
        ("adapter.lora.alpha", Value::F32(8.0)),
    ] {
        writer.key(key, &value).unwrap();
    }
    for (name, inputs, outputs) in [("attn_q", 64, 64), ("ffn_down", 96, 64)] {
        let name = format!("blk.0.{name}.weight");
        let ty = TensorType::F32;
        writer
            .tensor(&format!("{name}.lora_a"), ty, &[inputs, RANK as u64])
            .unwrap();
        writer
            .tensor(&format!("{name}.lora_b"), ty, &[RANK as u64, outputs])
            .unwrap();
    }
    let mut bytes = Vec::new();
    writer
        .write(&mut bytes, |tensor, out| {
            let n = tensor.bytes as usize / 4;
            let floats: Vec<u8> = (0..n).flat_map(|i| number(i + n).to_le_bytes()).collect();
            out.write_all(&floats)?;
            Ok::<_, Box<dyn std::error::Error>>(())
        })
        .unwrap();
    std::fs::write(path, bytes).unwrap();
}

fn floats(path: &Path, name: &str) -> Vec<f32> {
    let file = open(path);
    let mut floats = Vec::new();
    let info = file.tensor(name).unwrap();
    file.for_each_f32::<oxidize_core::Error>(info, |piece| {
        floats.extend_from_slice(piece);
        Ok(())
    })
    .unwrap();
    floats
}

pub(crate) fn merge_adds_the_adapter_to_the_weights() {
    let dir = tempfile::tempdir().unwrap();
    let [base, lora, merged] =
        ["base.gguf", "lora.gguf", "merged.gguf"].map(|n| dir.path().join(n));
    quantized(&tiny(), &base, &params("F32"), &Options::default()).unwrap();
    adapter(&lora);
    let file = open(&base);
    let n = merge_adapter(&file, &lora, 0.5, &merged, &Workers::default(), |_| {}).unwrap();
    assert_eq!(n, 2);
    for (name, inputs) in [("blk.0.attn_q.weight", 64), ("blk.0.ffn_down.weight", 96)] {
        let (before, after) = (floats(&base, name), floats(&merged, name));
        let (a, b) = (
            floats(&lora, &format!("{name}.lora_a")),
            floats(&lora, &format!("{name}.lora_b")),
        );
        for (i, (before, after)) in before.iter().zip(&after).enumerate() {
            let (row, column) = (i / inputs, i % inputs);
            let product: f32 = (0..RANK)
                .map(|r| b[row * RANK + r] * a[r * inputs + column])
                .sum();
            let expected = before + 0.5 * 8.0 / RANK as f32 * product;
            assert!(
                (after - expected).abs() < 1e-6,
                "{name} {i}: {after} {expected}"
            );
        }
    }
    let untouched = "blk.1.attn_q.weight";
    assert_eq!(floats(&base, untouched), floats(&merged, untouched));
    Model::load_with(&merged, &OpenOptions::default()).unwrap();
    let same = merge_adapter(&file, &lora, 1.0, &base, &Workers::default(), |_| {});
    assert!(same.is_err());
}

pub(crate) fn adapter_is_converted_to_gguf() {
    let dir = tempfile::tempdir().unwrap();
    let [lora, copy] = ["lora.gguf", "copy.gguf"].map(|name| dir.path().join(name));
    adapter(&lora);
    let file = open(&tiny());
    assert_eq!(
        convert_adapter(&file, &lora, &copy, TensorType::F32).unwrap(),
        2
    );
    let model = Model::load_with(tiny(), &OpenOptions::default()).unwrap();
    let deltas = |path: &Path| {
        let adapter = Adapter::open(path, &OpenOptions::default()).unwrap();
        adapter.deltas(&model).unwrap()
    };
    let (ours, theirs) = (deltas(&copy), deltas(&lora));
    assert_eq!(ours.len(), 2);
    for (a, b) in ours.iter().zip(&theirs) {
        assert_eq!((&a.tensor, a.rank, a.factor), (&b.tensor, b.rank, b.factor));
        assert_eq!((&a.a, &a.b), (&b.a, &b.b));
    }
}
