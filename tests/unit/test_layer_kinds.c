/* A decoder whose layers differ in window, head dimension, heads, rotation, norms and MLPs: made of random
 * weights, held against the same model computed plainly in double precision, and against itself in other
 * chunks, after truncation and in a fork. */
#include "runtime/forward/attention/kv_state.h"
#include "runtime/forward/context/scratch.h"
#include "runtime/forward/pass/session.h"
#include "tests/unit/session_fork.h"
#include "tests/unit/status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_LAYER  5
#define N_EMBD   24
#define N_VOCAB  40
#define N_EXPERT 4
#define TOP_K    2
#define N_FF     20
#define N_TOK    60

static const struct moec_layer_kind kinds[N_LAYER] = {
    {.n_head = 4, .n_kv_head = 2, .head_dim = 8, .rope_theta = 1e4, .is_moe = true},
    {.n_head = 2, .n_kv_head = 1, .head_dim = 18, .rope_theta = 500, .window = 5, .n_ff_dense = 21},
    {.n_head = 3,
     .n_kv_head = 3,
     .head_dim = 16,
     .window = 33,
     .qk_norm = true,
     .clip_qkv = 1.5f,
     .is_moe = true},
    {.n_head = 4, .n_kv_head = 2, .head_dim = 8, .rope_theta = 1e4, .n_ff_dense = 37},
    {.n_head = 6,
     .n_kv_head = 2,
     .head_dim = 8,
     .rope_theta = 1e4,
     .window = 1,
     .qkv_bias = true,
     .is_moe = true},
};

/* Experts in memory: gate, up and down of each, N_FF rows of N_EMBD weights. */
struct resident {
    struct moec_experts base;
    float *weights; /* (N_LAYER, N_EXPERT, 3, N_FF, N_EMBD) */
};

struct made {
    struct moec_config config;
    struct moec_model *model;
    struct resident experts;
    uint32_t tokens[N_TOK];
};

static double draw(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * 0x1p-53 * 2 - 1;
}

static const float *expert_weights(const struct resident *experts, uint32_t layer, uint32_t expert,
                                   int projection)
{
    return experts->weights + (((size_t)layer * N_EXPERT + expert) * 3 + (size_t)projection) * N_FF * N_EMBD;
}

static struct moec_matrix expert_matrix(const struct resident *experts, uint32_t layer, uint32_t expert,
                                        int projection)
{
    return (struct moec_matrix){.rows = N_FF,
                                .columns = N_EMBD,
                                .stride_bytes = N_EMBD * sizeof(float),
                                .data = (const uint8_t *)expert_weights(experts, layer, expert, projection)};
}

static enum moec_status acquire(struct moec_experts *self, struct moec_expert_request request,
                                struct moec_mlp *mlp, struct moec_error *err)
{
    (void)err;
    const struct resident *experts = (const struct resident *)self;
    *mlp = (struct moec_mlp){.activation = MOEC_ACTIVATION_SILU,
                             .gate = expert_matrix(experts, request.layer, request.expert, 0),
                             .up = expert_matrix(experts, request.layer, request.expert, 1),
                             .down = expert_matrix(experts, request.layer, request.expert, 2)};
    return MOEC_OK;
}

static void release(struct moec_experts *self, struct moec_expert_request request)
{
    (void)self;
    (void)request;
}

static const struct moec_experts_ops resident_ops = {.acquire = acquire, .release = release};

static struct moec_codec f32(void *context, enum moec_role role, uint32_t layer)
{
    (void)context;
    (void)role;
    (void)layer;
    return (struct moec_codec){.dtype = MOEC_DTYPE_F32};
}

/* What a config goes through on its way into a bundle and out again. */
static struct moec_config there_and_back(const struct moec_config *config)
{
    struct moec_config back;
    struct moec_error err = {0};
    uint8_t *bytes = NULL;
    size_t n = 0;
    assert_ok(moec_config_encode(config, &bytes, &n, &err), err);
    assert_int_equal(bytes[0], 3);
    assert_ok(moec_config_decode(bytes, n, &back, &err), err);
    free(bytes);
    return back;
}

