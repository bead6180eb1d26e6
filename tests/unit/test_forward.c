/* The forward pass agrees with transformers, and gives the same bits however the work is cut. */
#include "tests/unit/fixture_model.h"
#include "tests/unit/held_variant.h"
#include "tests/unit/kernel_sets.h"

#include <math.h>
#include <stdatomic.h>

#define LONG_TOKENS 140

/* The rule of the design: differences within 1e-4 of the spread of the reference's logits at the position. */
static void assert_close(const struct fixture *fixture, const float *logits, const char *how)
{
    size_t n_vocab = fixture->model->config.n_vocab;
    for (uint32_t t = 0; t < fixture->n_tok; t++) {
        const float *theirs = fixture->logits + t * n_vocab;
        const float *ours = logits + t * n_vocab;
        float low = theirs[0], high = theirs[0], worst = 0;
        for (size_t v = 0; v < n_vocab; v++) {
            low = fminf(low, theirs[v]);
            high = fmaxf(high, theirs[v]);
            assert_true(isfinite(ours[v]));
            worst = fmaxf(worst, fabsf(ours[v] - theirs[v]));
        }
        if (!(worst <= 1e-4f * (high - low)))
            fail_msg("%s, %s, position %u: logits differ by %g of a spread of %g", fixture->name, how, t,
                     (double)worst, (double)(high - low));
    }
}

static void test_forward__agrees_with_transformers(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FIXTURE_FAMILIES + N_FIXTURE_PAIRS; f++) {
        struct fixture fixture = fixture_open(f < N_FIXTURE_FAMILIES ? fixture_families[f]
                                                                     : fixture_pairs[f - N_FIXTURE_FAMILIES]);
        const struct moec_kernels *best = moec_kernels_best();
        float *prefill =
            fixture_run(&fixture, best, 2, fixture.n_tok, fixture.tokens, fixture.n_tok, fixture.n_tok);
        assert_close(&fixture, prefill, "prefill");
        float *steps = fixture_run(&fixture, best, 2, 1, fixture.tokens, fixture.n_tok, 1);
        assert_close(&fixture, steps, "decoding");
        free(steps);
        free(prefill);
        fixture_close(&fixture);
    }
}

/* One way to read the first n_tok tokens; step by step ends soon after the first chunk of positions is full.
 */
static const struct cut {
    uint32_t max_tokens;
    uint32_t chunk;
    uint32_t n_tok;
} cuts[] = {{LONG_TOKENS, LONG_TOKENS, LONG_TOKENS},
            {LONG_TOKENS, 64, LONG_TOKENS},
            {LONG_TOKENS, 7, LONG_TOKENS},
            {3, LONG_TOKENS, LONG_TOKENS},
            {1, 1, 70}};

static void check_cuts(const struct fixture *fixture, const struct moec_kernels *kernels, int n_threads,
                       const uint32_t *tokens, const float *expected)
{
    for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
        const struct cut *cut = &cuts[c];
        char what[160];
        float *logits =
            fixture_run(fixture, kernels, n_threads, cut->max_tokens, tokens, cut->n_tok, cut->chunk);
        snprintf(what, sizeof what, "%s, %s, %d threads, steps of %u in batches of %u", fixture->name,
                 kernels->name, n_threads, cut->chunk, cut->max_tokens);
        assert_same_bits(logits, expected, (size_t)cut->n_tok * fixture->model->config.n_vocab, what);
        free(logits);
    }
}

/* Prefill in any chunking and step by step, at 1, 2 and 5 threads, on every instruction set. */
static void test_forward__same_bits_however_it_is_cut(void **state)
{
    (void)state;
    static const int threads[] = {2, 1, 5};
    if (n_kernel_sets() < 2)
        print_message("skip: this machine has %zu of the vector instruction sets\n", n_kernel_sets());
    for (size_t f = 0; f < N_FIXTURE_FAMILIES + N_FIXTURE_PAIRS; f++) {
        struct fixture fixture = fixture_open(f < N_FIXTURE_FAMILIES ? fixture_families[f]
                                                                     : fixture_pairs[f - N_FIXTURE_FAMILIES]);
        uint32_t *tokens = fixture_long_tokens(&fixture, LONG_TOKENS);
        float *expected =
            fixture_run(&fixture, &moec_kernels_scalar, 1, LONG_TOKENS, tokens, LONG_TOKENS, LONG_TOKENS);
        for (size_t t = 0; t < (f % 2 == 0 ? 3 : 1);
             t++) { /* every thread count once for each architecture */
            check_cuts(&fixture, &moec_kernels_scalar, threads[t], tokens, expected);
            for (size_t s = 0; s < n_kernel_sets(); s++)
                check_cuts(&fixture, kernel_set(s), threads[t], tokens, expected);
        }
        free(expected);
        free(tokens);
        fixture_close(&fixture);
    }
}

