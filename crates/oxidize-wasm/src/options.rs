//! [`LoadOptions`]: settings of a loaded model.

use oxidize_core::KvType;
use serde::Deserialize;

use crate::error::Failure;

/// Settings of a loaded model, as JSON.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LoadOptions {
    /// Maximum tokens of a request, prompt and answer together.
    pub context_size: Option<usize>,
    /// Tokens of all requests and of the prefix cache together; one context by default.
    pub cache_tokens: Option<usize>,
    /// Maximum requests that run at once.
    pub parallel: Option<usize>,
    /// Threads, the calling one included.
    pub threads: Option<usize>,
    /// Type of the KV cache: `f32`, `f16`, `q8_0` or `q4_0`.
    pub kv_type: Option<String>,
    /// Bytes that the module's memory can grow to.
    pub memory_limit: Option<u64>,
}

/// Requests that run at once, unless the page sets another number.
const PARALLEL: usize = 4;
/// Upper bound of `parallel`.
const MAX_PARALLEL: usize = 64;

impl LoadOptions {
    /// Parses settings.
    pub fn parse(json: &str) -> Result<LoadOptions, Failure> {
        serde_json::from_str(json).map_err(|error| Failure::invalid(format!("load: {error}")))
    }

    pub(crate) fn parallel(&self) -> Result<usize, Failure> {
        match self.parallel {
            None => Ok(PARALLEL),
            Some(n @ 1..=MAX_PARALLEL) => Ok(n),
            Some(n) => Err(Failure::invalid(format!(
                "parallel is {n}; it must be between 1 and {MAX_PARALLEL}"
            ))),
        }
    }

    pub(crate) fn kv_type(&self) -> Result<KvType, Failure> {
        let Some(name) = &self.kv_type else {
            return Ok(KvType::F16);
        };
        let named = |ty: &KvType| ty.tensor_type().name().eq_ignore_ascii_case(name);
        KvType::ALL.into_iter().find(named).ok_or_else(|| {
            Failure::invalid(format!(
                "kvType is {name:?}; f32, f16, q8_0 and q4_0 are supported"
            ))
        })
    }
}
