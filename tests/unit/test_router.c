/* Routing's two steps, scores and choice, of every kind of router: against a plain reference in F64, and with
 * the same bits at every batch, thread count and instruction set. */
#include "runtime/forward/moe/router.h"

#include "tests/unit/dense_load.h"
#include "tests/unit/fixture_model.h"
#include "tests/unit/kernel_sets.h"

#include <math.h>

#define N_TOK    70 /* two tiles of the router and a rest */
#define N_EXPERT 37
#define TOP_K    5
#define JITTER   0.25f /* of SparseMixer */

struct router_case {
    const char *name;
    enum moec_router_kind kind;
    bool has_bias, has_choice_bias, norm;
    float scale;
};

static const struct router_case cases[] = {
    {"softmax", MOEC_ROUTER_SOFTMAX, false, false, false, 0},
    {"softmax, normalised", MOEC_ROUTER_SOFTMAX, true, false, true, 0},
    {"softmax, scaled (DeepSeek-V2)", MOEC_ROUTER_SOFTMAX, false, false, false, 16},
    {"softmax with a choice bias (ERNIE 4.5)", MOEC_ROUTER_SOFTMAX, false, true, true, 0},
    {"sigmoid with a choice bias (DeepSeek-V3)", MOEC_ROUTER_SIGMOID, false, true, true, 2.5f},
    {"sigmoid with a bias, not normalised", MOEC_ROUTER_SIGMOID, true, false, false, 0},
    {"softmax of the chosen (gpt-oss)", MOEC_ROUTER_SOFTMAX_CHOSEN, true, false, false, 0},
    {"shares among close experts (PhiMoE)", MOEC_ROUTER_SPARSEMIXER, false, false, false, 0},
    {"roots of softplus (DeepSeek-V4)", MOEC_ROUTER_ROOT_SOFTPLUS, false, true, true, 1.5f},
};
#define N_CASE (sizeof cases / sizeof *cases)

/* A model whose first MoE layer has the router under test; its other layers are not run. */
struct bench {
    struct fixture fixture;
    struct moec_layer *layer;
    uint32_t layer_index;
    size_t stride;
    float *router, *hidden;
    float bias[48], choice_bias[48]; /* whole lanes */
};

struct routed {
    struct moec_routing routing;
    float *normed;
};

static float *floats(size_t n)
{
    float *values = NULL;
    assert_int_equal(posix_memalign((void **)&values, 64, n * sizeof *values), 0);
    memset(values, 0, n * sizeof *values);
    return values;
}

static float next_float(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (float)((int32_t)(*state >> 33) - (1 << 30)) / (float)(1 << 30);
}

static struct bench bench_open(void)
{
    struct bench bench = {.fixture = fixture_open("qwen2_moe")};
    struct moec_model *model = bench.fixture.model;
    uint64_t state = 3;
    bench.layer_index = moec_config_moe_layer(&model->config, 0);
    bench.layer = &model->layers[bench.layer_index];
    bench.stride = moec_forward_stride(&model->config);
    model->config.n_expert = N_EXPERT;
    model->config.top_k = TOP_K;
    const uint32_t n_embd = model->config.n_embd;
    bench.router = floats((size_t)N_EXPERT * n_embd);
    for (size_t i = 0; i < (size_t)N_EXPERT * n_embd; i++)
        bench.router[i] = next_float(&state) / 3;
    bench.hidden = floats(N_TOK * bench.stride);
    for (size_t t = 0; t < N_TOK; t++) {
        for (uint32_t i = 0; i < n_embd; i++)
            bench.hidden[t * bench.stride + i] = next_float(&state);
    }
    for (uint32_t e = 0; e < N_EXPERT; e++) {
        bench.bias[e] = next_float(&state);
        bench.choice_bias[e] = next_float(&state) - 0.8f; /* sums with scores stand on both sides of 0 */
    }
    bench.layer->router = (struct moec_matrix){.codec = {.dtype = MOEC_DTYPE_F32},
                                               .rows = N_EXPERT,
                                               .columns = n_embd,
                                               .stride_bytes = n_embd * sizeof(float),
                                               .data = (const uint8_t *)bench.router};
    return bench;
}

static void bench_close(struct bench *bench)
{
    fixture_close(&bench->fixture);
    free(bench->router);
    free(bench->hidden);
}

