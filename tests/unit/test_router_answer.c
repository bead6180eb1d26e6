/* What a router's answer tells a source of experts. */
#include "tests/unit/fixture_model.h"

#include "runtime/forward/moe/decide.h"
#include "runtime/policy/predict/scored.h"

#include <math.h>

/* A source that lends from variants and keeps the last answer. */
struct listener {
    struct moec_experts experts;
    struct moec_experts *inner;
    uint32_t n_expert, top_k;
    uint32_t ahead; /* layers that it guesses at */
    uint32_t n_answers, n_prefetches, n_tok, layer, n_next_gate;
    uint32_t n_told, n_right; /* experts that the gate before named with a score, and those that came */
    bool has_choices, has_last, has_next_gate;
    bool is_busy;                           /* does not want to guess */
    uint32_t n_come, n_told_low, n_as_told; /* choices whose copy was told before, and those taken in it */
    const bool *low;                        /* of the layer to come; NULL = not told */
    uint32_t *chosen, *last_chosen;
    float *weights, *last_weights;
    struct moec_scored_expert *next_gate;
};

static enum moec_status lend(struct moec_experts *self, struct moec_expert_request request,
                             struct moec_mlp *mlp, struct moec_error *err)
{
    struct listener *listener = (struct listener *)self;
    return listener->inner->ops->acquire(listener->inner, request, mlp, err);
}

static void take_back(struct moec_experts *self, struct moec_expert_request request)
{
    struct listener *listener = (struct listener *)self;
    listener->inner->ops->release(listener->inner, request);
}

/* Whether the copies are taken that were told, and which are told of the next layer. */
static void listen_for_low(struct listener *listener, const struct moec_router_answer *answer)
{
    for (size_t i = 0; listener->low != NULL && i < (size_t)answer->n_tok * listener->top_k; i++) {
        const bool is_low = listener->low[answer->choices.experts[i]];
        listener->n_told_low += is_low;
        listener->n_as_told += is_low && answer->choices.is_low[i];
        assert_true(is_low || !answer->choices.is_low[i]);
    }
    listener->low = answer->next.is_low;
}

static void begin_prompt(struct moec_experts *self, uint32_t layer, uint32_t n_tok, const bool *is_low)
{
    struct listener *listener = (struct listener *)self;
    assert_true(layer == 0 && n_tok > 1);
    listener->n_come++;
    listener->low = is_low;
}

static void listen(struct moec_experts *self, const struct moec_router_answer *answer)
{
    struct listener *listener = (struct listener *)self;
    const size_t n = (size_t)answer->n_tok * listener->top_k;
    listen_for_low(listener, answer);
    for (uint32_t i = 0; listener->has_next_gate && i < listener->n_next_gate; i++) {
        const struct moec_scored_expert told = listener->next_gate[i];
        listener->n_told += told.score > 0;
        for (uint32_t j = 0; told.score > 0 && j < answer->active.n; j++)
            listener->n_right += answer->active.list[j] == told.expert;
    }
    listener->n_answers++;
    listener->layer = answer->layer;
    listener->n_tok = answer->n_tok;
    listener->has_choices = answer->choices.experts != NULL && answer->choices.weights != NULL;
    listener->has_last = answer->last.experts != NULL && answer->last.weights != NULL;
    listener->has_next_gate = false;
    listener->n_next_gate = 0;
    assert_null(answer->next.gate.experts); /* which would have taken time */
    if (listener->has_choices) {
        memcpy(listener->chosen, answer->choices.experts, n * sizeof(uint32_t));
        memcpy(listener->weights, answer->choices.weights, n * sizeof(float));
    }
    if (listener->has_last) {
        memcpy(listener->last_chosen, answer->last.experts, n * sizeof(uint32_t));
        memcpy(listener->last_weights, answer->last.weights, n * sizeof(float));
    }
}

static bool wants_prefetch(struct moec_experts *self, uint32_t ahead)
{
    const struct listener *listener = (const struct listener *)self;
    return !listener->is_busy && ahead <= listener->ahead;
}

