/* Several threads share one engine, and their requests share its steps: threads MODEL [THREADS] */

#include <oxidize.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_THREADS = 64, MAX_ANSWER = 4096 };

typedef struct {
    oxidize_engine engine;
    int number;
    oxidize_status status;
    /* The last error belongs to a thread, so each keeps its own. */
    char error[256];
    char answer[MAX_ANSWER];
    unsigned long long n_tokens;
} job;

/* Submits a request and reads its answer, with a time-out and without ending the program. */
static oxidize_status answer(job *job) {
    oxidize_request_options options;
    oxidize_status status = oxidize_request_options_init(&options, sizeof options, 0);
    if (status < 0) return status;
    options.max_tokens = 32;
    options.temperature = 0;
    oxidize_request request;
    status = oxidize_request_new(&options, &request);
    if (status < 0) return status;
    char prompt[64];
    snprintf(prompt, sizeof prompt, "Story number %d. There was", job->number);
    oxidize_stream stream = 0;
    status = oxidize_request_set_text(request, prompt, OXIDIZE_NUL_TERMINATED);
    if (status >= 0) status = oxidize_engine_submit(job->engine, request, &stream);
    size_t length = 0;
    while (status >= 0 && status != OXIDIZE_STATUS_END) {
        oxidize_stream_token token;
        /* One second; OXIDIZE_STATUS_PENDING would be the time to do something else. */
        status = oxidize_stream_next(stream, 1000, &token, job->answer + length, sizeof job->answer - length);
        if (status == OXIDIZE_STATUS_OK) {
            length += token.text_length;
            job->n_tokens++;
        }
    }
    if (status < 0) snprintf(job->error, sizeof job->error, "%s", oxidize_last_error());
    if (stream) oxidize_stream_free(stream);
    oxidize_request_free(request);
    return status;
}

static void *run(void *argument) {
    job *job = argument;
    job->status = answer(job);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: threads MODEL [THREADS]\n");
        return 2;
    }
    int n_threads = argc > 2 ? atoi(argv[2]) : 8;
    if (n_threads < 1 || n_threads > MAX_THREADS) {
        fprintf(stderr, "1 to %d threads\n", MAX_THREADS);
        return 2;
    }
    oxidize_model model;
    oxidize_engine engine;
    oxidize_engine_options options;
    oxidize_engine_options_init(&options, sizeof options);
    options.max_sequences = (uint32_t)n_threads;
    options.n_ctx = 128;
    options.cache_tokens = 128 * (uint32_t)n_threads;
    if (oxidize_model_load(argv[1], OXIDIZE_NUL_TERMINATED, NULL, &model) < 0 ||
        oxidize_engine_new(model, &options, &engine) < 0) {
        fprintf(stderr, "%s\n", oxidize_last_error());
        return 1;
    }
    /* The engine keeps what it needs of the model. */
    oxidize_model_free(model);

    job *jobs = calloc((size_t)n_threads, sizeof *jobs);
    pthread_t threads[MAX_THREADS];
    if (!jobs) return 1;
    for (int i = 0; i < n_threads; i++) {
        jobs[i].engine = engine;
        jobs[i].number = i;
        if (pthread_create(&threads[i], NULL, run, &jobs[i]) != 0) return 1;
    }
    int failed = 0;
    for (int i = 0; i < n_threads; i++) {
        pthread_join(threads[i], NULL);
        if (jobs[i].status == OXIDIZE_STATUS_END) {
            printf("%d: %llu tokens:%s\n", i, jobs[i].n_tokens, jobs[i].answer);
        } else {
            printf("%d: %s\n", i, jobs[i].error);
            failed = 1;
        }
    }
    free(jobs);
    oxidize_engine_free(engine);
    return failed;
}
