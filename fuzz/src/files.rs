//! Checks of the fuzz targets for model files. The test `fuzz_corpus` of oxidize-core runs the same functions
//! on the stored corpus, so that every build replays earlier findings.

use arbitrary::{Arbitrary, Unstructured};
use oxidize_core::file::{ModelFile, ModelLoader, OpenOptions, TensorType};
use oxidize_core::gguf::{Array, ArrayBuf, GgufLoader, Value, ValueType, WriteError, Writer};
use oxidize_core::io::SharedBytes;
use oxidize_core::safetensors::SafetensorsLoader;
use oxidize_kernels::quant::dequantize;

/// Opens any bytes as a GGUF file; a valid model is read completely.
pub fn gguf_raw(data: &[u8]) {
    open(&GgufLoader, data);
}

/// Opens any bytes as a safetensors file, and as the header of one up to the first zero byte.
pub fn safetensors(data: &[u8]) {
    open(&SafetensorsLoader, data);
    let end = data
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(data.len());
    let (header, tensors) = data.split_at(end);
    let length = (header.len() as u64).to_le_bytes();
    open(&SafetensorsLoader, &[&length, header, tensors].concat());
}

fn open(loader: &dyn ModelLoader, data: &[u8]) {
    let bytes = SharedBytes::from(data.to_vec());
    let Ok(model) = loader.open_bytes(bytes, &OpenOptions::default()) else {
        return;
    };
    assert_eq!(
        model
            .metadata()
            .iter()
            .map(|(_, value)| walk(value))
            .count(),
        model.metadata().len()
    );
    for tensor in model.tensors() {
        assert_eq!(model.tensor(&tensor.name), Some(tensor));
        assert!(tensor.offset + tensor.bytes <= data.len() as u64);
        assert_eq!(
            model.data(tensor).expect("in memory").len() as u64,
            tensor.bytes
        );
    }
}

fn walk(value: Value<'_>) {
    if let Value::Array(array) = value {
        assert_eq!(array.iter().map(walk).count(), array.len());
    }
}

/// Dequantizes blocks of a type chosen by the first byte: the floats are the same together and one by one.
pub fn dequantize_block(data: &[u8]) {
    let Some((&choice, blocks)) = data.split_first() else {
        return;
    };
    let types: Vec<_> = TensorType::all().collect();
    let ty = types[usize::from(choice) % types.len()];
    let n_blocks = blocks.len() / ty.block_bytes();
    let blocks = &blocks[..n_blocks * ty.block_bytes()];
    let mut together = vec![0.0f32; n_blocks * ty.block_len()];
    dequantize(ty, blocks, &mut together).expect("whole blocks");
    let mut alone = vec![0.0f32; ty.block_len()];
    for (bytes, expected) in blocks
        .chunks(ty.block_bytes())
        .zip(together.chunks(ty.block_len()))
    {
        dequantize(ty, bytes, &mut alone).expect("a block");
        let same = alone
            .iter()
            .zip(expected)
            .all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same, "{ty}");
    }
}

/// Writes a GGUF file of arbitrary values, reads it back, and writes it again to the same bytes.
pub fn gguf_structured(data: &[u8]) {
    let Ok(plan) = Plan::arbitrary(&mut Unstructured::new(data)) else {
        return;
    };
    let mut writer = Writer::new();
    let mut depth = 0;
    for (key, value) in &plan.keys {
        let (written, deep) = match value {
            AnyValue::Array(array) => (
                writer.key(key, &Value::Array(array.build().as_array())),
                array.depth(),
            ),
            scalar => (writer.key(key, &scalar.value()), 0),
        };
        // Duplicates and an invalid alignment are rejected.
        if written.is_ok() {
            depth = depth.max(deep);
        }
    }
    let types: Vec<_> = TensorType::all().collect();
    for tensor in &plan.tensors {
        let ty = types[usize::from(tensor.ty) % types.len()];
        let mut shape: Vec<u64> = tensor.shape.iter().map(|&dim| u64::from(dim) % 5).collect();
        if let Some(row) = shape.first_mut() {
            *row *= ty.block_len() as u64;
        }
        // Duplicates, too many dimensions and types without an id are rejected.
        let _ = writer.tensor(&tensor.name, ty, &shape);
    }
    let file = write(&writer, |_, n| vec![plan.fill; n]);
    assert_eq!(file.len() as u64, writer.file_len().expect("small"));

    let model = ModelFile::from_bytes(file.clone(), &OpenOptions::default());
    const MAX_DEPTH: u32 = 4;
    if depth > MAX_DEPTH {
        assert!(model.is_err());
        return;
    }
    let model = model.expect("what was written can be read");
    assert_eq!(model.tensors().len(), writer.tensors().len());
    let mut again = Writer::new();
    for (key, value) in model.metadata().iter() {
        again.key(key, &value).expect("read, so it can be written");
    }
    for tensor in model.tensors() {
        again
            .tensor(&tensor.name, tensor.ty, &tensor.shape)
            .expect("read, so it can be written");
    }
    let data = |name: &str, _| {
        model
            .data(model.tensor(name).expect("read"))
            .expect("read")
            .to_vec()
    };
    assert!(write(&again, data) == file);
}