/* Keeps the gate of the layer so many ahead, the last one. */
static void prefetch(struct moec_experts *self, const struct moec_router_answer *answer, uint32_t ahead)
{
    struct listener *listener = (struct listener *)self;
    assert_int_equal(answer->layer, listener->layer);
    listener->n_prefetches++;
    const struct moec_gate_list gate =
        ahead == 1 ? (struct moec_gate_list){answer->next.gate.experts, answer->next.gate.n}
                   : answer->next.later[ahead - 2];
    listener->has_next_gate = gate.experts != NULL;
    listener->n_next_gate = gate.n;
    if (listener->has_next_gate)
        memcpy(listener->next_gate, gate.experts, gate.n * sizeof *gate.experts);
}

static const struct moec_experts_ops listener_ops = {.acquire = lend,
                                                     .release = take_back,
                                                     .expect = listen,
                                                     .wants_prefetch = wants_prefetch,
                                                     .prefetch = prefetch,
                                                     .begin_prompt = begin_prompt};

static struct listener listener_make(const struct fixture *fixture, uint32_t n_tok)
{
    const struct moec_config *config = &fixture->model->config;
    const size_t n = (size_t)n_tok * config->top_k;
    return (struct listener){
        .experts = {.ops = &listener_ops, .max_held = 4, .wants_choices = true, .wants_next_gate = true},
        .inner = moec_variants_experts(fixture->variants),
        .ahead = 1,
        .n_expert = config->n_expert,
        .top_k = config->top_k,
        .chosen = calloc(n, sizeof(uint32_t)),
        .weights = calloc(n, sizeof(float)),
        .last_chosen = calloc(n, sizeof(uint32_t)),
        .last_weights = calloc(n, sizeof(float)),
        .next_gate = calloc(config->n_expert, sizeof(struct moec_scored_expert)),
    };
}

static void listener_free(struct listener *listener)
{
    free(listener->chosen);
    free(listener->weights);
    free(listener->last_chosen);
    free(listener->last_weights);
    free(listener->next_gate);
}

static float *floats(size_t n)
{
    float *values = NULL;
    assert_int_equal(posix_memalign((void **)&values, 64, n * sizeof *values), 0);
    memset(values, 0, n * sizeof *values);
    return values;
}

/* One batch on its way through the layers. */
struct batch {
    uint32_t n_tok;
    float *hidden, *own;
    struct moec_mlp_trace trace;
};

static struct batch batch_make(const struct moec_forward *forward, const uint32_t *tokens, uint32_t n_tok)
{
    const struct moec_config *config = &forward->model->config;
    const size_t stride = moec_forward_stride(config);
    struct moec_error err = {0};
    struct batch batch = {
        .n_tok = n_tok,
        .hidden = floats(n_tok * stride),
        .own = floats((size_t)2 * n_tok * moec_layer_kv_dim(moec_config_layer(config, 0))),
        .trace = {.experts = calloc((size_t)n_tok * config->top_k, sizeof(uint32_t)),
                  .weights = floats((size_t)n_tok * config->top_k),
                  .input = floats(n_tok * stride)},
    };
    assert_ok(moec_forward_embed(forward, tokens, n_tok, batch.hidden, &err), err);
    return batch;
}

static void batch_free(struct batch *batch)
{
    free(batch->hidden);
    free(batch->own);
    free(batch->trace.experts);
    free(batch->trace.weights);
    free(batch->trace.input);
}

static void batch_layer(const struct moec_forward *forward, struct batch *batch, uint32_t layer, bool traced)
{
    const struct moec_config *config = &forward->model->config;
    const size_t kv = moec_layer_kv_dim(moec_config_layer(config, 0));
    struct moec_span span = {.n_rows = batch->n_tok,
                             .keys = {.k_own = batch->own, .v_own = batch->own + batch->n_tok * kv}};
    struct moec_error err = {0};
    assert_ok(moec_forward_attention(forward, layer, (struct moec_batch){&span, 1, batch->n_tok},
                                     batch->hidden, &err),
              err);
    assert_ok(moec_forward_mlp(forward, layer,
                               &(struct moec_mlp_batch){.n_tok = batch->n_tok,
                                                        .hidden = batch->hidden,
                                                        .trace = traced ? &batch->trace : NULL},
                               &err),
              err);
}

