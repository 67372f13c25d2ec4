//! Runs a small model on one input, to compare two forms of it.

use std::collections::BTreeMap;
use std::path::Path;

use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::{Batch, KvType, SeqSlice, SessionConfig};
use oxidize_core::file::OpenOptions;
use oxidize_core::graph::OutputKind;
use oxidize_core::kv::BlockId;
use oxidize_core::model::Model;
use oxidize_quantize::imatrix::Collector;
use oxidize_quantize::importance::Entry;

/// Input statistics of each matrix.
pub(crate) type Entries = BTreeMap<String, Entry>;

/// Logits at every position of an input, or the hidden states of an embedding model; `None` for an
/// encoder-decoder model.
pub(crate) fn outputs(path: &Path, tokens: &[u32]) -> Option<Vec<f32>> {
    run(path, tokens).map(|(outputs, _)| outputs)
}

/// The outputs and the input statistics of the matrices.
pub(crate) fn run(path: &Path, tokens: &[u32]) -> Option<(Vec<f32>, Entries)> {
    let model = Model::load_with(path, &OpenOptions::default()).unwrap();
    assert!(
        model.unused_tensors().is_empty(),
        "{}: unused {:?}",
        path.display(),
        model.unused_tensors()
    );
    if model.arch().encoder.is_some() {
        return None;
    }
    let collector = Collector::new(&model, false);
    let config = SessionConfig {
        n_blocks: 16,
        block_size: 8,
        max_tokens: 128,
        max_outputs: 128,
        key_type: KvType::F32,
        value_type: KvType::F32,
        n_threads: Some(1),
        observer: Some(collector.observer()),
        ..SessionConfig::for_context(tokens.len())
    };
    let backend = Cpu::default();
    let mut session = match model.plan().output {
        OutputKind::Logits => model.session(&backend, &config).unwrap(),
        _ => model.embedding_session(&backend, &config).unwrap(),
    };
    let positions: Vec<u32> = (0..tokens.len() as u32).collect();
    let blocks: Vec<BlockId> = (0..tokens.len().div_ceil(8) as u32).map(BlockId).collect();
    let sequences = [SeqSlice {
        n_tokens: tokens.len(),
        blocks: &blocks,
        ..SeqSlice::default()
    }];
    let batch = Batch {
        tokens,
        positions: &positions,
        sequences: &sequences,
        outputs: &positions,
    };
    session.run(&batch).unwrap();
    let output = |i: usize| session.output(i).unwrap().to_vec();
    let outputs = (0..tokens.len()).flat_map(output).collect();
    Some((outputs, collector.entries()))
}

/// Maximum absolute difference relative to the maximum absolute value.
pub(crate) fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let largest = a.iter().fold(0f32, |most, x| most.max(x.abs()));
    let apart = a
        .iter()
        .zip(b)
        .fold(0f32, |most, (a, b)| most.max((a - b).abs()));
    apart / largest
}
