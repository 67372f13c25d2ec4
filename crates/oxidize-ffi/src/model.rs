//! Models: loading with progress, what a model is, its metadata and its chat template.

use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use oxidize_core::OpenOptions;
use oxidize_core::file::gguf::Value;
use oxidize_core::graph::OutputKind;
use serde_json::Value as Json;

use crate::handle::{self, Kind};
use crate::lora::{Lora, LoraHandle};
use crate::pointer::{self, Options};
use crate::status::{Failure, Status, entry};

/// Handle of a model.
pub type ModelHandle = u64;

impl Kind for oxidize_core::Model {
    const NAME: &'static str = "a model";
}

/// Function that is told how much of a model is loaded: bytes so far, bytes of all tensors, and the `user_data` of the
/// options. A result other than 0 cancels the loading.
///
/// It is called on the thread that loads, and never after `oxidize_model_load` has returned. It must return: no
/// exceptions, no `longjmp`.
pub type ProgressCallback =
    Option<unsafe extern "C" fn(done: u64, total: u64, user_data: *mut c_void) -> i32>;

/// Options of `oxidize_model_load`. `oxidize_model_options_init` sets all fields.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ModelOptions {
    /// Size of this struct, set by `oxidize_model_options_init`.
    pub size: usize,
    /// 1 maps the file into memory, 0 reads it. Default 1. Use 0 if another process may change the file meanwhile.
    pub mmap: i32,
    /// 1 copies a mapped file to huge pages where the system has them. Default 1.
    pub huge_pages: i32,
    /// Called while tensors are loaded, unless it is null. With `mmap`, pages are read later, when they are used.
    pub progress: ProgressCallback,
    /// Passed to `progress`.
    pub user_data: *mut c_void,
}

// SAFETY: integers, a raw pointer, and an optional function pointer: a caller can write no invalid value to them, as
// long as the function pointer is null or a function, which `ProgressCallback` says.
unsafe impl Options for ModelOptions {
    const NAME: &'static str = "oxidize_model_options";
    const FIRST_SIZE: usize = size_of::<ModelOptions>();

    fn defaults() -> ModelOptions {
        ModelOptions {
            size: size_of::<ModelOptions>(),
            mmap: 1,
            huge_pages: 1,
            progress: None,
            user_data: std::ptr::null_mut(),
        }
    }
}

/// Sets options to their defaults. `size` is `sizeof(oxidize_model_options)`.
///
/// # Safety
///
/// `options` is null, or points to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_model_options_init(
    options: *mut ModelOptions,
    size: usize,
) -> Status {
    // SAFETY: the caller promises `size` writable bytes, or null.
    entry(|| unsafe { pointer::write_options(options, size, ModelOptions::defaults()) })
}

/// Loads a GGUF file (any part of a split one), or a directory with `config.json` and safetensors.
///
/// `path` is UTF-8 of `path_length` bytes. `options` may be null. Free the model with `oxidize_model_free`. On failure,
/// `*model` is 0.
///
/// # Safety
///
/// `path` points to `path_length` bytes, or ends with NUL. `options` is null or initialized, and its `progress` is null
/// or a function of that type. `model` points to room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_model_load(
    path: *const c_char,
    path_length: usize,
    options: *const ModelOptions,
    model: *mut ModelHandle,
) -> Status {
    entry(|| {
        // SAFETY: the caller promises room for a handle, a text of `path_length` bytes, and options of the size that
        // their first field says, or null; none of them changes during the call.
        let (path, options) = unsafe {
            pointer::write("model", model, 0)?;
            (
                pointer::text("path", path, path_length)?,
                pointer::options(options)?,
            )
        };
        handle::check_process()?;
        let progress = Progress::new(&options);
        let loaded = oxidize_core::Model::load_with(path, &progress.open_options(&options));
        progress.finish();
        let handle = handle::insert(loaded?)?;
        // SAFETY: the caller promises room for a handle.
        unsafe { pointer::write("model", model, handle)? };
        Ok(Status::Ok)
    })
}

/// Progress of a load, reported to a callback until the load has ended.
///
/// A loaded model keeps its options, and may read tensors again later: then there is nobody to call any more.
#[derive(Clone)]
pub(crate) struct Progress {
    callback: Arc<Mutex<Option<Callback>>>,
    cancel: Arc<AtomicBool>,
}

struct Callback {
    function: unsafe extern "C" fn(u64, u64, *mut c_void) -> i32,
    user_data: *mut c_void,
}

// SAFETY: the pointer is only passed back to the caller's function, on the thread that called `oxidize_model_load`:
// `Progress::finish` takes it away before that returns, and models are loaded on one thread.
unsafe impl Send for Callback {}

impl Progress {
    pub(crate) fn new(options: &ModelOptions) -> Progress {
        let callback = options.progress.map(|function| Callback {
            function,
            user_data: options.user_data,
        });
        Progress {
            callback: Arc::new(Mutex::new(callback)),
            cancel: Arc::default(),
        }
    }

