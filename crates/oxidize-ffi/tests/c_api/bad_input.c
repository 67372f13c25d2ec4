/* Everything that a caller can do wrong and the library can see: each is a status and a message, and nothing breaks. */

#include "check.h"

#include <math.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#define BAD_ARGUMENT OXIDIZE_STATUS_INVALID_ARGUMENT
#define BAD_HANDLE OXIDIZE_STATUS_INVALID_HANDLE
#define BAD_UTF8 OXIDIZE_STATUS_INVALID_UTF8
#define TOO_SMALL OXIDIZE_STATUS_BUFFER_TOO_SMALL

static const char *model_path;
static oxidize_model model;

static oxidize_request request_of(const char *prompt, uint64_t max_tokens) {
    oxidize_request_options options;
    OK(oxidize_request_options_init(&options, sizeof options, 0));
    options.max_tokens = max_tokens;
    options.ignore_eos = 1;
    oxidize_request request;
    OK(oxidize_request_new(&options, &request));
    OK(oxidize_request_set_text(request, prompt, NUL));
    return request;
}

static oxidize_engine small_engine(void) {
    oxidize_engine_options options;
    OK(oxidize_engine_options_init(&options, sizeof options));
    options.n_threads = 2;
    options.max_sequences = 2;
    oxidize_engine engine;
    OK(oxidize_engine_new(model, &options, &engine));
    return engine;
}

static void null_pointers(void) {
    char buffer[16];
    size_t length;
    oxidize_model other = 7;
    REFUSES(BAD_ARGUMENT, "path is null", oxidize_model_load(NULL, NUL, NULL, &other));
    CHECK(other == 0);
    REFUSES(BAD_ARGUMENT, "path is null", oxidize_model_load(NULL, 3, NULL, &other));
    REFUSES(BAD_ARGUMENT, "model is null", oxidize_model_load(model_path, NUL, NULL, NULL));
    REFUSES(BAD_ARGUMENT, "oxidize_model_options is null", oxidize_model_options_init(NULL, 32));
    REFUSES(BAD_ARGUMENT, "oxidize_engine_options is null", oxidize_engine_options_init(NULL, 32));
    REFUSES(BAD_ARGUMENT, "oxidize_request_options is null", oxidize_request_options_init(NULL, 32, 0));
    REFUSES(BAD_ARGUMENT, "oxidize_embedder_options is null", oxidize_embedder_options_init(NULL, 32));
    REFUSES(BAD_ARGUMENT, "engine is null", oxidize_engine_new(model, NULL, NULL));
    REFUSES(BAD_ARGUMENT, "embedder is null", oxidize_embedder_new(model, NULL, NULL));
    REFUSES(BAD_ARGUMENT, "request is null", oxidize_request_new(NULL, NULL));
    REFUSES(BAD_ARGUMENT, "lora is null", oxidize_lora_load("x", NUL, NULL));
    REFUSES(BAD_ARGUMENT, "is null", oxidize_model_get_info(model, NULL, sizeof(oxidize_model_info)));
    REFUSES(BAD_ARGUMENT, "key is null", oxidize_model_metadata(model, NULL, NUL, buffer, 16, &length));
    REFUSES(BAD_ARGUMENT, "buffer is null", oxidize_model_architecture(model, NULL, 16, &length));
    REFUSES(BAD_ARGUMENT, "text is null", oxidize_tokenize(model, NULL, 4, 0, NULL, 0, &length));
    REFUSES(BAD_ARGUMENT, "tokens is null", oxidize_detokenize(model, NULL, 4, 0, buffer, 16, &length));
    REFUSES(BAD_ARGUMENT, "loras is null", oxidize_model_with_loras(model, NULL, NULL, 1, &other));

    oxidize_request request = request_of("a", 1);
    REFUSES(BAD_ARGUMENT, "text is null", oxidize_request_set_text(request, NULL, 1));
    REFUSES(BAD_ARGUMENT, "tokens is null", oxidize_request_set_tokens(request, NULL, 1));
    REFUSES(BAD_ARGUMENT, "role is null", oxidize_request_add_message(request, NULL, NUL, "a", NUL));
    REFUSES(BAD_ARGUMENT, "text is null", oxidize_request_add_message(request, "user", NUL, NULL, NUL));
    REFUSES(BAD_ARGUMENT, "json is null", oxidize_request_set_conversation(request, NULL, NUL));
    REFUSES(BAD_ARGUMENT, "text is null", oxidize_request_set_grammar(request, 0, NULL, NUL));
    REFUSES(BAD_ARGUMENT, "text is null", oxidize_request_add_stop(request, NULL, NUL));
    REFUSES(BAD_ARGUMENT, "names is null", oxidize_request_set_samplers(request, NULL, NUL));
    REFUSES(BAD_ARGUMENT, "scales is null", oxidize_request_set_lora_scales(request, NULL, 1));
    oxidize_engine engine = small_engine();
    REFUSES(BAD_ARGUMENT, "stream is null", oxidize_engine_submit(engine, request, NULL));
    oxidize_stream stream;
    OK(oxidize_engine_submit(engine, request, &stream));
    REFUSES(BAD_ARGUMENT, "token is null", oxidize_stream_next(stream, -1, NULL, buffer, sizeof buffer));
    oxidize_stream_token token;
    REFUSES(BAD_ARGUMENT, "buffer is null", oxidize_stream_next(stream, -1, &token, NULL, 16));
    /* Without a callback, the answer is read and thrown away. */
    CHECK(oxidize_stream_read(stream, NULL, NULL) == OXIDIZE_STATUS_END);
    REFUSES(BAD_ARGUMENT, "result is null", oxidize_stream_get_result(stream, NULL));
    OK(oxidize_stream_free(stream));
    OK(oxidize_engine_free(engine));
    OK(oxidize_request_free(request));

    oxidize_embedder embedder;
    OK(oxidize_embedder_new(model, NULL, &embedder));
    REFUSES(BAD_ARGUMENT, "width is null", oxidize_embedder_width(embedder, NULL));
    REFUSES(BAD_ARGUMENT, "texts is null", oxidize_embedder_embed(embedder, NULL, 1, NULL, 0, NULL));
    oxidize_text text = {NULL, 3};
    REFUSES(BAD_ARGUMENT, "text 0 is null", oxidize_embedder_embed(embedder, &text, 1, NULL, 0, NULL));
    text.data = "abc";
    float vector[1];
    REFUSES(TOO_SMALL, "needed", oxidize_embedder_embed(embedder, &text, 1, vector, 1, &length));
    CHECK(length > 1);
    REFUSES(BAD_ARGUMENT, "buffer is null", oxidize_embedder_embed(embedder, &text, 1, NULL, length, NULL));
    OK(oxidize_embedder_free(embedder));
}

