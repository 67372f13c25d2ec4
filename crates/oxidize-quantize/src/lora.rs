//! Adapters: merged into the weights of their base, or written as GGUF.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use oxidize_core::file::{ModelFile, OpenOptions, TensorBytes};
use oxidize_core::gguf::ValueBuf;
use oxidize_core::lora::{Adapter, Delta};
use oxidize_core::model::Model;
use oxidize_kernels::quant::TensorType;

use crate::encode::Workers;
use crate::error::{Error, Result};
use crate::output::{Output, Parts, check_differs, check_not_input};
use crate::quantize::{Progress, tensors_of};
use crate::tensor::Tensor;

/// Writes the base in `file` with an adapter added to its weights, whose types stay as they are.
/// Gives the number of tensors that changed.
pub fn merge_adapter(
    file: &ModelFile,
    adapter: &Path,
    strength: f32,
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
    output.forget_making();
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
        let sum = Tensor::made(
            tensor.name.clone(),
            TensorType::F32,
            tensor.shape.clone(),
            file.path(),
            Box::new(move || added(tensor, delta, strength)),
        );
        workers.encode(&sum, tensor.ty, None, out).map(drop)
    })?;
    workers.check()?;
    written.publish()?;
    Ok(changed)
}

/// The model with its weights mapped, whatever the file was opened for: of most, nothing is read.
fn mapped(file: &ModelFile) -> Result<Model> {
    Ok(Model::load(file.path(), &OpenOptions::default())?)
}

/// `W + strength · factor · B·A`, in f32.
fn added(tensor: &Tensor<'_>, delta: &Delta, strength: f32) -> Result<TensorBytes> {
    let (rows, columns) = (tensor.rows(), tensor.columns() as usize);
    let reader = tensor.open()?;
    let mut sum = Vec::with_capacity(rows as usize * columns);
    let mut row = vec![0.0; columns];
    let factor = strength * delta.factor;
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

/// Refuses to write over a file of an adapter, which may be a directory.
fn check_not_adapter(path: &Path, adapter: &Path) -> Result<()> {
    let inside = std::fs::read_dir(adapter).into_iter().flatten().flatten();
    let inside: Vec<PathBuf> = inside.map(|entry| entry.path()).collect();
    let files = inside.iter().map(PathBuf::as_path);
    check_differs(path, files.chain([adapter]))
}

/// Writes an adapter as a GGUF adapter of the base in `file`, a GGUF model.
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
            problem: "the base of a GGUF adapter is a GGUF file".into(),
        });
    }
    let adapter = Adapter::open(adapter, &OpenOptions::default())?;
    let deltas = adapter.deltas(&model)?;
    // One alpha is stored for all; where factors differ, they go into the matrices.
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
            tensors.push(Tensor::made(
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
        workers.encode(&tensors[index], ty, None, out).map(drop)
    })?;
    written.publish()?;
    Ok(deltas.len())
}
