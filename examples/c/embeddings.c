/* Similarity of texts to the first one: embeddings MODEL TEXT TEXT... */

#include <oxidize.h>
#include <stdio.h>
#include <stdlib.h>

static void check(oxidize_status status, const char *what) {
    if (status < 0) {
        fprintf(stderr, "%s: %s\n", what, oxidize_last_error());
        exit(1);
    }
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: embeddings MODEL TEXT TEXT...\n");
        return 2;
    }
    oxidize_model model;
    check(oxidize_model_load(argv[1], OXIDIZE_NUL_TERMINATED, NULL, &model), "model");
    oxidize_embedder_options options;
    oxidize_embedder_options_init(&options, sizeof options);
    options.normalize = 1;
    oxidize_embedder embedder;
    check(oxidize_embedder_new(model, &options, &embedder), "embedder");

    size_t n_texts = (size_t)argc - 2, width;
    check(oxidize_embedder_width(embedder, &width), "width");
    oxidize_text *texts = calloc(n_texts, sizeof *texts);
    float *vectors = calloc(n_texts * width, sizeof *vectors);
    if (!texts || !vectors) return 1;
    for (size_t i = 0; i < n_texts; i++) {
        texts[i].data = argv[i + 2];
        texts[i].length = OXIDIZE_NUL_TERMINATED;
    }
    /* All texts in one call: they share the steps. */
    check(oxidize_embedder_embed(embedder, texts, n_texts, vectors, n_texts * width, NULL), "embeddings");
    for (size_t i = 0; i < n_texts; i++) {
        double similarity = 0;
        for (size_t j = 0; j < width; j++) similarity += (double)vectors[j] * (double)vectors[i * width + j];
        printf("%.4f %s\n", similarity, argv[i + 2]);
    }

    free(vectors);
    free(texts);
    oxidize_embedder_free(embedder);
    oxidize_model_free(model);
    return 0;
}
