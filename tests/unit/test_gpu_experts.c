/* Experts in a GPU's memory: whatever work the stream does on an expert sees its record, with any pool, any
 * order in which copies and work are done, and after anything that a device can refuse. */
#include "tests/unit/temporary.h"

#include "tests/unit/sample_bundle.h"

#include "runtime/cuda/gpu_experts.h"
#include "runtime/cuda/host/host_gpu.h"
#include "runtime/experts/expert_cache.h"

#define N_EXPERT  12u
#define N_FF      40u
#define N_KEY     (SAMPLE_MOE * N_EXPERT)
#define MAX_GROUP 6u

static const uint32_t layers[SAMPLE_MOE] = {0, 2}; /* model layers with experts */

struct fixture {
    struct sample_fixture of;
    uint8_t *records[N_KEY];
    uint64_t n_bytes[N_KEY];
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    sample_make(&f->of.sample, N_EXPERT, 36, N_FF, 41);
    f->of.sample.parts.alignment = 64;
    sample_open(&f->of);
    for (uint32_t key = 0; key < N_KEY; key++) {
        const struct moec_record_layout *layout =
            moec_bundle_layout(f->of.bundle, 0, key / N_EXPERT, key % N_EXPERT);
        f->n_bytes[key] = layout->n_bytes;
        f->records[key] = malloc(layout->n_bytes);
        assert_non_null(f->records[key]);
        sample_record(&f->of.sample, layout, 0, key / N_EXPERT, key % N_EXPERT, f->records[key]);
    }
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    for (uint32_t key = 0; key < N_KEY; key++)
        free(f->records[key]);
    sample_close(&f->of);
    free(f);
    return 0;
}

/* A device with a pool in front of a cache, both of so many of the largest records. */
struct rig {
    const struct fixture *f;
    struct moec_gpu *gpu;
    struct moec_gpu_stream *compute, *other;
    struct moec_expert_cache *cache;
    struct moec_gpu_experts *experts;
    struct moec_experts *source;
    uint64_t random;
    uint32_t n_wrong; /* uses that saw something else than the record */
    uint32_t n_used, n_asked;
};

static void open_rig(struct rig *rig, const struct fixture *f, uint64_t seed, uint32_t n_pool,
                     uint32_t n_cache)
{
    *rig = (struct rig){.f = f, .random = seed * 7919 + 3};
    const struct moec_gpu_pool_sizes sizes = moec_gpu_pool_sizes_of(f->of.bundle, &(uint32_t){0}, 1);
    const struct moec_record_sizes host_sizes = moec_record_sizes_of(f->of.bundle, 0);
    /* Where prompts are read ahead, what has come is taken when somebody asks whether it is ready. */
    const struct moec_expert_cache_options options = {.buffer.n_bytes = n_cache * host_sizes.largest_bytes,
                                                      .preload.reads_on = seed % 2 == 0};
    MUST(moec_host_gpu_open(seed, &rig->gpu, &err));
    MUST(rig->gpu->ops->stream_create(rig->gpu, &rig->compute, &err));
    MUST(rig->gpu->ops->stream_create(rig->gpu, &rig->other, &err));
    MUST(moec_expert_cache_create(f->of.bundle, &options, &rig->cache, &err));
    MUST(rig->gpu->ops->pin(rig->gpu, moec_expert_cache_memory(rig->cache),
                            moec_expert_cache_buffer_bytes(rig->cache), "the cache", &err));
    const struct moec_gpu_experts_setup setup = {.gpu = rig->gpu,
                                                 .compute = rig->compute,
                                                 .behind = moec_expert_cache_experts(rig->cache),
                                                 .bundle = f->of.bundle,
                                                 .pool.n_bytes = n_pool * sizes.largest_bytes};
    MUST(moec_gpu_experts_create(&setup, &rig->experts, &err));
    rig->source = moec_gpu_experts_source(rig->experts);
}

static void close_rig(struct rig *rig)
{
    const struct moec_gpu_ops *ops = rig->gpu->ops;
    (void)ops->finish(rig->gpu, rig->compute, NULL);
    moec_gpu_experts_free(rig->experts);
    ops->unpin(rig->gpu, moec_expert_cache_memory(rig->cache));
    moec_expert_cache_free(rig->cache);
    ops->stream_free(rig->gpu, rig->compute);
    ops->stream_free(rig->gpu, rig->other);
    const struct moec_host_gpu_counts counts = moec_host_gpu_counts(rig->gpu);
    assert_int_equal(counts.allocations + counts.pinned + counts.streams + counts.events, 0);
    ops->close(rig->gpu);
}

