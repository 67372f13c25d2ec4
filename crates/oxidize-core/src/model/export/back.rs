//! The way back: the tensors of a GGUF model as a Hugging Face directory has them.
//!
//! Nothing here knows how tensors change on the way. A directory is made up that has no bytes, only a
//! `config.json` and a table of tensors; what GGUF would make of it ([`super::links`]) has to be
//! the file at hand, tensor by tensor, and is then walked backwards.

use super::header::{Back, made_up};
use super::link::{Link, bytes_of};
use super::{ExportedData, ExportedTensor, links};
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

/// A GGUF model in Hugging Face's terms.
pub struct HuggingFaceModel<'a> {
    /// Its `config.json`.
    pub config: Value,
    /// Its tensors, in the order of its layers.
    pub tensors: Vec<ExportedTensor<'a>>,
}

/// `file`, a GGUF model, as a directory of safetensors has it. An error where its family, or what this
/// model makes of it, cannot be said there.
pub fn huggingface_model<'a>(
    file: &'a ModelFile,
    facts: &ConfigFacts,
) -> Result<HuggingFaceModel<'a>> {
    let gguf_arch = Arch::detect(file)?;
    let hparams = with_factors(file, Hparams::read(file, gguf_arch)?)?;
    let unfit = |problem: String| {
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
    // Where there are experts, a family that has names of its own for them is meant.
    let names_experts = |arch: &&Arch| arch.hf_names.iter().any(|(role, _)| *role == FFN_ROUTER);
    // RoBERTa is a BERT with another kind of vocabulary. And who has fewer names for things says more.
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
            // What speaks against the likeliest is the reason.
            Err(why) => drop(problem.get_or_insert(why)),
        }
    }
    let unknown = || "no class of models there is known to be it".to_owned();
    Err(unfit(problem.unwrap_or_else(unknown)))
}

/// The same numbers with the factors of the rotary embedding, which GGUF keeps as tensors.
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
        // GGUF has no infinity here, but numbers that are as good.
        for factor in factors.iter_mut().filter(|factor| **factor > 1e28) {
            *factor = f32::INFINITY;
        }
        // Llama 3's ramp, if it is one: its factor is the largest, the rest is the same in all files
        // but for the context.
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
            let mut turned = rope.clone();
            turned.scaling = scaling.clone();
            let divisors = turned.divisors();
            divisors.len() == factors.len() && divisors.iter().zip(&factors).all(close)
        });
        match found {
            Some(scaling) => rope.scaling = scaling,
            None => rope.factors = RopeFactors::Fixed(factors),
        }
    }
    Ok(hparams)
}

/// The model as one of the family `arch`, or what speaks against it.
fn attempt<'a>(
    file: &'a ModelFile,
    arch: &'static Arch,
    gguf_arch: &'static Arch,
    hparams: &Hparams,
    facts: &ConfigFacts,
) -> Result<HuggingFaceModel<'a>, String> {
    let config = config(arch, hparams, facts);
    let class = class_of(arch, facts);
    let back = Back {
        file,
        arch,
        gguf_arch,
        hparams,
        headless: is_bare(class),
    };
    let mut tensors = back.header(|_| true);
    if let Some(encoder) = arch.encoder {
        let own = hparams.of_encoder();
        let stack = Back {
            file,
            arch: encoder,
            gguf_arch: encoder,
            hparams: &own,
            headless: false,
        };
        let others = stack.header(super::belongs_to_encoder);
        tensors.splice(..0, others);
    }
    let constants = back.constants();
    let is_vector = |name: &str| name.ends_with("alpha_p") || name.ends_with("alpha_n");
    for name in constants.keys() {
        let dims: &[usize] = if is_vector(name) { &[1] } else { &[] };
        tensors.push(made_up(name.clone(), dims));
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
        return Err(format!("{class} would be taken for {}", detected.name));
    }
    let mut read = Hparams::read(&directory, arch).map_err(|e| e.to_string())?;
    for (layer, (own, other)) in read.layers.iter_mut().zip(&hparams.layers).enumerate() {
        // A width beside that of experts is nobody's.
        if back.find(&FFN_ROUTER, layer).is_some() {
            own.n_ff = other.n_ff;
        }
    }
    if let Some(difference) = difference(&read, hparams) {
        return Err(format!(
            "its configuration reads back otherwise: {difference}"
        ));
    }
    let links = links(&directory, arch, &read);
    back.check(&links)?;
    let mut of_tensor: HashMap<&str, Vec<(Link<'static>, usize, usize)>> = HashMap::new();
    for link in &links {
        for (i, part) in link.parts.iter().enumerate() {
            let own = Link {
                name: link.name.clone(),
                dims: link.dims.clone(),
                parts: Vec::new(),
                cols: link.cols,
                form: link.form.clone(),
            };
            let all = of_tensor.entry(&part.name).or_default();
            // What is written twice is taken from where it was written first.
            let whole = |link: &Link<'_>| link.form.rows.is_none();
            if all.is_empty() || !whole(&own) {
                all.push((own, i, link.parts.len()));
            }
        }
    }
    let mut out = Vec::new();
    for info in directory.tensors() {
        if let Some(&value) = constants.get(&info.name) {
            out.push(back.constant(info, value));
            continue;
        }
        let sources = of_tensor.remove(info.name.as_str());
        let sources = sources.ok_or_else(|| format!("nothing becomes {}", info.name))?;
        out.push(back.tensor(info, sources)?);
    }
    Ok(HuggingFaceModel {
        config,
        tensors: out,
    })
}