static struct made make(void)
{
    struct made made = {.config = {.family = "sample",
                                   .n_embd = N_EMBD,
                                   .n_vocab = N_VOCAB,
                                   .n_position = 1000,
                                   .rms_eps = 1e-6,
                                   .n_expert = N_EXPERT,
                                   .top_k = TOP_K,
                                   .n_ff_expert = N_FF}};
    struct moec_error err = {0};
    struct moec_dense dense = {0};
    uint64_t state = 7;
    for (uint32_t i = 0; i < N_LAYER; i++)
        assert_true(moec_config_add_layer(&made.config, &kinds[i]));
    made.config = there_and_back(&made.config);
    assert_ok(moec_dense_create(&made.config, f32, NULL, &dense, &err), err);
    for (uint32_t i = 0; i < dense.n_entries; i++) {
        const struct moec_dense_entry *entry = &dense.entries[i];
        const size_t n = (size_t)entry->rows * entry->columns;
        float *weights = (float *)(void *)(dense.blob + entry->offset);
        assert_int_equal(entry->n_bytes, n * sizeof(float));
        for (size_t j = 0; j < n; j++) /* vectors around 1, as norms are */
            weights[j] = (float)(entry->rows == 1 ? 1 + 0.3 * draw(&state) : 0.5 * draw(&state));
    }
    assert_ok(moec_model_create(&made.config, &dense, &made.model, &err), err);
    const size_t n_expert_weight = (size_t)N_LAYER * N_EXPERT * 3 * N_FF * N_EMBD;
    made.experts =
        (struct resident){.base.ops = &resident_ops, .weights = calloc(n_expert_weight, sizeof(float))};
    assert_non_null(made.experts.weights);
    for (size_t i = 0; i < n_expert_weight; i++)
        made.experts.weights[i] = (float)(0.5 * draw(&state));
    for (uint32_t i = 0; i < N_TOK; i++)
        made.tokens[i] = (uint32_t)((draw(&state) + 1) / 2 * N_VOCAB) % N_VOCAB;
    return made;
}

static void unmake(struct made *made)
{
    moec_model_free(made->model);
    free(made->experts.weights);
}

/* ---- the same in double precision ---- */

static const float *dense_weights(const struct made *made, enum moec_role role, uint32_t layer)
{
    const struct moec_dense *dense = &made->model->dense;
    const struct moec_dense_entry *entry = moec_dense_entry_find(dense, role, layer);
    assert_non_null(entry);
    return (const float *)(const void *)(dense->blob + entry->offset);
}

static void plain_norm(const double *x, const float *weight, size_t n, double *out)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (size_t i = 0; i < n; i++)
        out[i] = x[i] / sqrt(sum / (double)n + 1e-6) * weight[i];
}

static void plain_product(const float *matrix, size_t rows, size_t columns, const double *x, double *out)
{
    for (size_t r = 0; r < rows; r++) {
        out[r] = 0;
        for (size_t c = 0; c < columns; c++)
            out[r] += matrix[r * columns + c] * x[c];
    }
}

static void plain_rotate(const struct moec_layer_kind *kind, uint32_t n_head, uint32_t position, double *x)
{
    const uint32_t half = kind->head_dim / 2;
    for (uint32_t head = 0; kind->rope_theta > 0 && head < n_head; head++, x += kind->head_dim)
        for (uint32_t i = 0; i < half; i++) {
            const double angle = position * pow(kind->rope_theta, -2.0 * i / kind->head_dim);
            const double a = x[i], b = x[i + half];
            x[i] = a * cos(angle) - b * sin(angle);
            x[i + half] = b * cos(angle) + a * sin(angle);
        }
}

