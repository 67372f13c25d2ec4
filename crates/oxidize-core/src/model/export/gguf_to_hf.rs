//! Converts the tensors of a GGUF model to those of a Hugging Face directory.
//!
//! The conversion is the reverse of the one to GGUF. An empty directory with only a `config.json`
//! and a table of tensors is constructed. Its conversion to GGUF ([`super::mappings`]) must match the
//! given file tensor by tensor, and is then inverted.

use super::header::{HfLayout, header_only};
use super::mapping::{TensorMapping, bytes_of};
use super::{ExportedData, ExportedTensor, mappings};
use crate::arch::config::{ConfigFacts, class_of, config, difference, is_bare};
use crate::arch::names::*;
use crate::arch::{ARCHS, Arch, Hparams, TensorRole};
use crate::error::{Error, Result};
use crate::file::{Contents, Format, ModelFile, OpenOptions, TensorBytes, TensorInfo};
use crate::graph::rope::{RopeFactors, RopeScaling};
use crate::model::ModelError;
use oxidize_kernels::quant::TensorType;
use serde_json::Value;
use std::collections::HashMap;

/// GGUF model as a Hugging Face directory.
pub struct HuggingFaceModel<'a> {
    /// Contents of `config.json`.
    pub config: Value,
    /// Tensors in the order of the layers.
    pub tensors: Vec<ExportedTensor<'a>>,
}

/// Converts the GGUF model `file`. Returns an error if the model cannot be expressed as a Hugging
/// Face directory.
pub fn huggingface_model<'a>(
    file: &'a ModelFile,
    facts: &ConfigFacts,
) -> Result<HuggingFaceModel<'a>> {
    let gguf_arch = Arch::detect(file)?;
    let hparams = with_factors(file, Hparams::read(file, gguf_arch)?)?;
    let not_expressible = |problem: String| {
        Error::from(ModelError::NotInHuggingFace {
            file: file.path().to_path_buf(),
            name: gguf_arch.name.to_owned(),
            problem,
        })
    };
    let mut candidates: Vec<&'static Arch> = ARCHS
        .iter()
        .filter(|arch| arch.name == gguf_arch.name && !arch.hf_classes.is_empty())
        .copied()
        .collect();
    // In models with experts, prefer families with names for experts.
    let names_experts = |arch: &&Arch| arch.hf_names.iter().any(|(role, _)| *role == FFN_ROUTER);
    // RoBERTa is BERT with another kind of vocabulary. Families that rename fewer fields are more
    // specific.
    let wordpiece = file.metadata().str("tokenizer.ggml.model") == Some("bert");
    let says_less = |arch: &Arch| arch.hf_keys.iter().all(|(_, own)| !own.is_empty());
    candidates.sort_by_key(|arch| {
        (
            names_experts(arch) != hparams.moe.is_some(),
            (arch.position_offset == 0) != wordpiece,
            says_less(arch),
        )
    });
    let mut problem = None;
    for arch in candidates {
        match attempt(file, arch, gguf_arch, &hparams, facts) {
            Ok(model) => return Ok(model),
            // Report the problem of the most likely candidate.
            Err(why) => drop(problem.get_or_insert(why)),
        }
    }
    let unknown = || "no transformers class is known".to_owned();
    Err(not_expressible(problem.unwrap_or_else(unknown)))
}

/// Adds the RoPE frequency factors, which GGUF stores as tensors.
fn with_factors(file: &ModelFile, mut hparams: Hparams) -> Result<Hparams> {
    let n_ctx = hparams.rope_original_context;
    let Some(rope) = hparams.ropes.first_mut() else {
        return Ok(hparams);
    };
    let vector = |role: &TensorRole| -> Result<Option<Vec<f32>>> {
        let info = file.tensor(&format!("{}.weight", role.gguf));
        info.map(|info| floats(file, info)).transpose()
    };
    if let (Some(short), Some(long)) = (vector(&ROPE_FACTORS_SHORT)?, vector(&ROPE_FACTORS_LONG)?) {
        rope.factors = RopeFactors::ByContext {
            short,
            long,
            original_context: n_ctx,
        };
    } else if let Some(mut factors) = vector(&ROPE_FREQS)? {
        // GGUF represents infinity by large numbers.
        for factor in factors.iter_mut().filter(|factor| **factor > 1e28) {
            *factor = f32::INFINITY;
        }
        // Detect the scaling of Llama 3: its factor is the largest divisor, and other parameters
        // except the context are the same in all files.
        let factor = factors.iter().copied().fold(1.0, f32::max);
        let ramp = |original_context: f32| RopeScaling::Llama3 {
            factor,
            low: 1.0,
            high: 4.0,
            original_context,
        };
        let close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-4 * b.abs();
        let contexts = (4..24).map(|power| f32::from(2u8).powi(power));
        let found = contexts.map(ramp).find(|scaling| {
            let mut scaled = rope.clone();
            scaled.scaling = scaling.clone();
            let divisors = scaled.divisors();
            divisors.len() == factors.len() && divisors.iter().zip(&factors).all(close)
        });
        match found {
            Some(scaling) => rope.scaling = scaling,
            None => rope.factors = RopeFactors::Fixed(factors),
        }
    }
    Ok(hparams)
}

