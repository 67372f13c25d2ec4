/*
 * The C API of oxidize, which runs large language models. docs/c-api.md is the guide.
 *
 * Every function returns an oxidize_status: negative for a failure, whose message oxidize_last_error() has.
 *
 * A handle is a number. 0, freed handles and handles of another kind are errors. Every handle that a function hands out
 * is freed with the function of its kind.
 *
 * A text is UTF-8, given by its address and its length in bytes, or OXIDIZE_NUL_TERMINATED for the length.
 *
 * No memory changes its owner. Functions copy texts and arrays into a buffer of the caller, and write the length that is
 * needed, without the NUL at the end of texts. With a buffer that is too small, they copy nothing and return
 * OXIDIZE_STATUS_BUFFER_TOO_SMALL; so a null buffer of 0 bytes asks for the length. A pointer for the length may be null.
 *
 * All functions may be called from any thread at any time. Written by cbindgen; do not edit.
 */

#ifndef OXIDIZE_H
#define OXIDIZE_H

#include <stddef.h>
#include <stdint.h>

/**
 * Length of a text that ends at its first NUL.
 */
#define OXIDIZE_NUL_TERMINATED SIZE_MAX

/**
 * Version of the binary interface that this header describes. `oxidize_abi_version` has that of the library.
 */
#define OXIDIZE_ABI_VERSION 1

/**
 * Flag of `oxidize_tokenize`: adds the special tokens around the text that the model expects, such as BOS.
 */
#define OXIDIZE_TOKENIZE_ADD_SPECIAL 1

/**
 * Flag of `oxidize_tokenize`: turns the names of control tokens in the text into those tokens. Not for text of users.
 */
#define OXIDIZE_TOKENIZE_PARSE_SPECIAL 2

/**
 * Flag of `oxidize_detokenize`: includes control tokens in the text, by name.
 */
#define OXIDIZE_DETOKENIZE_RENDER_SPECIAL 1

/**
 * Flag of `oxidize_detokenize`: the tokens continue a text, so that a space at the beginning stays.
 */
#define OXIDIZE_DETOKENIZE_CONTINUATION 2

/**
 * Seed of `oxidize_request_options` that draws a new one for each answer.
 */
#define OXIDIZE_RANDOM_SEED UINT64_MAX

/**
 * Result of a function: negative for a failure, whose message `oxidize_last_error` returns.
 */
enum oxidize_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * The function did what it was asked for.
     */
    OXIDIZE_STATUS_OK = 0,
    /**
     * The answer has ended; `oxidize_stream_get_result` has the reason.
     */
    OXIDIZE_STATUS_END = 1,
    /**
     * There is nothing yet: no token within the time-out, or no result before the end.
     */
    OXIDIZE_STATUS_PENDING = 2,
    /**
     * An argument is a null pointer, out of range, or does not fit the model.
     */
    OXIDIZE_STATUS_INVALID_ARGUMENT = -1,
    /**
     * A handle is 0, was freed, was never issued, or belongs to something of another kind.
     */
    OXIDIZE_STATUS_INVALID_HANDLE = -2,
    /**
     * A text is not UTF-8.
     */
    OXIDIZE_STATUS_INVALID_UTF8 = -3,
    /**
     * The caller's buffer is too small; the length that is needed has been written.
     */
    OXIDIZE_STATUS_BUFFER_TOO_SMALL = -4,
    /**
     * The model has no such key, template or token.
     */
    OXIDIZE_STATUS_NOT_FOUND = -5,
    /**
     * A file cannot be read.
     */
    OXIDIZE_STATUS_IO = -6,
    /**
     * A model or an adapter is broken, not supported, or unfit for the purpose.
     */
    OXIDIZE_STATUS_MODEL = -7,
    /**
     * There is not enough memory for the model and its caches.
     */
    OXIDIZE_STATUS_OUT_OF_MEMORY = -8,
    /**
     * The prompt does not fit into the context.
     */
    OXIDIZE_STATUS_PROMPT_TOO_LONG = -9,
    /**
     * Too many requests are waiting.
     */
    OXIDIZE_STATUS_QUEUE_FULL = -10,
    /**
     * A callback ended the work.
     */
    OXIDIZE_STATUS_CANCELED = -11,
    /**
     * Another thread is reading this stream.
     */
    OXIDIZE_STATUS_BUSY = -12,
    /**
     * The engine was freed, or has stopped after a fault.
     */
    OXIDIZE_STATUS_STOPPED = -13,
    /**
     * The process is a fork of the one that made the handle, and has none of its threads.
     */
    OXIDIZE_STATUS_FORKED = -14,
    /**
     * A fault inside the library.
     */
    OXIDIZE_STATUS_INTERNAL = -15,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum oxidize_status oxidize_status;