static void set_case(struct bench *bench, const struct router_case *it)
{
    struct moec_config *config = &bench->fixture.model->config;
    config->router.kind = (uint8_t)it->kind;
    config->router.jitter = it->kind == MOEC_ROUTER_SPARSEMIXER ? JITTER : 0;
    config->router.norm_topk_prob = it->norm;
    config->router.scale = it->scale;
    config->router.bias = it->has_bias;
    config->router.choice_bias = it->has_choice_bias;
    bench->layer->router_bias = it->has_bias ? bench->bias : NULL;
    bench->layer->router_choice_bias = it->has_choice_bias ? bench->choice_bias : NULL;
}

static struct routed routed_make(const struct bench *bench)
{
    return (struct routed){.routing = {.experts = calloc((size_t)N_TOK * TOP_K, sizeof(uint32_t)),
                                       .weights = floats((size_t)N_TOK * TOP_K),
                                       .margins = floats(N_TOK),
                                       .shared_gate = floats(N_TOK)},
                           .normed = floats(N_TOK * bench->stride)};
}

static void routed_free(struct routed *routed)
{
    free(routed->routing.experts);
    free(routed->routing.weights);
    free(routed->routing.margins);
    free(routed->routing.shared_gate);
    free(routed->normed);
}

/* How a batch is run, and what chooses. */
struct manner {
    const struct moec_kernels *kernels;
    int n_threads;
    uint32_t chunk;
    const struct moec_choice *choice;
    const struct moec_residents *residents;
};

static const struct manner plainly = {&moec_kernels_scalar, 1, N_TOK, NULL, NULL};

static struct routed route(const struct bench *bench, const struct manner *manner)
{
    struct routed routed = routed_make(bench);
    struct moec_forward forward = {0};
    struct moec_error err = {0};
    assert_ok(moec_forward_init(&forward, bench->fixture.model, manner->kernels, manner->n_threads,
                                moec_variants_experts(bench->fixture.variants), N_TOK, &err),
              err);
    moec_forward_scratch(&forward)->test_hook.shares_all_work = true;
    forward.choice = manner->choice;
    forward.residents = manner->residents;
    for (uint32_t done = 0; done < N_TOK; done += manner->chunk) {
        const uint32_t n = moec_min_u32(manner->chunk, N_TOK - done);
        const struct moec_routing part = {.experts = routed.routing.experts + (size_t)done * TOP_K,
                                          .weights = routed.routing.weights + (size_t)done * TOP_K,
                                          .margins = routed.routing.margins + done,
                                          .shared_gate = routed.routing.shared_gate + done};
        float *normed = routed.normed + done * bench->stride;
        const struct moec_moe_inputs inputs = {normed, normed, normed};
        assert_ok(moec_router_run(
                      &forward, bench->layer_index,
                      &(struct moec_mlp_batch){.n_tok = n, .hidden = bench->hidden + done * bench->stride},
                      &inputs, &part, &err),
                  err);
    }
    moec_forward_release(&forward);
    return routed;
}

/* ---- the reference ---- */

static void reference_logits(const struct bench *bench, uint32_t token, double *logits)
{
    const struct moec_config *config = &bench->fixture.model->config;
    const float *hidden = bench->hidden + token * bench->stride;
    double square = 0;
    for (uint32_t i = 0; i < config->n_embd; i++)
        square += (double)hidden[i] * hidden[i];
    const double factor = 1 / sqrt(square / config->n_embd + config->rms_eps);
    for (uint32_t e = 0; e < N_EXPERT; e++) {
        logits[e] = config->router.bias ? bench->bias[e] : 0;
        for (uint32_t i = 0; i < config->n_embd; i++)
            logits[e] += (double)bench->router[e * config->n_embd + i] * hidden[i] * factor *
                         bench->layer->mlp_norm[i];
    }
}

static void reference_softmax(double *values, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += exp(values[i]);
    for (uint32_t i = 0; i < n; i++)
        values[i] = exp(values[i]) / sum;
}

/* Scores of one token, and `compared`, what the choice goes by. */
static void reference_scores(const struct bench *bench, uint32_t token, double *scores, double *compared)
{
    const struct moec_config *config = &bench->fixture.model->config;
    reference_logits(bench, token, scores);
    if (config->router.kind == MOEC_ROUTER_SOFTMAX)
        reference_softmax(scores, N_EXPERT);
    for (uint32_t e = 0; e < N_EXPERT; e++) {
        if (config->router.kind == MOEC_ROUTER_SIGMOID)
            scores[e] = 1 / (1 + exp(-scores[e]));
        if (config->router.kind == MOEC_ROUTER_ROOT_SOFTPLUS)
            scores[e] = sqrt(log1p(exp(scores[e])));
        compared[e] = scores[e] + (config->router.choice_bias ? (double)bench->choice_bias[e] : 0);
    }
}