/* A launch that uses an expert: it compares its bytes with the record. */
struct use {
    struct rig *rig;
    const uint8_t *bytes;
    uint32_t key;
};

static void use_expert(void *arguments)
{
    const struct use *use = arguments;
    const struct fixture *f = use->rig->f;
    use->rig->n_wrong += memcmp(use->bytes, f->records[use->key], f->n_bytes[use->key]) != 0;
    use->rig->n_used++;
}

static void launch_use(struct rig *rig, struct moec_gpu_stream *stream, uint32_t ordinal, uint32_t expert,
                       const struct moec_mlp *mlp)
{
    const struct use use = {rig, mlp->up.data, ordinal * N_EXPERT + expert};
    moec_host_gpu_launch(stream, use_expert, &use, sizeof use);
}

/* An answer, taken as the forward pass takes it: what is ready together, the others one by one. On an error
 * the rest is forgone. */
static enum moec_status run_answer(struct rig *rig, uint32_t ordinal, struct moec_gpu_stream *stream,
                                   struct moec_error *wrong)
{
    struct moec_experts *source = rig->source;
    uint32_t active[N_EXPERT], order[N_EXPERT], n_takers[N_EXPERT], n = 0;
    const uint32_t density = 1 + random_u32(&rig->random) % 4;
    for (uint32_t e = 0; e < N_EXPERT; e++)
        if (random_u32(&rig->random) % 4 < density || (n == 0 && e == N_EXPERT - 1)) {
            n_takers[n] = 1 + random_u32(&rig->random) % 9;
            active[n++] = e;
        }
    const struct moec_router_answer answer = {
        .layer = layers[ordinal],
        .n_tok = 10,
        .active = {.list = active,
                   .n = n,
                   .n_takers = random_u32(&rig->random) % 2 ? n_takers : NULL,
                   .order = order}};
    memcpy(order, active, n * sizeof *order);
    source->ops->expect(source, &answer);
    rig->n_asked += n;
    for (uint32_t next = 0, held = 0; next < n; next += held) {
        enum moec_status status = MOEC_OK;
        for (held = 0; next + held < n && held < MAX_GROUP && status == MOEC_OK;) {
            const struct moec_expert_request request =
                moec_expert_request_of(layers[ordinal], order[next + held]);
            struct moec_mlp mlp;
            if (held > 0 && !source->ops->ready(source, request))
                break;
            status = source->ops->acquire(source, request, &mlp, wrong);
            if (status == MOEC_OK) {
                launch_use(rig, stream, ordinal, request.expert, &mlp);
                held++;
            }
        }
        for (uint32_t i = 0; i < held; i++)
            source->ops->release(source, moec_expert_request_of(layers[ordinal], order[next + i]));
        for (uint32_t i = next + held + 1; status != MOEC_OK && i < n; i++)
            source->ops->cancel(source, moec_expert_request_of(layers[ordinal], order[i]));
        if (status != MOEC_OK)
            return status;
    }
    return MOEC_OK;
}

static void run_answers(struct rig *rig, uint32_t n, struct moec_gpu_stream *stream)
{
    for (uint32_t i = 0; i < n; i++)
        MUST(run_answer(rig, i % SAMPLE_MOE, stream, &err));
}

/* Pools and caches of a few records, of many, and of all. */
static const uint32_t sizes[][2] = {{1, 1}, {1, 3}, {2, 2}, {3, 40}, {7, 4}, {12, 12}, {40, 1}, {40, 40}};

static void work_sees_the_records(void **state)
{
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (uint32_t seed = 0; seed < 6; seed++) {
            struct rig rig;
            open_rig(&rig, *state, seed, sizes[i][0], sizes[i][1]);
            run_answers(&rig, 30, rig.compute);
            MUST(rig.gpu->ops->finish(rig.gpu, rig.compute, &err));
            const struct moec_gpu_experts_counters counters = moec_gpu_experts_counters(rig.experts);
            assert_int_equal(rig.n_wrong, 0);
            assert_int_equal(rig.n_used, rig.n_asked);
            assert_int_equal(counters.hits + counters.late + counters.misses, rig.n_asked);
            if (sizes[i][0] == 40)
                assert_true(counters.evictions == 0 && counters.misses <= N_KEY);
            else
                assert_true(counters.evictions > 0);
            close_rig(&rig);
        }
}

/* What is checked above can fail: on a stream that waits for nothing, work sees bytes that have not landed.
 */