#else
typedef int32_t oxidize_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Reason why an answer ended.
 */
enum oxidize_finish_reason
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * The model ended its answer, or the grammar is complete.
     */
    OXIDIZE_FINISH_REASON_END_OF_TEXT = 0,
    /**
     * A stop text occurred.
     */
    OXIDIZE_FINISH_REASON_STOP_TEXT = 1,
    /**
     * A stop token was sampled.
     */
    OXIDIZE_FINISH_REASON_STOP_TOKEN = 2,
    /**
     * `max_tokens` was reached.
     */
    OXIDIZE_FINISH_REASON_LENGTH = 3,
    /**
     * The context is full.
     */
    OXIDIZE_FINISH_REASON_CONTEXT_FULL = 4,
    /**
     * The request was canceled.
     */
    OXIDIZE_FINISH_REASON_CANCELED = 5,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum oxidize_finish_reason oxidize_finish_reason;
#else
typedef int32_t oxidize_finish_reason;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Type of the cached keys or values.
 */
enum oxidize_cache_type
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * 16-bit floats, the default.
     */
    OXIDIZE_CACHE_TYPE_F16 = 0,
    /**
     * 32-bit floats.
     */
    OXIDIZE_CACHE_TYPE_F32 = 1,
    /**
     * 8-bit blocks.
     */
    OXIDIZE_CACHE_TYPE_Q8_0 = 2,
    /**
     * 4-bit blocks.
     */
    OXIDIZE_CACHE_TYPE_Q4_0 = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum oxidize_cache_type oxidize_cache_type;
#else
typedef int32_t oxidize_cache_type;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Language of a grammar.
 */
enum oxidize_grammar_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * llama.cpp's GBNF, with the start rule `root`.
     */
    OXIDIZE_GRAMMAR_KIND_GBNF = 0,
    /**
     * JSON that matches a JSON schema.
     */
    OXIDIZE_GRAMMAR_KIND_JSON_SCHEMA = 1,
    /**
     * Any JSON object; the text of the grammar is empty or null.
     */
    OXIDIZE_GRAMMAR_KIND_JSON_OBJECT = 2,
    /**
     * Text that matches a regular expression.
     */
    OXIDIZE_GRAMMAR_KIND_REGEX = 3,
    /**
     * llguidance's dialect of Lark, with the start rule `start`.
     */
    OXIDIZE_GRAMMAR_KIND_LARK = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum oxidize_grammar_kind oxidize_grammar_kind;
#else
typedef int32_t oxidize_grammar_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Pooling of the hidden states of a text into its embedding. The numbers are those of GGUF.
 */
enum oxidize_pooling_type
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * The pooling that the model declares, else the mean.
     */
    OXIDIZE_POOLING_TYPE_AUTO = -1,
    /**
     * Mean over all tokens.
     */
    OXIDIZE_POOLING_TYPE_MEAN = 1,
    /**
     * First token.
     */
    OXIDIZE_POOLING_TYPE_CLS = 2,
    /**
     * Last token.
     */
    OXIDIZE_POOLING_TYPE_LAST = 3,
    /**
     * Scores of the classification head, for `oxidize_embedder_rerank`.
     */
    OXIDIZE_POOLING_TYPE_RANK = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum oxidize_pooling_type oxidize_pooling_type;
#else
typedef int32_t oxidize_pooling_type;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Function that is told how much of a model is loaded: bytes so far, bytes of all tensors, and the `user_data` of the
 * options. A result other than 0 cancels the loading.
 *
 * It is called on the thread that loads, and never after `oxidize_model_load` has returned. It must return: no
 * exceptions, no `longjmp`.
 */
typedef int32_t (*oxidize_progress_callback)(uint64_t done, uint64_t total, void *user_data);

/**
 * Options of `oxidize_model_load`. `oxidize_model_options_init` sets all fields.
 */
typedef struct {
    /**
     * Size of this struct, set by `oxidize_model_options_init`.
     */
    size_t size;
    /**
     * 1 maps the file into memory, 0 reads it. Default 1. Use 0 if another process may change the file meanwhile.
     */
    int32_t mmap;
    /**
     * 1 copies a mapped file to huge pages where the system has them. Default 1.
     */
    int32_t huge_pages;
    /**
     * Called while tensors are loaded, unless it is null. With `mmap`, pages are read later, when they are used.
     */
    oxidize_progress_callback progress;
    /**
     * Passed to `progress`.
     */
    void *user_data;
} oxidize_model_options;

/**
 * Handle of a model.
 */
typedef uint64_t oxidize_model;

/**
 * Description of a model, by `oxidize_model_get_info`.
 */
