//! The weights of a model, kept where they are in the file; [`super::loader`] finds them.

use super::spell::Spelling;
use crate::error::Result;
use crate::file::TensorBytes;
use crate::graph::{NormKind, WeightId};
use crate::model::Part;
use oxidize_kernels::quant::{self, TensorType};
use std::sync::Arc;

/// One matrix, vector or stack of expert matrices.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Its name in the file, for messages.
    pub name: String,
    /// How its elements are stored.
    pub ty: TensorType,
    /// Rows of one matrix; one for a vector.
    pub rows: usize,
    /// Elements of a row.
    pub cols: usize,
    /// Matrices in the stack; one unless these are experts.
    pub n_experts: usize,
    /// Which rows of the tensor in the file these are, where that keeps several matrices in one.
    pub part: Part,
    storage: Storage,
}

/// Where the elements are.
#[derive(Clone, Debug)]
enum Storage {
    /// In the file: all experts in one piece, or a piece for each.
    Pieces(Vec<TensorBytes>),
    /// In memory, as f32: vectors, and weights that no file stands behind.
    Floats(Vec<f32>),
}

impl Weight {
    /// The bytes of one matrix of the stack.
    pub fn expert(&self, expert: usize) -> &[u8] {
        let all: &[u8] = match &self.storage {
            Storage::Pieces(pieces) if pieces.len() > 1 => return &pieces[expert],
            Storage::Pieces(pieces) => &pieces[0],
            Storage::Floats(floats) => bytemuck::cast_slice(floats),
        };
        let bytes = all.len() / self.n_experts;
        &all[expert * bytes..(expert + 1) * bytes]
    }

    /// The bytes of a weight that is not a stack.
    pub fn bytes(&self) -> &[u8] {
        self.expert(0)
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.cols / self.ty.block_len() * self.ty.block_bytes()
    }

    /// The elements of a vector, all of which are kept as f32; empty for a matrix in a file.
    pub fn as_f32(&self) -> &[f32] {
        match &self.storage {
            Storage::Floats(floats) => floats,
            Storage::Pieces(_) => &[],
        }
    }

    /// Row `row` of a matrix, as f32.
    pub fn read_row(&self, row: usize, out: &mut [f32]) -> Result<(), quant::QuantError> {
        let bytes = self.row_bytes();
        quant::dequantize(self.ty, &self.bytes()[row * bytes..(row + 1) * bytes], out)
    }

    /// Whether any element is NaN or infinite; reads all of it.
    pub fn has_not_finite(&self) -> bool {
        let mut floats = vec![0.0; self.cols];
        (0..self.n_experts)
            .flat_map(|e| self.expert(e).chunks_exact(self.row_bytes().max(1)))
            .any(|row| {
                quant::dequantize(self.ty, row, &mut floats).is_err()
                    || floats.iter().any(|x| !x.is_finite())
            })
    }

    /// Bytes of all of it.
    pub fn size(&self) -> u64 {
        self.size_where(|_| true)
    }

    /// Bytes that are in memory of this process's own, rather than in a mapped file.
    pub fn own_size(&self) -> u64 {
        self.size_where(TensorBytes::is_own)
    }

    fn size_where(&self, counts: impl Fn(&TensorBytes) -> bool) -> u64 {
        match &self.storage {
            Storage::Pieces(pieces) => {
                let pieces = pieces.iter().filter(|piece| counts(piece));
                pieces.map(|piece| piece.len() as u64).sum()
            }
            Storage::Floats(floats) => size_of_val(floats.as_slice()) as u64,
        }
    }

    /// Where it is in the file, in one piece or one for each expert; nowhere if no file stands behind it.
    pub(super) fn pieces(&self) -> &[TensorBytes] {
        match &self.storage {
            Storage::Pieces(pieces) => pieces,
            Storage::Floats(_) => &[],
        }
    }

    /// The same weight in another form: as many pieces as before.
    pub(super) fn with_pieces(&self, ty: TensorType, pieces: Vec<TensorBytes>) -> Weight {
        Weight {
            ty,
            storage: Storage::Pieces(pieces),
            ..self.clone()
        }
    }
}