fn write(writer: &Writer, data: impl Fn(&str, usize) -> Vec<u8>) -> Vec<u8> {
    let mut file = Vec::new();
    let written = writer.write(&mut file, |tensor, out| {
        Ok::<_, WriteError>(out.write_all(&data(&tensor.name, tensor.bytes as usize))?)
    });
    written.expect("writing to memory cannot fail");
    file
}

/// Content of a structured file.
#[derive(Arbitrary, Debug)]
struct Plan {
    keys: Vec<(String, AnyValue)>,
    tensors: Vec<AnyTensor>,
    fill: u8,
}

#[derive(Arbitrary, Debug)]
struct AnyTensor {
    name: String,
    ty: u8,
    shape: Vec<u8>,
}

#[derive(Arbitrary, Debug)]
enum AnyValue {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    Text(String),
    Bytes(Vec<u8>),
    Array(AnyArray),
}

impl AnyValue {
    fn value(&self) -> Value<'_> {
        match self {
            AnyValue::U8(v) => Value::U8(*v),
            AnyValue::I8(v) => Value::I8(*v),
            AnyValue::U16(v) => Value::U16(*v),
            AnyValue::I16(v) => Value::I16(*v),
            AnyValue::U32(v) => Value::U32(*v),
            AnyValue::I32(v) => Value::I32(*v),
            AnyValue::U64(v) => Value::U64(*v),
            AnyValue::I64(v) => Value::I64(*v),
            AnyValue::F32(v) => Value::F32(*v),
            AnyValue::F64(v) => Value::F64(*v),
            AnyValue::Bool(v) => Value::Bool(*v),
            AnyValue::Text(v) => Value::Str(v),
            AnyValue::Bytes(v) => Value::Bytes(v),
            AnyValue::Array(_) => unreachable!("arrays are built first"),
        }
    }
}

#[derive(Arbitrary, Debug)]
enum AnyArray {
    U32(Vec<u32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    Strings(Vec<Vec<u8>>),
    Arrays(Vec<AnyArray>),
}

impl AnyArray {
    fn depth(&self) -> u32 {
        match self {
            AnyArray::Arrays(v) => 1 + v.iter().map(AnyArray::depth).max().unwrap_or(0),
            _ => 1,
        }
    }

    fn build(&self) -> ArrayBuf {
        match self {
            AnyArray::U32(v) => ArrayBuf::u32s(v.iter().copied()),
            AnyArray::F32(v) => ArrayBuf::f32s(v.iter().copied()),
            AnyArray::Bool(v) => {
                ArrayBuf::values(ValueType::Bool, v.iter().map(|&v| Value::Bool(v))).expect("bools")
            }
            AnyArray::Strings(v) => ArrayBuf::strings(v),
            AnyArray::Arrays(v) => {
                let inner: Vec<ArrayBuf> = v.iter().map(AnyArray::build).collect();
                let inner: Vec<Array<'_>> = inner.iter().map(ArrayBuf::as_array).collect();
                let values = inner.into_iter().map(Value::Array);
                ArrayBuf::values(ValueType::Array, values).expect("arrays")
            }
        }
    }
}
