/* Continues a text: completion MODEL [PROMPT] */

#include <oxidize.h>
#include <stdio.h>
#include <stdlib.h>

/* Ends the program with the library's message if a function has failed. */
static void check(oxidize_status status, const char *what) {
    if (status < 0) {
        fprintf(stderr, "%s: %s\n", what, oxidize_last_error());
        exit(1);
    }
}

/* Shows how much of the model is loaded. A result other than 0 would cancel. */
static int32_t show_progress(uint64_t done, uint64_t total, void *user_data) {
    FILE *out = user_data;
    fprintf(out, "\rloading: %3.0f%%", total ? 100.0 * (double)done / (double)total : 100.0);
    if (done == total) fputc('\n', out);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: completion MODEL [PROMPT]\n");
        return 2;
    }
    const char *prompt = argc > 2 ? argv[2] : "Once upon a time";
    if (oxidize_abi_version() != OXIDIZE_ABI_VERSION) {
        fprintf(stderr, "the library has another ABI than oxidize.h\n");
        return 1;
    }

    oxidize_model_options model_options;
    oxidize_model_options_init(&model_options, sizeof model_options);
    model_options.progress = show_progress;
    model_options.user_data = stderr;
    oxidize_model model;
    check(oxidize_model_load(argv[1], OXIDIZE_NUL_TERMINATED, &model_options, &model), "model");

    oxidize_engine engine;
    check(oxidize_engine_new(model, NULL, &engine), "engine");

    /* The sampling settings that the model's authors recommend, and two of our own. */
    oxidize_request_options options;
    check(oxidize_request_options_init(&options, sizeof options, model), "options");
    options.max_tokens = 64;
    options.seed = 1;
    oxidize_request request;
    check(oxidize_request_new(&options, &request), "request");
    check(oxidize_request_set_text(request, prompt, OXIDIZE_NUL_TERMINATED), "prompt");

    oxidize_stream stream;
    check(oxidize_engine_submit(engine, request, &stream), "submit");
    printf("%s", prompt);
    for (;;) {
        oxidize_stream_token token;
        char text[256];
        oxidize_status status = oxidize_stream_next(stream, -1, &token, text, sizeof text);
        check(status, "token");
        if (status == OXIDIZE_STATUS_END) break;
        printf("%s", text);
        fflush(stdout);
    }
    printf("\n");

    oxidize_stream_result result;
    check(oxidize_stream_get_result(stream, &result), "result");
    fprintf(stderr, "%llu tokens in %.2f s\n", (unsigned long long)result.generated_tokens, result.generation_seconds);

    oxidize_stream_free(stream);
    oxidize_request_free(request);
    oxidize_engine_free(engine);
    oxidize_model_free(model);
    return 0;
}
