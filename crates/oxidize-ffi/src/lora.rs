//! LoRA adapters, which `oxidize_model_with_loras` adds to a model.

use std::ffi::c_char;

use oxidize_core::{Adapter, OpenOptions};

use crate::handle::{self, Kind};
use crate::pointer;
use crate::status::{Status, entry};

/// Handle of a LoRA adapter.
pub type LoraHandle = u64;

pub(crate) struct Lora(pub(crate) Adapter);

impl Kind for Lora {
    const NAME: &'static str = "a LoRA adapter";
}

/// Loads a LoRA adapter: a GGUF file, or a directory in PEFT's format. On failure, `*lora` is 0.
///
/// # Safety
///
/// `path` points to `path_length` bytes, or ends with NUL. `lora` points to room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_lora_load(
    path: *const c_char,
    path_length: usize,
    lora: *mut LoraHandle,
) -> Status {
    entry(|| {
        // SAFETY: the caller promises room for a handle, and a text of `path_length` bytes.
        let path = unsafe {
            pointer::write("lora", lora, 0)?;
            pointer::text("path", path, path_length)?
        };
        handle::check_process()?;
        let adapter = Adapter::open(path, &OpenOptions::default())?;
        let handle = handle::insert(Lora(adapter))?;
        // SAFETY: the caller promises room for a handle.
        unsafe { pointer::write("lora", lora, handle)? };
        Ok(Status::Ok)
    })
}

/// Frees an adapter. Models that it was added to keep it.
#[unsafe(no_mangle)]
pub extern "C" fn oxidize_lora_free(lora: LoraHandle) -> Status {
    entry(|| {
        handle::remove::<Lora>(lora)?;
        Ok(Status::Ok)
    })
}
