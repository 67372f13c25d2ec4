//! The Python class `Embedder`.

use oxidize_core::embedding::{EmbedderConfig, Pooling};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::exception;
use crate::model::Model;
use crate::owned::Owned;

/// Texts per call of the engine, between which signals are handled.
const TEXTS_PER_CALL: usize = 16;

/// Computes embeddings.
#[pyclass(frozen, module = "oxidize._oxidize")]
pub(crate) struct Embedder(Owned<oxidize_core::Embedder>);

#[pymethods]
impl Embedder {
    /// `pooling` is a number of GGUF; None is the model's own, or the mean.
    #[new]
    #[pyo3(signature = (model, n_ctx, n_batch=512, n_threads=None, pooling=None, normalize=false))]
    fn new(
        py: Python<'_>,
        model: &Model,
        n_ctx: usize,
        n_batch: usize,
        n_threads: Option<usize>,
        pooling: Option<u32>,
        normalize: bool,
    ) -> PyResult<Embedder> {
        let pooling = match pooling {
            None => None,
            Some(0) => Some(Pooling::None),
            Some(1) => Some(Pooling::Mean),
            Some(2) => Some(Pooling::Cls),
            Some(3) => Some(Pooling::Last),
            Some(4) => Some(Pooling::Rank),
            Some(number) => {
                let text = format!("pooling_type {number}; 0 to 4 are supported");
                return Err(PyValueError::new_err(text));
            }
        };
        let config = EmbedderConfig {
            n_ctx: Some(n_ctx),
            max_batch_tokens: n_batch.max(1),
            pooling,
            normalize,
            n_threads,
            ..EmbedderConfig::default()
        };
        let embedder = py.detach(|| oxidize_core::Embedder::with_config(&model.inner, &config));
        Ok(Embedder(Owned::new("model", embedder.map_err(exception)?)))
    }

    /// The embeddings of tokenized texts: one vector each, or one per token without pooling.
    fn embed(&self, py: Python<'_>, texts: Vec<Vec<u32>>) -> PyResult<Vec<Vec<Vec<f32>>>> {
        let mut all = Vec::with_capacity(texts.len());
        for texts in texts.chunks(TEXTS_PER_CALL) {
            let vectors = py.detach(|| {
                let embed = |embedder: &mut oxidize_core::Embedder| {
                    embedder.embed_tokens(texts).map_err(exception)
                };
                self.0.with(embed)
            })?;
            all.extend(vectors);
            py.check_signals()?;
        }
        Ok(all)
    }

    fn close(&self, py: Python<'_>) {
        let embedder = self.0.close();
        py.detach(|| drop(embedder));
    }
}
