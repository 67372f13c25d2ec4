//! Weights quantized by MLX, presented as plain tensors.
//!
//! A quantized matrix `X.weight` is stored in u32 words with `bits` bits per element, lowest bits
//! first. `X.scales` and `X.biases` have one entry per group of `group_size` elements of a row.
//! Element = scale × code + bias.
//! <https://ml-explore.github.io/mlx/build/html/python/_autosummary/mlx.core.quantize.html>

use oxidize_kernels::quant::TensorType;
use serde_json::Value;

use super::error::{Problem, SafetensorsError};
use super::packed::{ByName, PackedTensor, UnpackedTensors, floats, rows_of};
use crate::error::Result;
use crate::file::{TensorBytes, TensorInfo};

/// Parts of a quantized tensor.
#[derive(Debug)]
pub(crate) struct MlxTensor {
    codes: TensorInfo,
    scales: TensorInfo,
    biases: TensorInfo,
    bits: usize,
    group_size: usize,
}

/// Finds the quantized tensors among the tensors of a file. `config` is the quantization section of
/// `config.json`.
pub(super) fn present(
    tensors: &[TensorInfo],
    by_name: &ByName<'_>,
    config: &Value,
) -> Result<UnpackedTensors, SafetensorsError> {
    let mut presented = UnpackedTensors::default();
    for codes in tensors.iter().filter(|tensor| tensor.ty == TensorType::U32) {
        let Some(stem) = codes.name.strip_suffix(".weight") else {
            continue;
        };
        let Some(scales) = by_name.get(format!("{stem}.scales").as_str()) else {
            continue;
        };
        let error = |problem: String| SafetensorsError {
            tensor: Some(codes.name.clone()),
            offset: codes.offset,
            problem: Problem::Mlx(problem),
        };
        let Some(biases) = by_name.get(format!("{stem}.biases").as_str()) else {
            let mode = config
                .get("mode")
                .and_then(Value::as_str)
                .unwrap_or("without biases");
            return Err(error(format!(
                "mode `{mode}` is not supported, only `affine`"
            )));
        };
        let (tensor, mlx) = combine(codes, scales, biases, config, stem).map_err(error)?;
        presented.replace(codes, &[scales, biases], tensor, PackedTensor::Mlx(mlx));
    }
    Ok(presented)
}

/// Returns the tensor that the parts represent, after checking that they match.
fn combine(
    codes: &TensorInfo,
    scales: &TensorInfo,
    biases: &TensorInfo,
    config: &Value,
    stem: &str,
) -> Result<(TensorInfo, MlxTensor), String> {
    // A layer may have a separate entry.
    let own = config
        .get(stem)
        .filter(|own| own.is_object())
        .unwrap_or(config);
    let number = |name: &str| {
        let value = own
            .get(name)
            .or_else(|| config.get(name))
            .and_then(Value::as_u64);
        value.ok_or_else(|| format!("config.json has no number `{name}`"))
    };
    let (bits, group_size) = (number("bits")?, number("group_size")?);
    if !matches!(bits, 2 | 3 | 4 | 5 | 6 | 8) {
        return Err(format!("{bits} bits are not supported"));
    }
    if !matches!(
        scales.ty,
        TensorType::F32 | TensorType::F16 | TensorType::BF16
    ) {
        return Err(format!("scales of type {}", scales.ty));
    }
    if (&biases.shape, biases.ty) != (&scales.shape, scales.ty) {
        return Err("scales and biases differ in shape or type".to_owned());
    }

    let mismatch = || {
        let (codes, scales) = (&codes.shape, &scales.shape);
        format!(
            "codes {codes:?} and scales {scales:?} do not fit {bits} bits in groups of {group_size}"
        )
    };
    let (&words, code_rows) = codes.shape.split_last().ok_or_else(mismatch)?;
    let (&groups, scale_rows) = scales.shape.split_last().ok_or_else(mismatch)?;
    let columns = groups.checked_mul(group_size).ok_or_else(mismatch)?;
    let row_bits = columns.checked_mul(bits).ok_or_else(mismatch)?;
    if code_rows != scale_rows || Some(row_bits) != words.checked_mul(32) || columns == 0 {
        return Err(mismatch());
    }

    let mut shape = code_rows.to_vec();
    shape.push(columns);
    let elements = shape.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim));
    let bytes = elements
        .and_then(|n| scales.ty.bytes_for(n))
        .ok_or_else(mismatch)?;
    let tensor = TensorInfo {
        ty: scales.ty,
        shape,
        bytes,
        ..codes.clone()
    };
    let mlx = MlxTensor {
        codes: codes.clone(),
        scales: scales.clone(),
        biases: biases.clone(),
        bits: usize::try_from(bits).map_err(|_| mismatch())?,
        group_size: usize::try_from(group_size).map_err(|_| mismatch())?,
    };
    Ok((tensor, mlx))
}

impl MlxTensor {
    pub(super) fn parts(&self) -> [&TensorInfo; 3] {
        [&self.codes, &self.scales, &self.biases]
    }

    /// Dequantizes `tensor`. Groups are whole bytes of codes and rows are whole groups, so the
    /// codes are contiguous.
    pub(super) fn dequantize(
        &self,
        tensor: &TensorInfo,
        read: impl Fn(&TensorInfo) -> Result<TensorBytes>,
    ) -> Result<TensorBytes> {
        let codes = read(&self.codes)?;
        let scales = floats(&self.scales, &read(&self.scales)?)?;
        let biases = floats(&self.biases, &read(&self.biases)?)?;
        let columns = tensor.shape.last().copied().unwrap_or(0);
        let columns = usize::try_from(columns).unwrap_or(0);
        let mut codes = Codes {
            bytes: codes.iter(),
            bits: self.bits,
            buffer: 0,
            held: 0,
        };
        let mut groups = scales.iter().zip(&biases);
        rows_of(tensor, columns, |_, row| {
            for outputs in row.chunks_mut(self.group_size) {
                let (scale, bias) = groups.next().unwrap_or((&f32::NAN, &f32::NAN));
                for (output, code) in outputs.iter_mut().zip(&mut codes) {
                    *output = scale * code as f32 + bias;
                }
            }
        })
    }
}

/// Iterator over packed codes, lowest bits first.
struct Codes<'a> {
    bytes: std::slice::Iter<'a, u8>,
    bits: usize,
    buffer: u32,
    held: usize,
}

impl Iterator for Codes<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        while self.held < self.bits {
            self.buffer |= u32::from(*self.bytes.next()?) << self.held;
            self.held += 8;
        }
        let code = self.buffer & ((1 << self.bits) - 1);
        self.buffer >>= self.bits;
        self.held -= self.bits;
        Some(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_read_lowest_bits_first() {
        let codes = |bits, bytes: &[u8]| {
            Codes {
                bytes: bytes.iter(),
                bits,
                buffer: 0,
                held: 0,
            }
            .collect::<Vec<_>>()
        };
        assert_eq!(codes(4, &[0x21, 0x43]), [1, 2, 3, 4]);
        assert_eq!(codes(8, &[0x21, 0x43]), [0x21, 0x43]);
        // 3 bits: 0b_111_110_101_100_011_010_001_000 as three little-endian bytes.
        assert_eq!(codes(3, &[0x88, 0xc6, 0xfa]), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(codes(6, &[0x41, 0x30, 0x10]), [1, 1, 3, 4]);
    }
}
