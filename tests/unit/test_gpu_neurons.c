/* Experts in a GPU's memory by their neurons: whatever comes of them in which order, in pools of any size, by
 * gathering or as it lies, logits and counts are the CPU's bit for bit; what came once does not come again;
 * and whatever a device refuses or however it ends, a message comes and nothing is left over. */
#include "tests/unit/fixture_bundle.h"
#include "tests/unit/fixture_model.h"

#include "formats/bundle/bundle.h"
#include "runtime/cuda/blocks/blocks.h"
#include "runtime/cuda/gpu_backend.h"
#include "runtime/cuda/gpu_neurons.h"
#include "runtime/cuda/host/host_gpu.h"
#include "runtime/experts/expert_cache.h"

#define N_TOK 14u

static const struct moec_gpu_kernels kernels = MOEC_GPU_KERNELS;

struct model {
    char *folder, *path;
    struct moec_bundle *bundle;
    struct moec_model *model;
    struct moec_sparsity_table table;
    struct moec_sparsity_plan plan;
    bool is_planned;
    uint32_t tokens[N_TOK];
    float *expected; /* (N_TOK, n_vocab), by the CPU */
    struct moec_sparsity_counts counts;
};

static struct moec_sparsity *make_sparsity(const struct model *m)
{
    struct moec_sparsity *sparsity = NULL;
    if (m->is_planned)
        MUST(moec_sparsity_create_planned(&m->plan, &m->bundle->config, &sparsity, &err));
    else
        MUST(moec_sparsity_create(&m->table, &m->bundle->config, 500, &sparsity, &err));
    return sparsity;
}

static float *make_logits(const struct model *m)
{
    float *logits = calloc((size_t)N_TOK * m->bundle->config.n_vocab, sizeof *logits);
    assert_non_null(logits);
    return logits;
}

/* Logits of all tokens, in steps of `chunk`, or of one and of `chunk` in turn. */
static enum moec_status read_tokens(const struct model *m, struct moec_session *session, uint32_t chunk,
                                    bool in_turn, float *logits, struct moec_error *wrong)
{
    uint32_t at[N_TOK], n = 0;
    for (uint32_t i = 0; i < N_TOK; i++)
        at[i] = i;
    for (uint32_t done = 0, step = 0; done < N_TOK; done += n, step++) {
        n = in_turn && step % 2 == 0 ? 1 : chunk;
        n = N_TOK - done < n ? N_TOK - done : n;
        MOEC_TRY(moec_session_step(session, m->tokens + done, n, at, n,
                                   logits + (size_t)done * m->bundle->config.n_vocab, wrong));
    }
    return MOEC_OK;
}

static void read_on_cpu(struct model *m)
{
    struct moec_forward forward = {0};
    struct moec_session *session = NULL;
    struct moec_expert_cache *cache = NULL;
    const struct moec_expert_cache_options options = {.buffer.n_bytes =
                                                          moec_record_sizes_of(m->bundle, 0).all_bytes};
    MUST(moec_expert_cache_create(m->bundle, &options, &cache, &err));
    MUST(moec_forward_init(&forward, m->model, moec_kernels_best(), 1, moec_expert_cache_experts(cache),
                           N_TOK, &err));
    forward.sparsity = make_sparsity(m);
    MUST(moec_session_create(&forward, N_TOK, &session, &err));
    m->expected = make_logits(m);
    MUST(read_tokens(m, session, 1, false, m->expected, &err));
    m->counts = moec_sparsity_counts(forward.sparsity);
    assert_in_range(m->counts.n_active, m->counts.n_neuron / 20,
                    m->counts.n_neuron - m->counts.n_neuron / 20);
    moec_session_free(session);
    moec_sparsity_free(forward.sparsity);
    moec_forward_release(&forward);
    moec_expert_cache_free(cache);
}

