//! 4-bit integers in groups, as in GPTQ and AWQ: `X.qweight`, `X.qzeros` and `X.scales` for a
//! matrix of inputs × outputs. Element = scale × (code − zero).
//!
//! GPTQ packs eight inputs of an output into a 32-bit integer, and some versions store zeros minus
//! one. AWQ packs eight outputs of an input, in a different order.

use oxidize_kernels::quant::TensorType;
use serde_json::Value;

use super::error::SafetensorsError;
use super::packed::{
    ByName, PackedTensor, UnpackedTensors, error, floats, is_scale, plain_info, rows_of,
};
use crate::error::Result;
use crate::file::{TensorBytes, TensorInfo};

/// Matrix of outputs × inputs with its parts.
#[derive(Debug)]
pub(crate) struct Int4Tensor {
    codes: TensorInfo,
    zeros: TensorInfo,
    scales: TensorInfo,
    /// Group of each input, if groups are not consecutive inputs.
    groups: Option<TensorInfo>,
    layout: Layout,
    inputs: usize,
    outputs: usize,
    group_size: usize,
}

/// Packing of the codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// Along inputs; the number is added to stored zeros.
    Gptq(u32),
    /// Along outputs.
    Awq,
}

/// Codes per 32-bit integer.
const PER_WORD: usize = 8;
/// Position of each output in AWQ's integers.
const AWQ_ORDER: [u32; PER_WORD] = [0, 4, 1, 5, 2, 6, 3, 7];

pub(super) fn present(
    tensors: &[TensorInfo],
    by_name: &ByName<'_>,
    config: Option<&Value>,
) -> Result<UnpackedTensors, SafetensorsError> {
    let mut presented = UnpackedTensors::default();
    let method = config.and_then(|config| config.get("quant_method")?.as_str());
    let Some(method) = method.filter(|method| ["gptq", "awq"].contains(method)) else {
        return Ok(presented);
    };
    let config = config.unwrap_or(&Value::Null);
    for codes in tensors {
        let Some(stem) = codes.name.strip_suffix(".qweight") else {
            continue;
        };
        let part = |ending: &str| by_name.get(format!("{stem}.{ending}").as_str()).copied();
        let fail = |problem: &str| error(codes, problem.to_owned());
        let (Some(zeros), Some(scales)) = (part("qzeros"), part("scales")) else {
            return Err(fail("qzeros or scales not found"));
        };
        let groups = part("g_idx");
        let packed = combine([codes, zeros, scales], groups, method, config);
        let packed = packed.map_err(|problem| error(codes, problem))?;
        let shape = vec![packed.outputs as u64, packed.inputs as u64];
        let name = format!("{stem}.weight");
        let tensor = plain_info(codes, name, scales.ty, shape);
        let tensor = tensor.ok_or_else(|| fail("too big"))?;
        let others: Vec<&TensorInfo> = [zeros, scales].into_iter().chain(groups).collect();
        presented.replace(codes, &others, tensor, PackedTensor::Int4(packed));
    }
    Ok(presented)
}

