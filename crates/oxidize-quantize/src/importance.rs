//! [`Importance`]: how strongly the inputs of each matrix are driven, from a text that a model has
//! read. Read from llama.cpp's GGUF and from its older `.dat` files; written as the former.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::gguf::{ArrayBuf, MAGIC, Metadata, Value, WriteError, Writer};
use oxidize_core::io::save_atomically;
use oxidize_kernels::quant::{Correlation, DIRECTIONS, TensorType};

use crate::error::{Error, Result};
use crate::output::name_file;
use crate::sketch::Sketch;
use crate::tensor::Tensor;

/// An importance matrix: for each matrix of a model, the sums of its inputs' squares.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Importance {
    /// By the tensor's name, such as `blk.0.ffn_down.weight`.
    pub entries: BTreeMap<String, Entry>,
    /// The texts it was made from.
    pub datasets: Vec<String>,
    /// Chunks of text that were read, and the tokens of one.
    pub chunks: u32,
    /// Tokens of a chunk.
    pub chunk_size: u32,
    /// How far the text that was read last was read.
    pub reading: Option<Reading>,
    /// The file it was read from.
    pub file: PathBuf,
}

/// How far a text was read. Chunks of other texts, which were added, do not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// What the text is called.
    pub text: String,
    /// Its [fingerprint](crate::text::Text::fingerprint).
    pub fingerprint: u64,
    /// Chunks that were read, from the beginning.
    pub chunks: u32,
    /// Tokens of a chunk.
    pub chunk_size: u32,
    /// The [fingerprint](crate::imatrix::fingerprint) of the model; none in files of earlier versions.
    pub model: Option<u64>,
}

impl Reading {
    const TEXT: &str = "oxidize.imatrix.text";
    const FINGERPRINT: &str = "oxidize.imatrix.text_fingerprint";
    const CHUNKS: &str = "oxidize.imatrix.text_chunks";
    const CHUNK_SIZE: &str = "oxidize.imatrix.text_chunk_size";
    const MODEL: &str = "oxidize.imatrix.model_fingerprint";

    fn of(metadata: &Metadata) -> Option<Reading> {
        let number = |key| u32::try_from(metadata.u64(key)?).ok();
        Some(Reading {
            text: metadata.str(Reading::TEXT)?.to_owned(),
            fingerprint: metadata.u64(Reading::FINGERPRINT)?,
            chunks: number(Reading::CHUNKS)?,
            chunk_size: number(Reading::CHUNK_SIZE)?,
            model: metadata.u64(Reading::MODEL),
        })
    }
}

/// The inputs of a matrix, or of each matrix of a stack of experts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// Sums of squares, one for each column of each matrix.
    pub sums: Vec<f32>,
    /// Inputs that were added up, for each matrix.
    pub counts: Vec<f32>,
    /// How they vary together, where that is known, perhaps of fewer inputs. Of the matrices that share
    /// theirs, only one has it.
    pub sketch: Option<Sketch>,
}

/// What is known of the inputs of a tensor that is to be quantised.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// The mean square of each input, of each matrix of a stack.
    pub squares: Vec<f32>,
    /// How they vary together; never for a stack.
    pub correlation: Option<Correlation>,
}

impl Entry {
    /// The mean square of each input; for an expert that no token chose, zeros.
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

    /// How many inputs the sketch is of, where these are not those that were added up.
    fn sketched(&self) -> Option<f32> {
        let count = self.sketch.as_ref()?.count as f32;
        (self.counts != [count]).then_some(count)
    }

