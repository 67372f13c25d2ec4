/* A conversation on standard input and output: chat MODEL */

#include <oxidize.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(oxidize_status status, const char *what) {
    if (status < 0) {
        fprintf(stderr, "%s: %s\n", what, oxidize_last_error());
        exit(1);
    }
}

/* The answer so far, which becomes a message of the conversation. */
typedef struct {
    char *text;
    size_t length;
} answer;

/* Prints a token as it comes. A result other than 0 would end the answer. */
static int32_t on_token(const oxidize_stream_token *token, const char *text, void *user_data) {
    answer *so_far = user_data;
    char *grown = realloc(so_far->text, so_far->length + token->text_length + 1);
    if (!grown) return 1;
    memcpy(grown + so_far->length, text, token->text_length + 1);
    so_far->text = grown;
    so_far->length += token->text_length;
    fwrite(text, 1, token->text_length, stdout);
    fflush(stdout);
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: chat MODEL\n");
        return 2;
    }
    oxidize_model model;
    check(oxidize_model_load(argv[1], OXIDIZE_NUL_TERMINATED, NULL, &model), "model");
    oxidize_engine engine;
    check(oxidize_engine_new(model, NULL, &engine), "engine");

    /* One request holds the conversation. The prefix cache keeps what earlier turns computed. */
    oxidize_request_options options;
    check(oxidize_request_options_init(&options, sizeof options, model), "options");
    options.max_tokens = 200;
    oxidize_request request;
    check(oxidize_request_new(&options, &request), "request");
    const size_t nul = OXIDIZE_NUL_TERMINATED;
    check(oxidize_request_add_message(request, "system", nul, "You are brief.", nul), "message");

    char line[4096];
    while (fprintf(stderr, "> "), fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = '\0';
        check(oxidize_request_add_message(request, "user", nul, line, nul), "message");
        oxidize_stream stream;
        check(oxidize_engine_submit(engine, request, &stream), "submit");
        answer so_far = {0};
        check(oxidize_stream_read(stream, on_token, &so_far), "answer");
        printf("\n");
        oxidize_stream_result result;
        check(oxidize_stream_get_result(stream, &result), "result");
        fprintf(stderr, "(%llu of %llu prompt tokens were cached)\n", (unsigned long long)result.cached_tokens,
                (unsigned long long)result.prompt_tokens);
        check(oxidize_request_add_message(request, "assistant", nul, so_far.text, so_far.length), "message");
        free(so_far.text);
        oxidize_stream_free(stream);
    }

    oxidize_request_free(request);
    oxidize_engine_free(engine);
    oxidize_model_free(model);
    return 0;
}