/// Checks that the shapes and types of the parts match.
fn combine(
    [codes, zeros, scales]: [&TensorInfo; 3],
    groups: Option<&TensorInfo>,
    method: &str,
    config: &Value,
) -> Result<Int4Tensor, String> {
    let bits = config.get("bits").or_else(|| config.get("w_bit"));
    let bits = bits.and_then(Value::as_u64).unwrap_or(4);
    if bits != 4 {
        return Err(format!("{bits} bits of {method} are not supported"));
    }
    if !is_scale(scales.ty) || [codes.ty, zeros.ty] != [TensorType::I32; 2] {
        return Err("codes and zeros must be 32-bit integers, and scales floats".to_owned());
    }
    let version = config
        .get("version")
        .and_then(Value::as_str)
        .unwrap_or("gemm");
    if method == "awq" && !version.eq_ignore_ascii_case("gemm") {
        return Err(format!("AWQ's {version} layout is not supported"));
    }
    let checkpoint = config.get("checkpoint_format").and_then(Value::as_str);
    let layout = match (method, checkpoint) {
        ("awq", _) => Layout::Awq,
        (_, Some("gptq_v2")) => Layout::Gptq(0),
        _ => Layout::Gptq(1),
    };
    let mismatch = || {
        let (codes, zeros) = (&codes.shape, &zeros.shape);
        let scales = &scales.shape;
        format!("codes {codes:?}, zeros {zeros:?} and scales {scales:?} do not fit together")
    };
    let size = |dims: &[u64]| -> Option<[usize; 2]> {
        let [a, b] = dims else { return None };
        let cap = |n: &u64| usize::try_from(*n).ok().filter(|&n| n < 1 << 30 && n > 0);
        Some([cap(a)?, cap(b)?])
    };
    let [codes_a, codes_b] = size(&codes.shape).ok_or_else(mismatch)?;
    let [n_groups, outputs] = size(&scales.shape).ok_or_else(mismatch)?;
    let (inputs, packed_outputs) = match layout {
        Layout::Gptq(_) => (codes_a * PER_WORD, codes_b),
        Layout::Awq => (codes_a, codes_b * PER_WORD),
    };
    let fits = packed_outputs == outputs
        && size(&zeros.shape) == Some([n_groups, outputs / PER_WORD])
        && outputs.is_multiple_of(PER_WORD)
        && inputs.is_multiple_of(n_groups);
    let groups_fit =
        groups.is_none_or(|groups| groups.ty == TensorType::I32 && groups.shape == [inputs as u64]);
    if !fits || !groups_fit {
        return Err(mismatch());
    }
    Ok(Int4Tensor {
        codes: codes.clone(),
        zeros: zeros.clone(),
        scales: scales.clone(),
        groups: groups.cloned(),
        layout,
        inputs,
        outputs,
        group_size: inputs / n_groups,
    })
}

impl Int4Tensor {
    pub(super) fn parts(&self) -> [&TensorInfo; 3] {
        [&self.codes, &self.zeros, &self.scales]
    }

    pub(super) fn dequantize(
        &self,
        tensor: &TensorInfo,
        read: impl Fn(&TensorInfo) -> Result<TensorBytes>,
    ) -> Result<TensorBytes> {
        let words = |info: &TensorInfo| -> Result<Vec<u32>> {
            let bytes = read(info)?;
            let words = bytes.as_chunks::<4>().0.iter();
            Ok(words.map(|word| u32::from_le_bytes(*word)).collect())
        };
        let (codes, zeros) = (words(&self.codes)?, words(&self.zeros)?);
        let scales = floats(&self.scales, &read(&self.scales)?)?;
        let groups = self.groups.as_ref().map(words).transpose()?;
        let outputs = self.outputs;
        let nibble = |words: &[u32], at: usize, place: u32| {
            words.get(at).map_or(0, |word| word >> (4 * place) & 15)
        };
        let along_outputs = |words: &[u32], row: usize, output: usize, order: &[u32; PER_WORD]| {
            let at = row * (outputs / PER_WORD) + output / PER_WORD;
            nibble(
                words,
                at,
                order.get(output % PER_WORD).copied().unwrap_or(0),
            )
        };
        const PLAIN: [u32; PER_WORD] = [0, 1, 2, 3, 4, 5, 6, 7];
        rows_of(tensor, self.inputs, |output, row| {
            for (input, x) in row.iter_mut().enumerate() {
                let run = input / self.group_size;
                let group = groups
                    .as_ref()
                    .and_then(|groups| groups.get(input))
                    .map_or(run, |&group| group as usize);
                let (code, zero) = match self.layout {
                    Layout::Gptq(short) => (
                        nibble(
                            &codes,
                            input / PER_WORD * outputs + output,
                            (input % PER_WORD) as u32,
                        ),
                        along_outputs(&zeros, group, output, &PLAIN) + short,
                    ),
                    Layout::Awq => (
                        along_outputs(&codes, input, output, &AWQ_ORDER),
                        along_outputs(&zeros, group, output, &AWQ_ORDER),
                    ),
                };
                let scale = scales.get(group * outputs + output).copied();
                *x = scale.unwrap_or(f32::NAN) * (code as f32 - zero as f32);
            }
        })
    }
}
