//! The weights of a model, in memory or in a mapped file. [`loader`] creates them.

mod loader;
pub(crate) mod mxfp4;
mod prepared;
mod recurrent;
pub(crate) mod stored;

pub use loader::{QkvShape, WeightLoader};
pub(crate) use loader::{holds_weights, is_computed};
pub use prepared::PreparedWeights;
pub use stored::RowSlice;
pub(crate) use stored::Stored;

use crate::error::Result;
use crate::file::{ModelFile, TensorBytes};
use crate::graph::{NormKind, WeightId};
use crate::io::Origin;
use oxidize_kernels::quant::{self, TensorType};
use prepared::PreparedMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One matrix, vector or stack of expert matrices.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Name of the tensor in the file.
    pub name: String,
    /// Storage type of the elements.
    pub ty: TensorType,
    /// Rows of one matrix; 1 for a vector.
    pub rows: usize,
    /// Elements of a row.
    pub cols: usize,
    /// Matrices in the stack; 1 unless they are experts or heads.
    pub n_experts: usize,
    /// The rows of the tensor that this weight consists of; a tensor may contain several matrices.
    pub part: RowSlice,
    storage: Storage,
}

/// The elements of a weight.
#[derive(Clone, Debug)]
enum Storage {
    /// Bytes of the file: all matrices in one piece, or a piece for each.
    Pieces(Vec<TensorBytes>),
    /// Bytes of the file in memory of this process, which may be released.
    Releasable(Arc<Releasable>),
    /// f32 in memory: vectors, and weights that are not in a file.
    Floats(Vec<f32>),
}

/// Bytes of a file in memory of this process. The memory can be freed, because the bytes can be read again.
#[derive(Debug)]
struct Releasable {
    file: ModelFile,
    /// Place and length of each piece.
    places: Vec<(Origin, u64)>,
    /// True if other weights are in the same memory, so that it is freed only when all of them are released.
    is_shared: bool,
    /// `None` once released.
    pieces: Mutex<Option<Vec<TensorBytes>>>,
}

impl Releasable {
    fn pieces(&self) -> MutexGuard<'_, Option<Vec<TensorBytes>>> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn size(&self) -> u64 {
        self.places.iter().map(|(_, len)| len).sum()
    }

    /// The pieces, read again if they were released.
    fn load(&self) -> Result<Vec<TensorBytes>> {
        if let Some(pieces) = &*self.pieces() {
            return Ok(pieces.clone());
        }
        let places = self.places.iter();
        places
            .map(|&(origin, len)| self.file.read_again(origin, len))
            .collect()
    }
}