/* Every function refuses a handle of every other kind, 0, a freed one and made-up ones. */
static void handles(void) {
    oxidize_engine engine = small_engine();
    oxidize_request request = request_of("a", 1), freed = request_of("a", 1);
    oxidize_stream stream;
    OK(oxidize_engine_submit(engine, request, &stream));
    oxidize_embedder embedder;
    OK(oxidize_embedder_new(model, NULL, &embedder));
    OK(oxidize_request_free(freed));
    REFUSES(BAD_HANDLE, "was freed", oxidize_request_free(freed));
    oxidize_request reused = request_of("a", 1);
    CHECK(reused != freed);
    REFUSES(BAD_HANDLE, "was freed", oxidize_request_add_stop_token(freed, 1));

    uint64_t all[] = {0, freed, model, engine, request, stream, embedder, UINT64_MAX, 1, UINT64_C(1) << 32 | 4000000};
    char buffer[16];
    size_t length;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        uint64_t handle = all[i];
        const char *part = handle == 0 ? "is 0" : "not a handle of";
        oxidize_stream_token token;
        oxidize_stream_result result;
        oxidize_model_info model_info;
        oxidize_engine_info engine_info;
        uint64_t out;
        if (handle != model) {
            REFUSES(BAD_HANDLE, part, oxidize_model_free(handle));
            REFUSES(BAD_HANDLE, part, oxidize_model_get_info(handle, &model_info, sizeof model_info));
            REFUSES(BAD_HANDLE, part, oxidize_model_architecture(handle, buffer, 16, &length));
            REFUSES(BAD_HANDLE, part, oxidize_model_metadata(handle, "a", NUL, buffer, 16, &length));
            REFUSES(BAD_HANDLE, part, oxidize_model_metadata_key(handle, 0, buffer, 16, &length));
            REFUSES(BAD_HANDLE, part, oxidize_model_chat_template(handle, buffer, 16, &length));
            REFUSES(BAD_HANDLE, part, oxidize_model_with_loras(handle, NULL, NULL, 0, &out));
            REFUSES(BAD_HANDLE, part, oxidize_tokenize(handle, "a", NUL, 0, NULL, 0, &length));
            REFUSES(BAD_HANDLE, part, oxidize_detokenize(handle, NULL, 0, 0, buffer, 16, &length));
            REFUSES(BAD_HANDLE, part, oxidize_token_bytes(handle, 0, NULL, 0, &length));
            REFUSES(BAD_HANDLE, part, oxidize_engine_new(handle, NULL, &out));
            REFUSES(BAD_HANDLE, part, oxidize_embedder_new(handle, NULL, &out));
            REFUSES(BAD_HANDLE, part, oxidize_request_render(request, handle, buffer, 16, &length));
        }
        oxidize_request_options options;
        if (handle != model && handle != 0) {
            REFUSES(BAD_HANDLE, part, oxidize_request_options_init(&options, sizeof options, handle));
        }
        if (handle != engine) {
            REFUSES(BAD_HANDLE, part, oxidize_engine_free(handle));
            REFUSES(BAD_HANDLE, part, oxidize_engine_get_info(handle, &engine_info, sizeof engine_info));
            REFUSES(BAD_HANDLE, part, oxidize_engine_submit(handle, request, &out));
            CHECK(out == 0);
        }
        if (handle != request) {
            REFUSES(BAD_HANDLE, part, oxidize_request_free(handle));
            REFUSES(BAD_HANDLE, part, oxidize_request_set_text(handle, "a", NUL));
            REFUSES(BAD_HANDLE, part, oxidize_request_set_tokens(handle, NULL, 0));
            REFUSES(BAD_HANDLE, part, oxidize_request_add_message(handle, "user", NUL, "a", NUL));
            REFUSES(BAD_HANDLE, part, oxidize_request_set_conversation(handle, "[]", NUL));
            REFUSES(BAD_HANDLE, part, oxidize_request_set_grammar(handle, 2, NULL, 0));
            REFUSES(BAD_HANDLE, part, oxidize_request_set_samplers(handle, "top_k", NUL));
            REFUSES(BAD_HANDLE, part, oxidize_request_set_lora_scales(handle, NULL, 0));
            REFUSES(BAD_HANDLE, part, oxidize_request_add_stop(handle, "a", NUL));
            REFUSES(BAD_HANDLE, part, oxidize_request_add_stop_token(handle, 1));
            REFUSES(BAD_HANDLE, part, oxidize_request_add_logit_bias(handle, 1, 1));
            REFUSES(BAD_HANDLE, part, oxidize_request_render(handle, model, buffer, 16, &length));
            REFUSES(BAD_HANDLE, part, oxidize_engine_submit(engine, handle, &out));
        }
        if (handle != stream) {
            REFUSES(BAD_HANDLE, part, oxidize_stream_next(handle, -1, &token, buffer, sizeof buffer));
            REFUSES(BAD_HANDLE, part, oxidize_stream_read(handle, NULL, NULL));
            REFUSES(BAD_HANDLE, part, oxidize_stream_top_logprobs(handle, NULL, 0, &length));
            REFUSES(BAD_HANDLE, part, oxidize_stream_get_result(handle, &result));
            REFUSES(BAD_HANDLE, part, oxidize_stream_cancel(handle));
            REFUSES(BAD_HANDLE, part, oxidize_stream_free(handle));
        }
        if (handle != embedder) {
            REFUSES(BAD_HANDLE, part, oxidize_embedder_width(handle, &length));
            REFUSES(BAD_HANDLE, part, oxidize_embedder_embed(handle, NULL, 0, NULL, 0, NULL));
            REFUSES(BAD_HANDLE, part, oxidize_embedder_rerank(handle, "a", NUL, NULL, 0, NULL, 0));
            REFUSES(BAD_HANDLE, part, oxidize_embedder_free(handle));
        }
        REFUSES(BAD_HANDLE, part, oxidize_lora_free(handle));
        REFUSES(BAD_HANDLE, part, oxidize_model_with_loras(model, &handle, NULL, 1, &out));
    }
    OK(oxidize_stream_free(stream));
    OK(oxidize_embedder_free(embedder));
    OK(oxidize_request_free(request));
    OK(oxidize_request_free(reused));
    OK(oxidize_engine_free(engine));
    REFUSES(BAD_HANDLE, "was freed", oxidize_engine_free(engine));
}