/// Converts the model as a member of the family `arch`, or returns why that is impossible.
fn attempt<'a>(
    file: &'a ModelFile,
    arch: &'static Arch,
    gguf_arch: &'static Arch,
    hparams: &Hparams,
    facts: &ConfigFacts,
) -> Result<HuggingFaceModel<'a>, String> {
    let config = config(arch, hparams, facts);
    let class = class_of(arch, facts);
    let layout = HfLayout {
        file,
        arch,
        gguf_arch,
        hparams,
        headless: is_bare(class),
    };
    let mut tensors = layout.header(|_| true);
    if let Some(encoder) = arch.encoder {
        let own = hparams.of_encoder();
        let stack = HfLayout {
            file,
            arch: encoder,
            gguf_arch: encoder,
            hparams: &own,
            headless: false,
        };
        let others = stack.header(super::belongs_to_encoder);
        tensors.splice(..0, others);
    }
    let constants = layout.constants();
    let is_vector = |name: &str| name.ends_with("alpha_p") || name.ends_with("alpha_n");
    for name in constants.keys() {
        let dims: &[usize] = if is_vector(name) { &[1] } else { &[] };
        tensors.push(header_only(name.clone(), dims));
    }
    let contents = Contents {
        format: Format::Safetensors,
        config: Some(config.clone()),
        tensors,
        ..Contents::default()
    };
    let directory = ModelFile::new(contents, &OpenOptions::default()).map_err(|e| e.to_string())?;
    let detected = Arch::detect(&directory).map_err(|e| e.to_string())?;
    if !std::ptr::eq(detected, arch) {
        return Err(format!("{class} would be detected as {}", detected.name));
    }
    let mut read = Hparams::read(&directory, arch).map_err(|e| e.to_string())?;
    for (layer, (own, other)) in read.layers.iter_mut().zip(&hparams.layers).enumerate() {
        // The dense width of layers with experts has no meaning.
        if layout.find(&FFN_ROUTER, layer).is_some() {
            own.n_ff = other.n_ff;
        }
    }
    if let Some(difference) = difference(&read, hparams) {
        return Err(format!(
            "its configuration cannot be expressed: {difference}"
        ));
    }
    let mappings = mappings(&directory, arch, &read);
    layout.check(&mappings)?;
    let mut of_tensor: HashMap<&str, Vec<(TensorMapping<'static>, usize, usize)>> = HashMap::new();
    for mapping in &mappings {
        for (i, part) in mapping.parts.iter().enumerate() {
            let own = TensorMapping {
                name: mapping.name.clone(),
                dims: mapping.dims.clone(),
                parts: Vec::new(),
                cols: mapping.cols,
                form: mapping.form.clone(),
            };
            let all = of_tensor.entry(&part.name).or_default();
            // Tensors that GGUF contains twice are read from the first place.
            let whole = |mapping: &TensorMapping<'_>| mapping.form.rows.is_none();
            if all.is_empty() || !whole(&own) {
                all.push((own, i, mapping.parts.len()));
            }
        }
    }
    let mut out = Vec::new();
    for info in directory.tensors() {
        if let Some(&value) = constants.get(&info.name) {
            out.push(layout.constant(info, value));
            continue;
        }
        let sources = of_tensor.remove(info.name.as_str());
        let sources =
            sources.ok_or_else(|| format!("no tensor of the file corresponds to {}", info.name))?;
        out.push(layout.tensor(info, sources)?);
    }
    Ok(HuggingFaceModel {
        config,
        tensors: out,
    })
}