/* The next router's probabilities of these inputs, summed over the tokens, in another arithmetic. */
static void gate_directly(const struct moec_model *model, uint32_t layer, uint32_t n_tok, const float *input,
                          double *sums)
{
    const struct moec_config *config = &model->config;
    const struct moec_matrix *router = &model->layers[layer].router;
    const size_t stride = moec_forward_stride(config);
    float *row = floats(stride);
    double *logits = calloc(config->n_expert, sizeof *logits);
    memset(sums, 0, config->n_expert * sizeof *sums);
    for (uint32_t t = 0; t < n_tok; t++) {
        double total = 0;
        for (uint32_t e = 0; e < config->n_expert; e++) {
            moec_kernels_scalar.decode_rows(router, e, 1, row, stride);
            logits[e] = 0;
            for (uint32_t i = 0; i < config->n_embd; i++)
                logits[e] += (double)row[i] * (double)input[t * stride + i];
            total += exp(logits[e]);
        }
        for (uint32_t e = 0; e < config->n_expert; e++)
            sums[e] += exp(logits[e]) / total;
    }
    free(logits);
    free(row);
}

static void check_next_gate(const struct fixture *fixture, const struct listener *listener, uint32_t next,
                            const struct batch *batch)
{
    const struct moec_config *config = &fixture->model->config;
    double *sums = calloc(config->n_expert, sizeof *sums);
    bool *seen = calloc(config->n_expert, sizeof *seen);
    const uint32_t best = moec_predicted_experts(config->top_k, config->n_expert);
    gate_directly(fixture->model, next, batch->n_tok, batch->trace.input, sums);
    assert_int_equal(listener->n_next_gate, batch->n_tok == 1 ? best : config->n_expert);
    for (uint32_t i = 0; i < listener->n_next_gate; i++) {
        const struct moec_scored_expert one = listener->next_gate[i];
        assert_true(one.expert < config->n_expert && !seen[one.expert]);
        seen[one.expert] = true;
        assert_true(fabs((double)one.score - sums[one.expert]) < 1e-5 * batch->n_tok);
        assert_true(i == 0 || one.score <= listener->next_gate[i - 1].score);
    }
    for (uint32_t e = 0; e < config->n_expert; e++)
        assert_true(seen[e] ||
                    sums[e] <= (double)listener->next_gate[listener->n_next_gate - 1].score + 1e-5);
    free(seen);
    free(sums);
}

static uint32_t next_moe(const struct moec_config *config, uint32_t layer)
{
    while (layer < config->n_layer && ++layer < config->n_layer && !moec_config_is_moe(config, layer))
        ;
    return layer;
}

static void check_batch(const struct fixture *fixture, uint32_t n_tok, int n_threads, uint32_t ahead)
{
    const struct moec_config *config = &fixture->model->config;
    const size_t n = (size_t)n_tok * config->top_k;
    struct moec_error err = {0};
    struct moec_forward forward = {0};
    struct listener listener = listener_make(fixture, n_tok);
    uint32_t *tokens = fixture_long_tokens(fixture, n_tok), *last = calloc(n, sizeof *last), n_moe = 0;
    listener.ahead = ahead;
    float *last_weights = floats(n);
    assert_ok(moec_forward_init(&forward, fixture->model, moec_kernels_best(), n_threads, &listener.experts,
                                n_tok, &err),
              err);
    moec_forward_scratch(&forward)->test_hook.shares_all_work = true;
    struct batch batch = batch_make(&forward, tokens, n_tok);
    for (uint32_t layer = 0; layer < config->n_layer; layer++) {
        batch_layer(&forward, &batch, layer, true);
        if (!moec_config_is_moe(config, layer))
            continue;
        assert_int_equal(listener.n_answers, ++n_moe);
        assert_int_equal(listener.layer, layer);
        assert_int_equal(listener.n_tok, n_tok);
        assert_true(listener.has_choices);
        assert_memory_equal(listener.chosen, batch.trace.experts, n * sizeof(uint32_t));
        assert_memory_equal(listener.weights, batch.trace.weights, n * sizeof(float));
        assert_int_equal(listener.has_last, n_moe > 1);
        if (n_moe > 1) {
            assert_memory_equal(listener.last_chosen, last, n * sizeof(uint32_t));
            assert_memory_equal(listener.last_weights, last_weights, n * sizeof(float));
        }
        memcpy(last, listener.chosen, n * sizeof *last);
        memcpy(last_weights, listener.weights, n * sizeof *last_weights);
        uint32_t next = layer;
        for (uint32_t i = 0; i < ahead; i++)
            next = next_moe(config, next);
        assert_int_equal(listener.has_next_gate, next < config->n_layer);
        if (listener.has_next_gate)
            check_next_gate(fixture, &listener, next, &batch);
    }
    batch_free(&batch);
    moec_forward_release(&forward);
    listener_free(&listener);
    free(last_weights);
    free(last);
    free(tokens);
}

