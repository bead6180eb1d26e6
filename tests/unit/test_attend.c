/* Attention of one token with a long past: the same bits as in a batch, where queries are taken in tiles, at
 * any number of threads and on every instruction set, with whole blocks of numbers in a head and without. */
#include "runtime/forward/attention/kv_state.h"
#include "runtime/forward/context/scratch.h"
#include "runtime/forward/pass/session.h"
#include "tests/unit/kernel_sets.h"
#include "tests/unit/status.h"

#include <stdlib.h>
#include <string.h>

#define N_EMBD  32
#define N_FF    16
#define N_VOCAB 40
#define N_TOK   720
#define LAST    12 /* tokens that are read one by one */
#define BATCH   64

static const struct moec_layer_kind kinds[] = {
    {.n_head = 4, .n_kv_head = 2, .head_dim = 32, .rope_theta = 1e4, .n_ff_dense = N_FF},
    {.n_head = 3, .n_kv_head = 3, .head_dim = 64, .window = 600, .has_sinks = true, .n_ff_dense = N_FF},
    {.n_head = 2, .n_kv_head = 2, .head_dim = 40, .rope_theta = 500, .n_ff_dense = N_FF},
    {.n_head = 2, .n_kv_head = 1, .head_dim = 96, .chunk = 100, .is_moe = true},
};
#define N_LAYER (sizeof kinds / sizeof *kinds)

struct made {
    struct moec_config config;
    struct moec_model *model;
    uint32_t tokens[N_TOK];
};

/* Experts that are all the same. */
static float expert_weights[3][N_FF * N_EMBD];

static struct moec_matrix expert_matrix(int projection)
{
    return (struct moec_matrix){.rows = N_FF,
                                .columns = N_EMBD,
                                .stride_bytes = N_EMBD * sizeof(float),
                                .data = (const uint8_t *)expert_weights[projection]};
}

static enum moec_status acquire(struct moec_experts *self, struct moec_expert_request request,
                                struct moec_mlp *mlp, struct moec_error *err)
{
    (void)self;
    (void)request;
    (void)err;
    *mlp = (struct moec_mlp){.activation = MOEC_ACTIVATION_SILU,
                             .gate = expert_matrix(0),
                             .up = expert_matrix(1),
                             .down = expert_matrix(2)};
    return MOEC_OK;
}

static void release(struct moec_experts *self, struct moec_expert_request request)
{
    (void)self;
    (void)request;
}

static const struct moec_experts_ops expert_ops = {.acquire = acquire, .release = release};
static struct moec_experts experts = {.ops = &expert_ops};

static double draw(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * 0x1p-53 * 2 - 1;
}

static struct moec_codec f32(void *context, enum moec_role role, uint32_t layer)
{
    (void)context;
    (void)role;
    (void)layer;
    return (struct moec_codec){.dtype = MOEC_DTYPE_F32};
}

static void make(struct made *made, const char *kv_name)
{
    struct moec_error err = {0};
    struct moec_dense dense = {0};
    struct moec_codec kv;
    uint64_t state = 11;
    *made = (struct made){

        .config = {.family = "sample",
                   .n_embd = N_EMBD,
                   .n_vocab = N_VOCAB,
                   .n_position = N_TOK,
                   .rms_eps = 1e-6,
                   .n_expert = 2,
                   .top_k = 1,
                   .n_ff_expert = N_FF}};
    for (size_t i = 0; i < N_LAYER; i++)
        assert_true(moec_config_add_layer(&made->config, &kinds[i]));
    assert_ok(moec_dense_create(&made->config, f32, NULL, &dense, &err), err);
    for (uint32_t i = 0; i < dense.n_entries; i++) {
        const struct moec_dense_entry *entry = &dense.entries[i];
        float *weights = (float *)(void *)(dense.blob + entry->offset);
        for (size_t j = 0; j < (size_t)entry->rows * entry->columns; j++) /* vectors around 1, as norms are */
            weights[j] = (float)(entry->rows == 1 ? 1 + 0.3 * draw(&state) : 0.6 * draw(&state));
    }
    assert_ok(moec_model_create(&made->config, &dense, &made->model, &err), err);
    assert_ok(moec_kv_read(kv_name, &kv, &err), err);
    assert_ok(moec_config_choose_kv(&made->model->config, kv, &err), err);
    for (size_t i = 0; i < N_FF * N_EMBD; i++)
        for (int projection = 0; projection < 3; projection++)
            expert_weights[projection][i] = (float)(0.4 * draw(&state));
    for (uint32_t i = 0; i < N_TOK; i++)
        made->tokens[i] = (uint32_t)((draw(&state) + 1) / 2 * N_VOCAB) % N_VOCAB;
}

