/* Several sources and their targets in one batch of the forward pass, as the profiler drives it: the same
 * bits as each pair by itself in a session. */
#include "tests/unit/fixture_model.h"

#define N_PAIRS  4
#define MAX_ROWS 300

static const uint32_t source_length[N_PAIRS] = {53, 1, 130, 70};
static const uint32_t target_length[N_PAIRS] = {48, 75, 3, 20};

static float *floats(size_t n)
{
    float *memory = NULL;
    assert_int_equal(posix_memalign((void **)&memory, 64, n * sizeof(float)), 0);
    memset(memory, 0, n * sizeof(float));
    return memory;
}

static uint32_t sum_to(const uint32_t *lengths, uint32_t n)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += lengths[i];
    return sum;
}

/* One pair in a session; logits (n_tok, n_vocab) are the caller's. */
static float *run_alone(const struct fixture *fixture, const uint32_t *source, uint32_t n_source,
                        const uint32_t *target, uint32_t n_tok)
{
    struct fixture alone = *fixture;
    alone.source = calloc(n_source, sizeof *source);
    assert_non_null(alone.source);
    memcpy(alone.source, source, n_source * sizeof *source);
    alone.n_source = n_source;
    float *logits = fixture_run(&alone, &moec_kernels_scalar, 1, 150, target, n_tok, n_tok);
    free(alone.source);
    return logits;
}

struct batch {
    struct fixture fixture;
    struct moec_forward forward;
    size_t stride, kv;
    uint32_t n_source, n_tok;
    float *hidden, *keys, *values, *own_keys, *own_values, *target_hidden;
    uint32_t *counts; /* (N_PAIRS, n_expert) */
    struct moec_sequence_rows spans[N_PAIRS];
    struct moec_sequences capacity;
    struct moec_mlp_trace trace;
};

static void make_trace(struct batch *batch)
{
    batch->trace = (struct moec_mlp_trace){.experts = calloc(MAX_ROWS, sizeof(uint32_t)),
                                           .weights = floats(MAX_ROWS),
                                           .margins = floats(MAX_ROWS),
                                           .input = floats(MAX_ROWS * batch->stride),
                                           .rank_outputs = floats(MAX_ROWS * batch->stride)};
    assert_non_null(batch->trace.experts);
}

static struct batch open_batch(const char *name, uint32_t block)
{
    struct batch batch = {.fixture = fixture_open(name)};
    const struct moec_config *config = &batch.fixture.model->config;
    struct moec_error err = {0};
    batch.stride = moec_forward_stride(config);
    batch.kv = moec_layer_kv_dim(moec_config_layer(config, 0));
    batch.n_source = sum_to(source_length, N_PAIRS);
    batch.n_tok = sum_to(target_length, N_PAIRS);
    assert_ok(moec_forward_init(&batch.forward, batch.fixture.model, moec_kernels_best(), 2,
                                moec_variants_experts(batch.fixture.variants), MAX_ROWS, &err),
              err);
    moec_forward_scratch(&batch.forward)->test_hook.shares_all_work = true;
    moec_forward_scratch(&batch.forward)->test_hook.attention_block = block;
    moec_forward_scratch(&batch.forward)->test_hook.moe_block = block;
    float **buffers[] = {&batch.keys, &batch.values, &batch.own_keys, &batch.own_values};
    for (size_t i = 0; i < 4; i++)
        *buffers[i] = floats(MAX_ROWS * batch.kv);
    batch.hidden = floats(MAX_ROWS * batch.stride);
    batch.target_hidden = floats(MAX_ROWS * batch.stride);
    batch.counts = calloc((size_t)N_PAIRS * config->n_expert, sizeof(uint32_t));
    assert_non_null(batch.counts);
    make_trace(&batch);
    return batch;
}

static void close_batch(struct batch *batch)
{
    void *const owned[] = {batch->keys,          batch->values,        batch->own_keys,
                           batch->own_values,    batch->hidden,        batch->target_hidden,
                           batch->counts,        batch->trace.experts, batch->trace.weights,
                           batch->trace.margins, batch->trace.input,   batch->trace.rank_outputs};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
    moec_forward_release(&batch->forward);
    fixture_close(&batch->fixture);
}

