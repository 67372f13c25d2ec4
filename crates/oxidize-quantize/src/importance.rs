//! [`Importance`]: the importance matrix, mean squares of the inputs of each matrix on a calibration text.
//!
//! Reads the GGUF and the older `.dat` format of llama.cpp's `llama-imatrix`; writes GGUF.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::gguf::{ArrayBuf, MAGIC, Metadata, Value, WriteError, Writer};
use oxidize_core::io::save_atomically;
use oxidize_kernels::quant::{RANK, SecondMoment, TensorType};

use crate::error::{Error, Result};
use crate::output::with_path;
use crate::sketch::Sketch;
use crate::tensor::Tensor;

/// An importance matrix: sums of squared inputs of each matrix of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Importance {
    /// Entries by tensor name, such as `blk.0.ffn_down.weight`.
    pub entries: BTreeMap<String, Entry>,
    /// Names of the calibration texts.
    pub datasets: Vec<String>,
    /// Number of chunks processed.
    pub chunks: u32,
    /// Tokens per chunk.
    pub chunk_size: u32,
    /// Position in the last text, for resuming.
    pub position: Option<TextPosition>,
    /// Path of the file that the matrix was loaded from.
    pub file: PathBuf,
}

/// Position in a calibration text. Chunks of merged matrices do not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextPosition {
    /// Name of the text.
    pub text: String,
    /// [Fingerprint](crate::text::Text::fingerprint) of the text.
    pub fingerprint: u64,
    /// Chunks processed from the start of the text.
    pub chunks: u32,
    /// Tokens per chunk.
    pub chunk_size: u32,
    /// [Fingerprint](crate::imatrix::fingerprint) of the model; `None` in files of earlier versions.
    pub model: Option<u64>,
}

impl TextPosition {
    const TEXT: &str = "oxidize.imatrix.text";
    const FINGERPRINT: &str = "oxidize.imatrix.text_fingerprint";
    const CHUNKS: &str = "oxidize.imatrix.text_chunks";
    const CHUNK_SIZE: &str = "oxidize.imatrix.text_chunk_size";
    const MODEL: &str = "oxidize.imatrix.model_fingerprint";

    fn of(metadata: &Metadata) -> Option<TextPosition> {
        let number = |key| u32::try_from(metadata.u64(key)?).ok();
        Some(TextPosition {
            text: metadata.str(TextPosition::TEXT)?.to_owned(),
            fingerprint: metadata.u64(TextPosition::FINGERPRINT)?,
            chunks: number(TextPosition::CHUNKS)?,
            chunk_size: number(TextPosition::CHUNK_SIZE)?,
            model: metadata.u64(TextPosition::MODEL),
        })
    }
}

/// Input statistics of a matrix, or of each matrix of stacked experts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// Sum of squares of each column of each matrix.
    pub sums: Vec<f32>,
    /// Number of summed inputs of each matrix.
    pub counts: Vec<f32>,
    /// Sketch of the second moment, possibly over fewer inputs. Among matrices with the same inputs, only one
    /// has it.
    pub sketch: Option<Sketch>,
}

/// Input statistics of a tensor to quantize.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// Mean square of each input of each matrix.
    pub squares: Vec<f32>,
    /// Second moment of the inputs; `None` for stacked matrices.
    pub second_moment: Option<SecondMoment>,
}

impl Entry {
    /// Mean square of each input; zeros for an expert that no token was routed to.
    pub fn means(&self) -> Vec<f32> {
        let columns = (self.sums.len() / self.counts.len().max(1)).max(1);
        let of_matrix = self.sums.chunks(columns).zip(&self.counts);
        of_matrix
            .flat_map(|(sums, &count)| {
                let scale = if count > 0.0 { 1.0 / count } else { 0.0 };
                sums.iter().map(move |sum| sum * scale)
            })
            .collect()
    }

    /// Number of inputs of the sketch, if it differs from the number of summed inputs.
    fn sketch_count(&self) -> Option<f32> {
        let count = self.sketch.as_ref()?.count as f32;
        (self.counts != [count]).then_some(count)
    }