static void test_forward__same_bits_with_encoded_experts(void **state)
{
    (void)state;
    static const uint32_t bits[] = {2, 3, 4, 8};
    struct fixture fixture = fixture_open("qwen2_moe");
    uint32_t *tokens = fixture_long_tokens(&fixture, LONG_TOKENS);
    struct moec_error err = {0};
    float *last = NULL;
    for (size_t b = 0; b < sizeof bits / sizeof *bits; b++) {
        assert_ok(moec_variants_assign_all(fixture.variants, bits[b], &err), err);
        float *expected =
            fixture_run(&fixture, &moec_kernels_scalar, 1, LONG_TOKENS, tokens, LONG_TOKENS, LONG_TOKENS);
        check_cuts(&fixture, moec_kernels_best(), 2, tokens, expected);
        if (last != NULL) /* the assignment reaches the result */
            assert_memory_not_equal(last, expected, fixture.model->config.n_vocab * sizeof(float));
        free(last);
        last = expected;
    }
    free(last);
    free(tokens);
    fixture_close(&fixture);
}

static float *floats(size_t n)
{
    float *memory = NULL;
    assert_int_equal(posix_memalign((void **)&memory, 64, n * sizeof(float)), 0);
    memset(memory, 0, n * sizeof(float));
    return memory;
}

/* Two sequences as spans of one batch, the second behind a prefix that lies elsewhere. */
static void test_forward__spans_of_one_batch_do_not_meet(void **state)
{
    (void)state;
    const uint32_t n_prefix = 70, n_own = 41, n_first = 90;
    for (size_t f = 0; f < N_FIXTURE_FAMILIES; f++) {
        struct fixture fixture = fixture_open(fixture_families[f]);
        const struct moec_config *config = &fixture.model->config;
        const uint32_t n_all = n_prefix + n_own;
        size_t stride = moec_forward_stride(config), kv = moec_layer_kv_dim(moec_config_layer(config, 0));
        size_t n_vocab = config->n_vocab;
        uint32_t *tokens = fixture_long_tokens(&fixture, n_first + n_all);
        const uint32_t *second = tokens + n_first;
        float *expected_first =
            fixture_run(&fixture, &moec_kernels_scalar, 1, n_first, tokens, n_first, n_first);
        float *expected = fixture_run(&fixture, &moec_kernels_scalar, 1, n_all, second, n_all, n_all);

        struct moec_error err = {0};
        struct moec_forward forward = {0};
        uint32_t n_tok = n_first + n_own;
        assert_ok(moec_forward_init(&forward, fixture.model, moec_kernels_best(), 2,
                                    moec_variants_experts(fixture.variants), n_tok, &err),
                  err);
        float *prefix_hidden = floats(n_prefix * stride), *hidden = floats(n_tok * stride);
        float *prefix_kv = floats(2 * n_prefix * kv), *own_kv = floats(2 * n_tok * kv);
        float *logits = floats(n_tok * n_vocab);
        uint32_t *batch_tokens = calloc(n_tok, sizeof *batch_tokens);
        memcpy(batch_tokens, tokens, n_first * sizeof *tokens);
        memcpy(batch_tokens + n_first, second + n_prefix, n_own * sizeof *tokens);
        assert_ok(moec_forward_embed(&forward, second, n_prefix, prefix_hidden, &err), err);
        assert_ok(moec_forward_embed(&forward, batch_tokens, n_tok, hidden, &err), err);
        for (uint32_t layer = 0; layer < config->n_layer; layer++) {
            float *k = prefix_kv, *v = prefix_kv + n_prefix * kv;
            struct moec_span prefix = {.n_rows = n_prefix, .keys = {.k_own = k, .v_own = v}};
            assert_ok(moec_forward_attention(&forward, layer, (struct moec_batch){&prefix, 1, n_prefix},
                                             prefix_hidden, &err),
                      err);
            assert_ok(moec_forward_mlp(&forward, layer,
                                       &(struct moec_mlp_batch){.n_tok = n_prefix, .hidden = prefix_hidden},
                                       &err),
                      err);
            struct moec_span spans[2] = {
                {.n_rows = n_first, .keys = {.k_own = own_kv, .v_own = own_kv + n_tok * kv}},
                {.first_row = n_first,
                 .n_rows = n_own,
                 .first_position = n_prefix,
                 .keys = {.k_prefix = k,
                          .v_prefix = v,
                          .k_own = own_kv + n_first * kv,
                          .v_own = own_kv + (n_tok + n_first) * kv}},
            };
            assert_ok(
                moec_forward_attention(&forward, layer, (struct moec_batch){spans, 2, n_tok}, hidden, &err),
                err);
            assert_ok(moec_forward_mlp(&forward, layer,
                                       &(struct moec_mlp_batch){.n_tok = n_tok, .hidden = hidden}, &err),
                      err);
        }
        assert_ok(moec_forward_head(&forward, n_tok, hidden, logits, n_vocab, &err), err);
        assert_same_bits(logits, expected_first, n_first * n_vocab, "first span");
        assert_same_bits(logits + n_first * n_vocab, expected + n_prefix * n_vocab, n_own * n_vocab,
                         "second span");
        moec_forward_release(&forward);
        free(batch_tokens);
        free(logits);
        free(own_kv);
        free(prefix_kv);
        free(hidden);
        free(prefix_hidden);
        free(expected);
        free(expected_first);
        free(tokens);
        fixture_close(&fixture);
    }
}

