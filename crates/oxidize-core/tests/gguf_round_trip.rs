//! GGUF reader and writer: values, tensors and split files are read, and writing what was read gives the same
//! bytes.

mod raw_gguf;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use oxidize_core::file::{Format, ModelFile, OpenOptions, TensorType};
use oxidize_core::gguf::{ArrayBuf, Value, ValueType, WriteError, Writer, parse};
use oxidize_core::io::SharedBytes;
use oxidize_core::{Error, Limits};
use oxidize_golden::Fixture;
use oxidize_testing::cached_files;
use raw_gguf::{RawGguf, small};

oxidize_testing::main!(
    every_value_type_is_read,
    tensors_have_their_data,
    data_is_aligned_for_its_type,
    prefix_of_header_asks_for_more_bytes,
    rewritten_file_is_identical,
    rewritten_fixtures_are_identical,
    rewritten_real_files_are_identical,
    writer_rejects_what_the_reader_would,
    built_arrays_are_read_back,
    split_model_opens_from_any_part,
    split_model_opens_from_parts_in_memory,
    all_missing_parts_are_named,
    parts_of_different_models_are_rejected,
    header_longer_than_first_read_opens_without_mmap,
    progress_reaches_the_end,
    loading_can_be_canceled,
);

fn from_bytes(bytes: Vec<u8>) -> ModelFile {
    ModelFile::from_bytes(bytes, &OpenOptions::default()).unwrap()
}

fn every_value_type_is_read() {
    for version in [1, 2, 3] {
        let model = from_bytes(small(version).bytes);
        assert_eq!(model.format(), Format::Gguf { version });
        let metadata = model.metadata();
        assert_eq!(metadata.len(), 19);
        assert_eq!(metadata.str("general.architecture"), Some("llama"));
        assert_eq!(metadata.get("a.u8"), Some(Value::U8(200)));
        assert_eq!(metadata.get("a.i8"), Some(Value::I8(-128)));
        assert_eq!(metadata.u64("a.u16"), Some(60_000));
        assert_eq!(metadata.i64("a.i16"), Some(-2));
        assert_eq!(metadata.u64("a.i16"), None);
        assert_eq!(metadata.i64("a.i32"), Some(-3));
        assert_eq!(metadata.f32("a.f32"), Some(1.5));
        assert_eq!(metadata.bool("a.bool"), Some(true));
        assert_eq!(metadata.u64("a.u64"), Some(u64::MAX));
        assert_eq!(metadata.i64("a.u64"), None);
        assert_eq!(metadata.i64("a.i64"), Some(i64::MIN));
        assert_eq!(metadata.get("a.f64"), Some(Value::F64(0.1)));
        assert_eq!(metadata.str("a.empty"), Some(""));
        assert_eq!(metadata.get("a.odd"), Some(Value::Bytes(b"\xff\xfe")));
        assert_eq!(metadata.get("missing"), None);

        let tokens = metadata.array("tokens").unwrap();
        assert_eq!(
            (tokens.len(), tokens.element_type()),
            (4, ValueType::String)
        );
        let bytes: Vec<_> = tokens.byte_strings().unwrap().collect();
        assert_eq!(bytes, [&b"<s>"[..], "Ġé".as_bytes(), b"\xf0\x9f", b""]);
        let text: Vec<_> = tokens.strings().unwrap().collect();
        assert_eq!(text, ["<s>", "Ġé", "\u{fffd}", ""]);
        assert_eq!(tokens.get(1), Some(Value::Str("Ġé")));
        assert_eq!(tokens.get(4), None);
        assert!(tokens.iter_f32().is_none());

        let scores = metadata.array("scores").unwrap();
        assert_eq!(
            scores.iter_f32().unwrap().collect::<Vec<_>>(),
            [-1.0, 0.0, 2.5]
        );
        assert_eq!(scores.get(2), Some(Value::F32(2.5)));
        assert!(scores.iter_i64().is_none());
        let flags = metadata.array("flags").unwrap();
        assert_eq!(flags.iter_i64().unwrap().collect::<Vec<_>>(), [0, 1, 1]);

        let nested = metadata.array("nested").unwrap();
        let first = nested.get(0).unwrap().as_array().unwrap();
        let innermost = first.get(0).unwrap().as_array().unwrap().get(0).unwrap();
        assert_eq!(innermost.as_array().unwrap().get(1), Some(Value::U8(2)));
        assert_eq!(
            first.get(1).unwrap().as_array().unwrap().get(0),
            Some(Value::Str("deep"))
        );
        assert!(nested.get(1).unwrap().as_array().unwrap().is_empty());
    }
}

