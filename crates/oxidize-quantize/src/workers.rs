//! [`Workers`]: quantizes a tensor on several threads, a window of rows at a time, and measures the error.

use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use oxidize_kernels::quant::{self, SecondMoment, TensorType};

use crate::error::{Error, Result};
use crate::importance::Inputs;
use crate::tensor::{Reader, Tensor};

/// Threads and their stop flag.
#[derive(Clone, Copy, Debug)]
pub struct Workers<'a> {
    /// Number of threads.
    pub threads: usize,
    /// Measure the quantization error.
    pub measure: bool,
    /// Flag that stops the work when it is set.
    pub stop: Option<&'a AtomicBool>,
}

impl Default for Workers<'_> {
    fn default() -> Self {
        Workers {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            measure: false,
            stop: None,
        }
    }
}

/// Quantization error of a tensor. Losses add up to that of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Loss {
    /// Σ x².
    pub squares: f64,
    /// Σ (x − x̂)².
    pub errors: f64,
    /// Mean square of the products with the inputs, as far as the inputs are known.
    pub signal: f64,
    /// Mean square of the errors' products with the inputs.
    pub noise: f64,
}

impl Loss {
    /// Relative root-mean-square error.
    pub fn relative(&self) -> f64 {
        (self.errors / self.squares.max(f64::MIN_POSITIVE)).sqrt()
    }

    /// Error of a row, weighted by the mean squares or the second moment of its inputs.
    pub(crate) fn of(
        row: &[f32],
        decoded: &[f32],
        squares: Option<&[f32]>,
        second_moment: Option<&SecondMoment>,
    ) -> Loss {
        let mut loss = Loss::default();
        for (i, (x, y)) in row.iter().zip(decoded).enumerate() {
            let weight = squares.map_or(1.0, |squares| f64::from(squares[i]));
            let square = f64::from(x * x);
            let error = f64::from(x - y).powi(2);
            loss.squares += square;
            loss.errors += error;
            loss.signal += weight * square;
            loss.noise += weight * error;
        }
        if let Some(second_moment) = second_moment {
            loss.signal = second_moment.mean_square(row.iter().copied());
            loss.noise = second_moment.mean_square(row.iter().zip(decoded).map(|(x, y)| x - y));
        }
        loss
    }

    pub(crate) fn add(&mut self, other: Loss) {
        self.squares += other.squares;
        self.errors += other.errors;
        self.signal += other.signal;
        self.noise += other.noise;
    }
}

/// Elements quantized between two writes.
const WINDOW: u64 = 4 << 20;
/// Elements that a thread takes from the queue.
const PIECE: u64 = 16 << 10;

impl Workers<'_> {
    /// Writes `tensor` as `ty`, minimizing the error weighted by `inputs`.
    pub fn quantize(
        &self,
        tensor: &Tensor<'_>,
        ty: TensorType,
        inputs: Option<&Inputs>,
        out: &mut dyn Write,
    ) -> Result<Loss> {
        let columns = tensor.columns();
        if !columns.is_multiple_of(ty.block_len() as u64) {
            return Err(Error::Blocks {
                file: tensor.file().to_path_buf(),
                tensor: tensor.name.clone(),
                columns,
                ty,
            });
        }
        let reader = tensor.open()?;
        let window = (WINDOW / columns.max(1)).max(1);
        let mut loss = Loss::default();
        let job = Job {
            reader: &reader,
            tensor,
            ty,
            inputs,
            workers: *self,
        };
        let mut encoded = Vec::new();
        let mut start = 0;
        let rows = tensor.rows();
        while start < rows {
            let end = rows.min(start + window);
            loss.add(job.rows(start..end, &mut encoded)?);
            out.write_all(&encoded).map_err(write_error)?;
            start = end;
        }
        Ok(loss)
    }

    /// Writes `tensor` unchanged.
    pub fn copy(&self, tensor: &Tensor<'_>, out: &mut dyn Write) -> Result<()> {
        let reader = tensor.open()?;
        let window = (WINDOW / tensor.columns().max(1)).max(1);
        let (mut start, rows) = (0, tensor.rows());
        while start < rows {
            self.check()?;
            let end = rows.min(start + window);
            out.write_all(&reader.bytes(start..end)?)
                .map_err(write_error)?;
            start = end;
        }
        Ok(())
    }

    /// Returns an error if the stop flag is set.
    pub fn check(&self) -> Result<()> {
        match self.stop {
            Some(stop) if stop.load(Ordering::Relaxed) => Err(Error::Interrupted {
                left: "nothing was written".into(),
            }),
            _ => Ok(()),
        }
    }
}