static void open_model(struct model *m, const char *checkpoint, float threshold, bool is_planned)
{
    static const uint16_t shares[] = {500};
    struct moec_dense dense = {0};
    uint64_t random = 7;
    *m = (struct model){.folder = temporary_folder(), .is_planned = is_planned};
    m->path = temporary_path(m->folder, "model.moec");
    fixture_bundle_write(checkpoint, m->path, 4, true);
    MUST(moec_bundle_open(m->path, &m->bundle, &err));
    MUST(moec_bundle_load_dense(m->bundle, &dense, &err));
    MUST(moec_model_create(&m->bundle->config, &dense, &m->model, &err));
    MUST(moec_sparsity_table_create(&m->bundle->config, shares, 1, &m->table, &err));
    for (uint32_t i = 0; i < m->table.n_layer * m->table.n_expert; i++)
        m->table.thresholds[i] = threshold * (float)(1 + i % 3);
    if (is_planned) {
        MUST(moec_sparsity_plan_create(&m->bundle->config, MOEC_SPARSITY_BY_NEURON, &m->plan, &err));
        m->plan.threshold = threshold / 4;
        for (uint32_t i = 0; i < m->plan.n_layer * m->plan.n_expert * m->plan.n_scale; i++)
            m->plan.scales[i] = (uint16_t)(0x3e00 + i % 256);
        m->plan.traffic =
            (struct moec_sparsity_traffic){.active_share = 0.3, .token_bytes = 5, .dense_token_bytes = 9};
    }
    for (uint32_t i = 0; i < N_TOK; i++)
        m->tokens[i] = random_u32(&random) % m->bundle->config.n_vocab;
    read_on_cpu(m);
}

static void close_model(struct model *m)
{
    moec_sparsity_table_release(&m->table);
    if (m->is_planned)
        moec_sparsity_plan_release(&m->plan);
    moec_model_free(m->model);
    moec_bundle_close(m->bundle);
    temporary_remove(m->folder);
    free(m->path);
    free(m->expected);
}

/* ---- the device ---- */

struct shape {
    uint32_t n_slot, n_row; /* above what a batch of few tokens needs */
    uint32_t n_cache;       /* records behind */
    struct moec_gpu_gather_speed speed;
    uint32_t n_threads;
};

struct rig {
    const struct model *m;
    struct moec_gpu *gpu;
    struct moec_expert_cache *cache;
    struct moec_sparsity *sparsity;
    struct moec_gpu_model *model;
    struct moec_gpu_neurons *neurons;
    struct moec_gpu_backend *backend;
    struct moec_forward forward;
    struct moec_session *session;
};

static enum moec_status make_rig(struct rig *rig, const struct shape *shape, struct moec_error *wrong)
{
    const struct moec_bundle *bundle = rig->m->bundle;
    uint8_t *memory = moec_expert_cache_memory(rig->cache);
    const uint64_t n_bytes = moec_expert_cache_buffer_bytes(rig->cache);
    MOEC_TRY(rig->gpu->ops->pin(rig->gpu, memory, n_bytes, "the cache", wrong));
    MOEC_TRY(moec_gpu_model_create(rig->gpu, rig->m->model, rig->sparsity, &rig->model, wrong));
    struct moec_gpu_neurons_setup setup = {.experts = {.gpu = rig->gpu,
                                                       .compute = rig->model->stream,
                                                       .behind = moec_expert_cache_experts(rig->cache),
                                                       .bundle = bundle},
                                           .kernels = &kernels,
                                           .plan = moec_gpu_neurons_plan_of(bundle, 0.5, 1),
                                           .threads = moec_pool_make((int)shape->n_threads),
                                           .memory = memory,
                                           .memory_bytes = n_bytes,
                                           .speed = shape->speed};
    const uint32_t least = MOEC_CUDA_FEW * bundle->config.top_k,
                   n_key = moec_config_moe_count(&bundle->config) * bundle->config.n_expert;
    setup.plan.n_slot = least + shape->n_slot < n_key ? least + shape->n_slot : n_key;
    setup.plan.n_row = least * bundle->config.n_ff_expert + shape->n_row;
    MOEC_TRY(moec_gpu_neurons_create(&setup, &rig->neurons, wrong));
    MOEC_TRY(moec_gpu_backend_create(rig->model, &kernels, N_TOK, false, &rig->backend, wrong));
    MOEC_TRY(moec_forward_init(&rig->forward, rig->m->model, moec_kernels_best(), 1,
                               moec_gpu_neurons_source(rig->neurons), N_TOK, wrong));
    rig->forward.backend = moec_gpu_backend_of(rig->backend);
    rig->forward.sparsity = rig->sparsity;
    return moec_session_create(&rig->forward, N_TOK, &rig->session, wrong);
}