static void test_router_answer__carries_choices_and_the_next_gate(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FIXTURE_FAMILIES; f++) {
        struct fixture fixture = fixture_open(fixture_families[f]);
        check_batch(&fixture, 1, 1, 1);
        check_batch(&fixture, 2, 1, 2);
        check_batch(&fixture, 77, 2, 1);
        check_batch(&fixture, 1, 1, 2);
        check_batch(&fixture, 1, 1, MOEC_GATES_AHEAD);
        fixture_close(&fixture);
    }
}

static void test_router_answer__next_gate_is_the_same_with_any_threads_and_kernels(void **state)
{
    (void)state;
    struct fixture fixture = fixture_open("qwen2_moe");
    const uint32_t n_tok = 150, n_expert = fixture.model->config.n_expert;
    struct listener listener = listener_make(&fixture, n_tok);
    struct moec_scored_expert *expected = calloc(n_expert, sizeof *expected);
    uint32_t *tokens = fixture_long_tokens(&fixture, n_tok);
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        struct moec_error err = {0};
        struct moec_forward forward = {0};
        assert_ok(moec_forward_init(&forward, fixture.model,
                                    n_threads == 1 ? &moec_kernels_scalar : moec_kernels_best(), n_threads,
                                    &listener.experts, n_tok, &err),
                  err);
        moec_forward_scratch(&forward)->test_hook.shares_all_work = true;
        struct batch batch = batch_make(&forward, tokens, n_tok);
        batch_layer(&forward, &batch, 0, false);
        assert_true(listener.has_next_gate);
        assert_int_equal(listener.n_next_gate, n_expert);
        if (n_threads == 1)
            memcpy(expected, listener.next_gate, n_expert * sizeof *expected);
        assert_memory_equal(listener.next_gate, expected, n_expert * sizeof *expected);
        batch_free(&batch);
        moec_forward_release(&forward);
    }
    free(tokens);
    free(expected);
    listener_free(&listener);
    fixture_close(&fixture);
}

/* Choices are of the same rows or absent: layers run again, other batches between, a source that came late.
 */
static void test_router_answer__last_choices_belong_to_the_rows(void **state)
{
    (void)state;
    struct fixture fixture = fixture_open("olmoe-b");
    struct moec_error err = {0};
    struct moec_forward forward = {0};
    struct listener listener = listener_make(&fixture, 4);
    assert_ok(moec_forward_init(&forward, fixture.model, moec_kernels_best(), 1, &listener.experts, 4, &err),
              err);
    struct batch first = batch_make(&forward, fixture.tokens, 4);
    struct batch second = batch_make(&forward, fixture.tokens + 4, 4);
    batch_layer(&forward, &first, 0, false);
    batch_layer(&forward, &second, 0, false);
    assert_false(listener.has_last);
    batch_layer(&forward, &first, 1, false); /* what was kept is the other batch's */
    assert_false(listener.has_last);
    batch_layer(&forward, &first, 2, false);
    assert_true(listener.has_last);
    batch_layer(&forward, &first, 2, false); /* the layer before was not run again */
    assert_false(listener.has_last);

    batch_layer(&forward, &second, 0, false);
    struct moec_forward unheard = forward;
    unheard.experts = listener.inner; /* asks for nothing */
    batch_layer(&unheard, &second, 1, false);
    batch_layer(&forward, &second, 2, false);
    assert_false(listener.has_last);

    batch_layer(&forward, &first, 0, false);
    assert_ok(moec_forward_embed(&forward, fixture.tokens, 4, first.hidden, &err), err);
    batch_layer(&forward, &first, 1, false); /* other tokens in the same rows */
    assert_false(listener.has_last);
    batch_free(&first);
    batch_free(&second);
    moec_forward_release(&forward);
    listener_free(&listener);
    fixture_close(&fixture);
}