/* Everything that a trace can hold for n tokens. */
static struct moec_mlp_trace trace_make(const struct moec_config *config, uint32_t n)
{
    size_t stride = moec_forward_stride(config);
    size_t k = config->top_k;
    return (struct moec_mlp_trace){.experts = calloc(n * k, sizeof(uint32_t)),
                                   .weights = floats(n * k),
                                   .margins = floats(n),
                                   .input = floats(n * stride),
                                   .rank_outputs = floats(n * k * stride),
                                   .shared_output = floats(n * stride)};
}

static void trace_free(struct moec_mlp_trace *trace)
{
    free(trace->experts);
    free(trace->weights);
    free(trace->margins);
    free(trace->input);
    free(trace->rank_outputs);
    free(trace->shared_output);
}

/* The order of sums that all arithmetic stands on: outputs by rank, the best first, then the shared expert's,
 * then the layer's input. */
static void check_order_of_sums(const float *const *outputs, const float *weights, uint32_t k,
                                const float *shared_output, const float *before, const float *after,
                                uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        float sum = 0;
        for (uint32_t rank = 0; rank < k; rank++)
            sum = fmaf(weights[rank], outputs[rank][i], sum);
        sum += shared_output != NULL ? shared_output[i] : 0;
        sum += before[i];
        assert_memory_equal(&sum, &after[i], sizeof sum);
    }
}

/* The parts of a trace give the layer's result again, and each rank's output is that of its expert alone. */
static void check_trace(const struct moec_forward *forward, const struct fixture *fixture, uint32_t layer,
                        uint32_t n, const float *before, const float *after,
                        const struct moec_mlp_trace *trace)
{
    const struct moec_config *config = &fixture->model->config;
    size_t stride = moec_forward_stride(config), k = config->top_k;
    struct moec_error err = {0};
    float *again = floats(stride), *alone = floats(stride);
    for (uint32_t t = 0; t < n; t++) {
        const float *outputs[MOEC_MAX_TOP_K];
        for (size_t rank = 0; rank < k; rank++) {
            uint32_t expert = trace->experts[t * k + rank];
            struct moec_mlp mlp;
            outputs[rank] = trace->rank_outputs + (t * k + rank) * stride;
            assert_ok(variant_hold(fixture->variants, layer, expert,
                                   moec_variants_source_bits(fixture->variants), &mlp, &err),
                      err);
            moec_forward_expert(forward, &mlp, 1, trace->input + t * stride, alone);
            variant_release(fixture->variants, layer, expert, moec_variants_source_bits(fixture->variants));
            assert_same_bits(outputs[rank], alone, stride, "an expert alone");
            assert_true(rank == 0 || trace->weights[t * k + rank] <= trace->weights[t * k + rank - 1]);
        }
        const float *shared = config->n_ff_shared > 0 ? trace->shared_output + t * stride : NULL;
        memcpy(again, before + t * stride, stride * sizeof(float));
        moec_forward_combine(forward, layer, outputs, trace->weights + t * k, shared, again);
        assert_same_bits(again, after + t * stride, stride, "combined trace");
        check_order_of_sums(outputs, trace->weights + t * k, config->top_k, shared, before + t * stride,
                            again, config->n_embd);
        assert_true(trace->margins[t] > 0);
    }
    free(alone);
    free(again);
}