fn tensors_have_their_data() {
    let file = small(3);
    let model = from_bytes(file.bytes.clone());
    let data_start = file.header_len.next_multiple_of(64) as u64;
    let tensor = model.tensor("output_norm.weight").unwrap();
    assert_eq!(
        (tensor.ty, tensor.offset, tensor.bytes),
        (TensorType::F32, data_start + 64, 128)
    );
    let expected: Vec<u8> = (64..192).map(|i| i as u8).collect();
    assert_eq!(*model.data(tensor).unwrap(), *expected);
    let experts = model.tensor("experts").unwrap();
    assert_eq!(experts.shape, [4, 2, 2, 1]);
    assert_eq!(experts.dims(), [1, 2, 2, 4]);
    assert_eq!(experts.elements(), 16);
    assert_eq!(model.tensor("scalar").unwrap().elements(), 1);
    assert!(model.tensor("absent").is_none());
}

fn data_is_aligned_for_its_type() {
    let mut file = RawGguf::new(3, 2, 1);
    file.key("general.alignment", 4).u32(1);
    file.tensor("a", &[1], 24, 0)
        .tensor("b", &[2], 28, 1)
        .data(1, 17);
    let model = from_bytes(file.bytes.clone());
    let data = model.data(model.tensor("b").unwrap()).unwrap();
    assert_eq!(data.as_ptr() as usize % 8, 0);
    assert_eq!(*data, file.bytes[file.bytes.len() - 16..]);
}

fn prefix_of_header_asks_for_more_bytes() {
    let file = small(3);
    let len = file.bytes.len() as u64;
    for end in 0..file.bytes.len() {
        let prefix = SharedBytes::from(file.bytes[..end].to_vec());
        match parse(&prefix, len, &Limits::default()) {
            Ok(header) => assert!(header.len <= end as u64),
            Err(error) => {
                let wanted = error
                    .wants_more()
                    .unwrap_or_else(|| panic!("{end}: {error}"));
                assert!(
                    wanted > end as u64 && wanted <= file.header_len as u64,
                    "{end}: {error}"
                );
            }
        }
    }
}

/// Writes the file that was read.
fn rewrite(model: &ModelFile, out: impl Write) -> Result<(), Error> {
    let mut writer = Writer::new();
    for (key, value) in model.metadata().iter() {
        writer.key(key, &value)?;
    }
    for tensor in model.tensors() {
        writer.tensor(&tensor.name, tensor.ty, &tensor.shape)?;
    }
    writer.write(out, |planned, out| {
        let data = model.data(model.tensor(&planned.name).unwrap())?;
        out.write_all(&data).map_err(Error::io(model.path()))
    })
}

fn rewritten_file_is_identical() {
    let mut file = small(3);
    // The small file lacks the padding that a writer adds.
    let padded = file.header_len.next_multiple_of(64) + 320;
    file.bytes.truncate(padded);
    let scalar = file.header_len.next_multiple_of(64) + 192;
    file.bytes[scalar + 2..scalar + 64].fill(0);
    let embedding = file.header_len.next_multiple_of(64);
    file.bytes[embedding + 54..embedding + 64].fill(0);
    file.bytes[padded - 32..].fill(0);
    let mut again = Vec::new();
    rewrite(&from_bytes(file.bytes.clone()), &mut again).unwrap();
    assert!(again == file.bytes);
}

/// Writer that compares its input with a file, without holding either in memory.
struct Comparing {
    file: io::BufReader<std::fs::File>,
    at: u64,
}

impl Write for Comparing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut expected = vec![0; bytes.len()];
        io::Read::read_exact(&mut self.file, &mut expected)?;
        assert!(expected == bytes, "bytes from {} differ", self.at);
        self.at += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn rewritten_fixtures_are_identical() {
    // By the gguf package.
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny/model.gguf");
    rewrite_and_compare(&tiny);
    for fixture in Fixture::all() {
        rewrite_and_compare(&fixture.build().gguf());
    }
}

fn rewritten_real_files_are_identical() {
    let mut files = cached_files("vocab", "gguf");
    files.extend(cached_files("models", "gguf"));
    let mut compared = 0;
    for path in files {
        let small_enough = path.metadata().unwrap().len() < 200 << 20;
        if small_enough && rewrite_and_compare(&path) {
            compared += 1;
        }
    }
    assert!(compared > 10, "only {compared} files compared");
}

/// Writes a file again and compares; false if it is of another version than the writer's.
fn rewrite_and_compare(path: &Path) -> bool {
    let model = ModelFile::open(path, &OpenOptions::default()).unwrap();
    if model.format() != (Format::Gguf { version: 3 }) {
        return false;
    }
    let file = io::BufReader::new(std::fs::File::open(path).unwrap());
    let mut out = Comparing { file, at: 0 };
    rewrite(&model, &mut out).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(out.at, path.metadata().unwrap().len(), "{}", path.display());
    true
}