static void test_router_answer__carries_nothing_unasked(void **state)
{
    (void)state;
    struct fixture fixture = fixture_open("mixtral");
    struct moec_error err = {0};
    struct moec_forward forward = {0};
    struct listener listener = listener_make(&fixture, 3);
    listener.experts.wants_choices = listener.experts.wants_next_gate = false;
    assert_ok(moec_forward_init(&forward, fixture.model, moec_kernels_best(), 1, &listener.experts, 3, &err),
              err);
    struct batch batch = batch_make(&forward, fixture.tokens, 3);
    for (uint32_t layer = 0; layer < fixture.model->config.n_layer; layer++) {
        batch_layer(&forward, &batch, layer, false);
        assert_false(listener.has_choices || listener.has_last || listener.has_next_gate);
        assert_int_equal(listener.n_next_gate, 0);
    }
    assert_int_equal(listener.n_answers, fixture.model->config.n_layer);
    assert_int_equal(listener.n_prefetches, fixture.model->config.n_layer);
    listener.is_busy = listener.experts.wants_next_gate = true;
    batch_layer(&forward, &batch, 0, false);
    assert_int_equal(listener.n_prefetches, fixture.model->config.n_layer);
    assert_false(listener.has_next_gate);
    batch_free(&batch);
    moec_forward_release(&forward);
    listener_free(&listener);
    fixture_close(&fixture);
}

/* Tokens step by step by these decisions; NULL: by the router's. */
static void run_decided(const struct moec_route *route, struct listener *listener,
                        const struct fixture *fixture, uint32_t chunk)
{
    const struct moec_config *config = &fixture->model->config;
    struct moec_error err = {0};
    struct moec_forward forward = {0};
    struct moec_decider decider = {0};
    struct moec_session *session = NULL;
    assert_ok(
        moec_forward_init(&forward, fixture->model, moec_kernels_best(), 1, &listener->experts, chunk, &err),
        err);
    if (route != NULL) {
        assert_ok(moec_route_check(route, config, &err), err);
        assert_ok(moec_decider_create(config, route, chunk, &decider, &err), err);
        forward.decider = &decider;
    }
    assert_ok(moec_session_create(&forward, fixture->n_tok, &session, &err), err);
    moec_session_set_prompt(session, chunk > 1 ? fixture->n_tok : 0);
    for (uint32_t t = 0; t + chunk <= fixture->n_tok; t += chunk)
        assert_ok(moec_session_step(session, fixture->tokens + t, chunk, NULL, 0, NULL, &err), err);
    moec_session_free(session);
    moec_forward_release(&forward);
    moec_decider_release(&decider);
}

/* A gate says what a token will take of what its logical cache holds, not what its router would like. */
static void test_router_answer__the_next_gate_decides(void **state)
{
    (void)state;
    static const struct moec_route routes[] = {
        {.kind = MOEC_ROUTE_PRUNE, .n_expert = 1, .n_slots = 4},
        {.skip = 100, .n_slots = 4}, /* what is not there is skipped, so nothing ever is there */
        {.kind = MOEC_ROUTE_CACHE_PRIOR, .share = 1, .n_slots = 4},
    };
    struct fixture fixture = fixture_open("olmoe");
    const uint32_t k = fixture.model->config.top_k;
    struct listener plain = listener_make(&fixture, 1);
    run_decided(NULL, &plain, &fixture, 1);
    assert_true(plain.n_told > 0 && plain.n_right < plain.n_told);
    for (size_t r = 0; r < sizeof routes / sizeof *routes; r++) {
        struct listener listener = listener_make(&fixture, 1);
        run_decided(&routes[r], &listener, &fixture, 1);
        const uint32_t n_gate = plain.n_told / moec_predicted_experts(k, fixture.model->config.n_expert);
        if (r < 2)
            assert_int_equal(listener.n_told, n_gate * (1 - r));
        else
            assert_in_range(listener.n_told, n_gate, n_gate * k);
        if (r == 2) /* the cache holds twice what a token takes: most of what it will take is certain */
            assert_true((uint64_t)listener.n_right * plain.n_told >
                        (uint64_t)plain.n_right * listener.n_told);
        listener_free(&listener);
    }
    listener_free(&plain);
    fixture_close(&fixture);
}