static void work_that_does_not_wait_is_seen(void **state)
{
    uint32_t n_wrong = 0;
    for (uint32_t seed = 0; seed < 6; seed++) {
        struct rig rig;
        open_rig(&rig, *state, seed, 3, 3);
        run_answers(&rig, 30, rig.other);
        MUST(rig.gpu->ops->finish(rig.gpu, rig.other, &err));
        n_wrong += rig.n_wrong;
        close_rig(&rig);
    }
    assert_true(n_wrong > 0);
}

static void a_refused_copy_fails_one_answer(void **state)
{
    for (uint32_t at = 1; at <= 24; at += 3) {
        struct rig rig;
        uint32_t n_failed = 0;
        open_rig(&rig, *state, at, 2 + at % 5, 3);
        moec_host_gpu_set_faults(rig.gpu, &(struct moec_host_gpu_faults){.fail_copy_at = at});
        for (uint32_t i = 0; i < 20; i++) {
            struct moec_error wrong = {0};
            const enum moec_status status = run_answer(&rig, i % SAMPLE_MOE, rig.compute, &wrong);
            if (status == MOEC_OK)
                continue;
            assert_status(status, MOEC_ERR_IO, wrong);
            assert_message(wrong, "refused a copy");
            n_failed++;
        }
        assert_in_range(n_failed, 0, 1); /* 0: it was one that had been begun early, and was made again */
        MUST(rig.gpu->ops->finish(rig.gpu, rig.compute, &err));
        assert_int_equal(rig.n_wrong, 0);
        close_rig(&rig);
    }
}

static void a_lost_device_is_reported_and_all_is_given_back(void **state)
{
    for (uint32_t at = 1; at <= 60; at += 7) {
        struct rig rig;
        struct moec_error wrong = {0};
        enum moec_status status = MOEC_OK;
        open_rig(&rig, *state, at, 2 + at % 5, 3);
        moec_host_gpu_set_faults(rig.gpu, &(struct moec_host_gpu_faults){.lose_at = at});
        for (uint32_t i = 0; i < 40 && status == MOEC_OK; i++)
            status = run_answer(&rig, i % SAMPLE_MOE, rig.compute, &wrong);
        assert_status(status, MOEC_ERR_IO, wrong);
        assert_message(wrong, "lost");
        for (uint32_t i = 0; i < 4; i++)
            assert_int_not_equal(run_answer(&rig, i % SAMPLE_MOE, rig.compute, &wrong), MOEC_OK);
        assert_int_equal(rig.n_wrong, 0);
        close_rig(&rig);
    }
}

static void no_pool_is_left_behind(void **state)
{
    const struct fixture *f = *state;
    const struct moec_record_sizes host_sizes = moec_record_sizes_of(f->of.bundle, 0);
    const struct moec_expert_cache_options options = {.buffer.n_bytes = host_sizes.all_bytes};
    struct moec_gpu *gpu = NULL;
    struct moec_gpu_stream *compute = NULL;
    struct moec_expert_cache *cache = NULL;
    struct moec_gpu_experts *experts = NULL;
    struct moec_error wrong = {0};
    MUST(moec_host_gpu_open(1, &gpu, &err));
    MUST(gpu->ops->stream_create(gpu, &compute, &err));
    MUST(moec_expert_cache_create(f->of.bundle, &options, &cache, &err));
    struct moec_gpu_experts_setup setup = {.gpu = gpu,
                                           .compute = compute,
                                           .behind = moec_expert_cache_experts(cache),
                                           .bundle = f->of.bundle,
                                           .pool.n_bytes = 100};
    assert_status(moec_gpu_experts_create(&setup, &experts, &wrong), MOEC_ERR_BUDGET, wrong);
    assert_message(wrong, "largest expert");
    setup.pool.n_bytes = host_sizes.all_bytes;
    moec_host_gpu_set_faults(gpu, &(struct moec_host_gpu_faults){.fail_alloc_at = 1});
    wrong = (struct moec_error){0};
    assert_status(moec_gpu_experts_create(&setup, &experts, &wrong), MOEC_ERR_MEMORY, wrong);
    assert_message(wrong, "the pool of experts");
    const struct moec_host_gpu_counts counts = moec_host_gpu_counts(gpu);
    assert_int_equal(counts.allocations + counts.events, 0);
    moec_expert_cache_free(cache);
    gpu->ops->stream_free(gpu, compute);
    gpu->ops->close(gpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(work_sees_the_records, set_up, tear_down),
        cmocka_unit_test_setup_teardown(work_that_does_not_wait_is_seen, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_refused_copy_fails_one_answer, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_lost_device_is_reported_and_all_is_given_back, set_up, tear_down),
        cmocka_unit_test_setup_teardown(no_pool_is_left_behind, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