    /// Copies the statistics of experts that have no inputs here.
    fn fill_experts(&mut self, other: &Entry) {
        if self.counts.len() != other.counts.len() {
            return;
        }
        let columns = (self.sums.len() / self.counts.len().max(1)).max(1);
        let ours = self.sums.chunks_mut(columns).zip(&mut self.counts);
        let theirs = other.sums.chunks(columns).zip(&other.counts);
        for ((sums, count), (their_sums, their_count)) in ours.zip(theirs) {
            if *count == 0.0 {
                sums.copy_from_slice(their_sums);
                *count = *their_count;
            }
        }
    }

    /// Adds the statistics of another run; `None` if the shapes differ.
    #[must_use]
    pub fn add(&mut self, other: &Entry) -> Option<()> {
        if (self.sums.len(), self.counts.len()) != (other.sums.len(), other.counts.len()) {
            return None;
        }
        for (sum, more) in self.sums.iter_mut().zip(&other.sums) {
            *sum += more;
        }
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        match (&mut self.sketch, &other.sketch) {
            (Some(sketch), Some(more)) => sketch.add(more)?,
            (None, Some(sketch)) => self.sketch = Some(sketch.clone()),
            (_, None) => {}
        }
        Some(())
    }

    /// Describes why the entry is invalid, if it is.
    fn problem(&self) -> Option<String> {
        let is_invalid = |x: &f32| !x.is_finite() || *x < 0.0;
        if self.sums.iter().chain(&self.counts).any(is_invalid) {
            return Some("has a negative or non-finite element".into());
        }
        // Division by a count near zero would outweigh everything else.
        if let Some(count) = self.counts.iter().find(|n| 0.0 < **n && **n < 1.0) {
            return Some(format!(
                "has a count of {count:e} inputs, which is neither 0 nor at least 1"
            ));
        }
        // Weighted errors are summed, so the total must be finite.
        let total: f32 = self.means().iter().sum();
        (!total.is_finite()).then(|| "has sums that overflow".into())
    }
}

const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";
/// Sketch tensor, which other programs ignore; one row per column of the matrix.
const SKETCH: &str = ".in_sketch";
/// Number of inputs of a sketch, if it differs from the number of summed inputs.
const SKETCH_COUNT: &str = ".in_sketch_count";

