//! Fields of the APIs besides those in the schemas of the requests: fields without influence on an answer, other
//! names, and fields that are refused unless their value changes nothing.

use super::Literal::{Bool, Empty, Integer, List, Text};
use super::OtherField;

const fn any(path: &'static str) -> OtherField {
    OtherField::any(path)
}

const fn only(
    path: &'static str,
    values: &'static [super::Literal],
    reason: &'static str,
) -> OtherField {
    OtherField::only(path, values, reason)
}

/// Other names of the sampling fields.
pub const SAMPLING: &[OtherField] = &[
    any("typ_p"),
    any("repetition_penalty"),
    any("penalize_nl"),
    any("bad_words"),
    any("n_draft"),
];

/// Other names of the fields of reasoning, and fields of llama-server that say how its parser works.
pub const REASONING: &[OtherField] = &[
    any("reasoning_budget"),
    any("reasoning_budget_tokens"),
    any("reasoning_in_content"),
    any("thinking_budget_tokens"),
    any("thinking_forced_open"),
    any("thinking_token_budget"),
];

/// Fields of reasoning, where there is no conversation and so no reasoning.
pub const NO_REASONING: &[OtherField] = &[
    any("enable_thinking"),
    any("include_reasoning"),
    any("reasoning"),
    any("reasoning_effort"),
    any("reasoning_format"),
    any("thinking"),
    any("thinking_budget"),
];

const NOT_STORED: &str = "answers are not stored";
const ONE_TIER: &str = "there is one tier of service";

/// Fields of OpenAI's chat completions and completions.
pub const OPENAI: &[OtherField] = &[
    any("metadata"),
    any("prompt_cache_key"),
    any("prompt_cache_retention"),
    any("safety_identifier"),
    any("stream_options.include_obfuscation"),
    any("user"),
    only("audio", &[], "answers are text"),
    only("modalities", &[List("text")], "answers are text"),
    only("service_tier", &[Text("auto"), Text("default")], ONE_TIER),
    only("store", &[Bool(false)], NOT_STORED),
    only(
        "verbosity",
        &[Text("medium")],
        "the length of answers cannot be set",
    ),
    only(
        "web_search_options",
        &[],
        "the server does not search the web",
    ),
];

/// Fields of vLLM.
pub const VLLM: &[OtherField] = &[
    any("data_parallel_rank"),
    any("guided_decoding_backend"),
    any("request_id"),
    only("allowed_token_ids", &[Empty], "use logit_bias or a grammar"),
    only("detokenize", &[Bool(true)], "answers are text"),
    only(
        "early_stopping",
        &[Bool(false)],
        "a beam search ends when its answers are certain",
    ),
    only(
        "guided_whitespace_pattern",
        &[],
        "use guided_grammar or guided_regex",
    ),
    only(
        "include_stop_str_in_output",
        &[Bool(false)],
        "an answer ends before the stop string",
    ),
    only("kv_transfer_params", &[], "caches are not transferred"),
    only(
        "logits_processors",
        &[Empty],
        "requests cannot contain code",
    ),
    only("mm_processor_kwargs", &[Empty], "prompts are text"),
    only(
        "return_token_ids",
        &[Bool(false)],
        "use logprobs, which have token ids",
    ),
    only(
        "return_tokens_as_token_ids",
        &[Bool(false)],
        "use the `id` of logprobs",
    ),
    only(
        "skip_special_tokens",
        &[Bool(true)],
        "answers have no special tokens",
    ),
    only(
        "spaces_between_special_tokens",
        &[Bool(true)],
        "answers have no special tokens",
    ),
    only(
        "stream_options.continuous_usage_stats",
        &[Bool(false)],
        "usage comes at the end",
    ),
    only(
        "truncate_prompt_tokens",
        &[],
        "a long prompt is an error and is not cut",
    ),
    only("vllm_xargs", &[Empty], "the server has no extensions"),
];

/// Fields of vLLM's chat completions.
pub const VLLM_CHAT: &[OtherField] = &[
    only(
        "add_special_tokens",
        &[Bool(false)],
        "the chat template adds special tokens",
    ),
    only(
        "chat_template",
        &[],
        "set --chat-template when the server starts",
    ),
    only("echo", &[Bool(false)], "use /v1/completions"),
];

/// Fields of vLLM's completions.
pub const VLLM_COMPLETIONS: &[OtherField] = &[only(
    "add_special_tokens",
    &[Bool(true)],
    "send token ids to add none",
)];

/// Fields of llama-server's generating endpoints.
pub const LLAMA_SERVER: &[OtherField] = &[
    any("backend_sampling"),
    any("chat_format"),
    any("id_slot"),
    any("n_cache_reuse"),
    any("n_discard"),
    any("n_keep"),
    any("preserved_tokens"),
    any("slot_id"),
    any("sse_ping_interval"),
    only(
        "grammar_lazy",
        &[Bool(false)],
        "grammars hold from the first token",
    ),
    only(
        "grammar_triggers",
        &[Empty],
        "grammars hold from the first token",
    ),
    only("image_data", &[Empty], "prompts are text"),
    only(
        "min_keep",
        &[Integer(0), Integer(1)],
        "samplers may leave one token",
    ),
    only("n_indent", &[Integer(0)], "use a grammar"),
    only(
        "parse_tool_calls",
        &[Bool(true)],
        "use /v1/completions for plain text",
    ),
    only(
        "post_sampling_probs",
        &[Bool(false)],
        "probabilities are those of the model",
    ),
    only("response_fields", &[Empty], "answers have all fields"),
    only(
        "t_max_predict_ms",
        &[Integer(0), Integer(-1)],
        "use max_tokens",
    ),
    only(
        "t_max_prompt_ms",
        &[Integer(0), Integer(-1)],
        "use --timeout",
    ),
    only(
        "timings_per_token",
        &[Bool(false)],
        "timings come at the end",
    ),
];