/// Wraps an I/O error; the output adds the path.
fn write_error(error: std::io::Error) -> Error {
    oxidize_core::gguf::WriteError::Io(error).into()
}

/// Quantization of one tensor.
#[derive(Clone, Copy)]
struct Job<'a> {
    reader: &'a Reader<'a>,
    tensor: &'a Tensor<'a>,
    ty: TensorType,
    inputs: Option<&'a Inputs>,
    workers: Workers<'a>,
}

impl Job<'_> {
    /// Quantizes rows into `out` on all threads.
    fn rows(&self, rows: std::ops::Range<u64>, out: &mut Vec<u8>) -> Result<Loss> {
        let columns = self.tensor.columns();
        // `quantize` has checked that rows are whole blocks.
        let row_bytes = self.ty.bytes_for(columns).unwrap_or(0) as usize;
        let n_rows = (rows.end - rows.start) as usize;
        out.resize(n_rows * row_bytes, 0);
        let bytes = self.reader.bytes(rows.clone())?;
        let source_row = self.tensor.ty.bytes_for(columns).unwrap_or(0) as usize;
        let mut piece = (PIECE / columns.max(1)).max(1) as usize;
        if self
            .inputs
            .is_some_and(|inputs| inputs.second_moment.is_some())
        {
            piece = piece.next_multiple_of(SecondMoment::ROWS);
        }
        let pieces = bytes
            .chunks((piece * source_row).max(1))
            .zip(out.chunks_mut((piece * row_bytes).max(1)))
            .enumerate();
        let queue = Mutex::new(pieces);
        let result = Mutex::new(Ok(Loss::default()));
        let threads = self.workers.threads.clamp(1, n_rows.div_ceil(piece).max(1));
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let mut buffers = Buffers::default();
                    loop {
                        let next = queue.lock().map(|mut queue| queue.next());
                        let Ok(Some((n, (source, out)))) = next else {
                            break;
                        };
                        let first = rows.start + (n * piece) as u64;
                        let done = self
                            .workers
                            .check()
                            .and_then(|()| self.piece(first, source, out, &mut buffers));
                        let Ok(mut result) = result.lock() else { break };
                        match (&mut *result, done) {
                            (Ok(loss), Ok(done)) => loss.add(done),
                            (Ok(_), Err(error)) => *result = Err(error),
                            (Err(_), _) => break,
                        }
                    }
                });
            }
        });
        // The lock is not poisoned: the scope propagates panics of its threads.
        result
            .into_inner()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Quantizes the rows from `first` on.
    fn piece(
        &self,
        first: u64,
        source: &[u8],
        out: &mut [u8],
        buffers: &mut Buffers,
    ) -> Result<Loss> {
        let columns = self.tensor.columns();
        let n = source.len() / self.tensor.ty.block_bytes() * self.tensor.ty.block_len();
        buffers.floats.resize(n, 0.0);
        self.reader
            .floats(source, first * columns, &mut buffers.floats)?;
        let per_matrix = (self.tensor.rows() / self.tensor.matrices().max(1)).max(1);
        let row_bytes = out.len() / (n / columns as usize).max(1);
        let second_moment = self.inputs.and_then(|inputs| inputs.second_moment.as_ref());
        let squares = |row: usize| {
            let matrix = (first + row as u64) / per_matrix;
            let start = usize::try_from(matrix * columns).ok()?;
            let squares = &self.inputs?.squares;
            squares.get(start..start + columns as usize)
        };
        let columns = columns as usize;
        quantize_rows(
            self.ty,
            &buffers.floats,
            columns,
            squares,
            second_moment,
            out,
        )
        .map_err(|error| self.failed(error))?;
        self.check_range(first, out, buffers)?;
        let mut loss = Loss::default();
        if self.workers.measure {
            buffers.decoded.resize(columns, 0.0);
            let rows = buffers.floats.chunks_exact(columns);
            let encoded = out.chunks_exact(row_bytes.max(1));
            for (i, (row, encoded)) in rows.zip(encoded).enumerate() {
                quant::dequantize(self.ty, encoded, &mut buffers.decoded)
                    .map_err(|error| self.failed(error))?;
                loss.add(Loss::of(row, &buffers.decoded, squares(i), second_moment));
            }
        }
        Ok(loss)
    }

    /// Returns an error if a large weight became infinite or far too small: f16 values and scales end at
    /// 65504.
    fn check_range(&self, first: u64, out: &[u8], buffers: &mut Buffers) -> Result<()> {
        const SAFE: f32 = 32768.0;
        // Compared as integers, which vectorizes; this runs over every weight.
        let bits = buffers.floats.iter().map(|x| x.abs().to_bits());
        if bits.fold(0, u32::max) < SAFE.to_bits() {
            return Ok(());
        }
        buffers.decoded.resize(buffers.floats.len(), 0.0);
        quant::dequantize(self.ty, out, &mut buffers.decoded)
            .map_err(|error| self.failed(error))?;
        let len = self.ty.block_len();
        let blocks = buffers.floats.chunks(len).zip(buffers.decoded.chunks(len));
        for (n, (block, stored)) in blocks.enumerate() {
            let elements = block.iter().zip(stored).enumerate();
            let largest = elements.max_by(|(_, (a, _)), (_, (b, _))| a.abs().total_cmp(&b.abs()));
            let Some((at, (x, y))) = largest.filter(|(_, (x, _))| x.abs() >= SAFE) else {
                continue;
            };
            // Every type keeps the largest weight of a block within this factor.
            if stored.iter().all(|y| y.is_finite()) && y.abs() >= x.abs() / 16.0 {
                continue;
            }
            return Err(Error::TooLarge {
                file: self.tensor.file().to_path_buf(),
                tensor: self.tensor.name.clone(),
                element: first * self.tensor.columns() + (n * len + at) as u64,
                value: *x,
                ty: self.ty,
            });
        }
        Ok(())
    }

    fn failed(&self, error: quant::QuantError) -> Error {
        Error::Encode {
            file: self.tensor.file().to_path_buf(),
            tensor: self.tensor.name.clone(),
            error,
        }
    }
}

