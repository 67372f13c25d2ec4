//! Quantized weights presented as plain tensors: those of MLX, 8-bit floats with scales, and 4-bit
//! integers of GPTQ and AWQ. Each format has its own module.

use std::collections::HashMap;

use oxidize_kernels::quant::{self, TensorType};

use super::error::{Problem, SafetensorsError};
use super::fp8::Fp8Tensor;
use super::int4::Int4Tensor;
use super::mlx::MlxTensor;
use super::{fp8, int4, mlx};
use crate::error::{Error, Result};
use crate::file::{Contents, Format, TensorBytes, TensorInfo};

/// Parts of a packed tensor.
#[derive(Debug)]
pub(crate) enum PackedTensor {
    Mlx(MlxTensor),
    Fp8(Fp8Tensor),
    Int4(Int4Tensor),
}

impl PackedTensor {
    /// Bytes of the tensor in the file.
    pub(crate) fn stored_bytes(&self) -> u64 {
        let parts: &[&TensorInfo] = match self {
            PackedTensor::Mlx(tensor) => &tensor.parts(),
            PackedTensor::Fp8(tensor) => &tensor.parts(),
            PackedTensor::Int4(tensor) => &tensor.parts(),
        };
        // The parts are disjoint ranges.
        parts.iter().map(|part| part.bytes).sum()
    }

    /// Dequantizes `tensor`.
    pub(crate) fn dequantize(
        &self,
        tensor: &TensorInfo,
        read: impl Fn(&TensorInfo) -> Result<TensorBytes>,
    ) -> Result<TensorBytes> {
        match self {
            PackedTensor::Mlx(packed) => packed.dequantize(tensor, read),
            PackedTensor::Fp8(packed) => packed.dequantize(tensor, read),
            PackedTensor::Int4(packed) => packed.dequantize(tensor, read),
        }
    }
}

/// Result of a packed format for the tensors of a file: the tensors it represents, and the names of
/// their parts.
#[derive(Default)]
pub(super) struct UnpackedTensors {
    pub(super) tensors: Vec<(TensorInfo, PackedTensor)>,
    /// Names of the parts, each with the name of the tensor that replaces it, if any.
    pub(super) parts: HashMap<String, Option<String>>,
}

impl UnpackedTensors {
    /// Replaces `codes` by `tensor`, and removes the other parts.
    pub(super) fn replace(
        &mut self,
        codes: &TensorInfo,
        others: &[&TensorInfo],
        tensor: TensorInfo,
        packed: PackedTensor,
    ) {
        let place = Some(tensor.name.clone());
        self.parts.insert(codes.name.clone(), place);
        for part in others {
            self.parts.insert(part.name.clone(), None);
        }
        self.tensors.push((tensor, packed));
    }
}

/// Tensors of a file by name.
pub(super) type ByName<'t> = HashMap<&'t str, &'t TensorInfo>;

/// Replaces the parts of packed tensors by the tensors they represent, in F32 if `exactly`.
pub(super) fn present(contents: &mut Contents, exactly: bool) -> Result<(), SafetensorsError> {
    let by_name: ByName<'_> = contents
        .tensors
        .iter()
        .map(|tensor| (tensor.name.as_str(), tensor))
        .collect();
    let config = contents.config.as_ref();
    let presented = match config.and_then(|config| config.get("quantization")) {
        Some(config) if config.get("bits").is_some() && config.get("group_size").is_some() => {
            contents.format = Format::Mlx;
            mlx::present(&contents.tensors, &by_name, config)?
        }
        _ => {
            let config = config.and_then(|config| config.get("quantization_config"));
            let mut presented = fp8::present(&contents.tensors, &by_name, config)?;
            let ints = int4::present(&contents.tensors, &by_name, config)?;
            presented.tensors.extend(ints.tensors);
            presented.parts.extend(ints.parts);
            presented
        }
    };
    let UnpackedTensors { tensors, mut parts } = presented;
    let mut replacements = HashMap::new();
    for (mut tensor, packed) in tensors {
        if exactly {
            let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
            let wider = plain_info(&tensor, name, TensorType::F32, shape);
            tensor = wider.ok_or_else(|| error(&tensor, "too big".to_owned()))?;
        }
        contents.packed.insert(tensor.name.clone(), packed);
        replacements.insert(tensor.name.clone(), tensor);
    }
    contents.tensors.retain_mut(|tensor| {
        let Some(replacement) = parts.remove(&tensor.name) else {
            return true;
        };
        let replacement = replacement.and_then(|name| replacements.remove(&name));
        let Some(replacement) = replacement else {
            return false;
        };
        *tensor = replacement;
        true
    });
    Ok(())
}

/// Error about a packed tensor.
pub(super) fn error(tensor: &TensorInfo, problem: String) -> SafetensorsError {
    SafetensorsError {
        tensor: Some(tensor.name.clone()),
        offset: tensor.offset,
        problem: Problem::Packed(problem),
    }
}

/// Info of a tensor that represents `parts`; `place` provides its position in the file.
pub(super) fn plain_info(
    place: &TensorInfo,
    name: String,
    ty: TensorType,
    shape: Vec<u64>,
) -> Option<TensorInfo> {
    let elements = shape.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim))?;
    Some(TensorInfo {
        name,
        ty,
        bytes: ty.bytes_for(elements)?,
        shape,
        ..place.clone()
    })
}

/// True for types of scales.
pub(super) fn is_scale(ty: TensorType) -> bool {
    matches!(ty, TensorType::F32 | TensorType::F16 | TensorType::BF16)
}

/// Computes the bytes of `tensor`. `fill` is called with the index and the elements of each row.
pub(super) fn rows_of(
    tensor: &TensorInfo,
    columns: usize,
    mut fill: impl FnMut(usize, &mut [f32]),
) -> Result<TensorBytes> {
    let failed = |error| Error::Io {
        path: tensor.name.clone().into(),
        error,
    };
    let len = usize::try_from(tensor.bytes)
        .map_err(|_| failed(std::io::ErrorKind::OutOfMemory.into()))?;
    let mut row = vec![0.0; columns];
    let row_bytes = columns * tensor.ty.block_bytes();
    let built = TensorBytes::build::<std::io::Error>(len, |out| {
        for (i, out) in out.chunks_exact_mut(row_bytes.max(1)).enumerate() {
            fill(i, &mut row);
            quant::quantize(tensor.ty, &row, out).map_err(std::io::Error::other)?;
        }
        Ok(())
    });
    built.map_err(failed)
}

/// Elements of a small tensor.
pub(super) fn floats(info: &TensorInfo, bytes: &[u8]) -> Result<Vec<f32>> {
    let mut floats = vec![0.0; bytes.len() / info.ty.block_bytes().max(1)];
    quant::dequantize(info.ty, bytes, &mut floats).map_err(|error| Error::Dequantize {
        path: info.name.clone().into(),
        name: info.name.clone(),
        error,
    })?;
    Ok(floats)
}