/* Counts of each sequence start at 0 in each layer, which the batch holds whole. */
static void start_counts(struct batch *batch, const uint32_t *lengths)
{
    const uint32_t n_expert = batch->fixture.model->config.n_expert;
    memset(batch->counts, 0, (size_t)N_PAIRS * n_expert * sizeof(uint32_t));
    for (uint32_t i = 0; i < N_PAIRS; i++)
        batch->spans[i] =
            (struct moec_sequence_rows){.n_rows = lengths[i], .counts = batch->counts + (size_t)i * n_expert};
    batch->capacity = (struct moec_sequences){batch->spans, N_PAIRS};
}

/* What the trace says of tokens that found their expert full: weight and output 0, and the choice that
 * counted. */
static void check_trace(const struct batch *batch, const uint32_t *lengths)
{
    const struct moec_config *config = &batch->fixture.model->config;
    uint32_t row = 0;
    for (uint32_t i = 0; i < N_PAIRS; i++) {
        uint32_t seen[16] = {0};
        for (uint32_t end = row + lengths[i]; row < end; row++) {
            const uint32_t expert = batch->trace.experts[row];
            const bool is_full = ++seen[expert] > config->router.expert_capacity;
            assert_int_equal(batch->trace.weights[row] == 0, is_full);
            for (uint32_t c = 0; is_full && c < config->n_embd; c++)
                assert_true(batch->trace.rank_outputs[row * batch->stride + c] == 0);
            assert_true(batch->trace.margins[row] > 0);
        }
        assert_memory_equal(seen, batch->spans[i].counts, config->n_expert * sizeof *seen);
    }
}

static void run_mlp(struct batch *batch, uint32_t layer, const uint32_t *lengths, float *hidden)
{
    struct moec_error err = {0};
    start_counts(batch, lengths);
    assert_ok(moec_forward_mlp(&batch->forward, layer,
                               &(struct moec_mlp_batch){.n_tok = sum_to(lengths, N_PAIRS),
                                                        .hidden = hidden,
                                                        .sequences = &batch->capacity,
                                                        .trace = &batch->trace},
                               &err),
              err);
    if (batch->fixture.model->layers[layer].is_moe)
        check_trace(batch, lengths);
}

static void encode_batch(struct batch *batch, const uint32_t *sources)
{
    const struct moec_config *config = &batch->fixture.model->config;
    struct moec_error err = {0};
    struct moec_span spans[N_PAIRS];
    for (uint32_t i = 0; i < N_PAIRS; i++) {
        const uint32_t row = sum_to(source_length, i);
        spans[i] = (struct moec_span){
            .first_row = row,
            .n_rows = source_length[i],
            .keys = {.k_own = batch->keys + row * batch->kv, .v_own = batch->values + row * batch->kv}};
    }
    assert_ok(moec_forward_embed(&batch->forward, sources, batch->n_source, batch->hidden, &err), err);
    for (uint32_t layer = 0; layer < config->n_encoder_layer; layer++) {
        assert_ok(moec_forward_attention(&batch->forward, layer,
                                         (struct moec_batch){spans, N_PAIRS, batch->n_source}, batch->hidden,
                                         &err),
                  err);
        run_mlp(batch, layer, source_length, batch->hidden);
    }
    assert_ok(moec_forward_encoded(&batch->forward, batch->n_source, batch->hidden, batch->hidden, &err),
              err);
}

static void decode_layer(struct batch *batch, uint32_t layer)
{
    struct moec_error err = {0};
    struct moec_span own[N_PAIRS], cross[N_PAIRS];
    for (uint32_t i = 0; i < N_PAIRS; i++) {
        const uint32_t row = sum_to(target_length, i), source_row = sum_to(source_length, i);
        own[i] = (struct moec_span){.first_row = row,
                                    .n_rows = target_length[i],
                                    .keys = {.k_own = batch->own_keys + row * batch->kv,
                                             .v_own = batch->own_values + row * batch->kv}};
        cross[i] = (struct moec_span){.first_row = row,
                                      .n_rows = target_length[i],
                                      .n_source = source_length[i],
                                      .keys = {.k_prefix = batch->keys + source_row * batch->kv,
                                               .v_prefix = batch->values + source_row * batch->kv}};
    }
    assert_ok(moec_forward_cross_keys(&batch->forward, layer, batch->n_source, batch->hidden,
                                      (struct moec_kv_rows){.keys = batch->keys, .values = batch->values},
                                      &err),
              err);
    assert_ok(moec_forward_attention(&batch->forward, layer, (struct moec_batch){own, N_PAIRS, batch->n_tok},
                                     batch->target_hidden, &err),
              err);
    assert_ok(moec_forward_cross(&batch->forward, layer, (struct moec_batch){cross, N_PAIRS, batch->n_tok},
                                 batch->target_hidden, &err),
              err);
    run_mlp(batch, layer, target_length, batch->target_hidden);
}