static void texts(void) {
    const char broken[] = "ab\xff";
    oxidize_model other;
    size_t length;
    REFUSES(BAD_UTF8, "path is not UTF-8: the byte at 2", oxidize_model_load(broken, NUL, NULL, &other));
    REFUSES(BAD_UTF8, "byte at 2", oxidize_tokenize(model, broken, 3, 0, NULL, 0, &length));
    /* A character that is cut, a surrogate, and one that is too long. */
    REFUSES(BAD_UTF8, "byte at 0", oxidize_tokenize(model, "\xe2\x82", 2, 0, NULL, 0, &length));
    REFUSES(BAD_UTF8, "byte at 0", oxidize_tokenize(model, "\xed\xa0\x80", NUL, 0, NULL, 0, &length));
    REFUSES(BAD_UTF8, "byte at 0", oxidize_tokenize(model, "\xc0\x80", NUL, 0, NULL, 0, &length));
    REFUSES(BAD_UTF8, "path", oxidize_lora_load(broken, NUL, &other));
    REFUSES(BAD_UTF8, "key", oxidize_model_metadata(model, broken, NUL, NULL, 0, &length));
    oxidize_request request = request_of("a", 1);
    REFUSES(BAD_UTF8, "text", oxidize_request_set_text(request, broken, NUL));
    REFUSES(BAD_UTF8, "role", oxidize_request_add_message(request, broken, NUL, "a", NUL));
    REFUSES(BAD_UTF8, "text", oxidize_request_add_message(request, "user", NUL, broken, NUL));
    REFUSES(BAD_UTF8, "json", oxidize_request_set_conversation(request, broken, NUL));
    REFUSES(BAD_UTF8, "text", oxidize_request_add_stop(request, broken, NUL));
    REFUSES(BAD_UTF8, "text", oxidize_request_set_grammar(request, OXIDIZE_GRAMMAR_KIND_GBNF, broken, NUL));
    REFUSES(BAD_UTF8, "names", oxidize_request_set_samplers(request, broken, NUL));
    oxidize_embedder embedder;
    OK(oxidize_embedder_new(model, NULL, &embedder));
    oxidize_text list[] = {{"fine", NUL}, {broken, 3}};
    REFUSES(BAD_UTF8, "text 1", oxidize_embedder_embed(embedder, list, 2, NULL, 0, NULL));
    REFUSES(BAD_UTF8, "query", oxidize_embedder_rerank(embedder, broken, NUL, NULL, 0, NULL, 0));
    OK(oxidize_embedder_free(embedder));

    REFUSES(OXIDIZE_STATUS_IO, "/no/such/model", oxidize_model_load("/no/such/model", NUL, NULL, &other));
    REFUSES(OXIDIZE_STATUS_MODEL, "not a known model format", oxidize_model_load("/dev/shm", NUL, NULL, &other));
    REFUSES(OXIDIZE_STATUS_NOT_FOUND, "no key", oxidize_model_metadata(model, "no.such.key", NUL, NULL, 0, NULL));
    REFUSES(OXIDIZE_STATUS_NOT_FOUND, "metadata key 1000000", oxidize_model_metadata_key(model, 1000000, NULL, 0, NULL));
    REFUSES(BAD_ARGUMENT, "conversation", oxidize_request_set_conversation(request, "{", NUL));
    REFUSES(BAD_ARGUMENT, "neither", oxidize_request_set_conversation(request, "3", NUL));
    REFUSES(BAD_ARGUMENT, "messages", oxidize_request_set_conversation(request, "[{\"content\": 5}]", NUL));
    REFUSES(BAD_ARGUMENT, "surprise is not known",
            oxidize_request_set_conversation(request, "{\"messages\": [], \"surprise\": 1}", NUL));
    REFUSES(BAD_ARGUMENT, "thinking must be",
            oxidize_request_set_conversation(request, "{\"messages\": [], \"thinking\": 1}", NUL));
    REFUSES(BAD_ARGUMENT, "schema", oxidize_request_set_grammar(request, OXIDIZE_GRAMMAR_KIND_JSON_SCHEMA, "{", NUL));
    REFUSES(BAD_ARGUMENT, "kind of grammar 5", oxidize_request_set_grammar(request, 5, "a", NUL));
    REFUSES(BAD_ARGUMENT, "unknown sampler", oxidize_request_set_samplers(request, "top_k;bottom_k", NUL));
    REFUSES(BAD_ARGUMENT, "stop is 0 bytes", oxidize_request_add_stop(request, "", NUL));
    oxidize_engine engine = small_engine();
    oxidize_stream stream;
    OK(oxidize_request_set_grammar(request, OXIDIZE_GRAMMAR_KIND_GBNF, "root ::= missing", NUL));
    REFUSES(BAD_ARGUMENT, "grammar", oxidize_engine_submit(engine, request, &stream));
    CHECK(stream == 0);
    OK(oxidize_request_free(request));
    OK(oxidize_request_new(NULL, &request));
    REFUSES(BAD_ARGUMENT, "no prompt", oxidize_engine_submit(engine, request, &stream));
    OK(oxidize_request_set_conversation(request, "[]", NUL));
    REFUSES(BAD_ARGUMENT, "no messages", oxidize_engine_submit(engine, request, &stream));
    OK(oxidize_request_free(request));
    OK(oxidize_engine_free(engine));
}