/* n numbers as they are kept. */
static void plain_round(struct moec_codec kv, size_t n, double *x)
{
    struct moec_error err = {0};
    float made[32], kept[32];
    uint8_t row[sizeof made];
    assert_true(n < 32);
    for (size_t i = 0; i < n; i++)
        made[i] = (float)x[i];
    assert_ok(moec_codec_encode_row(kv, made, n, row, &err), err);
    moec_codec_decode_row(kv, row, n, kept);
    for (size_t i = 0; i < n; i++)
        x[i] = (double)kept[i];
}

/* q, k or v of one token. */
static void plain_place(const struct made *made, uint32_t layer, enum moec_role role, const double *x,
                        uint32_t position, double *out)
{
    const struct moec_layer_kind *kind = &kinds[layer];
    const uint32_t n_head = role == MOEC_ROLE_Q ? kind->n_head : kind->n_kv_head;
    const size_t n = (size_t)n_head * kind->head_dim;
    plain_product(dense_weights(made, role, layer), n, N_EMBD, x, out);
    if (kind->qkv_bias) {
        const float *bias = dense_weights(made, role - MOEC_ROLE_Q + MOEC_ROLE_Q_BIAS, layer);
        for (size_t i = 0; i < n; i++)
            out[i] += bias[i];
    }
    if (kind->qk_norm && role != MOEC_ROLE_V)
        plain_norm(out, dense_weights(made, role - MOEC_ROLE_Q + MOEC_ROLE_Q_NORM, layer), n, out);
    for (size_t i = 0; kind->clip_qkv > 0 && i < n; i++)
        out[i] = fmax(fmin(out[i], (double)kind->clip_qkv), -(double)kind->clip_qkv);
    if (role != MOEC_ROLE_V)
        plain_rotate(kind, n_head, position, out);
    for (uint32_t head = 0;
         role != MOEC_ROLE_Q && moec_layer_rounds_kv(&made->model->config.kinds[0]) && head < n_head; head++)
        plain_round(made->model->config.kinds[0].kv, kind->head_dim, out + (size_t)head * kind->head_dim);
}

#define MAX_HEADS_DIM 64

static void plain_attention(const struct made *made, uint32_t layer, double (*hidden)[N_EMBD])
{
    static double q[N_TOK][MAX_HEADS_DIM], k[N_TOK][MAX_HEADS_DIM], v[N_TOK][MAX_HEADS_DIM];
    const struct moec_layer_kind *kind = &kinds[layer];
    const uint32_t dim = kind->head_dim;
    for (uint32_t t = 0; t < N_TOK; t++) {
        double x[N_EMBD];
        plain_norm(hidden[t], dense_weights(made, MOEC_ROLE_ATTENTION_NORM, layer), N_EMBD, x);
        plain_place(made, layer, MOEC_ROLE_Q, x, t, q[t]);
        plain_place(made, layer, MOEC_ROLE_K, x, t, k[t]);
        plain_place(made, layer, MOEC_ROLE_V, x, t, v[t]);
    }
    for (uint32_t t = 0; t < N_TOK; t++) {
        double sum[MAX_HEADS_DIM] = {0}, out[N_EMBD];
        const uint32_t first = kind->window > 0 && t >= kind->window ? t - kind->window + 1 : 0;
        for (uint32_t head = 0; head < kind->n_head; head++) {
            const uint32_t kv = head / (kind->n_head / kind->n_kv_head) * dim;
            double weights[N_TOK], total = 0;
            for (uint32_t p = first; p <= t; p++) {
                double score = 0;
                for (uint32_t i = 0; i < dim; i++)
                    score += q[t][head * dim + i] * k[p][kv + i];
                total += weights[p] = exp(score / sqrt(dim));
            }
            for (uint32_t p = first; p <= t; p++)
                for (uint32_t i = 0; i < dim; i++)
                    sum[head * dim + i] += weights[p] / total * v[p][kv + i];
        }
        plain_product(dense_weights(made, MOEC_ROLE_O, layer), N_EMBD, moec_layer_q_dim(kind), sum, out);
        for (uint32_t i = 0; i < N_EMBD; i++)
            hidden[t][i] += out[i];
    }
}