static void test_forward__trace_holds_what_the_layer_did(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FIXTURE_FAMILIES; f++) {
        struct fixture fixture = fixture_open(fixture_families[f]);
        const struct moec_config *config = &fixture.model->config;
        uint32_t n = fixture.n_tok;
        size_t stride = moec_forward_stride(config), kv = moec_layer_kv_dim(moec_config_layer(config, 0));
        struct moec_error err = {0};
        struct moec_forward forward = {0};
        assert_ok(moec_forward_init(&forward, fixture.model, moec_kernels_best(), 2,
                                    moec_variants_experts(fixture.variants), n, &err),
                  err);
        struct moec_mlp_trace trace = trace_make(config, n);
        float *hidden = floats(n * stride), *before = floats(n * stride), *own = floats(2 * n * kv);
        const uint32_t *router = fixture.router;
        assert_ok(moec_forward_embed(&forward, fixture.tokens, n, hidden, &err), err);
        for (uint32_t layer = 0; layer < config->n_layer; layer++) {
            struct moec_span span = {.n_rows = n, .keys = {.k_own = own, .v_own = own + n * kv}};
            assert_ok(moec_forward_attention(&forward, layer, (struct moec_batch){&span, 1, n}, hidden, &err),
                      err);
            memcpy(before, hidden, n * stride * sizeof(float));
            assert_ok(moec_forward_mlp(
                          &forward, layer,
                          &(struct moec_mlp_batch){.n_tok = n, .hidden = hidden, .trace = &trace}, &err),
                      err);
            if (!moec_config_is_moe(config, layer))
                continue;
            assert_memory_equal(trace.experts, router, n * config->top_k * sizeof(uint32_t));
            router += n * config->top_k;
            check_trace(&forward, &fixture, layer, n, before, hidden, &trace);
        }
        free(own);
        free(before);
        free(hidden);
        trace_free(&trace);
        moec_forward_release(&forward);
        fixture_close(&fixture);
    }
}

/* Batches so large that layers work on them block by block, with and without a trace that keeps every row. */
static void check_large_batch(const struct fixture *fixture, bool traced)
{
    const uint32_t n_spans = 12, n_each = 60, n_tok = n_spans * n_each;
    const struct moec_config *config = &fixture->model->config;
    size_t stride = moec_forward_stride(config), kv = moec_layer_kv_dim(moec_config_layer(config, 0));
    size_t n_logits = (size_t)n_each * config->n_vocab;
    struct moec_error err = {0};
    struct moec_forward forward = {0};
    struct moec_span spans[12];
    uint32_t *tokens = fixture_long_tokens(fixture, n_tok);
    float *hidden = floats(n_tok * stride), *own = floats(2 * n_tok * kv),
          *logits = floats(n_tok * config->n_vocab);
    assert_ok(moec_forward_init(&forward, fixture->model, moec_kernels_best(), 2,
                                moec_variants_experts(fixture->variants), n_tok, &err),
              err);
    struct moec_scratch *scratch = moec_forward_scratch(&forward);
    scratch->test_hook.attention_block = 250;
    scratch->test_hook.moe_block = 170;
    scratch->transposed.columns = 1;
    if (traced) { /* half a tile leaves the room of a second chunk */
        assert_int_equal(scratch->mlp.tile, MOEC_MLP_TILE_MAX);
        scratch->mlp.tile /= 2;
        scratch->mlp.chunks *= 2;
    }
    struct moec_mlp_trace trace = trace_make(config, traced ? n_tok : 1);
    for (uint32_t i = 0; i < n_spans; i++)
        spans[i] = (struct moec_span){
            .first_row = i * n_each,
            .n_rows = n_each,
            .keys = {.k_own = own + i * n_each * kv, .v_own = own + (n_tok + i * n_each) * kv}};
    assert_ok(moec_forward_embed(&forward, tokens, n_tok, hidden, &err), err);
    for (uint32_t layer = 0; layer < config->n_layer; layer++) {
        assert_ok(
            moec_forward_attention(&forward, layer, (struct moec_batch){spans, n_spans, n_tok}, hidden, &err),
            err);
        assert_ok(moec_forward_mlp(&forward, layer,
                                   &(struct moec_mlp_batch){
                                       .n_tok = n_tok, .hidden = hidden, .trace = traced ? &trace : NULL},
                                   &err),
                  err);
    }
    assert_ok(moec_forward_head(&forward, n_tok, hidden, logits, config->n_vocab, &err), err);
    for (uint32_t i = 0; i < n_spans; i += 4) {
        float *expected =
            fixture_run(fixture, &moec_kernels_scalar, 1, n_each, tokens + i * n_each, n_each, n_each);
        assert_same_bits(logits + i * n_logits, expected, n_logits, "a span of a large batch");
        free(expected);
    }
    trace_free(&trace);
    moec_forward_release(&forward);
    free(logits);
    free(own);
    free(hidden);
    free(tokens);
}