fn writer_rejects_what_the_reader_would() {
    let mut writer = Writer::new();
    writer.key("k", &Value::U8(1)).unwrap();
    assert!(matches!(
        writer.key("k", &Value::U8(1)),
        Err(WriteError::Duplicate(_))
    ));
    let alignment = writer.key("general.alignment", &Value::U32(3));
    assert!(matches!(alignment, Err(WriteError::Alignment)));
    writer.tensor("t", TensorType::F32, &[2]).unwrap();
    let mut rejected = |ty, shape: &[u64]| writer.tensor("x", ty, shape).unwrap_err();
    assert!(matches!(
        rejected(TensorType::U8, &[2]),
        WriteError::TensorType(..)
    ));
    assert!(matches!(
        rejected(TensorType::Q4_0, &[16, 2]),
        WriteError::Shape { .. }
    ));
    assert!(matches!(
        rejected(TensorType::F32, &[1 << 62]),
        WriteError::Shape { .. }
    ));
    assert!(matches!(
        rejected(TensorType::F32, &[1; 5]),
        WriteError::Shape { .. }
    ));
    assert!(matches!(
        writer.tensor("t", TensorType::F32, &[2]),
        Err(WriteError::Duplicate(_))
    ));
    let short = writer.write(io::sink(), |_, out| {
        Ok::<_, WriteError>(out.write_all(&[0; 7])?)
    });
    assert!(matches!(
        short,
        Err(WriteError::Size {
            expected: 8,
            written: 7,
            ..
        })
    ));
}

fn built_arrays_are_read_back() {
    let inner = ArrayBuf::strings(["a", "bc"]);
    let nested = ArrayBuf::values(ValueType::Array, [Value::Array(inner.as_array()); 2]).unwrap();
    let mut writer = Writer::new();
    writer
        .key("nested", &Value::Array(nested.as_array()))
        .unwrap();
    writer
        .key("numbers", &Value::Array(ArrayBuf::i32s([-1, 2]).as_array()))
        .unwrap();
    let mut bytes = Vec::new();
    writer
        .write(&mut bytes, |_, _| Ok::<_, WriteError>(()))
        .unwrap();
    assert_eq!(writer.file_len().unwrap(), bytes.len() as u64);
    let model = from_bytes(bytes);
    assert_eq!(model.metadata().array("nested"), Some(nested.as_array()));
    let numbers = model.metadata().array("numbers").unwrap();
    assert_eq!(numbers.iter_i64().unwrap().collect::<Vec<_>>(), [-1, 2]);
    assert!(ArrayBuf::values(ValueType::U8, [Value::I8(1)]).is_none());
}

/// Writes a model split over `count` files into `directory`; each file has one tensor named after it.
fn write_split(directory: &Path, count: u16) -> Vec<PathBuf> {
    let path = |n| directory.join(format!("model-{n:05}-of-{count:05}.gguf"));
    for n in 1..=count {
        let mut writer = Writer::new();
        if n == 1 {
            writer
                .key("general.architecture", &Value::Str("llama"))
                .unwrap();
        }
        writer.key("split.no", &Value::U16(n - 1)).unwrap();
        writer.key("split.count", &Value::U16(count)).unwrap();
        writer
            .key("split.tensors.count", &Value::I32(count.into()))
            .unwrap();
        writer
            .tensor(&format!("tensor.{n}"), TensorType::I16, &[1])
            .unwrap();
        let file = std::fs::File::create(path(n)).unwrap();
        let data =
            |_: &_, out: &mut dyn Write| Ok::<_, WriteError>(out.write_all(&n.to_le_bytes())?);
        writer.write(file, data).unwrap();
    }
    (1..=count).map(path).collect()
}

fn split_model_opens_from_parts_in_memory() {
    let directory = tempfile::tempdir().unwrap();
    let paths = write_split(directory.path(), 3);
    let on_disk = ModelFile::open(&paths[0], &OpenOptions::default()).unwrap();
    let read = |path: &PathBuf| (path.clone(), std::fs::read(path).unwrap());
    let parts: Vec<(PathBuf, Vec<u8>)> = paths.iter().map(read).collect();
    let in_memory = ModelFile::from_parts(parts.clone(), &OpenOptions::default()).unwrap();
    assert_eq!(in_memory.tensors(), on_disk.tensors());
    for tensor in on_disk.tensors() {
        assert_eq!(
            in_memory.data(tensor).unwrap()[..],
            on_disk.data(tensor).unwrap()[..]
        );
    }
    let refused = |parts| {
        let opened = ModelFile::from_parts(parts, &OpenOptions::default());
        opened.err().unwrap()
    };
    let swapped = vec![parts[1].clone(), parts[0].clone(), parts[2].clone()];
    assert!(refused(swapped).to_string().contains("split.no"));
    assert!(
        refused(parts[..2].to_vec())
            .to_string()
            .contains("split.count")
    );
    let other = vec![("notes.txt".into(), b"no model".to_vec())];
    assert!(matches!(refused(other), Error::UnknownFormat { path } if path.ends_with("notes.txt")));
}

