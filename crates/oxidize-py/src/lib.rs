//! The Rust part of the Python package `oxidize`: the module `oxidize._oxidize`.
//!
//! It has what needs the engine, and nothing else: the classes that people use are Python, in `python/oxidize`. Every
//! wait releases the GIL, checks for signals, and ends when the model is closed. PyO3 makes all of this without unsafe
//! code; [`c_api`] has the one exception.

#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "a function with a C interface")]
mod c_api;
mod embedder;
mod engine;
mod error;
mod log;
mod model;
mod owned;
mod processor;
mod sampling;
mod server;
mod session;
mod stream;
mod tokenizer;

use std::ffi::OsString;

use oxidize_core::backend::cpu::check_isa;
use pyo3::prelude::*;

/// Runs the `oxidize` command with these arguments, the first of which is the name of the program; its exit status.
#[pyfunction]
fn run_command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| oxidize_cli::run(arguments))
}

/// Fails if the processor lacks features that the kernels need, or `OXIDIZE_ISA` names unknown ones.
#[pyfunction]
fn check_processor() -> PyResult<()> {
    check_isa().map_err(|error| error::runtime_error(error.to_string()))
}

/// Available memory in bytes, where known.
#[pyfunction]
fn available_memory() -> Option<u64> {
    oxidize_core::io::available_memory()
}

/// The engine of the package.
#[pymodule(gil_used = false)]
fn _oxidize(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<model::Model>()?;
    module.add_class::<model::MessageParser>()?;
    module.add_class::<tokenizer::Tokenizer>()?;
    module.add_class::<engine::Engine>()?;
    module.add_class::<stream::Stream>()?;
    module.add_class::<stream::ReadyQueue>()?;
    module.add_class::<session::Session>()?;
    module.add_class::<sampling::Sampler>()?;
    module.add_class::<sampling::Constraint>()?;
    module.add_class::<embedder::Embedder>()?;
    module.add_class::<server::Server>()?;
    module.add_function(wrap_pyfunction!(model::render_template, module)?)?;
    module.add_function(wrap_pyfunction!(model::forced_call_schema, module)?)?;
    module.add_function(wrap_pyfunction!(log::log_from, module)?)?;
    module.add_function(wrap_pyfunction!(log::take_log, module)?)?;
    module.add_function(wrap_pyfunction!(c_api::open_vocab, module)?)?;
    module.add_function(wrap_pyfunction!(c_api::close_vocab, module)?)?;
    module.add_function(wrap_pyfunction!(run_command, module)?)?;
    module.add_function(wrap_pyfunction!(check_processor, module)?)?;
    module.add_function(wrap_pyfunction!(available_memory, module)?)
}