/* The k + 1 best of what is compared, which must lie apart for the comparison to be one. */
static void reference_best(const double *compared, uint32_t *best)
{
    bool taken[N_EXPERT] = {false};
    for (uint32_t rank = 0; rank <= TOP_K; rank++) {
        best[rank] = UINT32_MAX;
        for (uint32_t e = 0; e < N_EXPERT; e++) {
            if (!taken[e] && (best[rank] == UINT32_MAX || compared[e] > compared[best[rank]]))
                best[rank] = e;
        }
        taken[best[rank]] = true;
        assert_true(rank == 0 || compared[best[rank - 1]] - compared[best[rank]] > 1e-6);
    }
}

/* SparseMixer's weight of the last of n experts that were chosen one after the other. */
static double reference_share(const double *logits, const uint32_t *experts, uint32_t n)
{
    const double own = logits[experts[n - 1]];
    double sum = 0;
    for (uint32_t e = 0; e < N_EXPERT; e++) {
        bool is_left = true;
        for (uint32_t before = 0; before + 1 < n; before++)
            is_left = is_left && experts[before] != e;
        if (is_left && (own - logits[e]) / fmax(fabs(logits[e]), own) <= 2 * (double)JITTER)
            sum += exp(logits[e] - own);
    }
    return 1 / sum;
}

/* weights of n experts, as if these were all that the model takes. */
static void reference_weights(const struct bench *bench, const double *scores, const uint32_t *experts,
                              uint32_t n, double *weights)
{
    const struct moec_config *config = &bench->fixture.model->config;
    double sum = 1e-20;
    for (uint32_t rank = 0; rank < n; rank++)
        weights[rank] = config->router.kind == MOEC_ROUTER_SPARSEMIXER
                            ? reference_share(scores, experts, rank + 1)
                            : scores[experts[rank]];
    if (config->router.kind == MOEC_ROUTER_SOFTMAX_CHOSEN)
        reference_softmax(weights, n);
    for (uint32_t rank = 0; rank < n; rank++)
        sum += weights[rank];
    for (uint32_t rank = 0; rank < n; rank++)
        weights[rank] *= (config->router.norm_topk_prob ? 1 / sum : 1) *
                         (config->router.scale != 0 ? (double)config->router.scale : 1);
}

static void assert_weight(const char *name, float weight, double expected)
{
    if (fabs((double)weight - expected) > 3e-6 * fabs(expected))
        fail_msg("%s: weight %.9g, expected %.9g", name, (double)weight, expected);
}

static void check_by_reference(const struct bench *bench, const char *name, const struct routed *routed)
{
    for (uint32_t t = 0; t < N_TOK; t++) {
        double scores[N_EXPERT], compared[N_EXPERT], weights[TOP_K];
        uint32_t best[TOP_K + 1];
        reference_scores(bench, t, scores, compared);
        reference_best(compared, best);
        reference_weights(bench, scores, best, TOP_K, weights);
        assert_memory_equal(routed->routing.experts + (size_t)t * TOP_K, best, TOP_K * sizeof *best);
        for (uint32_t rank = 0; rank < TOP_K; rank++)
            assert_weight(name, routed->routing.weights[t * TOP_K + rank], weights[rank]);
        const double margin = compared[best[TOP_K - 1]] - compared[best[TOP_K]];
        assert_true(fabs((double)routed->routing.margins[t] - margin) < 2e-6);
    }
}

static void assert_same_routing(const struct routed *routed, const struct routed *expected, const char *name)
{
    assert_memory_equal(routed->routing.experts, expected->routing.experts, N_TOK * TOP_K * sizeof(uint32_t));
    assert_same_bits(routed->routing.weights, expected->routing.weights, (size_t)N_TOK * TOP_K, name);
    assert_same_bits(routed->routing.margins, expected->routing.margins, N_TOK, name);
    assert_same_bits(routed->routing.shared_gate, expected->routing.shared_gate, N_TOK, name);
}