typedef struct {
    /**
     * Size of this struct as far as it was filled in.
     */
    size_t size;
    /**
     * Context length that the model was trained for, in tokens.
     */
    uint64_t n_ctx_train;
    /**
     * Size of the vocabulary.
     */
    uint64_t n_vocab;
    /**
     * Width of the hidden states.
     */
    uint64_t n_embd;
    /**
     * Number of layers.
     */
    uint64_t n_layer;
    /**
     * Number of parameters.
     */
    uint64_t n_params;
    /**
     * Bytes of the files.
     */
    uint64_t n_bytes;
    /**
     * Number of metadata keys.
     */
    uint64_t n_metadata;
    /**
     * Number of LoRA adapters.
     */
    uint64_t n_loras;
    /**
     * Token at the beginning of a text, or -1.
     */
    int64_t bos_token;
    /**
     * Token at the end of a text, or -1.
     */
    int64_t eos_token;
    /**
     * Token at the end of a turn, or -1.
     */
    int64_t eot_token;
    /**
     * 1 if the model generates text, 0 if it only computes embeddings or scores.
     */
    int32_t generates_text;
    /**
     * 1 if the model has a chat template of its own. Others are rendered with ChatML.
     */
    int32_t has_chat_template;
} oxidize_model_info;

/**
 * Handle of a LoRA adapter.
 */
typedef uint64_t oxidize_lora;

/**
 * Options of `oxidize_engine_new`. `oxidize_engine_options_init` sets all fields.
 */
typedef struct {
    /**
     * Size of this struct, set by `oxidize_engine_options_init`.
     */
    size_t size;
    /**
     * Maximum tokens of a request, prompt and answer together. 0, the default, is what the model was trained for, as
     * far as free memory allows.
     */
    uint32_t n_ctx;
    /**
     * Tokens in the KV cache, for all running requests and the prefix cache together. 0, the default, is one context.
     */
    uint32_t cache_tokens;
    /**
     * Maximum requests that run at once. Default 8.
     */
    uint32_t max_sequences;
    /**
     * Maximum requests that wait. Default 256.
     */
    uint32_t max_queue;
    /**
     * Maximum tokens per step. Default 512.
     */
    uint32_t max_batch_tokens;
    /**
     * Number of threads; 0, the default, is one per core.
     */
    uint32_t n_threads;
    /**
     * Type of the cached keys, one of `oxidize_cache_type`.
     */
    int32_t key_type;
    /**
     * Type of the cached values, one of `oxidize_cache_type`.
     */
    int32_t value_type;
    /**
     * 1 makes an answer independent of what else runs, at the cost of speed. Default 0.
     */
    int32_t deterministic;
    /**
     * Tokens that are drafted from repetitions and verified in one step; 0, the default, is off. Answers stay the same.
     */
    uint32_t draft_tokens;
} oxidize_engine_options;

/**
 * Handle of an engine.
 */
typedef uint64_t oxidize_engine;

/**
 * State of an engine, by `oxidize_engine_get_info`.
 */
typedef struct {
    /**
     * Size of this struct as far as it was filled in.
     */
    size_t size;
    /**
     * Maximum tokens of a request, prompt and answer together.
     */
    uint64_t n_ctx;
    /**
     * Requests that run.
     */
    uint64_t running;
    /**
     * Requests that wait.
     */
    uint64_t waiting;
    /**
     * Steps since the start.
     */
    uint64_t steps;
    /**
     * Tokens of all prompts.
     */
    uint64_t prompt_tokens;
    /**
     * Tokens of prompts that were found in the prefix cache.
     */
    uint64_t cached_prompt_tokens;
    /**
     * Tokens of all answers.
     */
    uint64_t generated_tokens;
} oxidize_engine_info;

/**
 * Handle of a request.
 */
typedef uint64_t oxidize_request;

/**
 * Handle of a stream.
 */
typedef uint64_t oxidize_stream;

/**
 * Options of a request. `oxidize_request_options_init` sets all fields.
 *
 * Samplers have the names, meanings and defaults of llama.cpp.
 */