/* Low copies of a prompt are told before its tokens ask for them, unless the tokens are counted first. */
static void test_router_answer__a_prompt_s_low_copies_are_known(void **state)
{
    (void)state;
    enum { CHUNK = 4 };
    const struct moec_prefill prefills[] = {
        {.kind = MOEC_PREFILL_UNPOPULAR, .share = 0.5f, .block_tokens = CHUNK},
        {.kind = MOEC_PREFILL_WHOLE, .share = 0.5f, .block_tokens = UINT32_MAX},
    };
    for (size_t i = 0; i < sizeof prefills / sizeof *prefills; i++) {
        struct fixture fixture = fixture_open("olmoe");
        struct moec_error err = {0};
        const uint32_t n_chunk = fixture.n_tok / CHUNK;
        const bool is_whole = i == 1;
        const struct moec_route route = {.n_slots = 2, .n_low_slots = 2, .prefill = prefills[i]};
        struct listener listener = listener_make(&fixture, is_whole ? fixture.n_tok : CHUNK);
        assert_true(n_chunk > 1);
        assert_ok(moec_variants_serve_low(fixture.variants, 2, &err), err);
        listener.experts.n_form = listener.inner->n_form;
        run_decided(&route, &listener, &fixture, is_whole ? fixture.n_tok : CHUNK);
        assert_int_equal(listener.n_come, is_whole ? 0 : n_chunk);
        assert_true((listener.n_told_low > 0) != is_whole);
        assert_int_equal(listener.n_as_told, listener.n_told_low);
        listener_free(&listener);
        fixture_close(&fixture);
    }
}

static void test_router_answer__best_experts_come_in_order(void **state)
{
    (void)state;
    enum { N = 67 };
    float scores[N];
    struct moec_scored_expert all[N], best[N];
    uint32_t seed = 3;
    for (uint32_t e = 0; e < N; e++) {
        seed = seed * 1664525u + 1013904223u;
        scores[e] = (float)(seed >> 28) / 16.0f; /* many ties */
    }
    scores[11] = scores[29] = NAN;
    for (uint32_t n = 0; n <= N; n++) {
        for (uint32_t e = 0; e < N; e++)
            (n == 0 ? all : best)[e] = (struct moec_scored_expert){e, scores[e]};
        moec_scored_order(n == 0 ? all : best, N, n == 0 ? N : n);
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(best[i].expert, all[i].expert);
    }
    for (uint32_t i = 0; i + 2 < N; i++) {
        assert_true(all[i].score == scores[all[i].expert]);
        assert_true(i == 0 || all[i - 1].score > all[i].score ||
                    (all[i - 1].score == all[i].score && all[i - 1].expert < all[i].expert));
    }
    assert_int_equal(all[N - 2].expert, 11);
    assert_int_equal(all[N - 1].expert, 29);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_router_answer__carries_choices_and_the_next_gate),
        cmocka_unit_test(test_router_answer__next_gate_is_the_same_with_any_threads_and_kernels),
        cmocka_unit_test(test_router_answer__last_choices_belong_to_the_rows),
        cmocka_unit_test(test_router_answer__carries_nothing_unasked),
        cmocka_unit_test(test_router_answer__the_next_gate_decides),
        cmocka_unit_test(test_router_answer__a_prompt_s_low_copies_are_known),
        cmocka_unit_test(test_router_answer__best_experts_come_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