static void check_everywhere(const struct bench *bench, const struct manner *plain, const char *name,
                             const struct routed *expected)
{
    static const uint32_t chunks[] = {1, 2, 3, 33, N_TOK};
    for (size_t set = 0; set <= n_kernel_sets(); set++) {
        for (int n_threads = 1; n_threads <= 3; n_threads += 2) {
            for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
                struct manner manner = *plain;
                manner.kernels = set < n_kernel_sets() ? kernel_set(set) : &moec_kernels_scalar;
                manner.n_threads = n_threads;
                manner.chunk = chunks[c];
                struct routed routed = route(bench, &manner);
                assert_same_routing(&routed, expected, name);
                routed_free(&routed);
            }
        }
    }
}

static void test_router__kinds_agree_with_the_reference(void **state)
{
    (void)state;
    struct bench bench = bench_open();
    for (size_t c = 0; c < N_CASE; c++) {
        set_case(&bench, &cases[c]);
        struct routed routed = route(&bench, &plainly);
        check_by_reference(&bench, cases[c].name, &routed);
        check_everywhere(&bench, &plainly, cases[c].name, &routed);
        routed_free(&routed);
    }
    bench_close(&bench);
}

/* ---- choices ---- */

/* The router's own without its second expert. */
static void skip_second(const void *context, const struct moec_scored_token *token, uint32_t *experts,
                        bool *skips)
{
    (void)context;
    moec_choice_top_k.choose(moec_choice_top_k.context, token, experts, skips);
    skips[1] = true;
}

static void test_router__a_skipped_expert_leaves_a_smaller_k(void **state)
{
    (void)state;
    static const struct moec_choice choice = {.choose = skip_second};
    struct bench bench = bench_open();
    for (size_t c = 0; c < N_CASE; c++) {
        struct manner manner = plainly;
        manner.choice = &choice;
        set_case(&bench, &cases[c]);
        struct routed routed = route(&bench, &manner);
        for (uint32_t t = 0; t < N_TOK; t++) {
            const float *ours = routed.routing.weights + (size_t)t * TOP_K;
            double scores[N_EXPERT], compared[N_EXPERT], weights[TOP_K];
            uint32_t best[TOP_K + 1];
            reference_scores(&bench, t, scores, compared);
            reference_best(compared, best);
            memmove(best + 1, best + 2, (TOP_K - 2) * sizeof *best);
            reference_weights(&bench, scores, best, TOP_K - 1, weights);
            assert_weight(cases[c].name, ours[0], weights[0]);
            assert_true(ours[1] == 0);
            for (uint32_t rank = 2; rank < TOP_K; rank++)
                assert_weight(cases[c].name, ours[rank], weights[rank - 1]);
        }
        routed_free(&routed);
    }
    bench_close(&bench);
}

/* Every third expert is resident. */
struct thirds {
    struct moec_residents residents;
    uint32_t layer;
};

static bool thirds_has(const struct moec_residents *self, uint32_t layer, uint32_t expert)
{
    assert_int_equal(layer, ((const struct thirds *)self)->layer);
    return expert % 3 == 0;
}

/* Residents alone, where somebody says what is resident; there are more than a token takes. */
static void prefer_residents(const void *context, const struct moec_scored_token *token, uint32_t *experts,
                             bool *skips)
{
    float scores[N_EXPERT], values[TOP_K];
    const struct moec_residents *residents = token->residents;
    (void)context;
    (void)skips;
    for (uint32_t e = 0; e < N_EXPERT; e++) {
        const bool is_resident = residents == NULL || residents->has(residents, token->layer, e);
        scores[e] = is_resident ? token->scores[e] : -INFINITY;
    }
    struct moec_scored_token left = *token;
    left.scores = scores;
    moec_choose_best(&left, token->top_k, experts, values);
}