/// Other names of fields of `/completion`.
pub const NATIVE: &[OtherField] = &[any("logprobs"), any("user")];

/// Fields of vLLM's tokenizer.
pub const TOKENIZE: &[OtherField] = &[
    any("add_special_tokens"),
    any("prompt"),
    only("return_token_strs", &[Bool(false)], "use with_pieces"),
];

/// Fields of OpenAI's responses.
pub const RESPONSES: &[OtherField] = &[
    any("prompt_cache_key"),
    any("prompt_cache_retention"),
    any("reasoning.generate_summary"),
    any("reasoning.summary"),
    any("safety_identifier"),
    any("stream_options"),
    any("text.format.description"),
    any("text.format.name"),
    any("text.format.strict"),
    any("user"),
    only(
        "background",
        &[Bool(false)],
        "an answer is sent when it is ready",
    ),
    only("conversation", &[], NOT_STORED),
    // The reasoning is part of the answer, not encrypted.
    only(
        "include",
        &[Empty, List("reasoning.encrypted_content")],
        "answers have all parts that the server knows",
    ),
    only("max_tool_calls", &[], "the client makes the calls"),
    only("modalities", &[List("text")], "answers are text"),
    only("prompt", &[], "the server has no stored prompts"),
    only("service_tier", &[Text("auto"), Text("default")], ONE_TIER),
    only("store", &[Bool(false)], NOT_STORED),
    only(
        "text.verbosity",
        &[Text("medium")],
        "the length of answers cannot be set",
    ),
    only("top_logprobs", &[Integer(0)], "use /v1/chat/completions"),
    only(
        "truncation",
        &[Text("disabled")],
        "a long conversation is an error and is not cut",
    ),
];

/// Fields of OpenAI's embeddings, and of vLLM's and llama-server's.
pub const EMBEDDINGS: &[OtherField] = &[
    any("content"),
    any("user"),
    only("embd_normalize", &[Integer(2)], "embeddings have length 1"),
    only(
        "truncate_prompt_tokens",
        &[],
        "a long text is an error and is not cut",
    ),
];

/// Fields of rerankers.
pub const RERANK: &[OtherField] = &[
    any("user"),
    only("max_chunks_per_doc", &[], "documents are not cut"),
    only("max_tokens_per_doc", &[], "documents are not cut"),
    only("rank_fields", &[], "documents have one text"),
    only(
        "truncate_prompt_tokens",
        &[],
        "a long text is an error and is not cut",
    ),
];

/// Fields of Anthropic's messages.
pub const ANTHROPIC: &[OtherField] = &[
    any("cache_control"),
    any("inference_geo"),
    any("messages.content.cache_control"),
    any("messages.content.caller"),
    any("messages.content.citations"),
    any("messages.content.content.cache_control"),
    any("messages.content.content.citations"),
    any("messages.content.data"),
    any("messages.content.is_error"),
    any("messages.content.signature"),
    any("messages.content.source"),
    any("metadata"),
    any("system.cache_control"),
    any("system.citations"),
    any("tools.cache_control"),
    any("tools.eager_input_streaming"),
    any("tools.input_examples"),
    any("tools.strict"),
    only("container", &[], "the server runs no code"),
    only("mcp_servers", &[Empty], "the server makes no calls"),
    only(
        "service_tier",
        &[Text("auto"), Text("standard_only")],
        ONE_TIER,
    ),
    only(
        "tools.type",
        &[Text("custom")],
        "the server has no tools of its own",
    ),
];

const NO_SHIFT: &str = "a long prompt is an error and is not cut";

/// Fields of Ollama's endpoints.
pub const OLLAMA: &[OtherField] = &[
    // How a model is loaded is set when the server starts.
    any("options.draft_num_predict"),
    any("options.embedding_only"),
    any("options.f16_kv"),
    any("options.logits_all"),
    any("options.low_vram"),
    any("options.main_gpu"),
    any("options.num_batch"),
    any("options.num_gpu"),
    any("options.num_keep"),
    any("options.num_thread"),
    any("options.numa"),
    any("options.use_mlock"),
    any("options.use_mmap"),
    // Other names of the sampling fields.
    any("options.bad_words"),
    any("options.penalize_nl"),
    any("options.repetition_penalty"),
    any("options.typ_p"),
    any("messages.tool_call_id"),
    any("messages.tool_calls.function.index"),
    any("messages.tool_calls.id"),
    any("messages.tool_calls.type"),
    only("context", &[Empty], "use /api/chat for a conversation"),
    only("logprobs", &[Bool(false)], "use /v1/chat/completions"),
    only(
        "options.vocab_only",
        &[Bool(false)],
        "models are loaded whole",
    ),
    only("shift", &[Bool(false)], NO_SHIFT),
    only(
        "template",
        &[Empty],
        "set --chat-template when the server starts",
    ),
    only("top_logprobs", &[Integer(0)], "use /v1/chat/completions"),
    only("truncate", &[Bool(false)], NO_SHIFT),
];

/// Fields of Ollama's `/api/show`.
pub const OLLAMA_SHOW: &[OtherField] = &[
    only(
        "options",
        &[Empty],
        "set options in the request for an answer",
    ),
    only("system", &[Empty], "set it in the request for an answer"),
    only(
        "template",
        &[Empty],
        "set --chat-template when the server starts",
    ),
    only("verbose", &[Bool(false)], "the vocabulary is not listed"),
];
