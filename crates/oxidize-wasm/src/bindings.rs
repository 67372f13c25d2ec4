//! The exports of the module to JavaScript.

#![allow(
    unsafe_code,
    unreachable_pub,
    reason = "wasm-bindgen's attribute expands to unsafe code, and wants public items"
)]

use std::cell::RefCell;
use std::time::Duration;

use js_sys::{Array, Date, Error, Float32Array, Reflect};
use oxidize_core::clock::{Clock, set_clock};
use wasm_bindgen::prelude::*;

use crate::{Code, Failure, LoadOptions, RequestOptions};

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = performance, js_name = now)]
    fn performance_now() -> f64;
}

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

fn milliseconds(time: f64) -> Duration {
    Duration::try_from_secs_f64(time / 1e3).unwrap_or_default()
}

/// Called once by the worker that owns the model.
#[wasm_bindgen(js_name = start)]
pub fn start() {
    std::panic::set_hook(Box::new(|panic| {
        PANIC.set(Some(panic.to_string()));
    }));
    set_clock(Clock {
        monotonic: || milliseconds(performance_now()),
        unix: || milliseconds(Date::now()),
    });
}

/// Message of the last panic, after which the module cannot be used.
#[wasm_bindgen(js_name = takePanic)]
pub fn take_panic() -> Option<String> {
    PANIC.take()
}

/// Runs the work of threads and never returns.
#[wasm_bindgen(js_name = runThread)]
pub fn run_thread() {
    crate::workers::run();
}

/// True if the module was built for threads.
#[wasm_bindgen(js_name = hasThreads)]
pub fn has_threads() -> bool {
    cfg!(target_feature = "atomics")
}

fn js_error(failure: Failure) -> JsValue {
    let error = Error::new(&failure.message);
    let code = serde_json::to_value(failure.code).ok();
    let code = code
        .as_ref()
        .and_then(|code| code.as_str())
        .unwrap_or("internal");
    // Setting a property of a new object does not fail.
    let _ = Reflect::set(&error, &"code".into(), &code.into());
    error.into()
}

type JsResult<T> = Result<T, JsValue>;

/// SHA-256 and XXH64 of bytes that arrive in pieces.
#[wasm_bindgen]
#[derive(Default)]
pub struct Digest(crate::Digest);

#[wasm_bindgen]
impl Digest {
    /// A digest of no bytes.
    #[wasm_bindgen(constructor)]
    pub fn new() -> Digest {
        Digest::default()
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// SHA-256 so far.
    pub fn sha256(&self) -> String {
        self.0.sha256()
    }

    /// XXH64 so far.
    pub fn fast(&self) -> String {
        self.0.fast()
    }
}

/// Model files in memory.
#[wasm_bindgen]
#[derive(Default)]
pub struct Loader(crate::Loader);

#[wasm_bindgen]
impl Loader {
    /// A loader without files.
    #[wasm_bindgen(constructor)]
    pub fn new() -> Loader {
        Loader::default()
    }

    /// Makes room for a file of `len` bytes and returns its address.
    #[wasm_bindgen(js_name = addFile)]
    pub fn add_file(&mut self, name: &str, len: f64) -> JsResult<usize> {
        let buffer = self.0.add_file(name, len as u64).map_err(js_error)?;
        Ok(buffer.as_mut_ptr().addr())
    }

    /// Makes room for a LoRA adapter and returns its address.
    #[wasm_bindgen(js_name = addAdapter)]
    pub fn add_adapter(&mut self, name: &str, len: f64, scale: f32) -> JsResult<usize> {
        let buffer = self
            .0
            .add_adapter(name, len as u64, scale)
            .map_err(js_error)?;
        Ok(buffer.as_mut_ptr().addr())
    }

    /// Checksum of the last file.
    pub fn checksum(&self) -> String {
        self.0.checksum()
    }

    /// Loads the model, and empties the loader.
    pub fn finish(&mut self, options: &str) -> JsResult<Host> {
        let options = LoadOptions::parse(options).map_err(js_error)?;
        let memory = (core::arch::wasm32::memory_size::<0>() as u64) << 16;
        let loader = std::mem::take(&mut self.0);
        let host = loader.finish(&options, memory, crate::workers::spawner());
        Ok(Host(host.map_err(js_error)?))
    }
}

/// A loaded model.
#[wasm_bindgen]
pub struct Host(crate::Host);

#[wasm_bindgen]
impl Host {
    /// Queues a request.
    pub fn submit(&mut self, id: u32, request: &str) -> JsResult<()> {
        let request = RequestOptions::parse(request).map_err(js_error)?;
        self.0.submit(id, request).map_err(js_error)
    }

    /// Ends a request.
    pub fn cancel(&mut self, id: u32) {
        self.0.cancel(id);
    }

    /// Computes a step.
    pub fn step(&mut self) -> JsResult<String> {
        self.0.step().map_err(js_error)
    }

    /// Token ids of a text.
    pub fn tokenize(
        &self,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> JsResult<Vec<u32>> {
        self.0
            .tokenize(text, add_special, parse_special)
            .map_err(js_error)
    }

    /// Text of tokens.
    pub fn detokenize(&self, tokens: &[u32], render_special: bool) -> JsResult<String> {
        self.0.detokenize(tokens, render_special).map_err(js_error)
    }

    /// The prompt of a conversation.
    #[wasm_bindgen(js_name = applyTemplate)]
    pub fn apply_template(&self, request: &str) -> JsResult<String> {
        let request = RequestOptions::parse(request).map_err(js_error)?;
        self.0.apply_template(request).map_err(js_error)
    }

    /// Embeddings of texts: an array of `Float32Array`.
    pub fn embed(&mut self, texts: &str, normalize: bool) -> JsResult<Array> {
        let texts: Vec<String> = serde_json::from_str(texts)
            .map_err(|error| js_error(Failure::new(Code::InvalidArgument, error.to_string())))?;
        let vectors = self.0.embed(&texts, normalize).map_err(js_error)?;
        let arrays = vectors
            .iter()
            .map(|vector| Float32Array::from(vector.as_slice()));
        Ok(arrays.collect())
    }

    /// The model.
    pub fn info(&self) -> String {
        self.0.info()
    }
}