static void test_forward__same_bits_in_a_large_batch(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen2_moe", "mixtral-window"};
    for (size_t f = 0; f < sizeof names / sizeof *names; f++) {
        struct fixture fixture = fixture_open(names[f]);
        check_large_batch(&fixture, false);
        check_large_batch(&fixture, true);
        fixture_close(&fixture);
    }
}

/* A source that lends from variants, counts what is out, and can refuse. */
struct watched {
    struct moec_experts experts;
    struct moec_experts *inner;
    uint32_t n_held;
    uint32_t max_seen;
    uint32_t n_acquired;
    uint32_t refuse_after;
    bool is_ready;
    uint32_t n_expected;
};

static enum moec_status watched_acquire(struct moec_experts *self, struct moec_expert_request request,
                                        struct moec_mlp *mlp, struct moec_error *err)
{
    struct watched *watched = (struct watched *)self;
    if (watched->n_acquired == watched->refuse_after)
        return moec_fail(err, MOEC_ERR_IO, "expert %u of layer %u is refused", request.expert, request.layer);
    MOEC_TRY(watched->inner->ops->acquire(watched->inner, request, mlp, err));
    watched->n_acquired++;
    watched->n_held++;
    watched->max_seen = watched->n_held > watched->max_seen ? watched->n_held : watched->max_seen;
    return MOEC_OK;
}

static void watched_release(struct moec_experts *self, struct moec_expert_request request)
{
    struct watched *watched = (struct watched *)self;
    watched->inner->ops->release(watched->inner, request);
    watched->n_held--;
}

static void watched_expect(struct moec_experts *self, const struct moec_router_answer *answer)
{
    for (uint32_t i = 1; i < answer->active.n; i++)
        assert_true(answer->active.list[i] > answer->active.list[i - 1]);
    ((struct watched *)self)->n_expected += answer->active.n;
}

static bool watched_ready(struct moec_experts *self, struct moec_expert_request request)
{
    (void)request;
    return ((struct watched *)self)->is_ready;
}

static const struct moec_experts_ops watched_ops = {
    .acquire = watched_acquire, .release = watched_release, .expect = watched_expect, .ready = watched_ready};