impl<'a> HfLayout<'a, '_> {
    fn constant(&self, info: &TensorInfo, value: f32) -> ExportedTensor<'a> {
        let file = self.file;
        let shape = info.dims().iter().map(|&dim| dim as u64).collect();
        ExportedTensor {
            name: info.name.clone(),
            ty: TensorType::F32,
            shape,
            data: ExportedData::Made(Box::new(move || bytes_of(file, &[value]))),
            parts: Vec::new(),
        }
    }

    /// Returns an error unless the file contains exactly the tensors that the directory converts
    /// to.
    fn check(&self, mappings: &[TensorMapping<'_>]) -> Result<(), String> {
        let mut left: HashMap<&str, &TensorInfo> = HashMap::new();
        for tensor in self.file.tensors() {
            left.insert(&tensor.name, tensor);
        }
        for role in [ROPE_FREQS, ROPE_FACTORS_SHORT, ROPE_FACTORS_LONG] {
            left.remove(format!("{}.weight", role.gguf).as_str());
        }
        let wide = |dims: &[usize]| dims.iter().filter(|&&n| n != 1).count();
        for mapping in mappings {
            let Some(info) = left.remove(mapping.name.as_str()) else {
                return Err(format!("{} is not in the file", mapping.name));
            };
            let dims = info.dims();
            let same = wide(&dims) == wide(&mapping.dims)
                && dims.iter().product::<usize>() == mapping.dims.iter().product::<usize>();
            if !same {
                let problem = format!("{} is {dims:?}, not {:?}", mapping.name, mapping.dims);
                return Err(problem);
            }
        }
        match left.keys().min() {
            Some(name) => Err(format!("{name} has no Hugging Face name")),
            None => Ok(()),
        }
    }

    /// Tensor of the directory, from the GGUF tensors that it converts to.
    fn tensor(
        &self,
        info: &TensorInfo,
        sources: Vec<(TensorMapping<'static>, usize, usize)>,
    ) -> Result<ExportedTensor<'a>, String> {
        let file = self.file;
        let found = |mapping: &TensorMapping<'_>| {
            let missing = || format!("{} is not in the file", mapping.name);
            file.tensor(&mapping.name).ok_or_else(missing)
        };
        if let [(mapping, part, parts)] = sources.as_slice()
            && mapping.form == super::mapping::Form::default()
        {
            let stored = found(mapping)?;
            let (part, bytes) = (*part as u64, stored.bytes / *parts as u64);
            let data = match *parts {
                1 => ExportedData::Stored(vec![stored]),
                _ => ExportedData::Made(Box::new(move || {
                    file.data_range(stored, part * bytes..(part + 1) * bytes)
                })),
            };
            return Ok(ExportedTensor {
                name: info.name.clone(),
                ty: stored.ty,
                shape: super::gguf_shape(&info.dims()),
                data,
                parts: vec![stored],
            });
        }
        let dims = info.dims();
        let mut stored = Vec::with_capacity(sources.len());
        for (mapping, part, parts) in sources {
            stored.push((found(&mapping)?, mapping, part, parts));
        }
        let parts = stored.iter().map(|(stored, ..)| *stored).collect();
        let make = move || inverted(file, &dims, &stored);
        Ok(ExportedTensor {
            name: info.name.clone(),
            ty: TensorType::F32,
            shape: super::gguf_shape(&info.dims()),
            data: ExportedData::Made(Box::new(make)),
            parts,
        })
    }
}

/// Reconstructs a tensor of `dims` by inverting each mapping.
fn inverted(
    file: &ModelFile,
    dims: &[usize],
    sources: &[(&TensorInfo, TensorMapping<'static>, usize, usize)],
) -> Result<TensorBytes> {
    let outside = || Error::io(file.path())(std::io::ErrorKind::UnexpectedEof.into());
    let all: usize = dims.iter().product();
    let mut whole = vec![0.0; all];
    let mut scaled = None;
    for (stored, mapping, part, parts) in sources {
        let mut piece = floats(file, stored)?;
        let len = piece.len() / parts;
        piece = piece
            .get(part * len..(part + 1) * len)
            .ok_or_else(outside)?
            .to_vec();
        let form = &mapping.form;
        // Rows of the matrices before their transposition.
        let cols = match form.transposed {
            Some(n) => all / n.max(1) / mapping.cols.max(1),
            None => mapping.cols,
        };
        scaled = form.transposed.map(|n| (n, mapping.cols));
        let kept = form.columns.as_ref().map_or(cols, Vec::len);
        let last = match form.transposed_last {
            Some(n) => piece.len() / n.max(1) / kept.max(1),
            None => kept,
        };
        form.change.undo(&mut piece, last);
        if let Some(n) = form.transposed_last {
            piece = transposed(&piece, n, last);
        }
        let row = |i: usize| {
            form.rows
                .as_ref()
                .map_or(Some(i), |rows| rows.get(i).copied())
        };
        for (i, values) in piece.chunks(kept.max(1)).enumerate() {
            let start = row(i).ok_or_else(outside)? * cols;
            let out = whole.get_mut(start..start + cols).ok_or_else(outside)?;
            match &form.columns {
                None => out.copy_from_slice(values),
                Some(columns) => {
                    for (&column, value) in columns.iter().zip(values) {
                        *out.get_mut(column).ok_or_else(outside)? = *value;
                    }
                }
            }
        }
    }
    if let Some((n, stored_cols)) = scaled {
        whole = transposed(&whole, n, all / n.max(1) / stored_cols.max(1));
    }
    bytes_of(file, &whole)
}

/// Transposes each of `n` matrices with rows of `cols` elements.
fn transposed(floats: &[f32], n: usize, cols: usize) -> Vec<f32> {
    let matrix = (floats.len() / n.max(1)).max(1);
    let rows = matrix / cols.max(1);
    let mut out = Vec::with_capacity(floats.len());
    for from in floats.chunks_exact(matrix) {
        for col in 0..cols {
            out.extend((0..rows).map(|row| from[row * cols + col]));
        }
    }
    out
}

fn floats(file: &ModelFile, info: &TensorInfo) -> Result<Vec<f32>> {
    let mut floats = Vec::with_capacity(usize::try_from(info.elements()).unwrap_or(0));
    file.for_each_f32::<Error>(info, |piece| {
        floats.extend_from_slice(piece);
        Ok(())
    })?;
    Ok(floats)
}
