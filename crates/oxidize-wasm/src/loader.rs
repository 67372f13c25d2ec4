//! [`Loader`]: model files in WebAssembly's memory.

use std::path::PathBuf;

use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::model::Model;
use oxidize_core::{Adapter, Spawner};

use crate::checksum::fast_checksum;
use crate::error::{Code, Failure};
use crate::host::Host;
use crate::options::LoadOptions;

/// Collects the files of a model. The host of the module writes their bytes to the addresses of their buffers, so that
/// there is no second copy.
#[derive(Default)]
pub struct Loader {
    files: Vec<(PathBuf, Vec<u8>)>,
    adapters: Vec<(PathBuf, Vec<u8>, f32)>,
}

impl Loader {
    /// Makes room for a file of the model and returns its buffer. Parts of a split model come in order.
    pub fn add_file(&mut self, name: &str, len: u64) -> Result<&mut [u8], Failure> {
        let bytes = buffer(name, len)?;
        self.files.push((name.into(), bytes));
        Ok(self
            .files
            .last_mut()
            .map_or(&mut [], |(_, bytes)| bytes.as_mut_slice()))
    }

    /// Makes room for a LoRA adapter and returns its buffer.
    pub fn add_adapter(&mut self, name: &str, len: u64, scale: f32) -> Result<&mut [u8], Failure> {
        if !scale.is_finite() {
            return Err(Failure::invalid(format!(
                "the scale of adapter {name} is {scale}; it must be finite"
            )));
        }
        let bytes = buffer(name, len)?;
        self.adapters.push((name.into(), bytes, scale));
        Ok(self
            .adapters
            .last_mut()
            .map_or(&mut [], |(_, bytes, _)| bytes.as_mut_slice()))
    }

    /// Checksum of the last file of the model.
    pub fn checksum(&self) -> String {
        fast_checksum(self.files.last().map_or(&[], |(_, bytes)| bytes.as_slice()))
    }

    /// Loads the model. `memory` is the current size of the module's memory.
    pub fn finish(
        self,
        options: &LoadOptions,
        memory: u64,
        spawner: Spawner,
    ) -> Result<Host, Failure> {
        let open = OpenOptions::default();
        let mut model = Model::from_file(ModelFile::from_parts(self.files, &open)?)?;
        if !self.adapters.is_empty() {
            let adapters = self.adapters.into_iter();
            let adapters = adapters
                .map(|(path, bytes, scale)| Ok((Adapter::from_bytes(path, bytes, &open)?, scale)));
            model = model.with_adapters(adapters.collect::<Result<_, Failure>>()?)?;
        }
        Host::new(model, options, memory, spawner)
    }
}

/// A buffer of zeros.
fn buffer(name: &str, len: u64) -> Result<Vec<u8>, Failure> {
    let allocate = |len| bytemuck::allocation::try_zeroed_vec::<u8>(len).ok();
    let in_range = |len: &usize| isize::try_from(*len).is_ok();
    let bytes = usize::try_from(len)
        .ok()
        .filter(in_range)
        .and_then(allocate);
    bytes.ok_or_else(|| {
        Failure::new(
            Code::OutOfMemory,
            format!("{name}: no memory for {len} bytes"),
        )
    })
}