static void test_forward__same_bits_however_many_experts_are_held(void **state)
{
    (void)state;
    struct fixture fixture = fixture_open("qwen2_moe");
    struct moec_error err = {0};
    size_t n_vocab = fixture.model->config.n_vocab;
    float *expected = fixture_run(&fixture, &moec_kernels_scalar, 1, fixture.n_tok, fixture.tokens,
                                  fixture.n_tok, fixture.n_tok);
    for (uint32_t max_held = 0; max_held <= 4; max_held++) {
        for (uint32_t chunk = 1; chunk <= fixture.n_tok; chunk += fixture.n_tok - 1) {
            struct watched watched = {.experts = {.ops = &watched_ops, .max_held = max_held},
                                      .inner = moec_variants_experts(fixture.variants),
                                      .refuse_after = UINT32_MAX,
                                      .is_ready = max_held != 3};
            struct moec_forward forward = {0};
            struct moec_session *session = NULL;
            uint32_t at = fixture.n_tok - 1;
            float *logits = floats(n_vocab);
            assert_ok(moec_forward_init(&forward, fixture.model, moec_kernels_best(), 2, &watched.experts,
                                        chunk, &err),
                      err);
            assert_ok(moec_session_create(&forward, fixture.n_tok, &session, &err), err);
            assert_ok(moec_session_step(session, fixture.tokens, fixture.n_tok, &at, 1, logits, &err), err);
            assert_same_bits(logits, expected + at * n_vocab, n_vocab, "last position");
            assert_int_equal(watched.n_held, 0);
            assert_int_equal(watched.n_expected, watched.n_acquired);
            bool one = max_held < 2 || !watched.is_ready;
            assert_int_equal(watched.max_seen, one ? 1 : max_held < 3 || chunk > 1 ? max_held : 3);
            free(logits);
            moec_session_free(session);
            moec_forward_release(&forward);
        }
    }
    free(expected);
    fixture_close(&fixture);
}

static void test_forward__a_refused_expert_is_an_error_and_nothing_stays_held(void **state)
{
    (void)state;
    struct fixture fixture = fixture_open("olmoe-b");
    for (uint32_t refuse_after = 0; refuse_after < 12; refuse_after++) {
        struct watched watched = {.experts = {.ops = &watched_ops, .max_held = 3},
                                  .inner = moec_variants_experts(fixture.variants),
                                  .refuse_after = refuse_after,
                                  .is_ready = true};
        struct moec_error err = {0};
        struct moec_forward forward = {0};
        struct moec_session *session = NULL;
        assert_ok(
            moec_forward_init(&forward, fixture.model, moec_kernels_best(), 1, &watched.experts, 4, &err),
            err);
        assert_ok(moec_session_create(&forward, fixture.n_tok, &session, &err), err);
        assert_int_equal(moec_session_step(session, fixture.tokens, fixture.n_tok, NULL, 0, NULL, &err),
                         MOEC_ERR_IO);
        assert_non_null(strstr(err.message, "is refused"));
        assert_int_equal(watched.n_held, 0);
        assert_int_equal(moec_session_length(session), 0);
        moec_session_free(session);
        moec_forward_release(&forward);
    }
    fixture_close(&fixture);
}

static void test_forward__refuses_what_it_has_no_room_for(void **state)
{
    (void)state;
    struct fixture fixture = fixture_open("mixtral");
    struct moec_forward forward = {0};
    struct moec_error err = {0};
    struct moec_experts *experts = moec_variants_experts(fixture.variants);
    assert_int_equal(moec_forward_init(&forward, fixture.model, &moec_kernels_scalar, 1, experts, 0, &err),
                     MOEC_ERR_USAGE);
    err = (struct moec_error){0};
    assert_int_equal(
        moec_forward_init(&forward, fixture.model, &moec_kernels_scalar, 1, experts, UINT32_MAX, &err),
        MOEC_ERR_LIMIT);
    err = (struct moec_error){0};
    assert_ok(moec_forward_init(&forward, fixture.model, &moec_kernels_scalar, 1, experts, 4, &err), err);
    assert_int_equal(forward.scratch_bytes, moec_forward_scratch_bytes(&fixture.model->config, 4, 1));
    float *hidden = floats(8 * moec_forward_stride(&fixture.model->config));
    assert_int_equal(moec_forward_embed(&forward, fixture.tokens, 5, hidden, &err), MOEC_ERR_LIMIT);
    err = (struct moec_error){0};
    uint32_t foreign = fixture.model->config.n_vocab;
    assert_int_equal(moec_forward_embed(&forward, &foreign, 1, hidden, &err), MOEC_ERR_LIMIT);
    assert_non_null(strstr(err.message, "128"));
    free(hidden);
    moec_forward_release(&forward);
    fixture_close(&fixture);
}

/* Brings bytes of a copy, but not those of one row. */
struct late_copy {
    struct moec_dense_late base;
    uint8_t *blob;
    uint8_t *copy;
    uint64_t refused_at;
    atomic_int n_asked;
};