typedef struct {
    /**
     * Size of this struct, set by `oxidize_request_options_init`.
     */
    size_t size;
    /**
     * Maximum tokens of the answer; 0 for as many as the context holds.
     */
    uint64_t max_tokens;
    /**
     * Until there are so many tokens, nothing but a complete grammar ends the answer.
     */
    uint32_t min_tokens;
    /**
     * Requests with a higher priority run first. Default 0.
     */
    int32_t priority;
    /**
     * Requests with different salts share no cached prefix. Default 0.
     */
    uint64_t cache_salt;
    /**
     * 1 computes the whole prompt, even if a prefix of it is cached. Default 0.
     */
    int32_t ignore_cache;
    /**
     * 1 continues past the tokens with which the model ends its answers. Default 0.
     */
    int32_t ignore_eos;
    /**
     * 1 includes control tokens in the text. Default 0.
     */
    int32_t render_special;
    /**
     * Log probabilities: -1 reports none, 0 that of each token, n also those of the n most likely tokens. Default -1.
     */
    int32_t n_probs;
    /**
     * Seed of the random numbers, or `OXIDIZE_RANDOM_SEED`, the default.
     */
    uint64_t seed;
    /**
     * Divides the logits; 0 takes the most likely token.
     */
    float temperature;
    /**
     * Range of the dynamic temperature around `temperature`; 0 is off.
     */
    float dynatemp_range;
    /**
     * Exponent of the dynamic temperature.
     */
    float dynatemp_exponent;
    /**
     * Keeps the k most likely tokens; 0 is off.
     */
    uint32_t top_k;
    /**
     * Keeps the most likely tokens with this total probability; 1 is off.
     */
    float top_p;
    /**
     * Keeps tokens with this fraction of the probability of the most likely one; 0 is off.
     */
    float min_p;
    /**
     * Locally typical sampling; 1 is off.
     */
    float typical_p;
    /**
     * Tail-free sampling; 1 is off.
     */
    float tfs_z;
    /**
     * Keeps logits within so many standard deviations of the largest; 0 is off.
     */
    float top_n_sigma;
    /**
     * Probability per step that XTC removes the top choices; 0 is off.
     */
    float xtc_probability;
    /**
     * Minimum probability of a top choice for XTC; above 0.5 is off.
     */
    float xtc_threshold;
    /**
     * Version of Mirostat, 1 or 2; 0 is off.
     */
    uint32_t mirostat;
    /**
     * Target surprise of Mirostat in bits.
     */
    float mirostat_tau;
    /**
     * Learning rate of Mirostat.
     */
    float mirostat_eta;
    /**
     * Strength of DRY's penalty on repetitions; 0 is off.
     */
    float dry_multiplier;
    /**
     * Growth of DRY's penalty per repeated token.
     */
    float dry_base;
    /**
     * Longest repetition that DRY does not penalize.
     */
    uint32_t dry_allowed_length;
    /**
     * Number of recent tokens that DRY searches; 0 is off, -1 is all.
     */
    int32_t dry_penalty_last_n;
    /**
     * Divides the logits of recent tokens; 1 is off.
     */
    float repeat_penalty;
    /**
     * Number of recent tokens to penalize; 0 is off, -1 is all.
     */
    int32_t repeat_last_n;
    /**
     * Subtracted from a logit per recent occurrence of its token; 0 is off.
     */
    float frequency_penalty;
    /**
     * Subtracted from a logit if its token occurred recently; 0 is off.
     */
    float presence_penalty;
} oxidize_request_options;

/**
 * A token of an answer.
 */
typedef struct {
    /**
     * Token id.
     */
    uint32_t id;
    /**
     * Log probability, or NaN if the request did not ask for it.
     */
    float logprob;
    /**
     * Bytes of its text, without the NUL. 0 while a character or a stop text may be incomplete.
     */
    size_t text_length;
    /**
     * Number of the most likely tokens, for `oxidize_stream_top_logprobs`.
     */
    size_t n_top;
} oxidize_stream_token;

/**
 * A token and its log probability.
 */
typedef struct {
    /**
     * Token id.
     */
    uint32_t id;
    /**
     * Log probability.
     */
    float logprob;
} oxidize_token_logprob;

/**
 * Function that receives a token, its text of `token->text_length` bytes and a NUL, and `user_data`. A result other than
 * 0 cancels the request.
 *
 * The token and the text are valid during the call. It is called on the thread that reads. It must return: no
 * exceptions, no `longjmp`. It may call any function of the library.
 */
typedef int32_t (*oxidize_token_callback)(const oxidize_stream_token *token, const char *text, void *user_data);

/**
 * The end of an answer. For a canceled request, `finish_reason` and `generated_tokens` are known; the rest is 0.
 */
typedef struct {
    /**
     * Reason for the end.
     */
    oxidize_finish_reason finish_reason;
    /**
     * Index of the stop text that occurred, or -1.
     */
    int32_t stop_index;
    /**
     * Tokens of the prompt.
     */
    uint64_t prompt_tokens;
    /**
     * Tokens of the prompt that were found in the prefix cache.
     */
    uint64_t cached_tokens;
    /**
     * Tokens of the answer.
     */
    uint64_t generated_tokens;
    /**
     * Tokens of the answer that belong to reasoning before it.
     */
    uint64_t reasoning_tokens;
    /**
     * The token that ended the answer and is not part of it, or -1.
     */
    int64_t end_token;
    /**
     * Seed of the sampler.
     */
    uint64_t seed;
    /**
     * Seconds from submission to the first step.
     */
    double queued_seconds;
    /**
     * Seconds from the first step to the first token.
     */
    double prompt_seconds;
    /**
     * Seconds from the first token to the last.
     */
    double generation_seconds;
} oxidize_stream_result;

