/* A tiny checkpoint of tests/fixtures/families ready to execute, and bit-exact comparison of floats. */
#ifndef MOEC_TESTS_FIXTURE_MODEL_H
#define MOEC_TESTS_FIXTURE_MODEL_H

#include "formats/base/file.h"
#include "formats/checkpoint/checkpoint.h"
#include "profiler/evaluate/variants.h"
#include "profiler/evaluate/windows.h"
#include "runtime/forward/context/scratch.h"
#include "runtime/forward/pass/session.h"
#include "tests/unit/dense_load.h"
#include "tests/unit/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIXTURE_UNUSED __attribute__((unused))

static const char *const fixture_families[] = {"qwen2_moe", "qwen2_moe-tied", "olmoe",
                                               "olmoe-b",   "mixtral",        "mixtral-window"};
#define N_FIXTURE_FAMILIES (sizeof fixture_families / sizeof *fixture_families)

/* Encoder-decoder models. */
static const char *const fixture_pairs[] = {"switch", "switch-gated", "switch-full", "switch-gelu"};
#define N_FIXTURE_PAIRS (sizeof fixture_pairs / sizeof *fixture_pairs)

struct fixture {
    const char *name;
    struct moec_checkpoint *checkpoint;
    struct moec_variants *variants;
    struct moec_model *model;
    uint32_t *tokens; /* of the reference */
    uint32_t n_tok;
    uint32_t *source; /* of an encoder-decoder model, whose target `tokens` are; else NULL */
    uint32_t n_source;
    float *logits; /* (n_tok, n_vocab), computed by transformers */
    uint32_t
        *router; /* (MoE layers, n_tok, top_k); the encoder's (MoE layers, n_source) stand before; or NULL */
};

FIXTURE_UNUSED static void *fixture_load(const char *name, const char *file, size_t *n_bytes)
{
    char path[256];
    char *bytes = NULL;
    struct moec_error err = {0};
    snprintf(path, sizeof path, "tests/fixtures/families/%s/%s", name, file);
    assert_ok(moec_file_load(path, 1u << 26, &bytes, n_bytes, &err), err);
    return bytes;
}

FIXTURE_UNUSED static struct fixture fixture_open(const char *name)
{
    struct fixture fixture = {.name = name};
    struct moec_error err = {0};
    struct moec_dense dense = {0};
    char path[256];
    size_t n_bytes = 0;
    snprintf(path, sizeof path, "tests/fixtures/families/%s", name);
    fixture.tokens = fixture_load(name, "tokens.u32", &n_bytes);
    fixture.n_tok = (uint32_t)(n_bytes / sizeof(uint32_t));
    assert_ok(moec_checkpoint_open(path, &fixture.checkpoint, &err), err);
    moec_checkpoint_choose_rope(fixture.checkpoint, fixture.n_tok);
    assert_ok(dense_load(fixture.checkpoint, 16, 0, &dense, &err), err);
    const struct moec_config *config = moec_checkpoint_config(fixture.checkpoint);
    assert_ok(moec_model_create(config, &dense, &fixture.model, &err), err);
    assert_ok(moec_variants_create(fixture.checkpoint,
                                   &(struct moec_variants_options){MOEC_SCHEME_SYMMETRIC, 0, 0, 1},
                                   &fixture.variants, &err),
              err);
    fixture.logits = fixture_load(name, "logits.f32", &n_bytes);
    assert_int_equal(n_bytes, (size_t)fixture.n_tok * config->n_vocab * sizeof(float));
    if (moec_config_is_encoder_decoder(config)) {
        fixture.source = fixture_load(name, "source.u32", &n_bytes);
        fixture.n_source = (uint32_t)(n_bytes / sizeof(uint32_t));
    }
    snprintf(path, sizeof path, "tests/fixtures/families/%s/router.u32", name);
    if (!moec_path_exists(path))
        return fixture;
    fixture.router = fixture_load(name, "router.u32", &n_bytes);
    const size_t n_encoder = moec_config_moe_encoder_count(config);
    assert_int_equal(n_bytes, (n_encoder * fixture.n_source +
                               (moec_config_moe_count(config) - n_encoder) * fixture.n_tok) *
                                  config->top_k * sizeof(uint32_t));
    return fixture;
}