/* hidden += weight * down (silu(gate x) * (up x)); down has a row for each neuron. */
static void plain_mlp(const float *gate, const float *up, const float *down, size_t n_ff, const double *x,
                      double weight, double *hidden)
{
    for (size_t j = 0; j < n_ff; j++) {
        double g = 0, u = 0;
        for (size_t i = 0; i < N_EMBD; i++) {
            g += gate[j * N_EMBD + i] * x[i];
            u += up[j * N_EMBD + i] * x[i];
        }
        for (size_t i = 0; i < N_EMBD; i++)
            hidden[i] += weight * g / (1 + exp(-g)) * u * down[j * N_EMBD + i];
    }
}

static void plain_experts(const struct made *made, uint32_t layer, const double *x, double *hidden)
{
    double p[N_EXPERT], total = 0;
    bool taken[N_EXPERT] = {0};
    plain_product(dense_weights(made, MOEC_ROLE_ROUTER, layer), N_EXPERT, N_EMBD, x, p);
    for (uint32_t e = 0; e < N_EXPERT; e++)
        total += p[e] = exp(p[e]);
    for (uint32_t rank = 0; rank < TOP_K; rank++) {
        uint32_t best = N_EXPERT;
        for (uint32_t e = 0; e < N_EXPERT; e++)
            if (!taken[e] && (best == N_EXPERT || p[e] > p[best]))
                best = e;
        taken[best] = true;
        plain_mlp(expert_weights(&made->experts, layer, best, 0),
                  expert_weights(&made->experts, layer, best, 1),
                  expert_weights(&made->experts, layer, best, 2), N_FF, x, p[best] / total, hidden);
    }
}

static void plain_logits(const struct made *made, double (*logits)[N_VOCAB])
{
    static double hidden[N_TOK][N_EMBD];
    const float *embedding = dense_weights(made, MOEC_ROLE_EMBEDDING, MOEC_LAYER_NONE);
    for (uint32_t t = 0; t < N_TOK; t++)
        for (uint32_t i = 0; i < N_EMBD; i++)
            hidden[t][i] = embedding[made->tokens[t] * N_EMBD + i];
    for (uint32_t layer = 0; layer < N_LAYER; layer++) {
        plain_attention(made, layer, hidden);
        for (uint32_t t = 0; t < N_TOK; t++) {
            double x[N_EMBD];
            plain_norm(hidden[t], dense_weights(made, MOEC_ROLE_MLP_NORM, layer), N_EMBD, x);
            if (kinds[layer].is_moe)
                plain_experts(made, layer, x, hidden[t]);
            else
                plain_mlp(dense_weights(made, MOEC_ROLE_DENSE_GATE, layer),
                          dense_weights(made, MOEC_ROLE_DENSE_UP, layer),
                          dense_weights(made, MOEC_ROLE_DENSE_DOWN, layer), kinds[layer].n_ff_dense, x, 1,
                          hidden[t]);
        }
    }
    for (uint32_t t = 0; t < N_TOK; t++) {
        double x[N_EMBD];
        plain_norm(hidden[t], dense_weights(made, MOEC_ROLE_FINAL_NORM, MOEC_LAYER_NONE), N_EMBD, x);
        plain_product(dense_weights(made, MOEC_ROLE_HEAD, MOEC_LAYER_NONE), N_VOCAB, N_EMBD, x, logits[t]);
    }
}

/* ---- tests ---- */