/**
 * Options of `oxidize_embedder_new`. `oxidize_embedder_options_init` sets all fields.
 */
typedef struct {
    /**
     * Size of this struct, set by `oxidize_embedder_options_init`.
     */
    size_t size;
    /**
     * Maximum tokens per text. 0, the default, is the model's own limit, at most 4096.
     */
    uint32_t n_ctx;
    /**
     * Maximum tokens per step. Default 512.
     */
    uint32_t max_batch_tokens;
    /**
     * Number of threads; 0, the default, is one per core.
     */
    uint32_t n_threads;
    /**
     * Pooling, one of `oxidize_pooling_type`. Default `OXIDIZE_POOLING_TYPE_AUTO`.
     */
    int32_t pooling;
    /**
     * 1 scales embeddings to unit length. Default 0.
     */
    int32_t normalize;
} oxidize_embedder_options;

/**
 * Handle of an embedder.
 */
typedef uint64_t oxidize_embedder;

/**
 * A text in an array of texts.
 */
typedef struct {
    /**
     * The text, in UTF-8.
     */
    const char *data;
    /**
     * Its bytes, or `OXIDIZE_NUL_TERMINATED`.
     */
    size_t length;
} oxidize_text;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Version of the library, such as "0.1.0". Never null; the text is static.
 */
const char *oxidize_version(void);

/**
 * Version of the binary interface of the library. It changes when a program that was compiled for another one would not
 * run; functions and fields at the end of structs of options may be added without a change.
 */
uint32_t oxidize_abi_version(void);

/**
 * Message of the last failure on this thread, in UTF-8. Empty if there was none.
 *
 * The library owns the text. It is valid until the next function fails on this thread, or the thread ends.
 */
const char *oxidize_last_error(void);

/**
 * A few English words for a status, for logs. Never null; the text is static.
 */
const char *oxidize_status_text(int32_t status);

/**
 * Sets options to their defaults. `size` is `sizeof(oxidize_model_options)`.
 *
 * The caller promises: `options` is null, or points to `size` writable bytes.
 */
oxidize_status oxidize_model_options_init(oxidize_model_options *options, size_t size);

/**
 * Loads a GGUF file (any part of a split one), or a directory with `config.json` and safetensors.
 *
 * `path` is UTF-8 of `path_length` bytes. `options` may be null. Free the model with `oxidize_model_free`. On failure,
 * `*model` is 0.
 *
 * The caller promises: `path` points to `path_length` bytes, or ends with NUL. `options` is null or initialized, and its `progress` is null
 * or a function of that type. `model` points to room for a handle.
 */
oxidize_status oxidize_model_load(const char *path,
                                  size_t path_length,
                                  const oxidize_model_options *options,
                                  oxidize_model *model);

/**
 * Frees a model. Its engines and embedders go on; the memory is returned with the last of them.
 */
oxidize_status oxidize_model_free(oxidize_model model);

/**
 * Describes a model. `size` is `sizeof(oxidize_model_info)`.
 *
 * The caller promises: `info` points to `size` writable bytes.
 */
oxidize_status oxidize_model_get_info(oxidize_model model, oxidize_model_info *info, size_t size);

/**
 * Copies the name of a model's architecture, such as "llama", into `buffer`.
 *
 * The caller promises: `buffer` points to `capacity` writable bytes; `length` is null or points to room for a length.
 */
oxidize_status oxidize_model_architecture(oxidize_model model, char *buffer, size_t capacity, size_t *length);

/**
 * Copies the value of a metadata key, such as "general.name", into `buffer`: text as it is, numbers and truth values as
 * text, arrays as JSON. Only GGUF files have metadata.
 *
 * The caller promises: `key` points to `key_length` bytes, or ends with NUL; `buffer` points to `capacity` writable bytes; `length` is null
 * or points to room for a length.
 */
oxidize_status oxidize_model_metadata(oxidize_model model,
                                      const char *key,
                                      size_t key_length,
                                      char *buffer,
                                      size_t capacity,
                                      size_t *length);

/**
 * Copies the metadata key of an index from 0, in the order of the file, into `buffer`.
 *
 * The caller promises: `buffer` points to `capacity` writable bytes; `length` is null or points to room for a length.
 */
oxidize_status oxidize_model_metadata_key(oxidize_model model,
                                          uint64_t index,
                                          char *buffer,
                                          size_t capacity,
                                          size_t *length);