static void numbers(void) {
    size_t length;
    uint32_t tokens[4];
    oxidize_engine engine = small_engine();
    oxidize_engine other;
    oxidize_stream stream;

    /* Lengths that no memory has. The pointers are never followed. */
    REFUSES(BAD_ARGUMENT, "more than memory", oxidize_tokenize(model, "abc", SIZE_MAX - 1, 0, tokens, 4, &length));
    REFUSES(BAD_ARGUMENT, "more than memory", oxidize_tokenize(model, "abc", NUL, 0, tokens, SIZE_MAX, &length));
    REFUSES(BAD_ARGUMENT, "more than memory", oxidize_detokenize(model, tokens, SIZE_MAX / 2, 0, NULL, 0, &length));
    REFUSES(BAD_ARGUMENT, "not aligned",
            oxidize_detokenize(model, (const uint32_t *)(const void *)((const char *)tokens + 1), 1, 0, NULL, 0, &length));
    REFUSES(BAD_ARGUMENT, "flags 0x8", oxidize_tokenize(model, "abc", NUL, 8, tokens, 4, &length));
    REFUSES(BAD_ARGUMENT, "flags 0x4", oxidize_detokenize(model, tokens, 0, 4, NULL, 0, &length));
    tokens[0] = UINT32_MAX;
    REFUSES(BAD_ARGUMENT, "token 4294967295", oxidize_detokenize(model, tokens, 1, 0, NULL, 0, &length));
    REFUSES(BAD_ARGUMENT, "token 4294967295", oxidize_token_bytes(model, UINT32_MAX, NULL, 0, &length));

    /* Structs of another size. */
    oxidize_model_options model_options;
    REFUSES(BAD_ARGUMENT, "bytes; this library knows", oxidize_model_options_init(&model_options, 4));
    REFUSES(BAD_ARGUMENT, "bytes; this library knows", oxidize_model_options_init(&model_options, 1 << 20));
    OK(oxidize_model_options_init(&model_options, sizeof model_options));
    model_options.size = SIZE_MAX;
    REFUSES(BAD_ARGUMENT, "oxidize_model_options_init first", oxidize_model_load(model_path, NUL, &model_options, &other));
    oxidize_model_info info;
    REFUSES(BAD_ARGUMENT, "bytes; this library knows", oxidize_model_get_info(model, &info, 0));

    /* Engines that cannot be. */
    const struct {
        size_t offset;
        uint32_t value;
        const char *part;
    } wrong[] = {
        {offsetof(oxidize_engine_options, n_ctx), UINT32_MAX, "context of 4294967295"},
        {offsetof(oxidize_engine_options, max_sequences), UINT32_MAX, "max_sequences"},
        {offsetof(oxidize_engine_options, max_sequences), 0, "max_sequences is 0"},
        {offsetof(oxidize_engine_options, max_batch_tokens), UINT32_MAX, "max_batch_tokens"},
        {offsetof(oxidize_engine_options, max_batch_tokens), 0, "max_batch_tokens is 0"},
        {offsetof(oxidize_engine_options, n_threads), UINT32_MAX, "4294967295 threads"},
        {offsetof(oxidize_engine_options, key_type), 17, "key_type is 17"},
        {offsetof(oxidize_engine_options, value_type), UINT32_MAX, "value_type is -1"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        oxidize_engine_options options;
        OK(oxidize_engine_options_init(&options, sizeof options));
        memcpy((char *)&options + wrong[i].offset, &wrong[i].value, 4);
        REFUSES(BAD_ARGUMENT, wrong[i].part, oxidize_engine_new(model, &options, &other));
        CHECK(other == 0);
    }
    oxidize_engine_options huge;
    OK(oxidize_engine_options_init(&huge, sizeof huge));
    huge.cache_tokens = UINT32_MAX;
    REFUSES(OXIDIZE_STATUS_OUT_OF_MEMORY, "memory", oxidize_engine_new(model, &huge, &other));
    oxidize_embedder_options embedding;
    OK(oxidize_embedder_options_init(&embedding, sizeof embedding));
    embedding.pooling = 9;
    REFUSES(BAD_ARGUMENT, "pooling is 9", oxidize_embedder_new(model, &embedding, &other));
    embedding.pooling = OXIDIZE_POOLING_TYPE_RANK;
    REFUSES(OXIDIZE_STATUS_MODEL, "no classifier", oxidize_embedder_new(model, &embedding, &other));
    embedding.max_batch_tokens = UINT32_MAX;
    REFUSES(BAD_ARGUMENT, "max_batch_tokens", oxidize_embedder_new(model, &embedding, &other));

    /* Sampling settings out of range, and no numbers at all. */
    const struct {
        size_t offset;
        const char *name;
    } floats[] = {
#define FIELD(name) {offsetof(oxidize_request_options, name), #name}
        FIELD(temperature), FIELD(dynatemp_range), FIELD(dynatemp_exponent), FIELD(top_p),
        FIELD(min_p), FIELD(typical_p), FIELD(tfs_z), FIELD(top_n_sigma),
        FIELD(xtc_probability), FIELD(xtc_threshold), FIELD(mirostat_tau), FIELD(mirostat_eta),
        FIELD(dry_multiplier), FIELD(dry_base), FIELD(repeat_penalty), FIELD(frequency_penalty),
        FIELD(presence_penalty),
    };
    const float bad[] = {NAN, INFINITY, -INFINITY, 1e9f, -1e9f};
    oxidize_request request;
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        for (size_t j = 0; j < sizeof bad / sizeof *bad; j++) {
            oxidize_request_options options;
            OK(oxidize_request_options_init(&options, sizeof options, 0));
            memcpy((char *)&options + floats[i].offset, &bad[j], sizeof bad[j]);
            REFUSES(BAD_ARGUMENT, floats[i].name, oxidize_request_new(&options, &request));
            CHECK(request == 0);
        }
    }
    oxidize_request_options options;
    OK(oxidize_request_options_init(&options, sizeof options, 0));
    options.mirostat = 3;
    REFUSES(BAD_ARGUMENT, "mirostat is 3", oxidize_request_new(&options, &request));
    options.mirostat = 0;
    options.n_probs = -2;
    REFUSES(BAD_ARGUMENT, "n_probs is -2", oxidize_request_new(&options, &request));
    options.n_probs = INT32_MAX;
    REFUSES(BAD_ARGUMENT, "n_probs", oxidize_request_new(&options, &request));

    request = request_of("a", UINT64_MAX);
    REFUSES(BAD_ARGUMENT, "logit_bias", oxidize_request_add_logit_bias(request, 1, NAN));
    REFUSES(BAD_ARGUMENT, "logit_bias", oxidize_request_add_logit_bias(request, 1, INFINITY));
    OK(oxidize_request_add_logit_bias(request, 1, -INFINITY));
    OK(oxidize_request_add_logit_bias(request, UINT32_MAX, 1));
    REFUSES(BAD_ARGUMENT, "outside the vocabulary", oxidize_engine_submit(engine, request, &stream));
    OK(oxidize_request_free(request));
    request = request_of("a", 1);
    const float scales[] = {1, NAN};
    REFUSES(BAD_ARGUMENT, "scale NaN", oxidize_request_set_lora_scales(request, scales, 2));
    OK(oxidize_request_set_lora_scales(request, scales, 1));
    REFUSES(BAD_ARGUMENT, "0 adapters", oxidize_engine_submit(engine, request, &stream));
    OK(oxidize_request_free(request));
    request = request_of("a", 1);
    OK(oxidize_request_set_tokens(request, tokens, 1));
    REFUSES(BAD_ARGUMENT, "prompt token 4294967295", oxidize_engine_submit(engine, request, &stream));

    /* A prompt longer than the context fails when it is read. */
    uint32_t *many = calloc(1 << 16, sizeof *many);
    CHECK(many);
    OK(oxidize_request_set_tokens(request, many, 1 << 16));
    free(many);
    OK(oxidize_engine_submit(engine, request, &stream));
    oxidize_stream_token token;
    char text[64];
    for (int i = 0; i < 2; i++) {
        REFUSES(OXIDIZE_STATUS_PROMPT_TOO_LONG, "context", oxidize_stream_next(stream, -1, &token, text, sizeof text));
    }
    oxidize_stream_result result;
    REFUSES(OXIDIZE_STATUS_PROMPT_TOO_LONG, "context", oxidize_stream_get_result(stream, &result));
    OK(oxidize_stream_free(stream));
    OK(oxidize_request_free(request));
    OK(oxidize_engine_free(engine));
}