static enum moec_status open_rig(struct rig *rig, const struct model *m, uint64_t seed,
                                 const struct shape *shape, const struct moec_host_gpu_faults *faults,
                                 struct moec_error *wrong)
{
    const struct moec_expert_cache_options options = {
        .buffer.n_bytes = shape->n_cache * moec_record_sizes_of(m->bundle, 0).largest_bytes};
    *rig = (struct rig){.m = m, .sparsity = make_sparsity(m)};
    moec_blocks_divert(moec_host_gpu_launch);
    MUST(moec_host_gpu_open(seed, &rig->gpu, &err));
    if (faults != NULL)
        moec_host_gpu_set_faults(rig->gpu, faults);
    MUST(moec_expert_cache_create(m->bundle, &options, &rig->cache, &err));
    return make_rig(rig, shape, wrong);
}

static void close_rig(struct rig *rig)
{
    moec_session_free(rig->session);
    moec_forward_release(&rig->forward);
    moec_gpu_backend_free(rig->backend);
    moec_gpu_neurons_free(rig->neurons);
    moec_gpu_model_free(rig->model);
    moec_sparsity_free(rig->sparsity);
    rig->gpu->ops->unpin(rig->gpu, moec_expert_cache_memory(rig->cache));
    moec_expert_cache_free(rig->cache);
    const struct moec_host_gpu_counts counts = moec_host_gpu_counts(rig->gpu);
    assert_int_equal(counts.allocations + counts.pinned + counts.streams + counts.events, 0);
    rig->gpu->ops->close(rig->gpu);
}

static void assert_expected(const struct model *m, const float *logits, const char *what)
{
    assert_same_bits(logits, m->expected, (size_t)N_TOK * m->bundle->config.n_vocab, what);
}

/* Small chunks of what is gathered; pairs as they lie; whichever was measured to be sooner. */
static const struct moec_gpu_gather_speed speeds[] = {{200, 1, 1e9}, {1u << 20, 1e9, 1}, {0}};

/* ---- tests ---- */

static void logits_are_those_of_the_cpu(void **state)
{
    (void)state;
    static const char *const checkpoints[] = {
        "tests/fixtures/families/mixtral", "tests/fixtures/families/olmoe",
        "tests/fixtures/families/qwen2_moe", "tests/fixtures/families/deepseek_v3"};
    for (size_t f = 0; f < sizeof checkpoints / sizeof *checkpoints; f++) {
        struct model m;
        open_model(&m, checkpoints[f], 0.1f, f % 2 == 1);
        float *logits = make_logits(&m);
        for (uint32_t seed = 0; seed < 9; seed++) {
            const struct shape shape = {.n_slot = seed % 4,
                                        .n_row = seed % 2 * 37,
                                        .n_cache = 1 + seed * seed % 13,
                                        .speed = speeds[seed % 3],
                                        .n_threads = 1 + seed % 2};
            struct rig rig;
            MUST(open_rig(&rig, &m, seed, &shape, NULL, &err));
            MUST(read_tokens(&m, rig.session, 1 + seed % 5, seed % 4 == 3, logits, &err));
            assert_expected(&m, logits, checkpoints[f]);
            const struct moec_sparsity_counts counts = moec_sparsity_counts(rig.sparsity);
            assert_int_equal(counts.n_neuron, m.counts.n_neuron);
            assert_int_equal(counts.n_active, m.counts.n_active);
            close_rig(&rig);
        }
        free(logits);
        close_model(&m);
    }
}

