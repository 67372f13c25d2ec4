//! Embeddings of texts, and scores of documents for a query.

use std::ffi::c_char;
use std::sync::{Mutex, MutexGuard, PoisonError};

use oxidize_core::embedding::{EmbedderConfig, Pooling};
use oxidize_core::tokenizer::EncodeOptions;

use crate::handle::{self, Kind};
use crate::model::ModelHandle;
use crate::pointer::{self, Options};
use crate::status::{Failure, Status, entry};

/// Handle of an embedder.
pub type EmbedderHandle = u64;

/// A text in an array of texts.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Text {
    /// The text, in UTF-8.
    pub data: *const c_char,
    /// Its bytes, or `OXIDIZE_NUL_TERMINATED`.
    pub length: usize,
}

/// Pooling of the hidden states of a text into its embedding. The numbers are those of GGUF.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolingType {
    /// The pooling that the model declares, else the mean.
    Auto = -1,
    /// Mean over all tokens.
    Mean = 1,
    /// First token.
    Cls = 2,
    /// Last token.
    Last = 3,
    /// Scores of the classification head, for `oxidize_embedder_rerank`.
    Rank = 4,
}

/// Options of `oxidize_embedder_new`. `oxidize_embedder_options_init` sets all fields.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EmbedderOptions {
    /// Size of this struct, set by `oxidize_embedder_options_init`.
    pub size: usize,
    /// Maximum tokens per text. 0, the default, is the model's own limit, at most 4096.
    pub n_ctx: u32,
    /// Maximum tokens per step. Default 512.
    pub max_batch_tokens: u32,
    /// Number of threads; 0, the default, is one per core.
    pub n_threads: u32,
    /// Pooling, one of `oxidize_pooling_type`. Default `OXIDIZE_POOLING_TYPE_AUTO`.
    pub pooling: i32,
    /// 1 scales embeddings to unit length. Default 0.
    pub normalize: i32,
}

// SAFETY: integers.
unsafe impl Options for EmbedderOptions {
    const NAME: &'static str = "oxidize_embedder_options";
    const FIRST_SIZE: usize = size_of::<EmbedderOptions>();

    fn defaults() -> EmbedderOptions {
        EmbedderOptions {
            size: size_of::<EmbedderOptions>(),
            n_ctx: 0,
            max_batch_tokens: 512,
            n_threads: 0,
            pooling: PoolingType::Auto as i32,
            normalize: 0,
        }
    }
}

/// More tokens per text or step than any machine computes at once.
const MAX_TOKENS: u32 = 1 << 20;

impl EmbedderOptions {
    fn config(&self) -> Result<EmbedderConfig, Failure> {
        let optional = |n: u32| (n > 0).then_some(n as usize);
        let numbers = [
            ("n_ctx", self.n_ctx),
            ("max_batch_tokens", self.max_batch_tokens),
        ];
        if let Some((name, n)) = numbers.into_iter().find(|(_, n)| *n > MAX_TOKENS) {
            let message = format!("{name} is {n}; it must be at most {MAX_TOKENS}");
            return Err(Failure::argument(message));
        }
        Ok(EmbedderConfig {
            n_ctx: optional(self.n_ctx),
            max_batch_tokens: self.max_batch_tokens as usize,
            pooling: match self.pooling {
                -1 => None,
                1 => Some(Pooling::Mean),
                2 => Some(Pooling::Cls),
                3 => Some(Pooling::Last),
                4 => Some(Pooling::Rank),
                other => {
                    let message = format!("pooling is {other}; it must be -1, 1, 2, 3 or 4");
                    return Err(Failure::argument(message));
                }
            },
            normalize: self.normalize != 0,
            n_threads: optional(self.n_threads),
            ..EmbedderConfig::default()
        })
    }
}

/// Sets options to their defaults. `size` is `sizeof(oxidize_embedder_options)`.
///
/// # Safety
///
/// `options` is null, or points to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_embedder_options_init(
    options: *mut EmbedderOptions,
    size: usize,
) -> Status {
    // SAFETY: the caller promises `size` writable bytes, or null.
    entry(|| unsafe { pointer::write_options(options, size, EmbedderOptions::defaults()) })
}

/// An embedder, and the width of its vectors.
struct Embedder {
    model: oxidize_core::Model,
    embedder: Mutex<oxidize_core::Embedder>,
    width: usize,
}

impl Kind for Embedder {
    const NAME: &'static str = "an embedder";
}

