/* What the functions do, on a tiny model: behavior MODEL LORA. Prints the tokens of greedy answers for a comparison. */

#include "check.h"

#include <math.h>
#include <time.h>

static oxidize_model model;
static oxidize_engine engine;

static oxidize_request_options greedy(uint64_t max_tokens) {
    oxidize_request_options options;
    OK(oxidize_request_options_init(&options, sizeof options, 0));
    options.temperature = 0;
    options.max_tokens = max_tokens;
    return options;
}

static oxidize_request request_of(const char *prompt, oxidize_request_options options) {
    oxidize_request request;
    OK(oxidize_request_new(&options, &request));
    OK(oxidize_request_set_text(request, prompt, NUL));
    return request;
}

static double seconds(void) {
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* The whole answer, in a buffer that is valid until the next call. */
static const char *answer(oxidize_engine of, oxidize_request request, oxidize_stream_result *result) {
    static char all[8192];
    oxidize_stream stream;
    OK(oxidize_engine_submit(of, request, &stream));
    CHECK(oxidize_stream_get_result(stream, result) == OXIDIZE_STATUS_PENDING);
    size_t length = 0;
    all[0] = '\0';
    for (;;) {
        oxidize_stream_token token;
        oxidize_status status = oxidize_stream_next(stream, 10000, &token, all + length, sizeof all - length);
        if (status == OXIDIZE_STATUS_END) break;
        CHECK(status == OXIDIZE_STATUS_OK);
        CHECK(strlen(all + length) == token.text_length && isnan(token.logprob) && token.n_top == 0);
        length += token.text_length;
    }
    OK(oxidize_stream_get_result(stream, result));
    OK(oxidize_stream_free(stream));
    return all;
}

static void versions(void) {
    CHECK(oxidize_abi_version() == OXIDIZE_ABI_VERSION);
    CHECK(strchr(oxidize_version(), '.') != NULL);
    CHECK(strcmp(oxidize_status_text(OXIDIZE_STATUS_BUFFER_TOO_SMALL), "buffer too small") == 0);
}

static void models(void) {
    oxidize_model_info info;
    OK(oxidize_model_get_info(model, &info, sizeof info));
    CHECK(info.n_ctx_train == 256 && info.n_embd == 64 && info.n_vocab > 0 && info.n_layer > 0);
    CHECK(info.n_params > 80000 && info.n_params < 90000 && info.generates_text == 1 && info.n_loras == 0);
    char text[64];
    size_t length;
    OK(oxidize_model_architecture(model, text, sizeof text, &length));
    CHECK(strcmp(text, "llama") == 0 && length == 5);
    OK(oxidize_model_metadata(model, "general.name", NUL, text, sizeof text, NULL));
    CHECK(strcmp(text, "tiny") == 0);
    /* A key with its length, as other languages have it. */
    OK(oxidize_model_metadata(model, "llama.context_length and more", 20, text, sizeof text, &length));
    CHECK(strcmp(text, "256") == 0);

    /* The length first, then the text; one byte too few copies nothing. */
    CHECK(oxidize_model_metadata(model, "general.name", NUL, NULL, 0, &length) == OXIDIZE_STATUS_BUFFER_TOO_SMALL);
    CHECK(length == 4);
    memset(text, 'x', sizeof text);
    CHECK(oxidize_model_metadata(model, "general.name", NUL, text, 4, &length) == OXIDIZE_STATUS_BUFFER_TOO_SMALL);
    CHECK(text[0] == 'x' && length == 4);
    OK(oxidize_model_metadata(model, "general.name", NUL, text, 5, &length));
    CHECK(strcmp(text, "tiny") == 0 && text[5] == 'x');

    /* Every key has a value, of any type. */
    CHECK(info.n_metadata > 10);
    for (uint64_t i = 0; i < info.n_metadata; i++) {
        char key[128];
        OK(oxidize_model_metadata_key(model, i, key, sizeof key, &length));
        CHECK(strlen(key) == length);
        oxidize_status status = oxidize_model_metadata(model, key, NUL, NULL, 0, &length);
        CHECK(status == OXIDIZE_STATUS_BUFFER_TOO_SMALL);
        char *value = malloc(length + 1);
        CHECK(value);
        OK(oxidize_model_metadata(model, key, NUL, value, length + 1, NULL));
        if (strcmp(key, "tokenizer.ggml.tokens") == 0) CHECK(value[0] == '[' && value[1] == '"');
        free(value);
    }
}

static void tokens(void) {
    const char *text = "Once upon a time, \xc3\xa9t\xc3\xa9";
    size_t n, length;
    CHECK(oxidize_tokenize(model, text, NUL, 0, NULL, 0, &n) == OXIDIZE_STATUS_BUFFER_TOO_SMALL && n > 3);
    uint32_t *ids = calloc(n, sizeof *ids);
    CHECK(ids);
    OK(oxidize_tokenize(model, text, NUL, 0, ids, n, NULL));
    char back[128];
    OK(oxidize_detokenize(model, ids, n, OXIDIZE_DETOKENIZE_CONTINUATION, back, sizeof back, &length));
    CHECK(strstr(back, text) != NULL);
    size_t n_bytes = 0;
    for (size_t i = 0; i < n; i++) {
        uint8_t bytes[64];
        OK(oxidize_token_bytes(model, ids[i], bytes, sizeof bytes, &length));
        n_bytes += length;
    }
    CHECK(n_bytes == strlen(back));
    free(ids);
    OK(oxidize_tokenize(model, "", 0, 0, NULL, 0, &n));
    CHECK(n == 0);
    OK(oxidize_detokenize(model, NULL, 0, 0, back, sizeof back, &length));
    CHECK(length == 0 && back[0] == '\0');
}

static void greedy_answers(void) {
    const char *prompts[] = {"Once upon a time", "The", "In the morning, "};
    for (size_t i = 0; i < 3; i++) {
        oxidize_request request = request_of(prompts[i], greedy(24));
        oxidize_stream stream;
        OK(oxidize_engine_submit(engine, request, &stream));
        printf("greedy");
        oxidize_stream_token token;
        char text[64];
        while (oxidize_stream_next(stream, -1, &token, text, sizeof text) == OXIDIZE_STATUS_OK)
            printf(" %u", (unsigned)token.id);
        printf("\n");
        OK(oxidize_stream_free(stream));
        OK(oxidize_request_free(request));
    }
}

static void results(void) {
    oxidize_request_options options = greedy(12);
    options.ignore_eos = 1;
    oxidize_request request = request_of("Once upon a time", options);
    oxidize_stream_result first, second;
    char *text = strdup(answer(engine, request, &first));
    CHECK(text);
    CHECK(first.finish_reason == OXIDIZE_FINISH_REASON_LENGTH && first.generated_tokens == 12);
    CHECK(first.prompt_tokens > 4 && first.stop_index == -1 && first.end_token == -1);
    CHECK(first.generation_seconds >= 0 && first.prompt_seconds > 0 && first.queued_seconds >= 0);
    /* A request may be submitted again. */
    CHECK(strcmp(text, answer(engine, request, &second)) == 0);
    OK(oxidize_request_free(request));

    /* The answer ends before a stop text: the second half of itself. */
    size_t half = strlen(text) / 2;
    while ((text[half] & 0xc0) == 0x80) half++;
    request = request_of("Once upon a time", options);
    OK(oxidize_request_add_stop(request, "never in the answer", NUL));
    OK(oxidize_request_add_stop(request, text + half, NUL));
    const char *cut = answer(engine, request, &second);
    CHECK(second.finish_reason == OXIDIZE_FINISH_REASON_STOP_TEXT && second.stop_index == 1);
    CHECK(strlen(cut) <= half && strncmp(cut, text, strlen(cut)) == 0);
    OK(oxidize_request_free(request));
    free(text);

    /* A seed gives the same answer twice, and another one another. */
    options.temperature = 1.5f;
    options.top_k = 0;
    options.seed = 7;
    request = request_of("Once", options);
    text = strdup(answer(engine, request, &first));
    CHECK(text && first.seed == 7);
    CHECK(strcmp(text, answer(engine, request, &second)) == 0);
    OK(oxidize_request_free(request));
    options.seed = 8;
    request = request_of("Once", options);
    CHECK(strcmp(text, answer(engine, request, &second)) != 0);
    free(text);
    OK(oxidize_request_free(request));
}

static void control(void) {
    oxidize_stream_result result;
    oxidize_request request = request_of("Answer:", greedy(32));
    OK(oxidize_request_set_grammar(request, OXIDIZE_GRAMMAR_KIND_GBNF, "root ::= \"yes\" | \"no\"", NUL));
    const char *text = answer(engine, request, &result);
    CHECK(strcmp(text, "yes") == 0 || strcmp(text, "no") == 0);
    CHECK(result.finish_reason == OXIDIZE_FINISH_REASON_END_OF_TEXT);
    OK(oxidize_request_set_grammar(request, OXIDIZE_GRAMMAR_KIND_JSON_SCHEMA, "{\"enum\": [\"red\", \"blue\"]}", NUL));
    text = answer(engine, request, &result);
    CHECK(strcmp(text, "\"red\"") == 0 || strcmp(text, "\"blue\"") == 0);
    OK(oxidize_request_set_grammar(request, OXIDIZE_GRAMMAR_KIND_REGEX, "[0-9]{3}", NUL));
    text = answer(engine, request, &result);
    CHECK(strlen(text) == 3 && strspn(text, "0123456789") == 3);
    OK(oxidize_request_free(request));

    /* Banned tokens do not come, a stop token ends the answer. */
    oxidize_request_options options = greedy(1);
    options.ignore_eos = 1;
    request = request_of("Once", options);
    oxidize_stream stream;
    OK(oxidize_engine_submit(engine, request, &stream));
    oxidize_stream_token token;
    char piece[64];
    OK(oxidize_stream_next(stream, -1, &token, piece, sizeof piece));
    uint32_t likely = token.id;
    OK(oxidize_stream_free(stream));
    OK(oxidize_request_add_stop_token(request, likely));
    answer(engine, request, &result);
    CHECK(result.finish_reason == OXIDIZE_FINISH_REASON_STOP_TOKEN && result.end_token == (int64_t)likely);
    OK(oxidize_request_add_logit_bias(request, likely, -INFINITY));
    OK(oxidize_engine_submit(engine, request, &stream));
    OK(oxidize_stream_next(stream, -1, &token, piece, sizeof piece));
    CHECK(token.id != likely);
    OK(oxidize_stream_free(stream));
    OK(oxidize_request_free(request));
}

static void log_probabilities(void) {
    oxidize_request_options options = greedy(5);
    options.n_probs = 3;
    options.ignore_eos = 1;
    oxidize_request request = request_of("Once upon", options);
    oxidize_stream stream;
    OK(oxidize_engine_submit(engine, request, &stream));
    for (int i = 0; i < 5; i++) {
        oxidize_stream_token token;
        char text[64];
        OK(oxidize_stream_next(stream, -1, &token, text, sizeof text));
        CHECK(token.logprob <= 0 && token.n_top == 3);
        oxidize_token_logprob top[3];
        size_t n;
        CHECK(oxidize_stream_top_logprobs(stream, top, 2, &n) == OXIDIZE_STATUS_BUFFER_TOO_SMALL && n == 3);
        OK(oxidize_stream_top_logprobs(stream, top, 3, &n));
        /* Greedy takes the first of them. */
        CHECK(top[0].id == token.id && top[0].logprob == token.logprob);
        CHECK(top[0].logprob >= top[1].logprob && top[1].logprob >= top[2].logprob);
    }
    OK(oxidize_stream_free(stream));
    OK(oxidize_request_free(request));
}

static void waiting(void) {
    /* While one request runs, another cannot begin: a read of it does not wait, waits a little, and is canceled. */
    oxidize_engine_options options;
    OK(oxidize_engine_options_init(&options, sizeof options));
    options.max_sequences = 1;
    oxidize_engine single;
    OK(oxidize_engine_new(model, &options, &single));
    oxidize_request_options endless = greedy(0);
    endless.ignore_eos = 1;
    oxidize_request request = request_of("Once", endless);
    oxidize_stream streams[40];
    oxidize_stream_token token;
    char text[64];
    int n_pending = 0;
    for (int i = 0; i < 40; i++) {
        OK(oxidize_engine_submit(single, request, &streams[i]));
        oxidize_status status = oxidize_stream_next(streams[i], 0, &token, text, sizeof text);
        CHECK(status == OXIDIZE_STATUS_OK || status == OXIDIZE_STATUS_PENDING);
        n_pending += status == OXIDIZE_STATUS_PENDING;
    }
    CHECK(n_pending > 0);
    double start = seconds();
    oxidize_status waited = oxidize_stream_next(streams[39], 20, &token, text, sizeof text);
    CHECK(waited == OXIDIZE_STATUS_OK || (waited == OXIDIZE_STATUS_PENDING && seconds() - start >= 0.019));
    oxidize_engine_info info;
    OK(oxidize_engine_get_info(single, &info, sizeof info));
    CHECK(info.n_ctx == 256 && info.running <= 1);
    OK(oxidize_stream_cancel(streams[39]));
    CHECK(oxidize_stream_next(streams[39], -1, &token, text, sizeof text) == OXIDIZE_STATUS_END);
    oxidize_stream_result result;
    OK(oxidize_stream_get_result(streams[39], &result));
    CHECK(result.finish_reason == OXIDIZE_FINISH_REASON_CANCELED && result.generated_tokens <= 2);
    for (int i = 0; i < 40; i++) OK(oxidize_stream_free(streams[i]));

    /* A text that does not fit its buffer is not lost. */
    oxidize_stream stream;
    OK(oxidize_engine_submit(single, request, &stream));
    oxidize_stream_token same;
    do {
        OK(oxidize_stream_next(stream, -1, &token, text, sizeof text));
    } while (oxidize_stream_next(stream, -1, &token, NULL, 0) == OXIDIZE_STATUS_BUFFER_TOO_SMALL && token.text_length == 0 &&
             oxidize_stream_next(stream, -1, &token, text, 1) == OXIDIZE_STATUS_OK);
    OK(oxidize_stream_next(stream, -1, &same, text, sizeof text));
    CHECK(same.id == token.id && same.text_length == token.text_length && strlen(text) == same.text_length);
    OK(oxidize_stream_free(stream));
    OK(oxidize_request_free(request));
    OK(oxidize_engine_free(single));
}

static void conversations(void) {
    oxidize_request built, parsed;
    OK(oxidize_request_new(NULL, &built));
    OK(oxidize_request_add_message(built, "system", NUL, "Be brief.", NUL));
    OK(oxidize_request_add_message(built, "user", 4, "Hi and more", 2));
    OK(oxidize_request_new(NULL, &parsed));
    OK(oxidize_request_set_conversation(
        parsed, "[{\"role\": \"system\", \"content\": \"Be brief.\"}, {\"role\": \"user\", \"content\": \"Hi\"}]", NUL));
    char first[512], second[512];
    OK(oxidize_request_render(built, model, first, sizeof first, NULL));
    OK(oxidize_request_render(parsed, model, second, sizeof second, NULL));
    CHECK(strcmp(first, second) == 0);
    CHECK(strcmp(first, "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n") == 0);
    OK(oxidize_request_set_conversation(
        parsed,
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \"He\"}],"
        " \"continue_final_message\": true, \"tools\": null}",
        NUL));
    OK(oxidize_request_render(parsed, model, second, sizeof second, NULL));
    CHECK(strcmp(second + strlen(second) - 2, "He") == 0);
    OK(oxidize_request_free(parsed));
    OK(oxidize_request_free(built));
}

static void adapters(const char *path) {
    oxidize_lora lora;
    OK(oxidize_lora_load(path, NUL, &lora));
    oxidize_lora loras[] = {lora};
    const float scales[] = {4};
    oxidize_model adapted;
    OK(oxidize_model_with_loras(model, loras, scales, 1, &adapted));
    OK(oxidize_lora_free(lora));
    oxidize_model_info info;
    OK(oxidize_model_get_info(adapted, &info, sizeof info));
    CHECK(info.n_loras == 1);
    oxidize_engine with;
    OK(oxidize_engine_new(adapted, NULL, &with));
    OK(oxidize_model_free(adapted));
    oxidize_request request = request_of("Once upon a time", greedy(24));
    oxidize_stream_result result;
    char *base = strdup(answer(engine, request, &result));
    char *changed = strdup(answer(with, request, &result));
    CHECK(base && changed && strcmp(base, changed) != 0);
    const float off[] = {0};
    OK(oxidize_request_set_lora_scales(request, off, 1));
    CHECK(strcmp(base, answer(with, request, &result)) == 0);
    const float on[] = {4};
    OK(oxidize_request_set_lora_scales(request, on, 1));
    CHECK(strcmp(changed, answer(with, request, &result)) == 0);
    free(base);
    free(changed);
    OK(oxidize_request_free(request));
    OK(oxidize_engine_free(with));
}

static void embeddings(void) {
    oxidize_embedder_options options;
    OK(oxidize_embedder_options_init(&options, sizeof options));
    options.normalize = 1;
    options.n_threads = 1;
    oxidize_embedder embedder;
    OK(oxidize_embedder_new(model, &options, &embedder));
    size_t width, n;
    OK(oxidize_embedder_width(embedder, &width));
    CHECK(width == 64);
    oxidize_text texts[] = {{"a cat and more", 5}, {"a cat", NUL}, {"something else", NUL}};
    float vectors[3 * 64 + 1];
    vectors[3 * 64] = 42;
    OK(oxidize_embedder_embed(embedder, texts, 3, vectors, 3 * 64, &n));
    CHECK(n == 3 * 64 && vectors[n] == 42);
    double same = 0, other = 0;
    for (size_t i = 0; i < width; i++) {
        same += (double)vectors[i] * (double)vectors[64 + i];
        other += (double)vectors[i] * (double)vectors[128 + i];
    }
    CHECK(fabs(same - 1) < 1e-5 && other < 0.999);
    OK(oxidize_embedder_embed(embedder, NULL, 0, NULL, 0, &n));
    CHECK(n == 0);
    float score;
    CHECK(oxidize_embedder_rerank(embedder, "a", NUL, texts, 1, &score, 1) == OXIDIZE_STATUS_MODEL);
    OK(oxidize_embedder_free(embedder));
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    OK(oxidize_model_load(argv[1], NUL, NULL, &model));
    oxidize_engine_options options;
    OK(oxidize_engine_options_init(&options, sizeof options));
    options.n_threads = 2;
    options.key_type = OXIDIZE_CACHE_TYPE_F32;
    options.value_type = OXIDIZE_CACHE_TYPE_F32;
    OK(oxidize_engine_new(model, &options, &engine));
    versions();
    models();
    tokens();
    greedy_answers();
    results();
    control();
    log_probabilities();
    waiting();
    conversations();
    adapters(argv[2]);
    embeddings();
    OK(oxidize_engine_free(engine));
    OK(oxidize_model_free(model));
    return 0;
}