/// Quantizes whole rows. `squares` returns the mean squares of a row's inputs, which are the same for all
/// rows if a second moment is given.
pub(crate) fn quantize_rows<'a>(
    ty: TensorType,
    rows: &[f32],
    columns: usize,
    squares: impl Fn(usize) -> Option<&'a [f32]>,
    second_moment: Option<&SecondMoment>,
    out: &mut [u8],
) -> Result<(), quant::QuantError> {
    let kernels = oxidize_kernels::select();
    if let (Some(second_moment), Some(squares)) = (second_moment, squares(0)) {
        return kernels.quantize_weights_compensated(ty, rows, squares, second_moment, out);
    }
    let n = rows.len() / columns.max(1);
    let at = |row| squares(row).map(<[f32]>::as_ptr);
    if at(0) == at(n.saturating_sub(1)) {
        return kernels.quantize_weight_rows(ty, rows, columns, squares(0), out);
    }
    // The rows belong to several matrices with different inputs.
    let row_bytes = out.len() / n.max(1);
    let rows = rows.chunks_exact(columns.max(1));
    let rows = rows.zip(out.chunks_exact_mut(row_bytes.max(1)));
    rows.enumerate()
        .try_for_each(|(i, (row, out))| kernels.quantize_weights(ty, row, squares(i), out))
}

/// Buffers that a thread reuses.
#[derive(Default)]
struct Buffers {
    floats: Vec<f32>,
    decoded: Vec<f32>,
}