impl Importance {
    /// Loads a GGUF or `.dat` file.
    pub fn load(path: &Path) -> Result<Importance> {
        let mut head = [0; 4];
        let mut open = || -> std::io::Result<()> {
            std::io::Read::read_exact(&mut std::fs::File::open(path)?, &mut head)
        };
        match open() {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                let problem = "not an importance matrix: the file has fewer than 4 bytes";
                return Err(invalid(path, problem));
            }
            read => read.map_err(oxidize_core::Error::io(path))?,
        }
        let mut importance = if head == MAGIC {
            Importance::load_gguf(path)?
        } else {
            let bytes = std::fs::read(path).map_err(oxidize_core::Error::io(path))?;
            parse_dat(&bytes).map_err(|problem| invalid(path, problem))?
        };
        importance.file = path.to_path_buf();
        if importance.entries.is_empty() {
            return Err(invalid(path, "not an importance matrix: no entries"));
        }
        for (name, entry) in &importance.entries {
            if let Some(problem) = entry.problem() {
                return Err(invalid(path, format!("entry `{name}` {problem}")));
            }
        }
        Ok(importance)
    }

    fn load_gguf(path: &Path) -> Result<Importance> {
        let file = ModelFile::open(path, &OpenOptions::default())?;
        let metadata = file.metadata();
        let number = |key| u32::try_from(metadata.u64(key).unwrap_or(0)).unwrap_or(0);
        let datasets = metadata.array("imatrix.datasets").and_then(|list| {
            let names = list.strings()?.map(|name| name.into_owned());
            Some(names.collect())
        });
        let floats = |name: &str| -> Result<Option<Vec<f32>>> {
            let Some(info) = file.tensor(name) else {
                return Ok(None);
            };
            let mut floats = Vec::new();
            file.for_each_f32::<oxidize_core::Error>(info, |piece| {
                floats.extend_from_slice(piece);
                Ok(())
            })?;
            Ok(Some(floats))
        };
        let mut entries = BTreeMap::new();
        for info in file.tensors() {
            let Some(name) = info.name.strip_suffix(SUMS) else {
                continue;
            };
            let sums = floats(&info.name)?.unwrap_or_default();
            let counts = floats(&format!("{name}{COUNTS}"))?;
            let counts = counts
                .filter(|counts| !counts.is_empty() && sums.len().is_multiple_of(counts.len()));
            let counts =
                counts.ok_or_else(|| invalid(path, format!("`{name}` has no matching counts")))?;
            let sketch = match floats(&format!("{name}{SKETCH}"))? {
                Some(sketch) => {
                    let (columns, rest) = sketch.as_chunks::<RANK>();
                    let count = floats(&format!("{name}{SKETCH_COUNT}"))?;
                    let count = *count.as_ref().unwrap_or(&counts).first().unwrap_or(&0.0);
                    let fits = rest.is_empty() && columns.len() == sums.len() && count >= 0.0;
                    if !fits || sketch.iter().chain([&count]).any(|x| !x.is_finite()) {
                        return Err(invalid(
                            path,
                            format!("`{name}{SKETCH}` has an invalid shape or value"),
                        ));
                    }
                    Some(Sketch {
                        sums: columns.to_vec(),
                        count: count as u64,
                    })
                }
                None => None,
            };
            let entry = Entry {
                sums,
                counts,
                sketch,
            };
            entries.insert(name.to_owned(), entry);
        }
        Ok(Importance {
            entries,
            datasets: datasets.unwrap_or_default(),
            chunks: number("imatrix.chunk_count"),
            chunk_size: number("imatrix.chunk_size"),
            position: TextPosition::of(metadata),
            file: PathBuf::new(),
        })
    }

    /// Writes the GGUF format of llama.cpp.
    pub fn save(&self, path: &Path) -> Result<()> {
        let mut writer = Writer::new();
        let datasets = ArrayBuf::strings(&self.datasets);
        writer.key("general.type", &Value::Str("imatrix"))?;
        writer.key("imatrix.datasets", &Value::Array(datasets.as_array()))?;
        writer.key("imatrix.chunk_count", &Value::U32(self.chunks))?;
        writer.key("imatrix.chunk_size", &Value::U32(self.chunk_size))?;
        if let Some(position) = &self.position {
            writer.key(TextPosition::TEXT, &Value::Str(&position.text))?;
            writer.key(TextPosition::FINGERPRINT, &Value::U64(position.fingerprint))?;
            writer.key(TextPosition::CHUNKS, &Value::U32(position.chunks))?;
            writer.key(TextPosition::CHUNK_SIZE, &Value::U32(position.chunk_size))?;
            if let Some(model) = position.model {
                writer.key(TextPosition::MODEL, &Value::U64(model))?;
            }
        }
        for (name, entry) in &self.entries {
            let matrices = entry.counts.len() as u64;
            let columns = entry.sums.len() as u64 / matrices.max(1);
            let ty = TensorType::F32;
            writer.tensor(&format!("{name}{SUMS}"), ty, &[columns, matrices])?;
            writer.tensor(&format!("{name}{COUNTS}"), ty, &[1, matrices])?;
            if entry.sketch.is_some() {
                let shape = [RANK as u64, columns];
                writer.tensor(&format!("{name}{SKETCH}"), ty, &shape)?;
            }
            if entry.sketch_count().is_some() {
                writer.tensor(&format!("{name}{SKETCH_COUNT}"), ty, &[1])?;
            }
        }
        save_atomically(path, |out| {
            writer.write(out, |tensor, out| {
                let name = &tensor.name;
                let of = |ending: &str| self.entries.get(name.strip_suffix(ending)?);
                let sketch = of(SKETCH).and_then(|entry| entry.sketch.as_ref());
                let sketch_count = of(SKETCH_COUNT).and_then(Entry::sketch_count);
                let floats: &[f32] = match (of(SUMS), of(COUNTS), sketch) {
                    (Some(entry), ..) => &entry.sums,
                    (_, Some(entry), _) => &entry.counts,
                    (.., Some(sketch)) => sketch.sums.as_flattened(),
                    (None, None, None) => sketch_count.as_slice(),
                };
                out.write_all(bytemuck::cast_slice(floats))
                    .map_err(|error| Error::from(WriteError::Io(error)))
            })
        })
        .map_err(|error| with_path(error, path))
    }

    /// Adds the statistics of another matrix of the same model. The position in the text is unchanged.
    pub fn merge(&mut self, other: &Importance) -> Result<()> {
        for (name, entry) in &other.entries {
            match self.entries.get_mut(name) {
                Some(ours) => {
                    let inputs = ours.sums.len();
                    ours.add(entry).ok_or_else(|| Error::OtherModel {
                        file: other.file.clone(),
                        problem: format!(
                            "`{name}` has {} inputs here, {inputs} in {}",
                            entry.sums.len(),
                            self.file.display()
                        ),
                    })?;
                    if let Some(problem) = ours.problem() {
                        let problem = format!("the merged entry `{name}` {problem}");
                        return Err(invalid(&other.file, problem));
                    }
                }
                None => {
                    self.entries.insert(name.clone(), entry.clone());
                }
            }
        }
        for dataset in &other.datasets {
            if !self.datasets.contains(dataset) {
                self.datasets.push(dataset.clone());
            }
        }
        self.chunks = self.chunks.saturating_add(other.chunks);
        self.chunk_size = self.chunk_size.max(other.chunk_size);
        Ok(())
    }

    /// Adds sketches, tensors and experts that are missing here from another matrix. Existing sums are
    /// unchanged.
    pub fn fill_missing(&mut self, other: &Importance) -> Result<()> {
        for (name, entry) in &other.entries {
            let ours = self.entries.entry(name.clone());
            let ours = ours.or_insert_with(|| entry.clone());
            if ours.sums.len() != entry.sums.len() {
                let problem = format!(
                    "`{name}` has {} inputs here, {} in the model",
                    ours.sums.len(),
                    entry.sums.len()
                );
                let file = self.file.clone();
                return Err(Error::OtherModel { file, problem });
            }
            if ours.sketch.is_none() {
                ours.sketch.clone_from(&entry.sketch);
            }
            ours.fill_experts(entry);
        }
        // Tensors that share their inputs in `other` may have different sums here; these need the sketch too.
        for (name, theirs) in &other.entries {
            let known = |entry: &Entry| self.sketch_of(entry).is_some();
            if self.entries.get(name).is_some_and(known) {
                continue;
            }
            let sketch = other.sketch_of(theirs).cloned();
            if let Some(ours) = self.entries.get_mut(name) {
                ours.sketch = sketch;
            }
        }
        for dataset in &other.datasets {
            if !self.datasets.contains(dataset) {
                self.datasets.push(dataset.clone());
            }
        }
        Ok(())
    }

    /// Returns the input statistics of a tensor; `None` if there is no entry.
    pub fn of(&self, tensor: &Tensor<'_>) -> Result<Option<Inputs>> {
        let Some(entry) = self.entries.get(&tensor.name) else {
            return Ok(None);
        };
        let expected = tensor.columns().saturating_mul(tensor.matrices());
        if entry.sums.len() as u64 != expected {
            return Err(Error::OtherModel {
                file: self.file.clone(),
                problem: format!(
                    "`{}` has {} inputs here, {expected} in the model",
                    tensor.name,
                    entry.sums.len()
                ),
            });
        }
        let squares = entry.means();
        // Stacked matrices would need a sketch each.
        let sketch = self.sketch_of(entry).filter(|_| tensor.matrices() == 1);
        let second_moment = sketch.and_then(|sketch| sketch.second_moment(&squares));
        Ok(Some(Inputs {
            squares,
            second_moment,
        }))
    }

    /// True if any entry has a second-moment sketch.
    pub fn has_sketches(&self) -> bool {
        self.entries.values().any(|entry| entry.sketch.is_some())
    }

    /// The sketch of an entry, or of another entry with the same sums, which has the same inputs.
    fn sketch_of<'a>(&'a self, entry: &'a Entry) -> Option<&'a Sketch> {
        let own = entry.sketch.as_ref();
        own.or_else(|| {
            let mut others = self.entries.values();
            let same = others.find(|other| other.sketch.is_some() && other.sums == entry.sums)?;
            same.sketch.as_ref()
        })
    }

    /// Returns an error if an entry matches no tensor of the model. Required before more inputs of the model
    /// are added.
    pub fn check_all(&self, model: &Path, tensors: &[Tensor<'_>]) -> Result<()> {
        let known = tensors.iter().map(|tensor| (tensor.name.as_str(), tensor));
        let known: BTreeMap<&str, &Tensor<'_>> = known.collect();
        for (name, entry) in &self.entries {
            let model = model.display();
            let inputs = |tensor: &&Tensor<'_>| tensor.columns().saturating_mul(tensor.matrices());
            let problem = match known.get(name.as_str()).map(inputs) {
                Some(inputs) if inputs == entry.sums.len() as u64 => continue,
                Some(inputs) => format!(
                    "`{name}` has {} inputs here, {inputs} in {model}",
                    entry.sums.len()
                ),
                None => format!("it has a tensor `{name}`, which {model} does not have"),
            };
            let file = self.file.clone();
            return Err(Error::OtherModel { file, problem });
        }
        Ok(())
    }

    /// Returns an error if no tensor of the model has an entry.
    pub fn check(&self, tensors: &[Tensor<'_>]) -> Result<()> {
        let known = |tensor: &Tensor<'_>| self.entries.contains_key(&tensor.name);
        if tensors.iter().any(known) {
            return Ok(());
        }
        let first = self.entries.keys().next().cloned().unwrap_or_default();
        Err(Error::OtherModel {
            file: self.file.clone(),
            problem: format!("it has tensors such as `{first}`, which the model does not have"),
        })
    }
}

fn invalid(path: &Path, problem: impl Into<String>) -> Error {
    Error::Importance {
        file: path.to_path_buf(),
        problem: problem.into(),
    }
}

/// Parses the older format: a number of entries, each with a name, a call count and scaled sums.
fn parse_dat(bytes: &[u8]) -> Result<Importance, String> {
    /// Upper bound of entries and of columns.
    const MAX_COUNT: usize = 1 << 20;
    let mut reader = Dat { bytes, at: 0 };
    let n_entries = reader.count(MAX_COUNT)?;
    let mut importance = Importance::default();
    for _ in 0..n_entries {
        let len = reader.count(4096)?;
        let name = String::from_utf8_lossy(reader.take(len)?).into_owned();
        let calls = reader.count(i32::MAX as usize)?.max(1);
        let n = reader.count(1 << 28)?;
        let values = reader.take(n.checked_mul(4).ok_or("too many values")?)?;
        let values = values.as_chunks::<4>().0.iter();
        // The file stores the mean times the number of calls.
        let sums = values.map(|value| f32::from_le_bytes(*value)).collect();
        let entry = Entry {
            sums,
            counts: vec![calls as f32],
            sketch: None,
        };
        importance.entries.insert(name, entry);
    }
    // Newer files end with the number of chunks and the dataset.
    if let Ok(chunks) = reader.count(i32::MAX as usize) {
        importance.chunks = chunks as u32;
        let dataset = reader.count(MAX_COUNT).and_then(|len| reader.take(len));
        importance
            .datasets
            .extend(dataset.map(|name| String::from_utf8_lossy(name).into_owned()));
    }
    Ok(importance)
}

struct Dat<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Dat<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], String> {
        let end = self.at.checked_add(n);
        let part = end.and_then(|end| self.bytes.get(self.at..end));
        let part = part.ok_or_else(|| format!("the file ends at byte {}", self.bytes.len()))?;
        self.at += n;
        Ok(part)
    }

    fn count(&mut self, most: usize) -> Result<usize, String> {
        let at = self.at;
        let bytes = self.take(4)?.first_chunk().copied().unwrap_or_default();
        let count = usize::try_from(i32::from_le_bytes(bytes)).ok();
        count
            .filter(|count| *count <= most)
            .ok_or_else(|| format!("not an importance matrix: invalid count at byte {at}"))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn sample() -> Importance {
        let entry = |sums: &[f32], counts: &[f32]| Entry {
            sums: sums.to_vec(),
            counts: counts.to_vec(),
            sketch: None,
        };
        Importance {
            entries: BTreeMap::from([
                ("blk.0.ffn_up.weight".into(), entry(&[8.0, 2.0], &[2.0])),
                (
                    "blk.0.ffn_up_exps.weight".into(),
                    entry(&[6.0, 3.0, 9.0, 9.0], &[3.0, 0.0]),
                ),
            ]),
            datasets: vec!["a.txt".into()],
            chunks: 3,
            chunk_size: 512,
            position: Some(TextPosition {
                text: "a.txt".into(),
                fingerprint: u64::MAX,
                chunks: 2,
                chunk_size: 512,
                model: Some(7),
            }),
            file: PathBuf::new(),
        }
    }

    #[test]
    fn save_and_load_round_trip() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("imatrix.gguf");
        let mut saved = sample();
        saved.save(&path).unwrap();
        let loaded = Importance::load(&path).unwrap();
        saved.file = path;
        assert_eq!(loaded, saved);
        let experts = &loaded.entries["blk.0.ffn_up_exps.weight"];
        assert_eq!(experts.means(), [2.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn dat_format_is_parsed() {
        let mut bytes = Vec::new();
        let int = |n: i32, bytes: &mut Vec<u8>| bytes.extend(n.to_le_bytes());
        int(1, &mut bytes);
        int(3, &mut bytes);
        bytes.extend(b"a.w");
        int(4, &mut bytes);
        int(2, &mut bytes);
        bytes.extend([8.0f32, 2.0].iter().flat_map(|x| x.to_le_bytes()));
        let plain = parse_dat(&bytes).unwrap();
        assert_eq!(plain.entries["a.w"].means(), [2.0, 0.5]);
        int(7, &mut bytes);
        int(4, &mut bytes);
        bytes.extend(b"wiki");
        let full = parse_dat(&bytes).unwrap();
        assert_eq!((full.chunks, full.datasets.len()), (7, 1));
        for end in 0..bytes.len() - 12 {
            let cut = parse_dat(&bytes[..end]);
            assert!(cut.is_err() || end >= 27, "{end}");
        }
    }

    #[test]
    fn tensors_with_equal_sums_share_a_sketch() {
        let mut importance = sample();
        let mut sketch = Sketch::new(2);
        sketch.update(&[2.0, 1.0]);
        let first = importance.entries.values_mut().next().unwrap();
        *first = Entry {
            sums: vec![4.0, 1.0],
            counts: vec![1.0],
            sketch: Some(sketch.clone()),
        };
        let second = Entry {
            sketch: None,
            ..first.clone()
        };
        assert_eq!(importance.sketch_of(&second), Some(&sketch));
        assert!(importance.has_sketches());
        let other = Entry {
            sums: vec![4.0, 2.0],
            ..second
        };
        assert_eq!(importance.sketch_of(&other), None);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("imatrix.gguf");
        importance.save(&path).unwrap();
        let loaded = Importance::load(&path).unwrap();
        assert_eq!(loaded.entries, importance.entries);
        // Merging an entry without a sketch keeps the sketch and its count, also after saving.
        let mut merged = loaded;
        let plain = importance.entries.values_mut().next().unwrap();
        plain.sketch = None;
        merged.merge(&importance).unwrap();
        merged.save(&path).unwrap();
        let loaded = Importance::load(&path).unwrap();
        let entry = loaded.entries.values().next().unwrap();
        assert_eq!((&entry.sketch, entry.counts[0]), (&Some(sketch), 2.0));
    }

    #[test]
    fn fill_missing_adds_only_missing_entries() {
        let entry = |sums: [f32; 2], sketch: Option<&Sketch>| Entry {
            sums: sums.to_vec(),
            counts: vec![1.0],
            sketch: sketch.cloned(),
        };
        let of = |entries: [(&str, Entry); 3]| Importance {
            entries: entries.map(|(name, entry)| (name.to_owned(), entry)).into(),
            ..Importance::default()
        };
        let mut sketch = Sketch::new(2);
        sketch.update(&[2.0, 1.0]);
        let sums = [4.0, 1.0];
        let text = of([
            ("a", entry(sums, Some(&sketch))),
            ("b", entry(sums, None)),
            ("c", entry(sums, None)),
        ]);
        // Here only "a" and "b" share their inputs.
        let mut known = of([
            ("a", entry([8.0, 9.0], None)),
            ("b", entry([8.0, 9.0], None)),
            ("c", entry([8.0, 8.0], None)),
        ]);
        known.fill_missing(&text).unwrap();
        let own: Vec<bool> = known.entries.values().map(|e| e.sketch.is_some()).collect();
        assert_eq!(own, [true, false, true]);
        for entry in known.entries.values() {
            assert_eq!(known.sketch_of(entry), Some(&sketch));
            assert_eq!(entry.sums[0], 8.0);
        }
        // A missing entry is copied.
        known.entries.remove("b");
        known.fill_missing(&text).unwrap();
        assert_eq!(known.entries["b"].sums, sums);
        // An expert without inputs is copied.
        let stack = |sums: [f32; 4], counts: [f32; 2]| Importance {
            entries: BTreeMap::from([(
                "e".to_owned(),
                Entry {
                    sums: sums.to_vec(),
                    counts: counts.to_vec(),
                    sketch: None,
                },
            )]),
            ..Importance::default()
        };
        let mut experts = stack([0.0, 0.0, 1.0, 2.0], [0.0, 1.0]);
        let other = stack([6.0, 8.0, 9.0, 9.0], [2.0, 3.0]);
        experts.fill_missing(&other).unwrap();
        assert_eq!(experts, stack([6.0, 8.0, 1.0, 2.0], [2.0, 1.0]));
        // Entries of another width belong to another model.
        known.entries.get_mut("a").unwrap().sums.push(1.0);
        let error = known.fill_missing(&text).unwrap_err().to_string();
        assert!(error.contains("`a` has 3 inputs here, 2"), "{error}");
    }

    #[test]
    fn invalid_files_are_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("imatrix.gguf");
        for (sum, count, expected) in [
            (1.0, 1e-40, "neither 0 nor at least 1"),
            (1.0, 0.5, "neither 0 nor at least 1"),
            (-1.0, 1.0, "negative or non-finite"),
            (f32::MAX, 1.0, "overflow"),
        ] {
            let mut wrong = sample();
            let entry = wrong.entries.get_mut("blk.0.ffn_up.weight").unwrap();
            *entry = Entry {
                sums: vec![sum; 2],
                counts: vec![count],
                sketch: None,
            };
            wrong.save(&path).unwrap();
            let error = Importance::load(&path).unwrap_err().to_string();
            assert!(
                error.contains(expected) && error.contains("blk.0.ffn_up.weight"),
                "{error}"
            );
        }
        for short in ["", "GGU"] {
            std::fs::write(&path, short).unwrap();
            let error = Importance::load(&path).unwrap_err().to_string();
            assert!(error.contains("not an importance matrix"), "{error}");
        }
        let mut large = sample();
        for entry in large.entries.values_mut() {
            entry.sums.fill(2e38);
        }
        let other = large.clone();
        let error = large.merge(&other).unwrap_err().to_string();
        assert!(error.contains("merged entry"), "{error}");
    }

    #[test]
    fn merge_adds_sums_and_counts() {
        let mut both = sample();
        both.merge(&sample()).unwrap();
        let entry = &both.entries["blk.0.ffn_up.weight"];
        assert_eq!(
            (entry.sums[0], entry.counts[0], both.chunks),
            (16.0, 4.0, 6)
        );
        let mut other = sample();
        other
            .entries
            .insert("blk.0.ffn_up.weight".into(), Entry::default());
        assert!(matches!(both.merge(&other), Err(Error::OtherModel { .. })));
    }
}