/* In a pool that holds everything, the same tokens copy nothing when they come again, and the first time less
 * than whole records; more where it was sooner to copy them as they lie. */
static void what_is_there_is_not_copied_again(void **state)
{
    (void)state;
    struct model m;
    uint64_t copied[2] = {0};
    open_model(&m, "datasets/sample/model", 0.5f, false);
    float *logits = make_logits(&m);
    for (uint32_t i = 0; i < 2; i++) {
        const struct shape shape = {.n_slot = 100, .n_row = 100000, .n_cache = 40, .speed = speeds[i]};
        struct rig rig;
        MUST(open_rig(&rig, &m, i, &shape, NULL, &err));
        MUST(read_tokens(&m, rig.session, 1, false, logits, &err));
        const struct moec_gpu_experts_counters once = moec_gpu_neurons_counters(rig.neurons);
        assert_true(once.misses > 0 && once.hits > 0 && once.evictions == 0);
        copied[i] = once.copied_bytes;
        assert_true(i > 0 || copied[i] < once.record_bytes);
        moec_session_truncate(rig.session, 0);
        MUST(read_tokens(&m, rig.session, 1, false, logits, &err));
        assert_expected(&m, logits, "again");
        const struct moec_gpu_experts_counters twice = moec_gpu_neurons_counters(rig.neurons);
        assert_int_equal(twice.misses, once.misses);
        assert_int_equal(twice.copied_bytes, once.copied_bytes);
        close_rig(&rig);
    }
    assert_true(copied[0] < copied[1]);
    free(logits);
    close_model(&m);
}

/* With fewer rows than its experts come to need, a pool gives up some and takes them again. */
static void rows_are_taken_from_others(void **state)
{
    (void)state;
    struct model m;
    uint64_t n_evicted = 0;
    open_model(&m, "tests/fixtures/families/qwen2_moe", 0.05f, false);
    float *logits = make_logits(&m);
    for (uint32_t seed = 0; seed < 6; seed++) {
        const struct shape shape = {.n_slot = 100, .n_row = seed, .n_cache = 24, .speed = speeds[seed % 2]};
        struct rig rig;
        MUST(open_rig(&rig, &m, seed, &shape, NULL, &err));
        MUST(read_tokens(&m, rig.session, 1 + seed % 2, false, logits, &err));
        assert_expected(&m, logits, "few rows");
        n_evicted += moec_gpu_neurons_counters(rig.neurons).evictions;
        close_rig(&rig);
    }
    assert_true(n_evicted > 0);
    free(logits);
    close_model(&m);
}

/* A copy or a launch that is refused fails a step, or is made again; the session goes on with the same bits.
 */
static void a_step_fails_and_the_session_goes_on(void **state)
{
    (void)state;
    struct model m;
    uint32_t n_failed = 0;
    open_model(&m, "tests/fixtures/families/olmoe", 0.1f, false);
    float *logits = make_logits(&m);
    for (uint32_t i = 1; i < 90; i += 4) {
        const struct shape shape = {.n_slot = i % 3, .n_cache = 1 + i % 4, .speed = speeds[i % 2]};
        struct rig rig;
        struct moec_error wrong = {0};
        MUST(open_rig(&rig, &m, i, &shape, NULL, &err));
        const struct moec_host_gpu_faults faults = {.fail_copy_at = i % 8 == 1 ? i : 0,
                                                    .fail_launch_at = i % 8 == 5 ? i : 0};
        moec_host_gpu_set_faults(rig.gpu, &faults);
        const enum moec_status status = read_tokens(&m, rig.session, 1 + i % 3, false, logits, &wrong);
        if (status != MOEC_OK) {
            n_failed++;
            assert_status(status, MOEC_ERR_IO, wrong);
            assert_message(wrong, "refused");
            moec_session_truncate(rig.session, 0);
            MUST(read_tokens(&m, rig.session, 1 + i % 3, false, logits, &err));
        }
        assert_expected(&m, logits, "after a refusal");
        close_rig(&rig);
    }
    assert_true(n_failed >= 4);
    free(logits);
    close_model(&m);
}