/* Tokens from..to - 1 in steps of `chunk`; their logits go to their places in `logits`. */
static void read_tokens(const struct made *made, struct moec_session *session, uint32_t from, uint32_t to,
                        uint32_t chunk, float (*logits)[N_VOCAB])
{
    struct moec_error err = {0};
    uint32_t at[N_TOK];
    for (uint32_t i = 0; i < N_TOK; i++)
        at[i] = i;
    for (uint32_t n = 0; from < to; from += n) {
        n = chunk < to - from ? chunk : to - from;
        assert_ok(moec_session_step(session, made->tokens + from, n, at, n, logits[from], &err), err);
    }
}

static void open_session(struct made *made, const struct moec_kernels *kernels, int n_threads,
                         uint32_t max_tokens, struct moec_forward *forward, struct moec_session **session)
{
    struct moec_error err = {0};
    assert_ok(
        moec_forward_init(forward, made->model, kernels, n_threads, &made->experts.base, max_tokens, &err),
        err);
    moec_forward_scratch(forward)->test_hook.shares_all_work = true;
    assert_ok(moec_session_create(forward, N_TOK, session, &err), err);
}

static void read_all(struct made *made, const struct moec_kernels *kernels, int n_threads,
                     uint32_t max_tokens, uint32_t chunk, float (*logits)[N_VOCAB])
{
    struct moec_forward forward = {0};
    struct moec_session *session = NULL;
    open_session(made, kernels, n_threads, max_tokens, &forward, &session);
    read_tokens(made, session, 0, N_TOK, chunk, logits);
    moec_session_free(session);
    moec_forward_release(&forward);
}

static void test_layer_kinds__equal_the_plain_model(void **state)
{
    (void)state;
    static double plain[N_TOK][N_VOCAB];
    static float logits[N_TOK][N_VOCAB];
    struct made made = make();
    plain_logits(&made, plain);
    read_all(&made, moec_kernels_best(), 1, N_TOK, N_TOK, logits);
    for (uint32_t t = 0; t < N_TOK; t++)
        for (uint32_t i = 0; i < N_VOCAB; i++)
            if (!(fabs((double)logits[t][i] - plain[t][i]) <= 2e-4 * (1 + fabs(plain[t][i]))))
                fail_msg("position %u, id %u: %.9g, expected %.9g", t, i, (double)logits[t][i], plain[t][i]);
    unmake(&made);
}

static void test_layer_kinds__same_bits_in_any_chunks(void **state)
{
    (void)state;
    static float expected[N_TOK][N_VOCAB], logits[N_TOK][N_VOCAB];
    static const uint32_t cases[][2] = {/* largest batch, tokens of a step */
                                        {N_TOK, 1},
                                        {1, N_TOK},
                                        {7, N_TOK},
                                        {N_TOK, 13},
                                        {16, 40}};
    struct made made = make();
    read_all(&made, &moec_kernels_scalar, 1, N_TOK, N_TOK, expected);
    read_all(&made, moec_kernels_best(), 1, N_TOK, N_TOK, logits);
    assert_memory_equal(logits, expected, sizeof expected);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memset(logits, 0, sizeof logits);
        read_all(&made, moec_kernels_best(), 1 + (int)(i % 3), cases[i][0], cases[i][1], logits);
        assert_memory_equal(logits, expected, sizeof expected);
    }
    unmake(&made);
}

static double mean_difference(float (*logits)[N_VOCAB], double (*plain)[N_VOCAB])
{
    double sum = 0;
    for (uint32_t t = 0; t < N_TOK; t++)
        for (uint32_t i = 0; i < N_VOCAB; i++)
            sum += fabs((double)logits[t][i] - plain[t][i]);
    return sum / (N_TOK * N_VOCAB);
}

static void keep_kv(struct made *made, const char *name)
{
    struct moec_error err = {0};
    struct moec_codec kv;
    assert_ok(moec_kv_read(name, &kv, &err), err);
    assert_ok(moec_config_choose_kv(&made->model->config, kv, &err), err);
    assert_string_equal(moec_kv_name(&made->model->config), name);
}

/* Rounded where they are said to be: much nearer to a plain model that rounds there than to one that does
 * not. */