fn split_model_opens_from_any_part() {
    let directory = tempfile::tempdir().unwrap();
    let parts = write_split(directory.path(), 3);
    for start in parts.iter().map(PathBuf::as_path).chain([directory.path()]) {
        for mmap in [true, false] {
            let options = OpenOptions {
                mmap,
                ..OpenOptions::default()
            };
            let model = ModelFile::open(start, &options).unwrap();
            assert_eq!(model.metadata().str("general.architecture"), Some("llama"));
            assert_eq!(model.files().count(), 3);
            for n in 1..=3u16 {
                let tensor = model.tensor(&format!("tensor.{n}")).unwrap();
                assert_eq!(tensor.file, usize::from(n - 1));
                assert_eq!(*model.data(tensor).unwrap(), n.to_le_bytes());
            }
        }
    }
}

fn all_missing_parts_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let parts = write_split(directory.path(), 4);
    std::fs::remove_file(&parts[0]).unwrap();
    std::fs::remove_file(&parts[2]).unwrap();
    let error = ModelFile::open(&parts[3], &OpenOptions::default()).unwrap_err();
    let Error::MissingParts { missing, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(missing, [parts[0].clone(), parts[2].clone()]);
}

fn parts_of_different_models_are_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let parts = write_split(directory.path(), 2);
    let open = |path: &Path| ModelFile::open(path, &OpenOptions::default());
    let renamed = directory.path().join("renamed.gguf");
    std::fs::copy(&parts[0], &renamed).unwrap();
    assert!(matches!(open(&renamed), Err(Error::Parts { .. })));
    std::fs::copy(&parts[0], &parts[1]).unwrap();
    let error = open(&parts[0]).unwrap_err();
    assert!(error.to_string().contains("split.no"), "{error}");
}

fn header_longer_than_first_read_opens_without_mmap() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("vocabulary.gguf");
    let tokens = ArrayBuf::strings((0..100_000).map(|i| format!("token {i}")));
    let mut writer = Writer::new();
    writer
        .key("tokens", &Value::Array(tokens.as_array()))
        .unwrap();
    writer.tensor("t", TensorType::I8, &[3]).unwrap();
    let file = std::fs::File::create(&path).unwrap();
    writer
        .write(file, |_, out| Ok::<_, WriteError>(out.write_all(b"abc")?))
        .unwrap();
    let mut options = OpenOptions {
        mmap: false,
        ..OpenOptions::default()
    };
    let model = ModelFile::open(&path, &options).unwrap();
    assert_eq!(model.metadata().array("tokens"), Some(tokens.as_array()));
    assert_eq!(*model.data(model.tensor("t").unwrap()).unwrap(), *b"abc");

    options.limits.gguf_header_bytes = 1 << 20;
    assert!(matches!(
        ModelFile::open(&path, &options),
        Err(Error::Limit { .. })
    ));
}

fn progress_reaches_the_end() {
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = seen.clone();
    let progress = std::sync::Arc::new(move |done, total| log.lock().unwrap().push((done, total)));
    let options = OpenOptions {
        progress: Some(progress),
        ..OpenOptions::default()
    };
    let model = ModelFile::from_bytes(small(3).bytes, &options).unwrap();
    for tensor in model.tensors() {
        model.data(tensor).unwrap();
    }
    assert_eq!(
        *seen.lock().unwrap(),
        [(54, 216), (182, 216), (184, 216), (216, 216)]
    );
}

fn loading_can_be_canceled() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let cancel = std::sync::Arc::new(AtomicBool::new(false));
    let options = OpenOptions::default().cancel(cancel.clone());
    let options = options.progress(move |done, _| cancel.store(done >= 182, Ordering::Relaxed));
    let model = ModelFile::from_bytes(small(3).bytes, &options).unwrap();
    let canceled = model
        .tensors()
        .iter()
        .map(|tensor| match model.data(tensor) {
            Ok(_) => false,
            Err(Error::Canceled { .. }) => true,
            Err(error) => panic!("{error}"),
        });
    assert_eq!(canceled.collect::<Vec<_>>(), [false, true, true, true]);
}