    /// Takes over what another run has seen of matrices of a stack that this one has seen nothing of.
    fn learn_experts(&mut self, other: &Entry) {
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

    /// Adds what another run has seen; `None` if it is of another shape.
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

    /// What is wrong with it, if something is.
    fn problem(&self) -> Option<String> {
        let odd = |x: &f32| !x.is_finite() || *x < 0.0;
        if self.sums.iter().chain(&self.counts).any(odd) {
            return Some("has an element that is no importance".into());
        }
        // Sums by a count of next to nothing would outweigh everything else.
        if let Some(count) = self.counts.iter().find(|n| 0.0 < **n && **n < 1.0) {
            return Some(format!(
                "has a count of {count:e} inputs, which is neither 0 nor at least 1"
            ));
        }
        // Errors are weighed by these numbers and added up.
        let total: f32 = self.means().iter().sum();
        (!total.is_finite()).then(|| "has more importance than can be added up".into())
    }
}

const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";
/// A tensor that other programs pass over: its columns are those of the matrix.
const SKETCH: &str = ".in_sketch";
/// How many inputs a sketch is of, where they are not as many as were added up.
const SKETCHED: &str = ".in_sketch_count";

impl Importance {
    /// Reads a file of either kind.
    pub fn load(path: &Path) -> Result<Importance> {
        let mut head = [0; 4];
        let mut open = || -> std::io::Result<()> {
            std::io::Read::read_exact(&mut std::fs::File::open(path)?, &mut head)
        };
        match open() {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                let problem = "the file ends within 4 bytes: this is no importance matrix";
                return Err(broken(path, problem));
            }
            read => read.map_err(oxidize_core::Error::io(path))?,
        }
        let mut importance = if head == MAGIC {
            Importance::load_gguf(path)?
        } else {
            let bytes = std::fs::read(path).map_err(oxidize_core::Error::io(path))?;
            parse_dat(&bytes).map_err(|problem| broken(path, problem))?
        };
        importance.file = path.to_path_buf();
        if importance.entries.is_empty() {
            return Err(broken(path, "no entries: this is no importance matrix"));
        }
        for (name, entry) in &importance.entries {
            if let Some(problem) = entry.problem() {
                return Err(broken(path, format!("the entry of `{name}` {problem}")));
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
                counts.ok_or_else(|| broken(path, format!("`{name}` has no counts that fit")))?;
            let sketch = match floats(&format!("{name}{SKETCH}"))? {
                Some(sketch) => {
                    let (columns, rest) = sketch.as_chunks::<DIRECTIONS>();
                    let count = floats(&format!("{name}{SKETCHED}"))?;
                    let count = *count.as_ref().unwrap_or(&counts).first().unwrap_or(&0.0);
                    let fits = rest.is_empty() && columns.len() == sums.len() && count >= 0.0;
                    if !fits || sketch.iter().chain([&count]).any(|x| !x.is_finite()) {
                        return Err(broken(path, format!("`{name}{SKETCH}` does not fit")));
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
            reading: Reading::of(metadata),
            file: PathBuf::new(),
        })
    }

    /// Writes it as llama.cpp does.
    pub fn save(&self, path: &Path) -> Result<()> {
        let mut writer = Writer::new();
        let datasets = ArrayBuf::strings(&self.datasets);
        writer.key("general.type", &Value::Str("imatrix"))?;
        writer.key("imatrix.datasets", &Value::Array(datasets.as_array()))?;
        writer.key("imatrix.chunk_count", &Value::U32(self.chunks))?;
        writer.key("imatrix.chunk_size", &Value::U32(self.chunk_size))?;
        if let Some(reading) = &self.reading {
            writer.key(Reading::TEXT, &Value::Str(&reading.text))?;
            writer.key(Reading::FINGERPRINT, &Value::U64(reading.fingerprint))?;
            writer.key(Reading::CHUNKS, &Value::U32(reading.chunks))?;
            writer.key(Reading::CHUNK_SIZE, &Value::U32(reading.chunk_size))?;
            if let Some(model) = reading.model {
                writer.key(Reading::MODEL, &Value::U64(model))?;
            }
        }
        for (name, entry) in &self.entries {
            let matrices = entry.counts.len() as u64;
            let columns = entry.sums.len() as u64 / matrices.max(1);
            let ty = TensorType::F32;
            writer.tensor(&format!("{name}{SUMS}"), ty, &[columns, matrices])?;
            writer.tensor(&format!("{name}{COUNTS}"), ty, &[1, matrices])?;
            if entry.sketch.is_some() {
                let shape = [DIRECTIONS as u64, columns];
                writer.tensor(&format!("{name}{SKETCH}"), ty, &shape)?;
            }
            if entry.sketched().is_some() {
                writer.tensor(&format!("{name}{SKETCHED}"), ty, &[1])?;
            }
        }
        save_atomically(path, |out| {
            writer.write(out, |tensor, out| {
                let name = &tensor.name;
                let of = |ending: &str| self.entries.get(name.strip_suffix(ending)?);
                let sketch = of(SKETCH).and_then(|entry| entry.sketch.as_ref());
                let sketched = of(SKETCHED).and_then(Entry::sketched);
                let floats: &[f32] = match (of(SUMS), of(COUNTS), sketch) {
                    (Some(entry), ..) => &entry.sums,
                    (_, Some(entry), _) => &entry.counts,
                    (.., Some(sketch)) => sketch.sums.as_flattened(),
                    (None, None, None) => sketched.as_slice(),
                };
                out.write_all(bytemuck::cast_slice(floats))
                    .map_err(|error| Error::from(WriteError::Io(error)))
            })
        })
        .map_err(|error| name_file(error, path))
    }

    /// Adds what another one has seen, of the same model. How far a text was read stays as it is.
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
                        let problem = format!("the entry of `{name}`, added up, {problem}");
                        return Err(broken(&other.file, problem));
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

    /// Learns from another one what it does not know: how inputs vary together, and matrices that it has not
    /// seen. How strongly inputs are driven stays as it is.
    pub fn learn(&mut self, other: &Importance) -> Result<()> {
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
            ours.learn_experts(entry);
        }
        // What shares its inputs there may have sums of its own here.
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

    /// What it knows of a tensor's inputs; `None` where it has not seen them.
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
        // Of a stack, each matrix would need its own.
        let sketch = self.sketch_of(entry).filter(|_| tensor.matrices() == 1);
        let correlation = sketch.and_then(|sketch| sketch.correlation(&squares));
        Ok(Some(Inputs {
            squares,
            correlation,
        }))
    }

    /// Whether it says how inputs vary together, of any matrix.
    pub fn has_sketches(&self) -> bool {
        self.entries.values().any(|entry| entry.sketch.is_some())
    }

    /// How the inputs of an entry vary together: inputs with the same sums are the same inputs.
    fn sketch_of<'a>(&'a self, entry: &'a Entry) -> Option<&'a Sketch> {
        let own = entry.sketch.as_ref();
        own.or_else(|| {
            let mut others = self.entries.values();
            let same = others.find(|other| other.sketch.is_some() && other.sums == entry.sums)?;
            same.sketch.as_ref()
        })
    }

    /// Refuses a matrix with an entry that is of no tensor of a model, which more of that model is to be
    /// added to.
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
                None => format!("it knows a tensor `{name}`, which {model} does not have"),
            };
            let file = self.file.clone();
            return Err(Error::OtherModel { file, problem });
        }
        Ok(())
    }

    /// Refuses a matrix that knows none of the tensors of a model.
    pub fn check(&self, tensors: &[Tensor<'_>]) -> Result<()> {
        let known = |tensor: &Tensor<'_>| self.entries.contains_key(&tensor.name);
        if tensors.iter().any(known) {
            return Ok(());
        }
        let first = self.entries.keys().next().cloned().unwrap_or_default();
        Err(Error::OtherModel {
            file: self.file.clone(),
            problem: format!("it knows tensors such as `{first}`, which the model does not have"),
        })
    }
}