static void check_rounded(const char *kv_name)
{
    static double exact[N_TOK][N_VOCAB], rounded[N_TOK][N_VOCAB];
    static float expected[N_TOK][N_VOCAB], logits[N_TOK][N_VOCAB];
    static const uint32_t cases[][2] = {{N_TOK, 1}, {1, N_TOK}, {7, N_TOK}, {N_TOK, 13}, {16, 40}};
    struct made made = make();
    plain_logits(&made, exact);
    keep_kv(&made, kv_name);
    plain_logits(&made, rounded);
    read_all(&made, &moec_kernels_scalar, 1, N_TOK, N_TOK, expected);
    const double from_rounded = mean_difference(expected, rounded),
                 from_exact = mean_difference(expected, exact);
    print_message("%.2e from the plain model that rounds, %.2e from that which does not\n", from_rounded,
                  from_exact);
    assert_true(from_rounded < from_exact / 4);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memset(logits, 0, sizeof logits);
        read_all(&made, moec_kernels_best(), 1 + (int)(i % 3), cases[i][0], cases[i][1], logits);
        assert_memory_equal(logits, expected, sizeof expected);
    }
    unmake(&made);
}

static void test_layer_kinds__keys_and_values_as_f16(void **state)
{
    (void)state;
    check_rounded("f16");
}

static void test_layer_kinds__keys_and_values_as_int8(void **state)
{
    (void)state;
    check_rounded("int8");
}

