//! LoRA adapters: merging into the base model, and conversion to GGUF.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use oxidize_core::file::{ModelFile, OpenOptions, TensorBytes};
use oxidize_core::gguf::ValueBuf;
use oxidize_core::lora::{Adapter, Delta};
use oxidize_core::model::Model;
use oxidize_kernels::quant::TensorType;

use crate::error::{Error, Result};
use crate::output::{Output, Parts, check_differs, check_not_input};
use crate::quantize::{Progress, tensors_of};
use crate::tensor::Tensor;
use crate::workers::Workers;

/// Writes the base model in `file` with an adapter added to its weights. Tensor types are unchanged. Returns
/// the number of changed tensors.
pub fn merge_adapter(
    file: &ModelFile,
    adapter: &Path,
    scale: f32,
    path: &Path,
    workers: &Workers<'_>,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<usize> {
    check_not_input(path, file)?;
    check_not_adapter(path, adapter)?;
    let adapter = Adapter::open(adapter, &OpenOptions::default())?;
    let deltas = adapter.deltas(&mapped(file)?)?;
    let by_name: HashMap<&str, &Delta> = deltas
        .iter()
        .map(|delta| (delta.tensor.as_str(), delta))
        .collect();
    let tensors = tensors_of(file);
    let mut output = Output::default();
    output.copy_keys(file);
    output.remove_provenance();
    for tensor in &tensors {
        output.tensor(&tensor.name, tensor.ty, &tensor.shape);
    }
    let total = output.bytes();
    let (mut done, mut changed) = (0, 0);
    let metadata = Some(file.metadata());
    let written = output.write(path, &Parts::One, metadata, |index, planned, out| {
        progress(Progress::Writing {
            tensor: &planned.name,
            done,
            total,
        });
        done += planned.bytes;
        let tensor = &tensors[index];
        let Some(delta) = by_name.get(tensor.name.as_str()) else {
            return workers.copy(tensor, out);
        };
        changed += 1;
        let sum = Tensor::computed(
            tensor.name.clone(),
            TensorType::F32,
            tensor.shape.clone(),
            file.path(),
            Box::new(move || added(tensor, delta, scale)),
        );
        workers.quantize(&sum, tensor.ty, None, out).map(drop)
    })?;
    workers.check()?;
    written.publish()?;
    Ok(changed)
}

/// Loads the model with mapped weights, so that unused tensors are not read.
fn mapped(file: &ModelFile) -> Result<Model> {
    Ok(Model::load_with(file.path(), &OpenOptions::default())?)
}

/// `W + scale · factor · B·A` in f32.
fn added(tensor: &Tensor<'_>, delta: &Delta, scale: f32) -> Result<TensorBytes> {
    let (rows, columns) = (tensor.rows(), tensor.columns() as usize);
    let reader = tensor.open()?;
    let mut sum = Vec::with_capacity(rows as usize * columns);
    let mut row = vec![0.0; columns];
    let factor = scale * delta.factor;
    for r in 0..rows {
        reader.floats(&reader.bytes(r..r + 1)?, r * columns as u64, &mut row)?;
        let b = &delta.b[r as usize * delta.rank..(r as usize + 1) * delta.rank];
        for (b, a) in b.iter().zip(delta.a.chunks_exact(columns)) {
            let scaled = factor * b;
            for (x, a) in row.iter_mut().zip(a) {
                *x += scaled * a;
            }
        }
        sum.extend_from_slice(&row);
    }
    let bytes: Vec<u8> = sum.iter().flat_map(|x| x.to_le_bytes()).collect();
    Ok(TensorBytes::from(bytes))
}

/// Returns an error if `path` is a file of the adapter, which may be a directory.
fn check_not_adapter(path: &Path, adapter: &Path) -> Result<()> {
    let inside = std::fs::read_dir(adapter).into_iter().flatten().flatten();
    let inside: Vec<PathBuf> = inside.map(|entry| entry.path()).collect();
    let files = inside.iter().map(PathBuf::as_path);
    check_differs(path, files.chain([adapter]))
}

/// Converts an adapter of the GGUF model in `file` to a GGUF adapter. Returns the number of adapted matrices.
pub fn convert_adapter(
    file: &ModelFile,
    adapter: &Path,
    path: &Path,
    ty: TensorType,
) -> Result<usize> {
    check_not_input(path, file)?;
    check_not_adapter(path, adapter)?;
    let model = mapped(file)?;
    if file.metadata().is_empty() {
        return Err(Error::Unfit {
            file: file.path().to_path_buf(),
            problem: "the base model of a GGUF adapter must be a GGUF file".into(),
        });
    }
    let adapter = Adapter::open(adapter, &OpenOptions::default())?;
    let deltas = adapter.deltas(&model)?;
    // GGUF stores one alpha per adapter; if the factors differ, they are multiplied into B.
    let alpha = |delta: &Delta| delta.factor * delta.rank as f32;
    let first = deltas.first().map_or(0.0, alpha);
    let same = deltas
        .iter()
        .all(|delta| (alpha(delta) - first).abs() < 1e-6 * first.abs());
    let mut output = Output::default();
    output.set("general.architecture", model.arch().name.into());
    output.set("general.type", "adapter".into());
    output.set("adapter.type", "lora".into());
    let stored = if same { first } else { 0.0 };
    output.set("adapter.lora.alpha", ValueBuf::F32(stored));
    let mut tensors = Vec::new();
    for delta in &deltas {
        let factor = if same { 1.0 } else { delta.factor };
        let columns = delta.a.len() / delta.rank.max(1);
        let rows = delta.b.len() / delta.rank.max(1);
        for (ending, floats, factor, shape) in [
            ("lora_a", &delta.a, 1.0, [columns, delta.rank]),
            ("lora_b", &delta.b, factor, [delta.rank, rows]),
        ] {
            let bytes: Vec<u8> = floats
                .iter()
                .flat_map(|x| (factor * x).to_le_bytes())
                .collect();
            let bytes = TensorBytes::from(bytes);
            tensors.push(Tensor::computed(
                format!("{}.{ending}", delta.tensor),
                TensorType::F32,
                shape.map(|n| n as u64).to_vec(),
                adapter.path(),
                Box::new(move || Ok(bytes.clone())),
            ));
        }
    }
    for tensor in &tensors {
        output.tensor(&tensor.name, ty, &tensor.shape);
    }
    let workers = Workers::default();
    let written = output.write(path, &Parts::One, None, |index, _, out| {
        workers.quantize(&tensors[index], ty, None, out).map(drop)
    })?;
    written.publish()?;
    Ok(deltas.len())
}