fn broken(path: &Path, problem: impl Into<String>) -> Error {
    Error::Importance {
        file: path.to_path_buf(),
        problem: problem.into(),
    }
}

/// The older format: a number of entries, each with a name, a count and the scaled sums.
fn parse_dat(bytes: &[u8]) -> Result<Importance, String> {
    /// More entries than any model has tensors, and more columns than any matrix.
    const MOST: usize = 1 << 20;
    let mut reader = Dat { bytes, at: 0 };
    let n_entries = reader.count(MOST)?;
    let mut importance = Importance::default();
    for _ in 0..n_entries {
        let len = reader.count(4096)?;
        let name = String::from_utf8_lossy(reader.take(len)?).into_owned();
        let calls = reader.count(i32::MAX as usize)?.max(1);
        let n = reader.count(1 << 28)?;
        let values = reader.take(n.checked_mul(4).ok_or("too many values")?)?;
        let values = values.as_chunks::<4>().0.iter();
        // What is stored is the mean times the number of calls.
        let sums = values.map(|value| f32::from_le_bytes(*value)).collect();
        let entry = Entry {
            sums,
            counts: vec![calls as f32],
            sketch: None,
        };
        importance.entries.insert(name, entry);
    }
    // Newer files of this kind also say how much was read, and of what.
    if let Ok(chunks) = reader.count(i32::MAX as usize) {
        importance.chunks = chunks as u32;
        let dataset = reader.count(MOST).and_then(|len| reader.take(len));
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
            .ok_or_else(|| format!("byte {at}: not a count: this is no importance matrix"))
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
            reading: Some(Reading {
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
    fn a_file_comes_back_as_it_was() {
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
    fn the_older_format_is_read() {
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
    fn matrices_that_share_inputs_share_a_sketch() {
        let mut importance = sample();
        let mut sketch = Sketch::new(2);
        sketch.see(&[2.0, 1.0]);
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
        // More that was added up without one leaves it a sketch of what it was, in files too.
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
    fn what_is_not_known_is_learned() {
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
        sketch.see(&[2.0, 1.0]);
        let sums = [4.0, 1.0];
        let text = of([
            ("a", entry(sums, Some(&sketch))),
            ("b", entry(sums, None)),
            ("c", entry(sums, None)),
        ]);
        // The first two share their inputs here too, and the third does not.
        let mut known = of([
            ("a", entry([8.0, 9.0], None)),
            ("b", entry([8.0, 9.0], None)),
            ("c", entry([8.0, 8.0], None)),
        ]);
        known.learn(&text).unwrap();
        let own: Vec<bool> = known.entries.values().map(|e| e.sketch.is_some()).collect();
        assert_eq!(own, [true, false, true]);
        for entry in known.entries.values() {
            assert_eq!(known.sketch_of(entry), Some(&sketch));
            assert_eq!(entry.sums[0], 8.0);
        }
        // What it did not know at all, it knows now.
        known.entries.remove("b");
        known.learn(&text).unwrap();
        assert_eq!(known.entries["b"].sums, sums);
        // Nor did it know this expert.
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
        let seen = stack([6.0, 8.0, 9.0, 9.0], [2.0, 3.0]);
        experts.learn(&seen).unwrap();
        assert_eq!(experts, stack([6.0, 8.0, 1.0, 2.0], [2.0, 1.0]));
        // A matrix of another model has nothing to learn here.
        known.entries.get_mut("a").unwrap().sums.push(1.0);
        let error = known.learn(&text).unwrap_err().to_string();
        assert!(error.contains("`a` has 3 inputs here, 2"), "{error}");
    }

    #[test]
    fn what_is_no_importance_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("imatrix.gguf");
        for (sum, count, expected) in [
            (1.0, 1e-40, "neither 0 nor at least 1"),
            (1.0, 0.5, "neither 0 nor at least 1"),
            (-1.0, 1.0, "no importance"),
            (f32::MAX, 1.0, "can be added up"),
        ] {
            let mut odd = sample();
            let entry = odd.entries.get_mut("blk.0.ffn_up.weight").unwrap();
            *entry = Entry {
                sums: vec![sum; 2],
                counts: vec![count],
                sketch: None,
            };
            odd.save(&path).unwrap();
            let error = Importance::load(&path).unwrap_err().to_string();
            assert!(
                error.contains(expected) && error.contains("blk.0.ffn_up.weight"),
                "{error}"
            );
        }
        for short in ["", "GGU"] {
            std::fs::write(&path, short).unwrap();
            let error = Importance::load(&path).unwrap_err().to_string();
            assert!(error.contains("no importance matrix"), "{error}");
        }
        let mut large = sample();
        for entry in large.entries.values_mut() {
            entry.sums.fill(2e38);
        }
        let other = large.clone();
        let error = large.merge(&other).unwrap_err().to_string();
        assert!(error.contains("added up"), "{error}");
    }

    #[test]
    fn merging_adds_up() {
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