    pub(crate) fn open_options(&self, options: &ModelOptions) -> OpenOptions {
        let progress = self.clone();
        OpenOptions::default()
            .mmap(options.mmap != 0)
            .huge_pages(options.huge_pages != 0)
            .cancel(self.cancel.clone())
            .progress(move |done, total| progress.report(done, total))
    }

    pub(crate) fn finish(&self) {
        *self.callback.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn report(&self, done: u64, total: u64) {
        let callback = self.callback.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Callback {
            function,
            user_data,
        }) = &*callback
        else {
            return;
        };
        // SAFETY: the caller of `oxidize_model_load` promises that this is a function of its type; it is called with
        // the caller's pointer, before `oxidize_model_load` returns.
        let answer = unsafe { function(done, total, *user_data) };
        if answer != 0 {
            self.cancel.store(true, Ordering::Relaxed);
        }
    }
}

/// Frees a model. Its engines and embedders go on; the memory is returned with the last of them.
#[unsafe(no_mangle)]
pub extern "C" fn oxidize_model_free(model: ModelHandle) -> Status {
    entry(|| {
        handle::remove::<oxidize_core::Model>(model)?;
        Ok(Status::Ok)
    })
}

/// Description of a model, by `oxidize_model_get_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ModelInfo {
    /// Size of this struct as far as it was filled in.
    pub size: usize,
    /// Context length that the model was trained for, in tokens.
    pub n_ctx_train: u64,
    /// Size of the vocabulary.
    pub n_vocab: u64,
    /// Width of the hidden states.
    pub n_embd: u64,
    /// Number of layers.
    pub n_layer: u64,
    /// Number of parameters.
    pub n_params: u64,
    /// Bytes of the files.
    pub n_bytes: u64,
    /// Number of metadata keys.
    pub n_metadata: u64,
    /// Number of LoRA adapters.
    pub n_loras: u64,
    /// Token at the beginning of a text, or -1.
    pub bos_token: i64,
    /// Token at the end of a text, or -1.
    pub eos_token: i64,
    /// Token at the end of a turn, or -1.
    pub eot_token: i64,
    /// 1 if the model generates text, 0 if it only computes embeddings or scores.
    pub generates_text: i32,
    /// 1 if the model has a chat template of its own. Others are rendered with ChatML.
    pub has_chat_template: i32,
}

// SAFETY: integers.
unsafe impl Options for ModelInfo {
    const NAME: &'static str = "oxidize_model_info";
    const FIRST_SIZE: usize = size_of::<ModelInfo>();

    fn defaults() -> ModelInfo {
        ModelInfo {
            size: size_of::<ModelInfo>(),
            n_ctx_train: 0,
            n_vocab: 0,
            n_embd: 0,
            n_layer: 0,
            n_params: 0,
            n_bytes: 0,
            n_metadata: 0,
            n_loras: 0,
            bos_token: -1,
            eos_token: -1,
            eot_token: -1,
            generates_text: 0,
            has_chat_template: 0,
        }
    }
}

/// Describes a model. `size` is `sizeof(oxidize_model_info)`.
///
/// # Safety
///
/// `info` points to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_model_get_info(
    model: ModelHandle,
    info: *mut ModelInfo,
    size: usize,
) -> Status {
    entry(|| {
        let model = handle::get::<oxidize_core::Model>(model)?;
        let tokenizer = model.tokenizer().ok();
        let id = |token: Option<u32>| token.map_or(-1, i64::from);
        let values = ModelInfo {
            size: size_of::<ModelInfo>(),
            n_ctx_train: model.context_length() as u64,
            n_vocab: model.n_vocab() as u64,
            n_embd: model.hparams().n_embd as u64,
            n_layer: model.hparams().layers.len() as u64,
            n_params: model.n_params(),
            n_bytes: model.file().files().map(|(_, bytes)| bytes).sum(),
            n_metadata: model.file().metadata().len() as u64,
            n_loras: model.adapters().len() as u64,
            bos_token: id(tokenizer.and_then(|tokenizer| tokenizer.bos())),
            eos_token: id(tokenizer.and_then(|tokenizer| tokenizer.eos())),
            eot_token: id(tokenizer.and_then(|tokenizer| tokenizer.eot())),
            generates_text: i32::from(model.plan().output == OutputKind::Logits),
            has_chat_template: i32::from(model.chat_template_source()?.is_some()),
        };
        // SAFETY: the caller promises `size` writable bytes, or null.
        unsafe { pointer::write_options(info, size, values) }
    })
}

/// Copies the name of a model's architecture, such as "llama", into `buffer`.
///
/// # Safety
///
/// `buffer` points to `capacity` writable bytes; `length` is null or points to room for a length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_model_architecture(
    model: ModelHandle,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Status {
    entry(|| {
        let model = handle::get::<oxidize_core::Model>(model)?;
        // SAFETY: the caller promises `capacity` bytes, and room for a length or null.
        unsafe { pointer::write_text(model.architecture(), buffer, capacity, length) }
    })
}