/// All weights of a model, by [`WeightId`].
#[derive(Clone, Debug, Default)]
pub struct Weights {
    list: Vec<Weight>,
    /// Those that change their form where they are run; adapters only add to the list.
    pub(super) spelling: Arc<Spelling>,
}

impl Weights {
    /// The weight that a plan calls `id`.
    pub fn get(&self, id: WeightId) -> &Weight {
        &self.list[id.0 as usize]
    }

    /// All of them, with their numbers.
    pub fn numbered(&self) -> impl Iterator<Item = (WeightId, &Weight)> {
        (0..).map(WeightId).zip(&self.list)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Weight> {
        self.list.iter()
    }

    /// Bytes of all of them.
    pub fn size(&self) -> u64 {
        self.list.iter().map(Weight::size).sum()
    }

    /// Bytes of those in memory of this process's own.
    pub fn own_size(&self) -> u64 {
        self.list.iter().map(Weight::own_size).sum()
    }

    /// Moves what is in mapped files to huge pages ([`TensorBytes::settle`]).
    pub fn settle(&self) {
        TensorBytes::settle(self.list.iter().flat_map(Weight::pieces));
    }

    /// The same weights with others in the place of some.
    pub(super) fn replaced(&self, others: impl IntoIterator<Item = (WeightId, Weight)>) -> Weights {
        let mut weights = self.clone();
        for (id, other) in others {
            if let Some(weight) = weights.list.get_mut(id.0 as usize) {
                *weight = other;
            }
        }
        weights
    }

    /// Adds a vector.
    pub fn push_vector(&mut self, name: &str, floats: Vec<f32>) -> WeightId {
        let (ty, cols, storage) = (TensorType::F32, floats.len(), Storage::Floats(floats));
        self.insert(Weight {
            name: name.into(),
            ty,
            rows: 1,
            cols,
            n_experts: 1,
            part: Part::range(0, 1),
            storage,
        })
    }

    /// Adds a stack of matrices of one row each.
    pub fn push_stack(&mut self, name: &str, floats: Vec<f32>, n: usize) -> WeightId {
        let (ty, cols, storage) = (TensorType::F32, floats.len() / n, Storage::Floats(floats));
        self.insert(Weight {
            name: name.into(),
            ty,
            rows: 1,
            cols,
            n_experts: n,
            part: Part::range(0, 1),
            storage,
        })
    }

    /// Adds a stack of matrices.
    pub fn push_matrix(
        &mut self,
        name: &str,
        ty: TensorType,
        rows: usize,
        cols: usize,
        pieces: Vec<TensorBytes>,
        n_experts: usize,
    ) -> WeightId {
        let storage = Storage::Pieces(pieces);
        self.insert(Weight {
            name: name.into(),
            ty,
            rows,
            cols,
            n_experts,
            part: Part::range(0, rows),
            storage,
        })
    }

    /// Says which rows of its tensor a matrix is.
    pub(super) fn set_part(&mut self, id: WeightId, part: Part) {
        if let Some(weight) = self.list.get_mut(id.0 as usize) {
            weight.part = part;
        }
    }

    fn insert(&mut self, weight: Weight) -> WeightId {
        self.list.push(weight);
        WeightId(self.list.len() as u32 - 1)
    }
}

/// A matrix and the vector that is added to its products.
#[derive(Clone, Copy, Debug)]
pub struct LinearWeights {
    /// Outputs × inputs.
    pub weight: WeightId,
    /// One element an output.
    pub bias: Option<WeightId>,
    /// How many outputs.
    pub outputs: usize,
}

/// The vectors of a norm.
#[derive(Clone, Copy, Debug)]
pub struct NormWeights {
    /// Which statistic is divided out.
    pub kind: NormKind,
    /// Factor of each element of a group, or of a row.
    pub weight: Option<WeightId>,
    /// Offset of each element, likewise.
    pub bias: Option<WeightId>,
    /// Added to the variance.
    pub epsilon: f32,
    /// Elements in a group.
    pub width: usize,
}
