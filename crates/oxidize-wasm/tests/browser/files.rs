//! Files that are made of the tiny model.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use oxidize_core::file::{ModelFile, OpenOptions, TensorInfo, TensorType};
use oxidize_core::gguf::{Planned, Value, WriteError, Writer};

/// Splits a GGUF model in two.
pub(crate) fn split(path: &Path, directory: &Path) -> [PathBuf; 2] {
    let file = ModelFile::open(path, &OpenOptions::default()).unwrap();
    let tensors = file.tensors();
    let (first, second) = tensors.split_at(tensors.len() / 2);
    let write = |number: u16, part: &[TensorInfo]| {
        let mut writer = Writer::new();
        if number == 0 {
            for (key, value) in file.metadata().iter() {
                writer.key(key, &value).unwrap();
            }
        }
        writer.key("split.no", &Value::U16(number)).unwrap();
        writer.key("split.count", &Value::U16(2)).unwrap();
        let count = i32::try_from(tensors.len()).unwrap();
        writer
            .key("split.tensors.count", &Value::I32(count))
            .unwrap();
        for tensor in part {
            writer
                .tensor(&tensor.name, tensor.ty, &tensor.shape)
                .unwrap();
        }
        let path = directory.join(format!("part-{number}.gguf"));
        let bytes = |planned: &Planned, out: &mut dyn Write| -> Result<(), WriteError> {
            let tensor = file.tensor(&planned.name).unwrap();
            out.write_all(&file.data(tensor).unwrap())
                .map_err(WriteError::Io)
        };
        writer.write(File::create(&path).unwrap(), bytes).unwrap();
        path
    };
    [write(0, first), write(1, second)]
}

/// Writes a LoRA adapter of rank 1 that changes the answers of the tiny model.
pub(crate) fn write_adapter(path: &Path) {
    const SIZE: u64 = 64;
    let mut writer = Writer::new();
    for (key, value) in [
        ("general.type", "adapter"),
        ("general.architecture", "llama"),
        ("adapter.type", "lora"),
    ] {
        writer.key(key, &Value::Str(value)).unwrap();
    }
    writer.key("adapter.lora.alpha", &Value::F32(1.0)).unwrap();
    for (half, shape) in [("lora_a", [SIZE, 1]), ("lora_b", [1, SIZE])] {
        let name = format!("blk.0.attn_output.weight.{half}");
        writer.tensor(&name, TensorType::F32, &shape).unwrap();
    }
    let bytes = |planned: &Planned, out: &mut dyn Write| -> Result<(), WriteError> {
        let sign = if planned.name.ends_with("a") {
            1.0
        } else {
            -1.0
        };
        let values = (0..SIZE).map(|i| sign * ((i * 37 % 11) as f32 - 5.0));
        let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
        out.write_all(&bytes).map_err(WriteError::Io)
    };
    writer.write(File::create(path).unwrap(), bytes).unwrap();
}
