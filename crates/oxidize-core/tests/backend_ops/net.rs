//! A builder for small random plans, and the random numbers that it uses.

use oxidize_core::file::TensorType;
use oxidize_core::graph::{Op, Plan, Rows, ValueId, ValueInfo, WeightId};
use oxidize_core::weights::Weights;
use oxidize_kernels::quant;

/// Size of the vocabulary of the plans.
pub(crate) const VOCAB: usize = 97;

/// A plan under construction, with its weights.
pub(crate) struct Net {
    pub(crate) plan: Plan,
    pub(crate) weights: Weights,
    pub(crate) random: Random,
}

impl Net {
    pub(crate) fn new(seed: u64) -> Net {
        Net {
            plan: Plan::default(),
            weights: Weights::default(),
            random: Random::new(seed),
        }
    }

    pub(crate) fn value(&mut self, rows: Rows, width: usize) -> ValueId {
        self.plan.values.push(ValueInfo { rows, width });
        ValueId(self.plan.values.len() as u32 - 1)
    }

    pub(crate) fn like(&mut self, x: ValueId) -> ValueId {
        let info = self.plan.value(x);
        self.value(info.rows, info.width)
    }

    /// Adds an op; returns its output, or its input if it has no output.
    pub(crate) fn push(&mut self, op: Op) -> ValueId {
        let value = op
            .output()
            .or(op.inputs().first().copied())
            .expect("every op writes or reads a value");
        self.plan.ops.push(op);
        value
    }

    /// A value of `width` random numbers per row: an embedding table with random rows, since the only input of a
    /// plan is tokens.
    pub(crate) fn input(&mut self, width: usize) -> ValueId {
        let table = self.matrix(TensorType::F32, VOCAB, width);
        let out = self.value(Rows::Tokens, width);
        self.push(Op::Embed { table, out })
    }

    pub(crate) fn vector(&mut self, len: usize) -> WeightId {
        let floats = self.random.floats(len, 1.0);
        self.weights.push_vector("vector", floats)
    }

    pub(crate) fn maybe_vector(&mut self, len: usize) -> Option<WeightId> {
        self.random.chance(0.5).then(|| self.vector(len))
    }

    pub(crate) fn matrix(&mut self, ty: TensorType, rows: usize, cols: usize) -> WeightId {
        self.stack(ty, rows, cols, 1)
    }

    /// Matrices of several experts, in one piece or in one piece each.
    pub(crate) fn stack(&mut self, ty: TensorType, rows: usize, cols: usize, n: usize) -> WeightId {
        let pieces = if n > 1 && self.random.chance(0.5) {
            n
        } else {
            1
        };
        let bytes = (0..pieces)
            .map(|_| {
                self.random
                    .weights(ty, rows * cols * n / pieces, cols)
                    .into()
            })
            .collect();
        self.weights.push_matrix("matrix", ty, rows, cols, bytes, n)
    }

    pub(crate) fn linear(&mut self, x: ValueId, ty: TensorType, outputs: usize) -> ValueId {
        let info = self.plan.value(x);
        let weight = self.matrix(ty, outputs, info.width);
        let bias = self.maybe_vector(outputs);
        let out = self.value(info.rows, outputs);
        self.push(Op::Linear {
            x,
            weight,
            bias,
            out,
        })
    }
}

/// The types of weights: all but those of activations.
pub(crate) fn weight_types() -> impl Iterator<Item = TensorType> {
    use TensorType::{Bool, Q8_1, Q8_K};
    TensorType::all().filter(|ty| !matches!(ty, Bool | Q8_1 | Q8_K))
}

/// SplitMix64.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in a range.
    pub(crate) fn within(&mut self, range: std::ops::RangeInclusive<usize>) -> usize {
        range.start() + self.bits() as usize % (range.end() - range.start() + 1)
    }

    pub(crate) fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.within(0..=list.len() - 1)]
    }

    pub(crate) fn chance(&mut self, p: f64) -> bool {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64 <= p
    }

    /// Uniform in ±`scale`.
    pub(crate) fn float(&mut self, scale: f32) -> f32 {
        ((self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0) * scale
    }

    pub(crate) fn floats(&mut self, n: usize, scale: f32) -> Vec<f32> {
        (0..n).map(|_| self.float(scale)).collect()
    }

    /// `n` elements of type `ty` for a matrix with `cols` inputs, scaled so that products are near one.
    fn weights(&mut self, ty: TensorType, n: usize, cols: usize) -> Vec<u8> {
        let mut bytes = vec![0; n / ty.block_len() * ty.block_bytes()];
        // Quantizers that search a codebook are slow, above all on an emulator.
        if quant::can_quantize(ty) && !ty.name().starts_with("IQ") {
            let floats = self.floats(n, (3.0 / cols as f32).sqrt());
            quant::quantize(ty, &floats, &mut bytes).unwrap();
        } else if ty.is_quantized() {
            self.any_blocks(ty, &mut bytes);
        } else {
            // Small integers; as floats of few bits, they are subnormal.
            let high = ty.block_bytes() == 1 && ty.name().starts_with('F');
            for element in bytes.chunks_exact_mut(ty.block_bytes()) {
                element[0] = self.bits() as u8 % 8 + if high { 0x28 } else { 0 };
            }
        }
        bytes
    }

    /// Blocks of random bits whose elements are finite and of moderate size, for types that have no quantizer or
    /// a slow one.
    fn any_blocks(&mut self, ty: TensorType, bytes: &mut [u8]) {
        let mut floats = vec![0.0; ty.block_len()];
        let mut list: Vec<Vec<u8>> = Vec::new();
        while list.len() < 16 {
            let block: Vec<u8> = (0..ty.block_bytes()).map(|_| self.bits() as u8).collect();
            quant::dequantize(ty, &block, &mut floats).unwrap();
            let max = floats.iter().fold(0.0f32, |max, x| max.max(x.abs()));
            if floats.iter().all(|x| x.is_finite()) && (0.01..10.0).contains(&max) {
                list.push(block);
            }
        }
        for block in bytes.chunks_exact_mut(ty.block_bytes()) {
            block.copy_from_slice(&list[self.within(0..=15)]);
        }
    }
}