static void test_router__a_choice_sees_what_is_resident(void **state)
{
    (void)state;
    static const struct moec_choice choice = {.choose = prefer_residents};
    struct bench bench = bench_open();
    const struct thirds thirds = {.residents = {thirds_has}, .layer = bench.layer_index};
    struct manner manner = plainly;
    manner.choice = &choice;
    for (size_t c = 0; c < N_CASE; c++) {
        set_case(&bench, &cases[c]);
        struct routed plain = route(&bench, &plainly);
        manner.residents = NULL;
        struct routed blind = route(&bench, &manner);
        assert_same_routing(&blind, &plain, cases[c].name);
        manner.residents = &thirds.residents;
        struct routed routed = route(&bench, &manner);
        assert_same_bits(routed.routing.margins, plain.routing.margins, N_TOK, "the router's margins");
        for (uint32_t t = 0; t < N_TOK; t++) {
            double scores[N_EXPERT], compared[N_EXPERT], weights[TOP_K];
            uint32_t best[TOP_K + 1];
            reference_scores(&bench, t, scores, compared);
            for (uint32_t e = 0; e < N_EXPERT; e += 3)
                compared[e] += 100;
            reference_best(compared, best);
            reference_weights(&bench, scores, best, TOP_K, weights);
            assert_memory_equal(routed.routing.experts + (size_t)t * TOP_K, best, TOP_K * sizeof *best);
            for (uint32_t rank = 0; rank < TOP_K; rank++) {
                assert_int_equal(best[rank] % 3, 0);
                assert_weight(cases[c].name, routed.routing.weights[t * TOP_K + rank], weights[rank]);
            }
        }
        check_everywhere(&bench, &manner, cases[c].name, &routed);
        routed_free(&plain);
        routed_free(&blind);
        routed_free(&routed);
    }
    bench_close(&bench);
}

/* Ties, infinities and NaN: by falling score, ties to the lower index, each expert once. */
static void test_router__the_best_are_taken_in_order(void **state)
{
    (void)state;
    static const float steps[] = {-3, -0.5f, 0, 0.25f, 7, INFINITY, -INFINITY, NAN};
    uint64_t random = 5;
    for (uint32_t n = 1; n <= N_EXPERT; n++) {
        float scores[N_EXPERT], values[N_EXPERT];
        uint32_t experts[N_EXPERT];
        for (uint32_t e = 0; e < n; e++)
            scores[e] = steps[(uint32_t)(4 + 4 * next_float(&random)) % 8];
        const struct moec_scored_token token = {.n_expert = n, .top_k = n, .scores = scores};
        for (uint32_t n_best = 1; n_best <= n; n_best++) {
            bool seen[N_EXPERT] = {false};
            moec_choose_best(&token, n_best, experts, values);
            for (uint32_t i = 0; i < n_best; i++) {
                const float score = scores[experts[i]];
                assert_false(seen[experts[i]]);
                seen[experts[i]] = true;
                assert_true(values[i] == (isnan(score) ? -INFINITY : score));
                assert_true(i == 0 || values[i] < values[i - 1] ||
                            (values[i] == values[i - 1] && experts[i] > experts[i - 1]));
            }
            for (uint32_t e = 0; e < n; e++)
                assert_true(seen[e] || !(scores[e] > values[n_best - 1]));
        }
    }
}

/* ---- the whole pass ---- */

/* Tensors as they are in `context`, the dense weights of a model without choice biases. */
static struct moec_codec codec_of(void *context, enum moec_role role, uint32_t layer)
{
    const struct moec_dense_entry *entry = moec_dense_entry_find(context, role, layer);
    return entry != NULL ? entry->codec : (struct moec_codec){.dtype = MOEC_DTYPE_F32};
}

static void test_router__a_choice_bias_is_a_dense_tensor(void **state)
{
    (void)state;
    struct fixture fixture = fixture_open("mixtral");
    struct moec_config config = fixture.model->config;
    struct moec_error err = {0};
    struct moec_dense without = {0}, dense = {0};
    struct moec_model *model = NULL;
    assert_ok(dense_load(fixture.checkpoint, 16, 0, &without, &err), err);
    config.router.choice_bias = true;
    assert_ok(moec_dense_create(&config, codec_of, &without, &dense, &err), err);
    assert_int_equal(dense.n_entries, without.n_entries + moec_config_moe_count(&config));
    for (uint32_t i = 0; i < dense.n_entries; i++) {
        const struct moec_dense_entry *entry = &dense.entries[i];
        const struct moec_dense_entry *same = moec_dense_entry_find(&without, entry->role, entry->layer);
        float *bias = (float *)(void *)(dense.blob + entry->offset);
        if (same != NULL)
            memcpy(dense.blob + entry->offset, without.blob + same->offset, same->n_bytes);
        for (uint32_t e = 0; same == NULL && e < config.n_expert; e++)
            bias[e] = (float)(100 * entry->layer + e);
    }
    assert_ok(moec_model_create(&config, &dense, &model, &err), err);
    for (uint32_t layer = 0; layer < config.n_layer; layer++) {
        const float *bias = model->layers[layer].router_choice_bias;
        assert_null(fixture.model->layers[layer].router_choice_bias);
        assert_int_equal(bias != NULL, moec_config_is_moe(&config, layer));
        for (uint32_t e = 0; bias != NULL && e < config.n_expert; e++)
            assert_true(bias[e] == (float)(100 * layer + e));
    }
    moec_model_free(model);
    moec_dense_release(&without);
    fixture_close(&fixture);
}