static int32_t refuse(const oxidize_stream_token *token, const char *text, void *user_data) {
    CHECK(strlen(text) == token->text_length);
    return ++*(int *)user_data == 3;
}

static int32_t refuse_loading(uint64_t done, uint64_t total, void *user_data) {
    CHECK(done <= total);
    return ++*(int *)user_data == 2;
}

static int32_t free_all(const oxidize_stream_token *token, const char *text, void *user_data) {
    uint64_t *handles = user_data;
    (void)token, (void)text;
    if (handles[0]) {
        OK(oxidize_engine_free(handles[0]));
        OK(oxidize_stream_free(handles[1]));
        handles[0] = 0;
    }
    return 0;
}

static void callbacks(void) {
    int calls = 0;
    oxidize_model_options options;
    OK(oxidize_model_options_init(&options, sizeof options));
    options.progress = refuse_loading;
    options.user_data = &calls;
    oxidize_model other;
    REFUSES(OXIDIZE_STATUS_CANCELED, "canceled", oxidize_model_load(model_path, NUL, &options, &other));
    CHECK(calls == 2 && other == 0);

    oxidize_engine engine = small_engine();
    oxidize_request request = request_of("Once", 100);
    oxidize_stream stream;
    OK(oxidize_engine_submit(engine, request, &stream));
    calls = 0;
    CHECK(oxidize_stream_read(stream, refuse, &calls) == OXIDIZE_STATUS_END);
    oxidize_stream_result result;
    OK(oxidize_stream_get_result(stream, &result));
    CHECK(result.finish_reason == OXIDIZE_FINISH_REASON_CANCELED && result.generated_tokens == 3 && calls == 3);
    OK(oxidize_stream_cancel(stream));
    OK(oxidize_stream_free(stream));

    /* A callback may free what is being read. */
    uint64_t handles[2] = {engine};
    OK(oxidize_engine_submit(engine, request, &handles[1]));
    REFUSES(OXIDIZE_STATUS_STOPPED, "stopped", oxidize_stream_read(handles[1], free_all, handles));
    REFUSES(BAD_HANDLE, "was freed", oxidize_stream_get_result(handles[1], &result));
    OK(oxidize_request_free(request));
}