static void a_lost_device_ends_the_session(void **state)
{
    (void)state;
    struct model m;
    open_model(&m, "tests/fixtures/families/olmoe", 0.1f, false);
    float *logits = make_logits(&m);
    for (uint32_t at = 1; at < 300; at += 29) {
        const struct shape shape = {.n_slot = at % 3, .n_cache = 1 + at % 4, .speed = speeds[at % 2]};
        struct rig rig;
        struct moec_error wrong = {0};
        MUST(open_rig(&rig, &m, at, &shape, NULL, &err));
        moec_host_gpu_set_faults(rig.gpu, &(struct moec_host_gpu_faults){.lose_at = at});
        enum moec_status status = MOEC_OK;
        for (int i = 0; i < 20 && status == MOEC_OK; i++) {
            moec_session_truncate(rig.session, 0);
            status = read_tokens(&m, rig.session, 1, false, logits, &wrong);
        }
        assert_status(status, MOEC_ERR_IO, wrong);
        assert_message(wrong, "lost");
        assert_int_not_equal(read_tokens(&m, rig.session, 1, false, logits, &wrong), MOEC_OK);
        close_rig(&rig);
    }
    free(logits);
    close_model(&m);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    static const struct shape shape = {.n_slot = 2, .n_cache = 2};
    struct model m;
    enum moec_status status = MOEC_ERR_MEMORY;
    open_model(&m, "tests/fixtures/families/olmoe", 0.1f, false);
    for (uint32_t at = 1; status != MOEC_OK; at++) {
        struct rig rig;
        struct moec_error wrong = {0};
        const struct moec_host_gpu_faults faults = {.fail_alloc_at = at};
        status = open_rig(&rig, &m, at, &shape, &faults, &wrong);
        if (status != MOEC_OK)
            assert_status(status, MOEC_ERR_MEMORY, wrong);
        close_rig(&rig);
        assert_true(at < 40);
    }
    close_model(&m);
}

/* Slots and rows of a plan are within its bytes, and hold what a batch of few tokens asks for. */
static void plans_fit(void **state)
{
    (void)state;
    struct model m;
    open_model(&m, "datasets/sample/model", 0.3f, false);
    const struct moec_config *config = &m.bundle->config;
    const uint64_t all_bytes = moec_gpu_pool_sizes_of(m.bundle, &(uint32_t){0}, 1).all_bytes;
    uint32_t n_made = 0;
    for (uint64_t n_bytes = 1000; n_bytes < all_bytes; n_bytes += 50000)
        for (double share = 0; share < 1; share += 0.3) {
            const struct moec_gpu_neurons_plan plan = moec_gpu_neurons_plan_of(m.bundle, share, n_bytes);
            const uint64_t places = (uint64_t)plan.n_slot * config->n_ff_expert * sizeof(uint32_t);
            if (plan.n_slot == 0)
                continue;
            n_made++;
            assert_true(plan.n_slot >= MOEC_CUDA_FEW * config->top_k);
            assert_true(plan.n_row >= MOEC_CUDA_FEW * config->top_k * config->n_ff_expert);
            assert_true(plan.whole_bytes + plan.n_slot * plan.slot_bytes + plan.n_row * plan.row_bytes +
                            places <
                        n_bytes);
        }
    assert_true(n_made > 0);
    assert_int_equal(moec_gpu_neurons_plan_of(m.bundle, 0.5, all_bytes).n_slot, 0);
    close_model(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_those_of_the_cpu),
        cmocka_unit_test(what_is_there_is_not_copied_again),
        cmocka_unit_test(rows_are_taken_from_others),
        cmocka_unit_test(a_step_fails_and_the_session_goes_on),
        cmocka_unit_test(a_lost_device_ends_the_session),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(plans_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