impl Embedder {
    fn lock(&self) -> MutexGuard<'_, oxidize_core::Embedder> {
        self.embedder.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Prepares a model for embeddings or reranking. `options` may be null. Free it with `oxidize_embedder_free`; the model's
/// handle may be freed before. On failure, `*embedder` is 0.
///
/// # Safety
///
/// `options` is null or initialized. `embedder` points to room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_embedder_new(
    model: ModelHandle,
    options: *const EmbedderOptions,
    embedder: *mut EmbedderHandle,
) -> Status {
    entry(|| {
        // SAFETY: the caller promises room for a handle, and options of the size that their first field says, or null.
        let options = unsafe {
            pointer::write("embedder", embedder, 0)?;
            pointer::options(options)?
        };
        let model = handle::get::<oxidize_core::Model>(model)?;
        let prepared = oxidize_core::Embedder::with_config(&model, &options.config()?)?;
        let handle = handle::insert(Embedder {
            width: prepared.width(),
            model: (*model).clone(),
            embedder: Mutex::new(prepared),
        })?;
        // SAFETY: the caller promises room for a handle.
        unsafe { pointer::write("embedder", embedder, handle)? };
        Ok(Status::Ok)
    })
}

/// Frees an embedder, once a call that uses it has returned.
#[unsafe(no_mangle)]
pub extern "C" fn oxidize_embedder_free(embedder: EmbedderHandle) -> Status {
    entry(|| {
        handle::remove::<Embedder>(embedder)?;
        Ok(Status::Ok)
    })
}

/// Writes the number of floats in an embedding to `width`.
///
/// # Safety
///
/// `width` points to room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_embedder_width(
    embedder: EmbedderHandle,
    width: *mut usize,
) -> Status {
    entry(|| {
        let embedder = handle::get::<Embedder>(embedder)?;
        // SAFETY: the caller promises room for a number.
        unsafe { pointer::write("width", width, embedder.width)? };
        Ok(Status::Ok)
    })
}

/// Computes the embeddings of texts, one after the other in `vectors`, which needs room for `n_texts` times the width. If
/// there is less, nothing is computed, and `*n_floats` is the number that is needed.
///
/// Calls on one embedder wait for each other; texts of one call share the steps.
///
/// # Safety
///
/// `texts` points to `n_texts` elements, each of which points to `length` bytes or ends with NUL; `vectors` points to room
/// for `capacity` floats; `n_floats` is null or points to room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_embedder_embed(
    embedder: EmbedderHandle,
    texts: *const Text,
    n_texts: usize,
    vectors: *mut f32,
    capacity: usize,
    n_floats: *mut usize,
) -> Status {
    entry(|| {
        let embedder = handle::get::<Embedder>(embedder)?;
        // SAFETY: the caller promises `n_texts` texts of their lengths.
        let texts = unsafe { texts_of(texts, n_texts)? };
        let needed = texts.len().saturating_mul(embedder.width);
        // SAFETY: the caller promises room for `capacity` floats, and for a number or null.
        unsafe { pointer::check_room(needed, vectors, capacity, n_floats)? };
        let tokenizer = embedder.model.tokenizer()?;
        let encode = |text: &&str| tokenizer.encode(text, EncodeOptions::default());
        let tokens: Vec<Vec<u32>> = texts.iter().map(encode).collect();
        let embedded = embedder.lock().embed_tokens(&tokens)?;
        let floats: Vec<f32> = embedded.into_iter().flatten().flatten().collect();
        // SAFETY: as above.
        unsafe { pointer::write_slice(&floats, vectors, capacity, n_floats) }
    })
}

/// Scores documents for a query with a reranking model, into `scores`, which needs room for `n_documents`; higher is more
/// relevant.
///
/// # Safety
///
/// `query` points to `query_length` bytes, or ends with NUL; `documents` points to `n_documents` elements, each of which
/// points to `length` bytes or ends with NUL; `scores` points to room for `capacity` floats.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_embedder_rerank(
    embedder: EmbedderHandle,
    query: *const c_char,
    query_length: usize,
    documents: *const Text,
    n_documents: usize,
    scores: *mut f32,
    capacity: usize,
) -> Status {
    entry(|| {
        let embedder = handle::get::<Embedder>(embedder)?;
        // SAFETY: the caller promises a query of `query_length` bytes, and `n_documents` texts of their lengths.
        let (query, documents) = unsafe {
            (
                pointer::text("query", query, query_length)?,
                texts_of(documents, n_documents)?,
            )
        };
        let no_count = std::ptr::null_mut();
        // SAFETY: the caller promises room for `capacity` floats.
        unsafe { pointer::check_room(documents.len(), scores, capacity, no_count)? };
        let computed = embedder.lock().rerank(query, &documents)?;
        // SAFETY: as above.
        unsafe { pointer::write_slice(&computed, scores, capacity, no_count) }
    })
}

/// The texts of an array.
///
/// # Safety
///
/// `texts` is null, or points to `n` elements, each of which is null or points to `length` bytes, or ends with NUL. Nobody
/// writes to them as long as the result lives.
unsafe fn texts_of<'a>(texts: *const Text, n: usize) -> Result<Vec<&'a str>, Failure> {
    // SAFETY: the caller of this function promises `n` elements.
    let texts = unsafe { pointer::slice("texts", texts, n)? };
    let texts = texts.iter().enumerate();
    let text = |(index, text): (usize, &Text)| {
        // SAFETY: the caller of this function promises `length` bytes, or bytes up to a NUL.
        unsafe { pointer::text(&format!("text {index}"), text.data, text.length) }
    };
    texts.map(text).collect()
}