impl<'a> Back<'a, '_> {
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

    /// The file has to be what GGUF makes of the directory, tensor by tensor.
    fn check(&self, links: &[Link<'_>]) -> Result<(), String> {
        let mut left: HashMap<&str, &TensorInfo> = HashMap::new();
        for tensor in self.file.tensors() {
            left.insert(&tensor.name, tensor);
        }
        for role in [ROPE_FREQS, ROPE_FACTORS_SHORT, ROPE_FACTORS_LONG] {
            left.remove(format!("{}.weight", role.gguf).as_str());
        }
        let wide = |dims: &[usize]| dims.iter().filter(|&&n| n != 1).count();
        for link in links {
            let Some(info) = left.remove(link.name.as_str()) else {
                return Err(format!("{} is not in the file", link.name));
            };
            let dims = info.dims();
            let same = wide(&dims) == wide(&link.dims)
                && dims.iter().product::<usize>() == link.dims.iter().product::<usize>();
            if !same {
                let problem = format!("{} is {dims:?}, not {:?}", link.name, link.dims);
                return Err(problem);
            }
        }
        match left.keys().min() {
            Some(name) => Err(format!("{name} has no name there")),
            None => Ok(()),
        }
    }

    /// A tensor of the directory, from the tensors that it would become.
    fn tensor(
        &self,
        info: &TensorInfo,
        sources: Vec<(Link<'static>, usize, usize)>,
    ) -> Result<ExportedTensor<'a>, String> {
        let file = self.file;
        let found = |link: &Link<'_>| {
            let missing = || format!("{} is not in the file", link.name);
            file.tensor(&link.name).ok_or_else(missing)
        };
        if let [(link, part, parts)] = sources.as_slice()
            && link.form == super::link::Form::default()
        {
            let stored = found(link)?;
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
        for (link, part, parts) in sources {
            stored.push((found(&link)?, link, part, parts));
        }
        let parts = stored.iter().map(|(stored, ..)| *stored).collect();
        let make = move || unmade(file, &dims, &stored);
        Ok(ExportedTensor {
            name: info.name.clone(),
            ty: TensorType::F32,
            shape: super::gguf_shape(&info.dims()),
            data: ExportedData::Made(Box::new(make)),
            parts,
        })
    }
}

/// A tensor of `dims`, put together from what it would become, each walked backwards.
fn unmade(
    file: &ModelFile,
    dims: &[usize],
    sources: &[(&TensorInfo, Link<'static>, usize, usize)],
) -> Result<TensorBytes> {
    let outside = || Error::io(file.path())(std::io::ErrorKind::UnexpectedEof.into());
    let all: usize = dims.iter().product();
    let mut whole = vec![0.0; all];
    let mut turned = None;
    for (stored, link, part, parts) in sources {
        let mut piece = floats(file, stored)?;
        let len = piece.len() / parts;
        piece = piece
            .get(part * len..(part + 1) * len)
            .ok_or_else(outside)?
            .to_vec();
        let form = &link.form;
        // Rows of the whole, as its matrices stand before they are transposed.
        let cols = match form.transposed {
            Some(n) => all / n.max(1) / link.cols.max(1),
            None => link.cols,
        };
        turned = form.transposed.map(|n| (n, link.cols));
        let kept = form.columns.as_ref().map_or(cols, Vec::len);
        let last = match form.flipped {
            Some(n) => piece.len() / n.max(1) / kept.max(1),
            None => kept,
        };
        form.change.undo(&mut piece, last);
        if let Some(n) = form.flipped {
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
    if let Some((n, stored_cols)) = turned {
        whole = transposed(&whole, n, all / n.max(1) / stored_cols.max(1));
    }
    bytes_of(file, &whole)
}

/// Each of `n` matrices, with rows of `cols`, transposed.
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
