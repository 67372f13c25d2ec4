//! 8-bit floats with scales: `X.weight` in F8_E4M3 with `X.weight_scale_inv`, one scale per block
//! of 128 × 128 (DeepSeek), or with `X.weight_scale`, one scale for the matrix or per row
//! (compressed-tensors). Element = code × scale.

use oxidize_kernels::quant::{self, TensorType};
use serde_json::Value;

use super::error::SafetensorsError;
use super::packed::{
    ByName, PackedTensor, UnpackedTensors, error, floats, is_scale, plain_info, rows_of,
};
use crate::error::{Error, Result};
use crate::file::{TensorBytes, TensorInfo};

/// Matrix or stack of matrices with its scales.
#[derive(Debug)]
pub(crate) struct Fp8Tensor {
    codes: TensorInfo,
    scales: TensorInfo,
    /// Rows and columns of a matrix.
    matrix: [usize; 2],
    /// Rows and columns of a block, which has one scale.
    block: [usize; 2],
}

/// Default side of a block.
const DEFAULT_BLOCK: u64 = 128;

pub(super) fn present(
    tensors: &[TensorInfo],
    by_name: &ByName<'_>,
    config: Option<&Value>,
) -> Result<UnpackedTensors, SafetensorsError> {
    let mut presented = UnpackedTensors::default();
    let method = config.and_then(|config| config.get("quant_method")?.as_str());
    let is_fp8 = |ty: TensorType| matches!(ty, TensorType::F8E4M3 | TensorType::F8E5M2);
    for codes in tensors.iter().filter(|tensor| is_fp8(tensor.ty)) {
        let scales = ["_scale_inv", "_scale"]
            .iter()
            .find_map(|ending| by_name.get(format!("{}{ending}", codes.name).as_str()));
        let Some(scales) = scales else {
            // Without a quantization configuration, the codes are the values; with one, the scale
            // is missing.
            let Some(method) = method else {
                continue;
            };
            let problem = format!(
                "config.json specifies {method}, but there is neither `{0}_scale` nor `{0}_scale_inv`",
                codes.name
            );
            return Err(error(codes, problem));
        };
        let packed = combine(codes, scales, config).map_err(|problem| error(codes, problem))?;
        let shape = codes.shape.clone();
        let too_big = || error(codes, format!("{shape:?} is too big"));
        // Type of the computation in such models.
        let tensor = plain_info(
            codes,
            codes.name.clone(),
            TensorType::BF16,
            codes.shape.clone(),
        );
        let tensor = tensor.ok_or_else(too_big)?;
        presented.replace(codes, &[scales], tensor, PackedTensor::Fp8(packed));
        if let Some(stem) = codes.name.strip_suffix("weight") {
            // Scales of activations are used only by 8-bit computations.
            presented.parts.insert(format!("{stem}input_scale"), None);
        }
    }
    Ok(presented)
}

/// Checks that the shapes of codes and scales match.
fn combine(
    codes: &TensorInfo,
    scales: &TensorInfo,
    config: Option<&Value>,
) -> Result<Fp8Tensor, String> {
    let mismatch = || {
        format!(
            "scales {:?} do not fit codes {:?}",
            scales.shape, codes.shape
        )
    };
    if !is_scale(scales.ty) {
        return Err(format!("scales of type {}", scales.ty));
    }
    let [stack @ .., rows, columns] = codes.shape.as_slice() else {
        return Err(mismatch());
    };
    let given = config.and_then(|config| config.get("weight_block_size"));
    let side = |i: usize| {
        let side = given.and_then(|sizes| sizes.get(i)).and_then(Value::as_u64);
        side.filter(|&n| n > 0).unwrap_or(DEFAULT_BLOCK)
    };
    let sides = [side(0), side(1)];
    let n: u64 = stack.iter().product();
    let block = match scales.shape.as_slice() {
        [] | [1] => [n.checked_mul(*rows).ok_or_else(mismatch)?, *columns],
        [r] | [r, 1] if stack.is_empty() && r == rows => [1, *columns],
        [outer @ .., r, c]
            if outer == stack
                && *r == rows.div_ceil(sides[0])
                && *c == columns.div_ceil(sides[1]) =>
        {
            sides
        }
        [outer @ .., r, 1] if outer == stack && r == rows => [1, *columns],
        _ => return Err(mismatch()),
    };
    let small = |n: u64| usize::try_from(n).map_err(|_| mismatch());
    Ok(Fp8Tensor {
        codes: codes.clone(),
        scales: scales.clone(),
        matrix: [small(*rows)?, small(*columns)?],
        block: [small(block[0])?, small(block[1])?],
    })
}

impl Fp8Tensor {
    pub(super) fn parts(&self) -> [&TensorInfo; 2] {
        [&self.codes, &self.scales]
    }

    pub(super) fn dequantize(
        &self,
        tensor: &TensorInfo,
        read: impl Fn(&TensorInfo) -> Result<TensorBytes>,
    ) -> Result<TensorBytes> {
        let codes = read(&self.codes)?;
        let scales = floats(&self.scales, &read(&self.scales)?)?;
        let [rows, columns] = self.matrix;
        let [block_rows, block_columns] = self.block.map(|n| n.max(1));
        let across = columns.div_ceil(block_columns);
        let mut failed = None;
        let bytes = rows_of(tensor, columns, |row, out| {
            let stored = codes.get(row * columns..(row + 1) * columns);
            let done = quant::dequantize(self.codes.ty, stored.unwrap_or_default(), out);
            failed = failed.take().or(done.err());
            // Blocks do not span matrices of a stack, unless one scale applies to all.
            let line = match block_rows > rows {
                true => 0,
                false => row / rows * rows.div_ceil(block_rows) + row % rows / block_rows,
            };
            for (i, part) in out.chunks_mut(block_columns).enumerate() {
                let scale = scales.get(line * across + i).copied().unwrap_or(f32::NAN);
                part.iter_mut().for_each(|x| *x *= scale);
            }
        })?;
        match failed {
            None => Ok(bytes),
            Some(error) => Err(Error::Dequantize {
                path: self.codes.name.clone().into(),
                name: self.codes.name.clone(),
                error,
            }),
        }
    }
}
