//! The weights of a model: found by role, checked for shape, kept where they are in the file.

use super::ModelError;
use crate::arch::{Arch, TensorRole};
use crate::error::{Error, Result};
use crate::file::{Format, ModelFile, TensorBytes, TensorInfo};
use crate::graph::{NormKind, WeightId};
use oxidize_kernels::quant::{self, TensorType};

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
        match &self.storage {
            Storage::Pieces(pieces) => pieces.iter().map(|piece| piece.len() as u64).sum(),
            Storage::Floats(floats) => size_of_val(floats.as_slice()) as u64,
        }
    }
}

/// All weights of a model, by [`WeightId`].
#[derive(Clone, Debug, Default)]
pub struct Weights {
    list: Vec<Weight>,
}

impl Weights {
    /// The weight that a plan calls `id`.
    pub fn get(&self, id: WeightId) -> &Weight {
        &self.list[id.0 as usize]
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Weight> {
        self.list.iter()
    }

    /// Bytes of all of them.
    pub fn size(&self) -> u64 {
        self.list.iter().map(Weight::size).sum()
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
            storage,
        })
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
    /// Factor of each element.
    pub weight: Option<WeightId>,
    /// Offset of each element.
    pub bias: Option<WeightId>,
    /// Added to the variance.
    pub epsilon: f32,
    /// Elements in a group.
    pub width: usize,
}

/// Takes weights out of a file while the graph is built.
pub struct WeightLoader<'a> {
    file: &'a ModelFile,
    arch: &'a Arch,
    weights: Weights,
}