static void check_batch(const char *name, uint32_t block)
{
    struct batch batch = open_batch(name, block);
    const struct moec_config *config = &batch.fixture.model->config;
    struct moec_error err = {0};
    uint32_t *tokens = fixture_long_tokens(&batch.fixture, batch.n_source + batch.n_tok);
    const uint32_t *targets = tokens + batch.n_source;
    float *logits = floats((size_t)batch.n_tok * config->n_vocab);
    encode_batch(&batch, tokens);
    assert_ok(moec_forward_embed(&batch.forward, targets, batch.n_tok, batch.target_hidden, &err), err);
    for (uint32_t layer = config->n_encoder_layer; layer < config->n_layer; layer++)
        decode_layer(&batch, layer);
    assert_ok(
        moec_forward_head(&batch.forward, batch.n_tok, batch.target_hidden, logits, config->n_vocab, &err),
        err);
    for (uint32_t i = 0; i < N_PAIRS; i++) {
        const uint32_t row = sum_to(target_length, i);
        float *expected = run_alone(&batch.fixture, tokens + sum_to(source_length, i), source_length[i],
                                    targets + row, target_length[i]);
        assert_same_bits(logits + (size_t)row * config->n_vocab, expected,
                         (size_t)target_length[i] * config->n_vocab, name);
        free(expected);
    }
    free(logits);
    free(tokens);
    close_batch(&batch);
}

static void test_pair_forward__pairs_of_one_batch_do_not_meet(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FIXTURE_PAIRS; f++) {
        check_batch(fixture_pairs[f], MAX_ROWS);
        check_batch(fixture_pairs[f], 31);
    }
}

/* Chosen experts are those of transformers, in both stacks. */
static void test_pair_forward__routes_as_transformers(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FIXTURE_PAIRS; f++) {
        struct batch batch = open_batch(fixture_pairs[f], MAX_ROWS);
        const struct fixture *fixture = &batch.fixture;
        const struct moec_config *config = &fixture->model->config;
        struct moec_error err = {0};
        struct moec_span span = {.n_rows = fixture->n_source,
                                 .keys = {.k_own = batch.keys, .v_own = batch.values}};
        const uint32_t *expected = fixture->router;
        assert_ok(moec_forward_embed(&batch.forward, fixture->source, fixture->n_source, batch.hidden, &err),
                  err);
        for (uint32_t layer = 0; layer < config->n_encoder_layer; layer++) {
            memset(batch.counts, 0, config->n_expert * sizeof *batch.counts);
            const struct moec_sequence_rows counted = {.n_rows = fixture->n_source, .counts = batch.counts};
            const struct moec_sequences capacity = {&counted, 1};
            assert_ok(moec_forward_attention(&batch.forward, layer,
                                             (struct moec_batch){&span, 1, fixture->n_source}, batch.hidden,
                                             &err),
                      err);
            assert_ok(moec_forward_mlp(&batch.forward, layer,
                                       &(struct moec_mlp_batch){.n_tok = fixture->n_source,
                                                                .hidden = batch.hidden,
                                                                .sequences = &capacity,
                                                                .trace = &batch.trace},
                                       &err),
                      err);
            if (!moec_config_is_moe(config, layer))
                continue;
            assert_memory_equal(batch.trace.experts, expected, fixture->n_source * sizeof *expected);
            expected += fixture->n_source;
        }
        close_batch(&batch);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pair_forward__pairs_of_one_batch_do_not_meet),
        cmocka_unit_test(test_pair_forward__routes_as_transformers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