static enum moec_status bring_copy(struct moec_dense_late *self, uint64_t at, uint64_t n_bytes,
                                   struct moec_error *err)
{
    struct late_copy *late = (struct late_copy *)self;
    assert_true(at >= self->from && at + n_bytes <= self->end);
    (void)atomic_fetch_add(&late->n_asked, 1);
    if (at == late->refused_at)
        return moec_fail(err, MOEC_ERR_CHECKSUM, "a piece is damaged");
    memcpy(late->blob + at, late->copy + (at - self->from), n_bytes);
    return MOEC_OK;
}

static void test_forward__rows_of_the_embedding_that_come_late(void **state)
{
    (void)state;
    enum { N_TOK = 40, REFUSED = 50, NOT_FINITE = 60 };
    struct fixture fixture = fixture_open("olmoe");
    struct moec_forward forward = {0};
    struct moec_error err = {0};
    struct moec_dense *dense = &fixture.model->dense;
    const struct moec_dense_entry *entry = moec_dense_entry_find(dense, MOEC_ROLE_EMBEDDING, MOEC_LAYER_NONE);
    const uint64_t row_bytes = entry->n_bytes / entry->rows;
    const size_t stride = moec_forward_stride(&fixture.model->config);
    float *expected = floats(N_TOK * stride), *hidden = floats(N_TOK * stride);
    uint32_t tokens[N_TOK];
    struct late_copy late = {.base = {.from = entry->offset,
                                      .end = entry->offset + entry->n_bytes,
                                      .path = "model.moec",
                                      .bring = bring_copy},
                             .blob = dense->blob,
                             .copy = malloc(entry->n_bytes),
                             .refused_at = entry->offset + REFUSED * row_bytes};
    assert_false(fixture.model->config.head.is_tied);
    for (uint32_t t = 0; t < N_TOK; t++)
        tokens[t] = N_TOK - t;
    assert_ok(moec_forward_init(&forward, fixture.model, moec_kernels_best(), 3,
                                moec_variants_experts(fixture.variants), N_TOK, &err),
              err);
    assert_ok(moec_forward_embed(&forward, tokens, N_TOK, expected, &err), err);
    memcpy(late.copy, dense->blob + entry->offset, entry->n_bytes);
    memset(dense->blob + entry->offset, 0, entry->n_bytes);
    memset(late.copy + NOT_FINITE * row_bytes, 0xff, row_bytes);
    dense->late = &late.base;

    for (uint32_t t = 0; t < N_TOK; t += 8) /* one by one, then many */
        assert_ok(moec_forward_embed(&forward, tokens + t, 1, hidden + t * stride, &err), err);
    assert_int_equal(late.n_asked, N_TOK / 8);
    assert_ok(moec_forward_embed(&forward, tokens, N_TOK, hidden, &err), err);
    assert_same_bits(hidden, expected, N_TOK * stride, "late rows");
    tokens[7] = REFUSED;
    tokens[9] = NOT_FINITE;
    assert_int_equal(moec_forward_embed(&forward, tokens, N_TOK, hidden, &err), MOEC_ERR_CHECKSUM);
    err = (struct moec_error){0};
    tokens[7] = N_TOK + 1;
    assert_int_equal(moec_forward_embed(&forward, tokens, N_TOK, hidden, &err), MOEC_ERR_FORMAT);
    assert_non_null(strstr(err.message,
                           "'embedding' of the bundle 'model.moec' have a weight that is not finite in "
                           "row 60"));
    dense->late = NULL;
    free(late.copy);
    free(expected);
    free(hidden);
    moec_forward_release(&forward);
    fixture_close(&fixture);
}

/* Rows of the embedding and the head in two matrices, resident and streamed, of floats and of codes. */
static void check_frequent(struct fixture *fixture, uint32_t dense_bits, uint32_t n_frequent,
                           bool is_streamed)
{
    struct moec_error err = {0};
    struct moec_dense dense = {0};
    const size_t n_vocab = fixture->model->config.n_vocab;
    uint32_t tokens[6] = {0, n_frequent - 1, n_frequent, n_frequent + 1, (uint32_t)n_vocab - 1, 0};
    float *logits[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        moec_checkpoint_set_frequent(fixture->checkpoint, i == 0 ? 0 : n_frequent);
        const struct moec_config *config = moec_checkpoint_config(fixture->checkpoint);
        assert_ok(moec_checkpoint_stream_dense(fixture->checkpoint, dense_bits, 0, &dense, &err), err);
        if (!is_streamed)
            assert_ok(moec_dense_load(&dense, &err), err);
        moec_model_free(fixture->model);
        fixture->model = NULL;
        assert_ok(moec_model_create(config, &dense, &fixture->model, &err), err);
        logits[i] = fixture_run(fixture, moec_kernels_best(), 2, 4, tokens, 6, 4);
    }
    assert_same_bits(logits[1], logits[0], 6 * n_vocab, fixture->name);
    moec_checkpoint_set_frequent(fixture->checkpoint, 0);
    free(logits[0]);
    free(logits[1]);
}