/**
 * Copies the source of a model's chat template, in Jinja, into `buffer`. `oxidize_request_render` applies it.
 *
 * The caller promises: `buffer` points to `capacity` writable bytes; `length` is null or points to room for a length.
 */
oxidize_status oxidize_model_chat_template(oxidize_model model, char *buffer, size_t capacity, size_t *length);

/**
 * Makes a model with LoRA adapters, each with its default scale; a request may set other scales.
 *
 * The weights are shared with `model`, which stays as it is. The handles of the adapters may be freed afterwards. On
 * failure, `*with_loras` is 0.
 *
 * The caller promises: `loras` and `scales` point to `n_loras` elements; `scales` may be null, and then all are 1. `with_loras` points to
 * room for a handle.
 */
oxidize_status oxidize_model_with_loras(oxidize_model model,
                                        const oxidize_lora *loras,
                                        const float *scales,
                                        size_t n_loras,
                                        oxidize_model *with_loras);

/**
 * Loads a LoRA adapter: a GGUF file, or a directory in PEFT's format. On failure, `*lora` is 0.
 *
 * The caller promises: `path` points to `path_length` bytes, or ends with NUL. `lora` points to room for a handle.
 */
oxidize_status oxidize_lora_load(const char *path, size_t path_length, oxidize_lora *lora);

/**
 * Frees an adapter. Models that it was added to keep it.
 */
oxidize_status oxidize_lora_free(oxidize_lora lora);

/**
 * Turns text into tokens. `flags` is a sum of `OXIDIZE_TOKENIZE_` values.
 *
 * The caller promises: `text` points to `text_length` bytes, or ends with NUL; `tokens` points to room for `capacity` tokens; `n_tokens` is
 * null or points to room for a number.
 */
oxidize_status oxidize_tokenize(oxidize_model model,
                                const char *text,
                                size_t text_length,
                                uint32_t flags,
                                uint32_t *tokens,
                                size_t capacity,
                                size_t *n_tokens);

/**
 * Turns tokens into text. `flags` is a sum of `OXIDIZE_DETOKENIZE_` values. Bytes that are no UTF-8 become U+FFFD.
 *
 * The caller promises: `tokens` points to `n_tokens` elements; `buffer` points to `capacity` writable bytes; `length` is null or points to
 * room for a length.
 */
oxidize_status oxidize_detokenize(oxidize_model model,
                                  const uint32_t *tokens,
                                  size_t n_tokens,
                                  uint32_t flags,
                                  char *buffer,
                                  size_t capacity,
                                  size_t *length);

/**
 * Copies the bytes of a token into `buffer`. They need not be UTF-8, and have no NUL at the end.
 *
 * The caller promises: `buffer` points to `capacity` writable bytes; `length` is null or points to room for a length.
 */
oxidize_status oxidize_token_bytes(oxidize_model model,
                                   uint32_t token,
                                   uint8_t *buffer,
                                   size_t capacity,
                                   size_t *length);

/**
 * Sets options to their defaults. `size` is `sizeof(oxidize_engine_options)`.
 *
 * The caller promises: `options` is null, or points to `size` writable bytes.
 */
oxidize_status oxidize_engine_options_init(oxidize_engine_options *options, size_t size);

/**
 * Starts an engine for a model, on a thread of its own. `options` may be null. Free it with `oxidize_engine_free`; the
 * model's handle may be freed before. On failure, `*engine` is 0.
 *
 * The caller promises: `options` is null or initialized. `engine` points to room for a handle.
 */
oxidize_status oxidize_engine_new(oxidize_model model, const oxidize_engine_options *options, oxidize_engine *engine);

/**
 * Frees an engine: its answers end with `OXIDIZE_STATUS_STOPPED`, also for threads that are waiting for a token, and its
 * memory is returned before this function does. (Not if it is called from a callback: then soon afterwards.)
 *
 * Handles of its answers stay valid and have to be freed.
 */
oxidize_status oxidize_engine_free(oxidize_engine engine);

/**
 * Describes an engine and its work, as of its last step. `size` is `sizeof(oxidize_engine_info)`.
 *
 * The caller promises: `info` points to `size` writable bytes.
 */
oxidize_status oxidize_engine_get_info(oxidize_engine engine, oxidize_engine_info *info, size_t size);

/**
 * Queues a request, and returns a stream of the tokens of its answer at once. Any number of threads may submit to one
 * engine; requests that run at the same time share every step.
 *
 * The request stays as it is, and may be changed, submitted again or freed. Free the stream with `oxidize_stream_free`.
 * On failure, `*stream` is 0. A full queue is reported by the stream.
 *
 * The caller promises: `stream` points to room for a handle.
 */