typedef struct {
    oxidize_stream stream;
    oxidize_status status;
    int n_tokens;
} reader;

static void *read_all(void *argument) {
    reader *reader = argument;
    oxidize_stream_token token;
    char text[256];
    while ((reader->status = oxidize_stream_next(reader->stream, -1, &token, text, sizeof text)) == OXIDIZE_STATUS_OK)
        reader->n_tokens++;
    return NULL;
}

/* Handles that are freed while another thread waits. */
static void lifetimes(void) {
    for (int way = 0; way < 3; way++) {
        oxidize_model own;
        OK(oxidize_model_load(model_path, NUL, NULL, &own));
        oxidize_engine_options options;
        OK(oxidize_engine_options_init(&options, sizeof options));
        options.max_sequences = 1;
        oxidize_engine engine;
        OK(oxidize_engine_new(own, &options, &engine));
        /* The engine outlives the model's handle. */
        OK(oxidize_model_free(own));
        REFUSES(BAD_HANDLE, "was freed", oxidize_model_free(own));
        /* The first request keeps the second waiting. */
        oxidize_request request = request_of("Once", 0);
        oxidize_stream running, waiting;
        OK(oxidize_engine_submit(engine, request, &running));
        OK(oxidize_engine_submit(engine, request, &waiting));
        OK(oxidize_request_free(request));
        reader reader = {waiting, 0, 0};
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, read_all, &reader) == 0);
        oxidize_status expected = OXIDIZE_STATUS_END;
        if (way == 0) OK(oxidize_stream_cancel(waiting));
        if (way == 1) OK(oxidize_stream_free(waiting));
        if (way == 2) {
            OK(oxidize_engine_free(engine));
            expected = OXIDIZE_STATUS_STOPPED;
        }
        CHECK(pthread_join(thread, NULL) == 0);
        /* The thread may have come after the stream was freed, or read all before the engine was. */
        CHECK(reader.status == expected || (way == 1 && reader.status == BAD_HANDLE) ||
              (way == 2 && reader.status == OXIDIZE_STATUS_END));
        if (way == 1) {
            REFUSES(BAD_HANDLE, "was freed", oxidize_stream_free(waiting));
        } else {
            OK(oxidize_stream_free(waiting));
        }
        if (way == 2) {
            oxidize_stream_token token;
            char text[64];
            REFUSES(OXIDIZE_STATUS_STOPPED, "stopped", oxidize_stream_next(running, -1, &token, text, sizeof text));
            REFUSES(BAD_HANDLE, "was freed", oxidize_engine_free(engine));
        } else {
            OK(oxidize_engine_free(engine));
        }
        OK(oxidize_stream_free(running));
    }
}