static void test_forward__same_bits_with_rows_in_two_matrices(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen2_moe-tied", "olmoe", "switch"};
    for (size_t f = 0; f < sizeof names / sizeof *names; f++) {
        struct fixture fixture = fixture_open(names[f]);
        for (int i = 0; i < 8; i++)
            check_frequent(&fixture, i % 2 == 0 ? 16 : 4, i / 2 % 2 == 0 ? 1 : 37, i >= 4);
        fixture_close(&fixture);
    }
}

static void test_forward__rows_in_two_matrices_of_codecs_of_their_own(void **state)
{
    (void)state;
    enum { N_FREQUENT = 37 };
    struct fixture fixture = fixture_open("qwen2_moe-tied");
    struct moec_error err = {0};
    const size_t n_vocab = fixture.model->config.n_vocab;
    struct moec_codec codecs[64] = {{0}};
    float *logits[3];
    for (int i = 0; i < 3; i++) { /* all rows at 8 bits, all at 4, the first at 8 and the rest at 4 */
        struct moec_dense dense = {0};
        moec_checkpoint_set_frequent(fixture.checkpoint, N_FREQUENT);
        const struct moec_config *config = moec_checkpoint_config(fixture.checkpoint);
        const uint32_t n = moec_plan_dense_count(config);
        assert_true(n >= 2 && n <= 64);
        codecs[n - 2].dtype = (uint8_t)(i == 1 ? MOEC_DTYPE_INT4 : MOEC_DTYPE_INT8);
        codecs[n - 1].dtype = (uint8_t)(i == 0 ? MOEC_DTYPE_INT8 : MOEC_DTYPE_INT4);
        assert_ok(moec_checkpoint_stream_dense_each(fixture.checkpoint, codecs, &dense, &err), err);
        assert_ok(moec_dense_load(&dense, &err), err);
        moec_model_free(fixture.model);
        fixture.model = NULL;
        assert_ok(moec_model_create(config, &dense, &fixture.model, &err), err);
        uint32_t token = 3; /* frequent, so that what is embedded is the same in the first and the last */
        logits[i] = fixture_run(&fixture, moec_kernels_best(), 1, 1, &token, 1, 1);
    }
    assert_same_bits(logits[2], logits[0], N_FREQUENT, "frequent");
    assert_memory_not_equal(logits[2] + N_FREQUENT, logits[0] + N_FREQUENT,
                            (n_vocab - N_FREQUENT) * sizeof(float));
    assert_memory_not_equal(logits[2], logits[1], N_FREQUENT * sizeof(float));
    for (int i = 0; i < 3; i++)
        free(logits[i]);
    moec_checkpoint_set_frequent(fixture.checkpoint, 0);
    fixture_close(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward__agrees_with_transformers),
        cmocka_unit_test(test_forward__same_bits_however_it_is_cut),
        cmocka_unit_test(test_forward__same_bits_with_encoded_experts),
        cmocka_unit_test(test_forward__spans_of_one_batch_do_not_meet),
        cmocka_unit_test(test_forward__trace_holds_what_the_layer_did),
        cmocka_unit_test(test_forward__same_bits_in_a_large_batch),
        cmocka_unit_test(test_forward__same_bits_however_many_experts_are_held),
        cmocka_unit_test(test_forward__a_refused_expert_is_an_error_and_nothing_stays_held),
        cmocka_unit_test(test_forward__refuses_what_it_has_no_room_for),
        cmocka_unit_test(test_forward__rows_of_the_embedding_that_come_late),
        cmocka_unit_test(test_forward__same_bits_with_rows_in_two_matrices),
        cmocka_unit_test(test_forward__rows_in_two_matrices_of_codecs_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