/* Back to 20 and on, a fork at 31 that reads something else first, and two sequences in one batch. */
static void truncate_and_fork(const char *kv_name)
{
    static float expected[N_TOK][N_VOCAB], logits[N_TOK][N_VOCAB];
    static const uint32_t others[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    struct moec_error err = {0};
    struct moec_forward forward = {0};
    struct moec_session *session = NULL, *fork = NULL;
    struct made made = make();
    keep_kv(&made, kv_name);
    read_all(&made, moec_kernels_best(), 1, N_TOK, N_TOK, expected);
    open_session(&made, moec_kernels_best(), 1, 11, &forward, &session);
    read_tokens(&made, session, 0, 20, 20, logits);
    assert_ok(moec_session_step(session, others, 12, NULL, 0, NULL, &err), err);
    moec_session_truncate(session, 20);
    read_tokens(&made, session, 20, 31, 4, logits);
    assert_ok(session_fork(session, &fork, &err), err);
    assert_ok(moec_session_step(session, others, 12, NULL, 0, NULL, &err), err);
    read_tokens(&made, fork, 31, 45, 5, logits);
    moec_session_copy_after(session, fork, 31);
    assert_int_equal(moec_session_length(session), 45);
    for (uint32_t t = 45; t < N_TOK; t++) {
        float both[2][N_VOCAB];
        assert_ok(moec_session_step_each((struct moec_session *const[]){session, fork},
                                         (const uint32_t[]){made.tokens[t], made.tokens[t]}, 2, both[0],
                                         &err),
                  err);
        assert_memory_equal(both[0], both[1], sizeof both[0]);
        memcpy(logits[t], both[0], sizeof both[0]);
    }
    assert_memory_equal(logits, expected, sizeof expected);
    moec_session_free(fork);
    moec_session_free(session);
    moec_forward_release(&forward);
    unmake(&made);
}

static void test_layer_kinds__truncate_and_fork(void **state)
{
    (void)state;
    truncate_and_fork("f32");
    truncate_and_fork("f16");
    truncate_and_fork("int8");
}

/* A layer's rows are as long as its keys, wherever it stands. */
/* A state of the delta rule has one size however many positions it has passed; a state that can go back has
 * two copies of it. */
static void test_layer_kinds__sizes_of_running_states(void **state)
{
    (void)state;
    static const struct moec_config config = {.n_layer = 2,
                                              .n_kind = 2,
                                              .kinds = {{.n_head = 2, .n_kv_head = 1, .head_dim = 8},
                                                        {.mixer = MOEC_MIXER_DELTA,
                                                         .conv_size = 4,
                                                         .n_head = 4,
                                                         .n_kv_head = 2,
                                                         .head_dim = 6,
                                                         .value_dim = 10}},
                                              .layer_kind = {0, 1}};
    const uint64_t states = 4 * (3 * (2 * 2 * 6 + 4 * 10) + 4 * 6 * 16);
    for (uint64_t n = 0; n < 3; n++) {
        assert_int_equal(moec_kv_state_bytes(&config, 0, 2, MOEC_KV_EACH_LAYER, n), n * 64 + states);
        assert_int_equal(moec_kv_state_bytes(&config, 0, 2, MOEC_KV_REWINDABLE, n), n * 64 + 3 * states);
        assert_int_equal(moec_kv_state_bytes(&config, 0, 2, MOEC_KV_ONE_LAYER, n), n * 64);
    }
    assert_int_equal(moec_kv_state_row_bytes(&config, 0, 2, MOEC_KV_REWINDABLE), 64);
    assert_int_equal(moec_session_bytes(&config, 7, 0) - moec_session_bytes(&config, 6, 0), 64 + 4);
}

static void test_layer_kinds__sizes_of_kv_state(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_kv_state kv = {0};
    struct made made = make();
    const struct moec_config *config = &made.model->config;
    const uint64_t rows[N_LAYER] = {16, 18, 48, 16, 16}; /* key/value heads x head dimension */
    uint64_t before = 0;
    assert_ok(moec_kv_state_create(config, (struct moec_kv_layers){0, N_LAYER, MOEC_KV_EACH_LAYER, 10},
                                   "a test", &kv, &err),
              err);
    for (uint32_t layer = 0; layer < N_LAYER; layer++) {
        const struct moec_kv_rows at = moec_kv_state_rows(&kv, layer, 3);
        assert_int_equal(at.stride, rows[layer]);
        assert_ptr_equal(at.keys, kv.floats + 10 * before + 3 * rows[layer]);
        assert_ptr_equal(at.values, kv.floats + 10 * before + 13 * rows[layer]);
        assert_int_equal(moec_kv_state_bytes(config, layer, 1, MOEC_KV_EACH_LAYER, 10), 80 * rows[layer]);
        before += 2 * rows[layer];
    }
    assert_int_equal(moec_kv_state_bytes(config, 0, N_LAYER, MOEC_KV_EACH_LAYER, 10), 40 * before);
    assert_int_equal(moec_kv_state_bytes(config, 0, N_LAYER, MOEC_KV_ONE_LAYER, 10), 80 * 48);
    assert_int_equal(moec_session_bytes(config, 11, 0) - moec_session_bytes(config, 10, 0), 4 * before);
    moec_kv_state_release(&kv);
    assert_null(kv.floats);
    keep_kv(&made, "f16");
    assert_int_equal(moec_kv_state_bytes(config, 0, N_LAYER, MOEC_KV_EACH_LAYER, 10), 20 * before);
    assert_int_equal(moec_session_bytes(config, 11, 0) - moec_session_bytes(config, 10, 0), 2 * before);
    keep_kv(&made, "int8"); /* each head is a block of 32 codes and a scale, in whole floats */
    assert_int_equal(moec_kv_state_bytes(config, 0, 1, MOEC_KV_EACH_LAYER, 10), 10 * 2 * (2 * 34));
    unmake(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layer_kinds__equal_the_plain_model),
        cmocka_unit_test(test_layer_kinds__same_bits_in_any_chunks),
        cmocka_unit_test(test_layer_kinds__keys_and_values_as_f16),
        cmocka_unit_test(test_layer_kinds__keys_and_values_as_int8),
        cmocka_unit_test(test_layer_kinds__truncate_and_fork),
        cmocka_unit_test(test_layer_kinds__sizes_of_kv_state),
        cmocka_unit_test(test_layer_kinds__sizes_of_running_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
