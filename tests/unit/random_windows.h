/* A checkpoint opened for measuring, on windows of random tokens, and room for its sensitivities. */
#ifndef MOEC_TESTS_RANDOM_WINDOWS_H
#define MOEC_TESTS_RANDOM_WINDOWS_H

#include "tests/unit/dense_load.h"
#include "tests/unit/status.h"

#include "formats/checkpoint/checkpoint.h"
#include "profiler/common/random.h"
#include "profiler/evaluate/variants.h"
#include "profiler/evaluate/windows.h"
#include "profiler/sensitivity/sensitivity.h"

#include <stdlib.h>

/* A checkpoint opened for measuring, with windows of random tokens. */
struct bench {
    struct moec_checkpoint *checkpoint;
    struct moec_variants *variants;
    struct moec_model *model;
    struct moec_windows windows;
};

static inline void windows_make(const struct moec_config *config, uint32_t n_window, uint32_t seq_len,
                                uint64_t seed, struct moec_windows *windows)
{
    *windows =
        (struct moec_windows){.n_window = n_window, .seq_len_tokens = seq_len, .n_available = n_window};
    if (moec_config_is_encoder_decoder(config))
        windows->source = calloc(n_window, sizeof(uint32_t));
    const uint32_t stride = moec_windows_stride(windows);
    windows->tokens = calloc((size_t)n_window * stride, sizeof(uint32_t));
    windows->length = calloc(n_window, sizeof(uint32_t));
    windows->scored = calloc(n_window, sizeof(uint32_t));
    windows->index = calloc(n_window, sizeof(uint64_t));
    struct moec_random random = {seed};
    for (uint32_t w = 0; w < n_window; w++) {
        /* Lengths differ: the shortest possible window is among them. */
        uint32_t source = 0;
        if (windows->source != NULL)
            source = w == 1 ? 1 : (uint32_t)(seq_len - moec_random_below(&random, seq_len / 2));
        windows->length[w] =
            source + (w == 1 ? 2 : (uint32_t)(seq_len - moec_random_below(&random, seq_len / 2)));
        windows->scored[w] = windows->length[w] - source - 1;
        windows->index[w] = w;
        if (windows->source != NULL)
            windows->source[w] = source;
        for (uint32_t t = 0; t < stride; t++)
            windows->tokens[(size_t)w * stride + t] =
                t < windows->length[w] ? (uint32_t)moec_random_below(&random, config->n_vocab)
                                       : MOEC_PROFILE_NO_TOKEN;
    }
}

static inline void bench_open(const char *folder, uint32_t n_window, uint32_t seq_len, struct bench *bench)
{
    MUST(moec_checkpoint_open(folder, &bench->checkpoint, &err));
    const struct moec_config *config = moec_checkpoint_config(bench->checkpoint);
    struct moec_dense dense;
    MUST(dense_load(bench->checkpoint, 16, 0, &dense, &err));
    MUST(moec_model_create(config, &dense, &bench->model, &err));
    MUST(moec_variants_create(bench->checkpoint,
                              &(struct moec_variants_options){MOEC_SCHEME_SYMMETRIC, 0, 0, 1},
                              &bench->variants, &err));
    windows_make(config, n_window, seq_len, 7, &bench->windows);
}

static inline void bench_close(struct bench *bench)
{
    moec_variants_free(bench->variants);
    moec_model_free(bench->model);
    moec_checkpoint_close(bench->checkpoint);
    moec_windows_release(&bench->windows);
}

/* Results of a sweep, zeroed. */
static inline struct moec_sensitivity result_make(const struct bench *bench, uint32_t n_bits, size_t *n_cell)
{
    const struct moec_config *config = moec_checkpoint_config(bench->checkpoint);
    const size_t n_window = bench->windows.n_window;
    const size_t n_expert = (size_t)moec_config_moe_count(config) * config->n_expert;
    *n_cell = n_expert * n_bits * n_window;
    return (struct moec_sensitivity){
        .baseline = {calloc(n_window, sizeof(double)), calloc(n_window, sizeof(double))},
        .expert_nll = calloc(*n_cell, sizeof(double)),
        .expert_kl = calloc(*n_cell, sizeof(double)),
        .reached = calloc(n_expert, sizeof(uint64_t))};
}

static inline void result_release(struct moec_sensitivity *result)
{
    free(result->baseline.nll);
    free(result->baseline.kl);
    free(result->expert_nll);
    free(result->expert_kl);
    free(result->reached);
}

#endif