/* The fixture's model anew, with rows of tokens below n_frequent in matrices of their own, or 0. */
FIXTURE_UNUSED static void fixture_cut_rows(struct fixture *fixture, uint32_t n_frequent)
{
    struct moec_error err = {0};
    struct moec_dense dense = {0};
    moec_checkpoint_set_frequent(fixture->checkpoint, n_frequent);
    assert_ok(dense_load(fixture->checkpoint, 16, 0, &dense, &err), err);
    moec_model_free(fixture->model);
    fixture->model = NULL;
    assert_ok(moec_model_create(moec_checkpoint_config(fixture->checkpoint), &dense, &fixture->model, &err),
              err);
}

FIXTURE_UNUSED static void fixture_close(struct fixture *fixture)
{
    free(fixture->router);
    free(fixture->logits);
    free(fixture->tokens);
    free(fixture->source);
    moec_variants_free(fixture->variants);
    moec_model_free(fixture->model);
    moec_checkpoint_close(fixture->checkpoint);
}

/* Logits of every position, n_tok tokens read in steps of `chunk` by a forward pass of at most `max_tokens`,
 * after the fixture's source and counting capacity where it has one. Owned by the caller. */
FIXTURE_UNUSED static float *fixture_run(const struct fixture *fixture, const struct moec_kernels *kernels,
                                         int n_threads, uint32_t max_tokens, const uint32_t *tokens,
                                         uint32_t n_tok, uint32_t chunk)
{
    struct moec_error err = {0};
    struct moec_forward forward = {0};
    struct moec_session *session = NULL;
    size_t n_vocab = fixture->model->config.n_vocab;
    float *logits = calloc(n_tok * n_vocab, sizeof *logits);
    uint32_t *at = calloc(n_tok, sizeof *at);
    assert_non_null(logits);
    assert_non_null(at);
    for (uint32_t i = 0; i < n_tok; i++)
        at[i] = i;
    assert_ok(moec_forward_init(&forward, fixture->model, kernels, n_threads,
                                moec_variants_experts(fixture->variants), max_tokens, &err),
              err);
    moec_forward_scratch(&forward)->test_hook.shares_all_work = true; /* tiny models use the threads too */
    assert_ok(
        moec_session_create(&forward, n_tok > fixture->n_source ? n_tok : fixture->n_source, &session, &err),
        err);
    if (fixture->source != NULL) {
        moec_session_count_capacity(session, true);
        assert_ok(moec_session_encode(session, fixture->source, fixture->n_source, &err), err);
    }
    for (uint32_t done = 0; done < n_tok; done += chunk) {
        uint32_t n = n_tok - done < chunk ? n_tok - done : chunk;
        assert_ok(moec_session_step(session, tokens + done, n, at, n, logits + done * n_vocab, &err), err);
    }
    moec_session_free(session);
    moec_forward_release(&forward);
    free(at);
    return logits;
}

/* A sequence longer than the reference, so that chunks of positions begin and end within it. */
FIXTURE_UNUSED static uint32_t *fixture_long_tokens(const struct fixture *fixture, uint32_t n)
{
    uint32_t *tokens = calloc(n, sizeof *tokens);
    uint64_t state = 12345;
    assert_non_null(tokens);
    for (uint32_t i = 0; i < n; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        tokens[i] = (uint32_t)(state >> 33) % fixture->model->config.n_vocab;
    }
    return tokens;
}

FIXTURE_UNUSED static void assert_same_bits(const float *a, const float *b, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&a[i], &b[i], sizeof a[i]) != 0)
            fail_msg("%s: value %zu of %zu is %.9g, expected %.9g", what, i, n, (double)a[i], (double)b[i]);
    }
}

/* The fixture's tokens as windows of `length`, all scored but the first; release with moec_windows_release.
 */
FIXTURE_UNUSED static void fixture_windows(const struct fixture *fixture, uint32_t length,
                                           struct moec_windows *windows)
{
    const uint32_t n = fixture->n_tok / length;
    *windows = (struct moec_windows){.n_window = n, .seq_len_tokens = length, .n_available = n};
    windows->tokens = malloc((size_t)n * length * sizeof(uint32_t));
    windows->length = malloc(n * sizeof(uint32_t));
    windows->scored = malloc(n * sizeof(uint32_t));
    windows->index = calloc(n, sizeof(uint64_t));
    memcpy(windows->tokens, fixture->tokens, (size_t)n * length * sizeof(uint32_t));
    for (uint32_t w = 0; w < n; w++) {
        windows->length[w] = length;
        windows->scored[w] = length - 1;
    }
}

#endif