impl<'a> WeightLoader<'a> {
    /// A loader for `file`.
    pub fn new(file: &'a ModelFile, arch: &'a Arch) -> WeightLoader<'a> {
        WeightLoader {
            file,
            arch,
            weights: Weights::default(),
        }
    }

    /// What was loaded.
    pub fn finish(self) -> Weights {
        self.weights
    }

    /// Whether the file has this tensor.
    pub fn has(&self, role: &TensorRole, layer: usize) -> bool {
        self.find(role, layer, "weight").is_some()
    }

    /// The token embeddings; their rows are the vocabulary.
    pub fn embedding(&mut self, role: &TensorRole, width: usize) -> Result<LinearWeights> {
        let info = self
            .find(role, 0, "weight")
            .ok_or_else(|| self.missing(role, 0, "weight"))?;
        let outputs = info.dims().first().copied().unwrap_or(0);
        if outputs == 0 || outputs > 1 << 26 {
            return Err(self.shape(info, &[outputs.max(1), width]));
        }
        let weight = self.matrix(info, outputs, width)?;
        Ok(LinearWeights {
            weight,
            bias: None,
            outputs,
        })
    }

    /// A matrix, with its bias where the file has one.
    pub fn linear(
        &mut self,
        role: &TensorRole,
        layer: usize,
        inputs: usize,
        outputs: usize,
    ) -> Result<LinearWeights> {
        self.optional_linear(role, layer, inputs, outputs)?
            .ok_or_else(|| self.missing(role, layer, "weight"))
    }

    /// The same, or `None` where the file does not have it.
    pub fn optional_linear(
        &mut self,
        role: &TensorRole,
        layer: usize,
        inputs: usize,
        outputs: usize,
    ) -> Result<Option<LinearWeights>> {
        let Some(info) = self.find(role, layer, "weight") else {
            return Ok(None);
        };
        let weight = self.matrix(info, outputs, inputs)?;
        let bias = self
            .find(role, layer, "bias")
            .map(|info| self.vector_weight(info, outputs, 0.0));
        Ok(Some(LinearWeights {
            weight,
            bias: bias.transpose()?,
            outputs,
        }))
    }

    /// The stacked matrices of all experts of a layer.
    pub fn experts(
        &mut self,
        role: &TensorRole,
        layer: usize,
        n_experts: usize,
        inputs: usize,
        outputs: usize,
    ) -> Result<WeightId> {
        let name = role
            .name(self.arch, self.file.format(), layer)
            .unwrap_or_default();
        if !name.contains("{e}") {
            let info = self
                .find(role, layer, "weight")
                .ok_or_else(|| self.missing(role, layer, "weight"))?;
            self.check_shape(info, &[n_experts, outputs, inputs])?;
            let pieces = vec![self.file.data(info)?];
            return Ok(self.insert(info, outputs, inputs, n_experts, pieces));
        }
        let mut pieces = Vec::with_capacity(n_experts);
        let mut first: Option<&TensorInfo> = None;
        for expert in 0..n_experts {
            let name = format!("{}.weight", name.replace("{e}", &expert.to_string()));
            let info = self
                .file
                .tensor(&name)
                .ok_or_else(|| self.missing_name(name))?;
            self.check_shape(info, &[outputs, inputs])?;
            let ty = first.get_or_insert(info).ty;
            if info.ty != ty {
                return Err(self.bad_type(info, &format!("the layer's other experts are {ty}")));
            }
            pieces.push(self.file.data(info)?);
        }
        let info = first.ok_or_else(|| self.missing(role, layer, "weight"))?;
        Ok(self.insert(info, outputs, inputs, n_experts, pieces))
    }

    /// A norm's weight, and its bias where the file has one.
    pub fn norm(
        &mut self,
        role: &TensorRole,
        layer: usize,
        width: usize,
        epsilon: f32,
    ) -> Result<NormWeights> {
        let info = self
            .find(role, layer, "weight")
            .ok_or_else(|| self.missing(role, layer, "weight"))?;
        let offset = match self.file.format() {
            Format::Gguf { .. } => 0.0,
            _ => self.arch.hf_norm_offset,
        };
        let weight = Some(self.vector_weight(info, width, offset)?);
        let bias = self
            .find(role, layer, "bias")
            .map(|info| self.vector_weight(info, width, 0.0));
        Ok(NormWeights {
            kind: self.arch.norm,
            weight,
            bias: bias.transpose()?,
            epsilon,
            width,
        })
    }

    /// The elements of a small vector that the graph itself needs; `None` where there is none.
    pub fn vector(&self, role: &TensorRole, len: usize) -> Result<Option<Vec<f32>>> {
        self.find(role, 0, "weight")
            .map(|info| self.floats(info, len))
            .transpose()
    }

    fn find(&self, role: &TensorRole, layer: usize, ending: &str) -> Option<&'a TensorInfo> {
        let name = role.name(self.arch, self.file.format(), layer)?;
        self.file.tensor(&format!("{name}.{ending}"))
    }

    fn matrix(&mut self, info: &TensorInfo, rows: usize, cols: usize) -> Result<WeightId> {
        self.check_shape(info, &[rows, cols])?;
        let pieces = vec![self.file.data(info)?];
        Ok(self.insert(info, rows, cols, 1, pieces))
    }

    /// A vector as f32, whatever it is stored as: there are few, and every backend wants them so.
    fn vector_weight(&mut self, info: &TensorInfo, len: usize, offset: f32) -> Result<WeightId> {
        let mut floats = self.floats(info, len)?;
        if offset != 0.0 {
            floats.iter_mut().for_each(|x| *x += offset);
        }
        Ok(self.weights.push_vector(&info.name, floats))
    }

    fn floats(&self, info: &TensorInfo, len: usize) -> Result<Vec<f32>> {
        self.check_shape(info, &[len])?;
        let bytes = self.file.data(info)?;
        let mut floats = vec![0.0; len];
        quant::dequantize(info.ty, &bytes, &mut floats)
            .map_err(|error| self.bad_type(info, &error.to_string()))?;
        if let Some(at) = floats.iter().position(|x| !x.is_finite()) {
            return Err(Error::from(ModelError::NotFinite {
                file: self.file.path().to_path_buf(),
                tensor: info.name.clone(),
                element: at,
            }));
        }
        Ok(floats)
    }

    fn insert(
        &mut self,
        info: &TensorInfo,
        rows: usize,
        cols: usize,
        n_experts: usize,
        pieces: Vec<TensorBytes>,
    ) -> WeightId {
        self.weights
            .push_matrix(&info.name, info.ty, rows, cols, pieces, n_experts)
    }

    /// The shape must be the one asked for, and a row whole blocks of a type that holds numbers.
    fn check_shape(&self, info: &TensorInfo, expected: &[usize]) -> Result<()> {
        let dims = info.dims();
        // Trailing ones are not kept in GGUF, leading ones are noise.
        let core: Vec<usize> = dims
            .iter()
            .copied()
            .skip_while(|&d| d == 1 && dims.len() > expected.len())
            .collect();
        if core != expected {
            return Err(self.shape(info, expected));
        }
        let cols = expected.last().copied().unwrap_or(0);
        if !cols.is_multiple_of(info.ty.block_len()) {
            return Err(self.bad_type(
                info,
                &format!(
                    "a row of {cols} is not whole blocks of {}",
                    info.ty.block_len()
                ),
            ));
        }
        if matches!(
            info.ty,
            TensorType::Bool | TensorType::Q8_K | TensorType::Q8_1
        ) {
            return Err(self.bad_type(info, "weights are not stored so"));
        }
        Ok(())
    }

    fn shape(&self, info: &TensorInfo, expected: &[usize]) -> Error {
        Error::from(ModelError::TensorShape {
            file: self.file.path().to_path_buf(),
            tensor: info.name.clone(),
            shape: info.dims(),
            expected: expected.to_vec(),
        })
    }

    fn bad_type(&self, info: &TensorInfo, problem: &str) -> Error {
        Error::from(ModelError::TensorType {
            file: self.file.path().to_path_buf(),
            tensor: info.name.clone(),
            ty: info.ty,
            problem: problem.to_owned(),
        })
    }

    fn missing(&self, role: &TensorRole, layer: usize, ending: &str) -> Error {
        let name = role.name(self.arch, self.file.format(), layer);
        self.missing_name(format!(
            "{}.{ending}",
            name.unwrap_or_else(|| role.gguf.into())
        ))
    }

    fn missing_name(&self, tensor: String) -> Error {
        Error::from(ModelError::MissingTensor {
            file: self.file.path().to_path_buf(),
            tensor,
        })
    }
}