/* One stream, two readers: the second is told so, or reads other tokens. */
static void *read_busy(void *argument) {
    reader *reader = argument;
    oxidize_stream_token token;
    char text[256];
    do {
        reader->status = oxidize_stream_next(reader->stream, -1, &token, text, sizeof text);
        reader->n_tokens += reader->status == OXIDIZE_STATUS_OK;
    } while (reader->status == OXIDIZE_STATUS_OK || reader->status == OXIDIZE_STATUS_BUSY);
    return NULL;
}

static void two_readers(void) {
    oxidize_engine engine = small_engine();
    oxidize_request request = request_of("Once", 40);
    reader readers[2] = {{0}};
    OK(oxidize_engine_submit(engine, request, &readers[0].stream));
    readers[1].stream = readers[0].stream;
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, read_busy, &readers[i]) == 0);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < 2; i++) CHECK(readers[i].status == OXIDIZE_STATUS_END);
    CHECK(readers[0].n_tokens + readers[1].n_tokens == 40);
    OK(oxidize_stream_free(readers[0].stream));
    OK(oxidize_request_free(request));
    OK(oxidize_engine_free(engine));
}

/* A queue of one request, which is full. */
static void full_queue(void) {
    oxidize_engine_options options;
    OK(oxidize_engine_options_init(&options, sizeof options));
    options.max_sequences = 1;
    options.max_queue = 1;
    oxidize_engine engine;
    OK(oxidize_engine_new(model, &options, &engine));
    oxidize_request request = request_of("Once", 0);
    enum { N = 64 };
    oxidize_stream streams[N];
    for (int i = 0; i < N; i++) OK(oxidize_engine_submit(engine, request, &streams[i]));
    /* Most are refused. Which ones depends on how fast the engine is. */
    int n_refused = 0;
    for (int i = 0; i < N; i++) {
        oxidize_status status = oxidize_stream_read(streams[i], NULL, NULL);
        if (status == OXIDIZE_STATUS_QUEUE_FULL) {
            CHECK(strstr(oxidize_last_error(), "limit is 1"));
            n_refused++;
        } else {
            CHECK(status == OXIDIZE_STATUS_END);
        }
    }
    CHECK(n_refused > 0);
    OK(oxidize_engine_free(engine));
    for (int i = 0; i < N; i++) OK(oxidize_stream_free(streams[i]));
    OK(oxidize_request_free(request));
}