impl Weight {
    /// The bytes of one matrix of the stack. Empty for a weight that must be [loaded](Weight::loaded) first.
    pub fn expert(&self, expert: usize) -> &[u8] {
        let all: &[u8] = match &self.storage {
            Storage::Pieces(pieces) if pieces.len() > 1 => return &pieces[expert],
            Storage::Pieces(pieces) => &pieces[0],
            Storage::Releasable(_) => &[],
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

    /// The elements of a vector, which is always f32; empty for a matrix of a file.
    pub fn as_f32(&self) -> &[f32] {
        match &self.storage {
            Storage::Floats(floats) => floats,
            Storage::Pieces(_) | Storage::Releasable(_) => &[],
        }
    }

    /// Reads row `row` of a matrix as f32.
    pub fn read_row(&self, row: usize, out: &mut [f32]) -> Result<(), quant::QuantError> {
        let bytes = self.row_bytes();
        quant::dequantize(self.ty, &self.bytes()[row * bytes..(row + 1) * bytes], out)
    }

    /// True if any element is NaN or infinite. Reads the whole weight.
    pub fn has_not_finite(&self) -> bool {
        // A weight that cannot be read again is not known to have one.
        let Ok(weight) = self.loaded() else {
            return false;
        };
        let mut floats = vec![0.0; weight.cols];
        (0..weight.n_experts)
            .flat_map(|e| weight.expert(e).chunks_exact(weight.row_bytes().max(1)))
            .any(|row| {
                quant::dequantize(weight.ty, row, &mut floats).is_err()
                    || floats.iter().any(|x| !x.is_finite())
            })
    }

    /// Bytes of the whole weight.
    pub fn size(&self) -> u64 {
        match &self.storage {
            Storage::Pieces(pieces) => pieces.iter().map(|piece| piece.len() as u64).sum(),
            Storage::Releasable(bytes) => bytes.size(),
            Storage::Floats(floats) => size_of_val(floats.as_slice()) as u64,
        }
    }

    /// Bytes in memory of this process, as opposed to a mapped file.
    pub fn own_size(&self) -> u64 {
        match &self.storage {
            Storage::Pieces(pieces) => {
                let own = pieces.iter().filter(|piece| piece.is_own());
                own.map(|piece| piece.len() as u64).sum()
            }
            Storage::Releasable(bytes) if bytes.pieces().is_none() => 0,
            Storage::Releasable(_) | Storage::Floats(_) => self.size(),
        }
    }

    /// The weight with its bytes in reach: read from the file again if they were released. It keeps them in
    /// memory for as long as it lives.
    pub fn loaded(&self) -> Result<Weight> {
        match &self.storage {
            Storage::Releasable(bytes) => Ok(self.with_pieces(self.ty, bytes.load()?)),
            Storage::Pieces(_) | Storage::Floats(_) => Ok(self.clone()),
        }
    }

    /// Releases the memory of the weight, for a backend that has made a copy of it. Pages of a mapped file
    /// come back when they are read, and memory that the file was read into when the weight is
    /// [loaded](Weight::loaded). Weights that share a tensor of the file free its memory together. Vectors and
    /// matrices that were computed from the file, such as transposed ones, stay.
    pub fn release(&self) {
        match &self.storage {
            Storage::Pieces(pieces) => pieces
                .iter()
                .for_each(|piece| piece.release(0..piece.len())),
            Storage::Releasable(bytes) => *bytes.pieces() = None,
            Storage::Floats(_) => {}
        }
    }

    /// True if the weight is in a mapped file whose pages can be released.
    pub(crate) fn is_mapped(&self) -> bool {
        let pieces = self.pieces();
        let is_mapped = |piece: &TensorBytes| piece.is_mapped() && !piece.is_own();
        !pieces.is_empty() && pieces.iter().all(is_mapped)
    }

    /// True if the weight was read into memory of its own that can be freed.
    pub(crate) fn is_releasable(&self) -> bool {
        matches!(&self.storage, Storage::Releasable(bytes) if !bytes.is_shared)
    }

    /// The bytes of the file, in one piece or one for each matrix; empty for a weight that is not in a file,
    /// or must be [loaded](Weight::loaded) first.
    pub(crate) fn pieces(&self) -> &[TensorBytes] {
        match &self.storage {
            Storage::Pieces(pieces) => pieces,
            Storage::Releasable(_) | Storage::Floats(_) => &[],
        }
    }

    /// The weight with other bytes, of another type: as many pieces as before.
    pub(crate) fn with_pieces(&self, ty: TensorType, pieces: Vec<TensorBytes>) -> Weight {
        Weight {
            name: self.name.clone(),
            storage: Storage::Pieces(pieces),
            ty,
            ..*self
        }
    }

    /// Makes the weight releasable if it is in memory of this process, as `file` has it.
    fn make_releasable(&mut self, file: &ModelFile) {
        let Storage::Pieces(pieces) = &mut self.storage else {
            return;
        };
        let place = |piece: &TensorBytes| Some((piece.origin()?, piece.len() as u64));
        let places: Option<Vec<_>> = pieces.iter().map(place).collect();
        let Some(places) = places else { return };
        if pieces.iter().any(TensorBytes::is_mapped) {
            return;
        }
        self.storage = Storage::Releasable(Arc::new(Releasable {
            file: file.clone(),
            places,
            is_shared: !pieces.iter().all(TensorBytes::is_sole_owner),
            pieces: Mutex::new(Some(std::mem::take(pieces))),
        }));
    }
}

/// All weights of a model, by [`WeightId`].
#[derive(Clone, Debug, Default)]
pub struct Weights {
    list: Vec<Weight>,
    /// The forms that backends have made of the weights. Clones share them: an adapter only adds weights, so ids stay
    /// the same.
    prepared: PreparedMap,
}

impl Weights {
    /// The weight of an id.
    pub fn get(&self, id: WeightId) -> &Weight {
        &self.list[id.0 as usize]
    }

    /// All weights with their ids.
    pub fn numbered(&self) -> impl Iterator<Item = (WeightId, &Weight)> {
        (0..).map(WeightId).zip(&self.list)
    }

    /// All weights.
    pub fn iter(&self) -> impl Iterator<Item = &Weight> {
        self.list.iter()
    }

    /// Bytes of all weights in the types of the file.
    pub fn size(&self) -> u64 {
        self.list.iter().map(Weight::size).sum()
    }

    /// Bytes in memory of this process, as opposed to mapped files, [prepared](PreparedWeights) weights included.
    pub fn own_size(&self) -> u64 {
        let stored: u64 = self.list.iter().map(Weight::own_size).sum();
        stored + self.prepared.own_size()
    }

    /// The weights with all bytes in reach: see [`Weight::loaded`].
    pub fn loaded(&self) -> Result<Weights> {
        let list = self.list.iter().map(Weight::loaded);
        Ok(Weights {
            list: list.collect::<Result<_>>()?,
            prepared: self.prepared.clone(),
        })
    }

    /// Moves the pages of mapped files to huge pages ([`TensorBytes::use_huge_pages`]).
    pub fn use_huge_pages(&self) {
        TensorBytes::use_huge_pages(self.list.iter().flat_map(Weight::pieces));
    }

    /// The weights that a backend, to which `T` belongs, has prepared for a device so far. All sessions of a model share
    /// them.
    pub fn prepared<T: PreparedWeights>(&self, device: usize) -> Arc<T> {
        self.prepared.get(device)
    }

    /// The weights with some of them replaced.
    pub(crate) fn replaced(&self, others: impl IntoIterator<Item = (WeightId, Weight)>) -> Weights {
        let mut weights = self.clone();
        for (id, other) in others {
            if let Some(weight) = weights.list.get_mut(id.0 as usize) {
                *weight = other;
            }
        }
        weights
    }

    /// Makes the weights releasable that are in memory of this process as `file` has them.
    pub(crate) fn make_releasable(&mut self, file: &ModelFile) {
        let weights = self.list.iter_mut();
        weights.for_each(|weight| weight.make_releasable(file));
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
            part: RowSlice::range(0, 1),
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
            part: RowSlice::range(0, 1),
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
            part: RowSlice::range(0, rows),
            storage,
        })
    }

    /// Sets the rows of its tensor that a matrix consists of.
    pub(super) fn set_part(&mut self, id: WeightId, part: RowSlice) {
        if let Some(weight) = self.list.get_mut(id.0 as usize) {
            weight.part = part;
        }
    }

    fn insert(&mut self, weight: Weight) -> WeightId {
        self.list.push(weight);
        WeightId(self.list.len() as u32 - 1)
    }
}

/// A matrix and its bias.
#[derive(Clone, Copy, Debug)]
pub struct LinearWeights {
    /// Outputs × inputs.
    pub weight: WeightId,
    /// One element per output.
    pub bias: Option<WeightId>,
    /// Number of outputs.
    pub outputs: usize,
}

/// Parameters of a norm.
#[derive(Clone, Copy, Debug)]
pub struct NormWeights {
    /// Statistic that the input is divided by.
    pub kind: NormKind,
    /// Factor of each element of a group or of a row.
    pub weight: Option<WeightId>,
    /// Offset of each element of a group or of a row.
    pub bias: Option<WeightId>,
    /// Added to the variance.
    pub epsilon: f32,
    /// Elements in a group.
    pub width: usize,
}