static void test_router__every_kind_runs_a_model_with_the_same_bits(void **state)
{
    (void)state;
    const uint32_t n_tok = 41;
    struct fixture fixture = fixture_open("qwen2_moe");
    struct moec_config *config = &fixture.model->config;
    uint32_t *tokens = fixture_long_tokens(&fixture, n_tok);
    float choice_bias[48] = {0}, *last = NULL;
    uint64_t random = 9;
    assert_true(config->n_expert <= 48);
    for (uint32_t e = 0; e < config->n_expert; e++)
        choice_bias[e] = next_float(&random) / 4;
    for (size_t c = 0; c < N_CASE; c++) {
        config->router.kind = (uint8_t)cases[c].kind;
        config->router.jitter = cases[c].kind == MOEC_ROUTER_SPARSEMIXER ? JITTER : 0;
        config->router.norm_topk_prob = cases[c].norm;
        config->router.scale = cases[c].scale;
        for (uint32_t layer = 0; layer < config->n_layer; layer++)
            fixture.model->layers[layer].router_choice_bias = cases[c].has_choice_bias ? choice_bias : NULL;
        float *expected = fixture_run(&fixture, &moec_kernels_scalar, 1, n_tok, tokens, n_tok, n_tok);
        const size_t n_logits = (size_t)n_tok * config->n_vocab;
        assert_true(last == NULL || memcmp(last, expected, n_logits * sizeof *last) != 0);
        for (uint32_t chunk = 1; chunk < n_tok; chunk = chunk * 3 + 1) {
            float *logits = fixture_run(&fixture, moec_kernels_best(), 2, n_tok, tokens, n_tok, chunk);
            assert_same_bits(logits, expected, n_logits, cases[c].name);
            free(logits);
        }
        free(last);
        last = expected;
    }
    free(last);
    free(tokens);
    fixture_close(&fixture);
}

/* What a router says of inputs that are not its own yet: shares of a token, summed over the batch. */
static void test_router__previews_are_shares(void **state)
{
    (void)state;
    struct bench bench = bench_open();
    for (size_t c = 0; c < N_CASE; c++) {
        float sums[3 * 48] = {0};
        double expected[N_EXPERT] = {0};
        struct moec_forward forward = {0};
        struct moec_error err = {0};
        set_case(&bench, &cases[c]);
        const struct moec_config *config = &bench.fixture.model->config;
        struct routed routed = route(&bench, &plainly);
        assert_ok(moec_forward_init(&forward, bench.fixture.model, moec_kernels_best(), 2,
                                    moec_variants_experts(bench.fixture.variants), N_TOK, &err),
                  err);
        assert_ok(moec_router_preview(&forward, bench.layer_index, N_TOK, routed.normed,
                                      (struct moec_router_preview){.sums = sums}, &err),
                  err);
        for (uint32_t t = 0; t < N_TOK; t++) {
            double scores[N_EXPERT], compared[N_EXPERT], sum = 0;
            reference_scores(&bench, t, scores, compared);
            if (config->router.kind == MOEC_ROUTER_SOFTMAX_CHOSEN ||
                config->router.kind == MOEC_ROUTER_SPARSEMIXER)
                reference_softmax(compared, N_EXPERT);
            for (uint32_t e = 0; e < N_EXPERT; e++)
                sum += compared[e] > 0 ? compared[e] : 0;
            for (uint32_t e = 0; e < N_EXPERT; e++)
                expected[e] += compared[e] > 0 ? compared[e] / sum : 0;
        }
        for (uint32_t e = 0; e < N_EXPERT; e++)
            assert_true(fabs((double)sums[e] - expected[e]) < 2e-5);
        moec_forward_release(&forward);
        routed_free(&routed);
    }
    bench_close(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_router__kinds_agree_with_the_reference),
        cmocka_unit_test(test_router__a_skipped_expert_leaves_a_smaller_k),
        cmocka_unit_test(test_router__a_choice_sees_what_is_resident),
        cmocka_unit_test(test_router__the_best_are_taken_in_order),
        cmocka_unit_test(test_router__a_choice_bias_is_a_dense_tensor),
        cmocka_unit_test(test_router__every_kind_runs_a_model_with_the_same_bits),
        cmocka_unit_test(test_router__previews_are_shares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