oxidize_status oxidize_engine_submit(oxidize_engine engine, oxidize_request request, oxidize_stream *stream);

/**
 * Sets options to their defaults: the sampling settings that the authors of `model` recommend, or with 0 those of
 * llama.cpp. `size` is `sizeof(oxidize_request_options)`.
 *
 * The caller promises: `options` is null, or points to `size` writable bytes.
 */
oxidize_status oxidize_request_options_init(oxidize_request_options *options, size_t size, oxidize_model model);

/**
 * Makes a request without a prompt. With null, the sampling settings are those of the model that answers it. On
 * failure, `*request` is 0.
 *
 * The caller promises: `options` is null or initialized. `request` points to room for a handle.
 */
oxidize_status oxidize_request_new(const oxidize_request_options *options, oxidize_request *request);

/**
 * Frees a request. Answers to it go on.
 */
oxidize_status oxidize_request_free(oxidize_request request);

/**
 * Sets the prompt to a text to continue. Special tokens such as BOS are added as the model expects.
 *
 * The caller promises: `text` points to `text_length` bytes, or ends with NUL.
 */
oxidize_status oxidize_request_set_text(oxidize_request request, const char *text, size_t text_length);

/**
 * Sets the prompt to tokens, which are used as they are.
 *
 * The caller promises: `tokens` points to `n_tokens` elements.
 */
oxidize_status oxidize_request_set_tokens(oxidize_request request, const uint32_t *tokens, size_t n_tokens);

/**
 * Adds a message to the prompt, which becomes a conversation if it is none. `role` is "system", "user", "assistant" or
 * another that the chat template knows.
 *
 * The caller promises: `role` points to `role_length` bytes, or ends with NUL; so does `text` with `text_length`.
 */
oxidize_status oxidize_request_add_message(oxidize_request request,
                                           const char *role,
                                           size_t role_length,
                                           const char *text,
                                           size_t text_length);

/**
 * Sets the prompt to a conversation in JSON: a list of messages in the format of OpenAI's API, or an object with
 * `messages` and any of `tools`, `documents`, `template_args`, `add_generation_prompt`, `continue_final_message`,
 * `thinking` (true or false) and `thinking_budget`.
 *
 * The caller promises: `json` points to `json_length` bytes, or ends with NUL.
 */
oxidize_status oxidize_request_set_conversation(oxidize_request request, const char *json, size_t json_length);

/**
 * Copies the prompt of a request, as `model` reads it, into `buffer`: a conversation rendered with the chat template, a
 * text as it is, or the text of tokens.
 *
 * The caller promises: `buffer` points to `capacity` writable bytes; `length` is null or points to room for a length.
 */
oxidize_status oxidize_request_render(oxidize_request request,
                                      oxidize_model model,
                                      char *buffer,
                                      size_t capacity,
                                      size_t *length);

/**
 * Adds a text that ends the answer and is not part of it.
 *
 * The caller promises: `text` points to `text_length` bytes, or ends with NUL.
 */
oxidize_status oxidize_request_add_stop(oxidize_request request, const char *text, size_t text_length);

/**
 * Adds a token that ends the answer and is not part of it.
 */
oxidize_status oxidize_request_add_stop_token(oxidize_request request, uint32_t token);

/**
 * Adds `bias` to the logit of a token; minus infinity bans the token.
 */
oxidize_status oxidize_request_add_logit_bias(oxidize_request request, uint32_t token, float bias);

/**
 * Sets the order of the samplers: their names, separated by semicolons, such as "top_k;top_p;temperature".
 *
 * The caller promises: `names` points to `names_length` bytes, or ends with NUL.
 */
oxidize_status oxidize_request_set_samplers(oxidize_request request, const char *names, size_t names_length);

/**
 * Constrains the answer to a grammar. `kind` is one of `oxidize_grammar_kind`. A grammar is compiled when the request is
 * submitted; that is when most of its errors are reported.
 *
 * The caller promises: `text` points to `text_length` bytes, or ends with NUL.
 */
oxidize_status oxidize_request_set_grammar(oxidize_request request,
                                           int32_t kind,
                                           const char *text,
                                           size_t text_length);

/**
 * Sets the scale of each LoRA adapter of the model, in the order of `oxidize_model_with_loras`. Without a call, they
 * have their default scales; adapters beyond `n_scales` are off.
 *
 * The caller promises: `scales` points to `n_scales` elements.
 */
oxidize_status oxidize_request_set_lora_scales(oxidize_request request, const float *scales, size_t n_scales);