/* A forked process has none of the engine's threads: everything fails there, and nothing waits forever. */
static void forks(void) {
    oxidize_engine engine = small_engine();
    oxidize_request request = request_of("Once", 4);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        oxidize_stream stream;
        oxidize_model other;
        int fine = oxidize_engine_submit(engine, request, &stream) == OXIDIZE_STATUS_FORKED &&
                   oxidize_engine_free(engine) == OXIDIZE_STATUS_FORKED &&
                   oxidize_model_load(model_path, NUL, NULL, &other) == OXIDIZE_STATUS_FORKED &&
                   strstr(oxidize_last_error(), "forked") != NULL;
        /* Another program ends the child: valgrind would report what the engine's missing thread has left behind. */
        if (fine) execlp("true", "true", (char *)NULL);
        _exit(1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    oxidize_stream stream;
    OK(oxidize_engine_submit(engine, request, &stream));
    CHECK(oxidize_stream_read(stream, NULL, NULL) == OXIDIZE_STATUS_END);
    OK(oxidize_stream_free(stream));
    OK(oxidize_request_free(request));
    OK(oxidize_engine_free(engine));
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    model_path = argv[1];
    CHECK(strcmp(oxidize_last_error(), "") == 0);
    OK(oxidize_model_load(model_path, NUL, NULL, &model));
    null_pointers();
    handles();
    texts();
    numbers();
    callbacks();
    lifetimes();
    two_readers();
    full_queue();
    forks();
    OK(oxidize_model_free(model));
    puts("ok");
    return 0;
}