/* All tokens, in batches but for the last ones, which those kernels read in steps of `step`; the logits of
 * those. */
static void read_all(const struct made *made, const struct moec_kernels *kernels, int n_threads,
                     uint32_t max_tokens, uint32_t step, float logits[LAST][N_VOCAB])
{
    struct moec_error err = {0};
    struct moec_forward forward = {0};
    struct moec_session *session = NULL;
    uint32_t at[LAST];
    for (uint32_t i = 0; i < LAST; i++)
        at[i] = i;
    assert_ok(
        moec_forward_init(&forward, made->model, moec_kernels_best(), n_threads, &experts, max_tokens, &err),
        err);
    moec_forward_scratch(&forward)->test_hook.shares_all_work = true;
    assert_ok(moec_session_create(&forward, N_TOK, &session, &err), err);
    assert_ok(moec_session_step(session, made->tokens, N_TOK - LAST, NULL, 0, NULL, &err), err);
    forward.kernels = kernels;
    for (uint32_t i = 0; i < LAST; i += step)
        assert_ok(
            moec_session_step(session, made->tokens + N_TOK - LAST + i, step, at, step, logits[i], &err),
            err);
    moec_session_free(session);
    moec_forward_release(&forward);
}

static void check_same_bits(const char *kv_name)
{
    static float expected[LAST][N_VOCAB], logits[LAST][N_VOCAB];
    static const struct {
        int n_threads;
        uint32_t max_tokens; /* what scratch has room for: few, and positions are shared in several parts */
    } cases[] = {{2, BATCH}, {1, BATCH}, {5, BATCH}, {2, 1}, {3, 22}};
    static struct made made;
    make(&made, kv_name);
    read_all(&made, moec_kernels_best(), 1, BATCH, LAST, expected);
    for (size_t set = 0; set <= n_kernel_sets(); set++) {
        const struct moec_kernels *kernels = set < n_kernel_sets() ? kernel_set(set) : &moec_kernels_scalar;
        for (size_t i = 0; i < (set == 0 ? sizeof cases / sizeof *cases : 1); i++) {
            memset(logits, 0, sizeof logits);
            read_all(&made, kernels, cases[i].n_threads, cases[i].max_tokens, 1, logits);
            if (memcmp(logits, expected, sizeof expected) != 0)
                fail_msg("%s, %s, %d threads, batches of %u: other bits than in a batch", kv_name,
                         kernels->name, cases[i].n_threads, cases[i].max_tokens);
        }
    }
    moec_model_free(made.model);
}

static void test_attend__one_token_has_the_bits_of_a_batch(void **state)
{
    (void)state;
    check_same_bits("f32");
}

static void test_attend__the_same_with_f16(void **state)
{
    (void)state;
    check_same_bits("f16");
}

static void test_attend__the_same_with_int8(void **state)
{
    (void)state;
    check_same_bits("int8");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attend__one_token_has_the_bits_of_a_batch),
        cmocka_unit_test(test_attend__the_same_with_f16),
        cmocka_unit_test(test_attend__the_same_with_int8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