/**
 * Waits for the next token, and copies its text into `buffer`.
 *
 * Waits at most `timeout_ms` milliseconds, not at all with 0, and as long as it takes with a negative number. Returns
 * `OXIDIZE_STATUS_OK` with a token, `OXIDIZE_STATUS_END` after the last, or `OXIDIZE_STATUS_PENDING` if there is none
 * yet. If the text and a NUL do not fit into `capacity` bytes, `token->text_length` has its length, and the next call
 * returns the same token.
 *
 * The caller promises: `token` points to room for an `oxidize_stream_token`; `buffer` points to `capacity` writable bytes.
 */
oxidize_status oxidize_stream_next(oxidize_stream stream,
                                   int64_t timeout_ms,
                                   oxidize_stream_token *token,
                                   char *buffer,
                                   size_t capacity);

/**
 * Copies the most likely tokens at the place of the token that was read last into `entries`, most likely first.
 *
 * The caller promises: `entries` points to room for `capacity` elements; `n_entries` is null or points to room for a number.
 */
oxidize_status oxidize_stream_top_logprobs(oxidize_stream stream,
                                           oxidize_token_logprob *entries,
                                           size_t capacity,
                                           size_t *n_entries);

/**
 * Reads a stream to its end, and passes every token to `callback`, which may be null. Returns `OXIDIZE_STATUS_END` at
 * the end of the answer, also if the callback or another thread canceled it; `oxidize_stream_get_result` has the reason.
 *
 * The caller promises: `callback` is null or a function of its type that accepts `user_data`.
 */
oxidize_status oxidize_stream_read(oxidize_stream stream,
                                   oxidize_token_callback callback,
                                   void *user_data);

/**
 * Cancels a request, from any thread. A thread that is reading gets `OXIDIZE_STATUS_END`. Nothing happens after the end.
 */
oxidize_status oxidize_stream_cancel(oxidize_stream stream);

/**
 * Copies the finish reason, counts and timings of an answer that was read to its end. Before the end, it returns
 * `OXIDIZE_STATUS_PENDING`; for an answer that failed, the failure.
 *
 * The caller promises: `result` points to room for an `oxidize_stream_result`.
 */
oxidize_status oxidize_stream_get_result(oxidize_stream stream, oxidize_stream_result *result);

/**
 * Frees a stream, and cancels its request unless it has ended. A thread that is reading gets `OXIDIZE_STATUS_END`.
 */
oxidize_status oxidize_stream_free(oxidize_stream stream);

/**
 * Sets options to their defaults. `size` is `sizeof(oxidize_embedder_options)`.
 *
 * The caller promises: `options` is null, or points to `size` writable bytes.
 */
oxidize_status oxidize_embedder_options_init(oxidize_embedder_options *options, size_t size);

/**
 * Prepares a model for embeddings or reranking. `options` may be null. Free it with `oxidize_embedder_free`; the model's
 * handle may be freed before. On failure, `*embedder` is 0.
 *
 * The caller promises: `options` is null or initialized. `embedder` points to room for a handle.
 */
oxidize_status oxidize_embedder_new(oxidize_model model,
                                    const oxidize_embedder_options *options,
                                    oxidize_embedder *embedder);

/**
 * Frees an embedder, once a call that uses it has returned.
 */
oxidize_status oxidize_embedder_free(oxidize_embedder embedder);

/**
 * Writes the number of floats in an embedding to `width`.
 *
 * The caller promises: `width` points to room for a number.
 */
oxidize_status oxidize_embedder_width(oxidize_embedder embedder, size_t *width);

/**
 * Computes the embeddings of texts, one after the other in `vectors`, which needs room for `n_texts` times the width. If
 * there is less, nothing is computed, and `*n_floats` is the number that is needed.
 *
 * Calls on one embedder wait for each other; texts of one call share the steps.
 *
 * The caller promises: `texts` points to `n_texts` elements, each of which points to `length` bytes or ends with NUL; `vectors` points to room
 * for `capacity` floats; `n_floats` is null or points to room for a number.
 */
oxidize_status oxidize_embedder_embed(oxidize_embedder embedder,
                                      const oxidize_text *texts,
                                      size_t n_texts,
                                      float *vectors,
                                      size_t capacity,
                                      size_t *n_floats);

/**
 * Scores documents for a query with a reranking model, into `scores`, which needs room for `n_documents`; higher is more
 * relevant.
 *
 * The caller promises: `query` points to `query_length` bytes, or ends with NUL; `documents` points to `n_documents` elements, each of which
 * points to `length` bytes or ends with NUL; `scores` points to room for `capacity` floats.
 */
oxidize_status oxidize_embedder_rerank(oxidize_embedder embedder,
                                       const char *query,
                                       size_t query_length,
                                       const oxidize_text *documents,
                                       size_t n_documents,
                                       float *scores,
                                       size_t capacity);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* OXIDIZE_H */