/// Copies the value of a metadata key, such as "general.name", into `buffer`: text as it is, numbers and truth values as
/// text, arrays as JSON. Only GGUF files have metadata.
///
/// # Safety
///
/// `key` points to `key_length` bytes, or ends with NUL; `buffer` points to `capacity` writable bytes; `length` is null
/// or points to room for a length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_model_metadata(
    model: ModelHandle,
    key: *const c_char,
    key_length: usize,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Status {
    entry(|| {
        let model = handle::get::<oxidize_core::Model>(model)?;
        // SAFETY: the caller promises a text of `key_length` bytes.
        let key = unsafe { pointer::text("key", key, key_length)? };
        let value = model.file().metadata().get(key);
        let missing = || Failure::new(Status::NotFound, format!("the model has no key {key:?}"));
        let text = match json(value.ok_or_else(missing)?) {
            Json::String(text) => text,
            other => other.to_string(),
        };
        // SAFETY: the caller promises `capacity` bytes, and room for a length or null.
        unsafe { pointer::write_text(&text, buffer, capacity, length) }
    })
}

fn json(value: Value<'_>) -> Json {
    match value {
        Value::Array(array) => Json::Array(array.iter().map(json).collect()),
        Value::Str(text) => Json::from(text),
        Value::Bytes(bytes) => Json::from(String::from_utf8_lossy(bytes)),
        Value::Bool(value) => Json::from(value),
        Value::F32(value) => Json::from(value),
        Value::F64(value) => Json::from(value),
        Value::U64(value) => Json::from(value),
        other => Json::from(other.as_i64()),
    }
}

/// Copies the metadata key of an index from 0, in the order of the file, into `buffer`.
///
/// # Safety
///
/// `buffer` points to `capacity` writable bytes; `length` is null or points to room for a length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_model_metadata_key(
    model: ModelHandle,
    index: u64,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Status {
    entry(|| {
        let model = handle::get::<oxidize_core::Model>(model)?;
        let metadata = model.file().metadata();
        let nth = usize::try_from(index).ok();
        let Some((key, _)) = nth.and_then(|index| metadata.iter().nth(index)) else {
            let message = format!("metadata key {index}: the model has {}", metadata.len());
            return Err(Failure::new(Status::NotFound, message));
        };
        // SAFETY: the caller promises `capacity` bytes, and room for a length or null.
        unsafe { pointer::write_text(key, buffer, capacity, length) }
    })
}

/// Copies the source of a model's chat template, in Jinja, into `buffer`. `oxidize_request_render` applies it.
///
/// # Safety
///
/// `buffer` points to `capacity` writable bytes; `length` is null or points to room for a length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_model_chat_template(
    model: ModelHandle,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Status {
    entry(|| {
        let model = handle::get::<oxidize_core::Model>(model)?;
        let source = model.chat_template_source()?;
        let missing = || Failure::new(Status::NotFound, "the model has no chat template");
        // SAFETY: the caller promises `capacity` bytes, and room for a length or null.
        unsafe { pointer::write_text(&source.ok_or_else(missing)?, buffer, capacity, length) }
    })
}

/// Makes a model with LoRA adapters, each with its default scale; a request may set other scales.
///
/// The weights are shared with `model`, which stays as it is. The handles of the adapters may be freed afterwards. On
/// failure, `*with_loras` is 0.
///
/// # Safety
///
/// `loras` and `scales` point to `n_loras` elements; `scales` may be null, and then all are 1. `with_loras` points to
/// room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_model_with_loras(
    model: ModelHandle,
    loras: *const LoraHandle,
    scales: *const f32,
    n_loras: usize,
    with_loras: *mut ModelHandle,
) -> Status {
    entry(|| {
        // SAFETY: the caller promises room for a handle and arrays of `n_loras` elements, or null for the scales; none
        // of them changes during the call.
        let (loras, scales) = unsafe {
            pointer::write("with_loras", with_loras, 0)?;
            let n_scales = if scales.is_null() { 0 } else { n_loras };
            (
                pointer::slice("loras", loras, n_loras)?,
                pointer::slice("scales", scales, n_scales)?,
            )
        };
        let model = handle::get::<oxidize_core::Model>(model)?;
        let mut adapters = Vec::new();
        for (index, &lora) in loras.iter().enumerate() {
            let scale = scales.get(index).copied().unwrap_or(1.0);
            if !scale.is_finite() {
                return Err(Failure::argument(format!(
                    "scale {index} is {scale}; it must be a finite number"
                )));
            }
            adapters.push((handle::get::<Lora>(lora)?.0.clone(), scale));
        }
        let handle = handle::insert(model.with_adapters(adapters)?)?;
        // SAFETY: the caller promises room for a handle.
        unsafe { pointer::write("with_loras", with_loras, handle)? };
        Ok(Status::Ok)
    })
}
