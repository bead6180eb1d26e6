/* Streaming never changes a logit: any buffer, policy, predictor, thread count and timing, failing reads
 * included, give the bits of the resident run; and what is in the buffer never depends on timing.
 *
 * The first argument is the number of faults that are injected (default 10000). */
#include "tests/unit/temporary.h"

#include "tests/unit/cache_totals.h"
#include "tests/unit/faulty_reader.h"
#include "tests/unit/sample_bundle.h"

#include "runtime/experts/expert_cache.h"
#include "runtime/forward/pass/session.h"
#include "runtime/kernels/kernels.h"

#include <pthread.h>

#define N_TOK    60u
#define N_VOCAB  5u
#define N_EXPERT 16u

static uint32_t n_fault = 10000;

struct fixture {
    struct sample_fixture of;
    struct moec_model *model;
    struct moec_record_sizes sizes;
    uint32_t tokens[N_TOK];
    float expected[N_TOK][N_VOCAB];
};

static struct moec_expert_cache *make_cache(const struct fixture *f,
                                            const struct moec_expert_cache_options *options)
{
    struct moec_error err = {0};
    struct moec_expert_cache *cache = NULL;
    assert_status(moec_expert_cache_create(f->of.bundle, options, &cache, &err), MOEC_OK, err);
    return cache;
}

/* ---- running ---- */

struct run {
    const struct fixture *fixture;
    struct moec_experts *source;
    int n_threads;
    uint64_t random;
    uint32_t n_wrong;  /* logits that are not the resident run's, and errors that name no record */
    uint32_t n_failed; /* steps that reported a record and were repeated */
};

/* Reads all tokens in steps of random length. cmocka may not fail outside its own thread, so differences are
 * counted. */
static void read_tokens(struct run *run, struct moec_session *session)
{
    const struct fixture *f = run->fixture;
    for (uint32_t done = 0, n_try = 0; done < N_TOK && run->n_wrong == 0;) {
        struct moec_error err = {0};
        float logits[N_VOCAB];
        const uint32_t longest = random_u32(&run->random) % 3 == 0 ? 12 : 1;
        uint32_t n = 1 + random_u32(&run->random) % longest;
        n = n < N_TOK - done ? n : N_TOK - done;
        const uint32_t at = n - 1;
        if (moec_session_step(session, f->tokens + done, n, &at, 1, logits, &err) != MOEC_OK) {
            run->n_wrong += strstr(err.message, "record of layer") == NULL || ++n_try > 1000;
            run->n_failed++;
            continue;
        }
        done += n;
        run->n_wrong += memcmp(logits, f->expected[done - 1], sizeof logits) != 0;
    }
}

static void *run_once(void *argument)
{
    struct run *run = argument;
    struct moec_error err = {0};
    struct moec_forward forward = {0};
    struct moec_session *session = NULL;
    const uint32_t max_tokens = 1 + random_u32(&run->random) % 12;
    if (moec_forward_init(&forward, run->fixture->model, moec_kernels_best(), run->n_threads, run->source,
                          max_tokens, &err) != MOEC_OK ||
        moec_session_create(&forward, N_TOK, &session, &err) != MOEC_OK)
        run->n_wrong++;
    else
        read_tokens(run, session);
    moec_session_free(session);
    moec_forward_release(&forward);
    return NULL;
}

static void compute_expected(struct fixture *f)
{
    const struct moec_expert_cache_options options = {.buffer.n_bytes = f->sizes.all_bytes,
                                                      .keeps.is_resident = true};
    struct moec_error err = {0};
    struct moec_forward forward = {0};
    struct moec_session *session = NULL;
    struct moec_expert_cache *cache = make_cache(f, &options);
    assert_int_equal(cache_totals(cache).misses, 0);
    assert_status(moec_forward_init(&forward, f->model, &moec_kernels_scalar, 1,
                                    moec_expert_cache_experts(cache), 1, &err),
                  MOEC_OK, err);
    assert_status(moec_session_create(&forward, N_TOK, &session, &err), MOEC_OK, err);
    for (uint32_t i = 0; i < N_TOK; i++) {
        const uint32_t at = 0;
        assert_status(moec_session_step(session, &f->tokens[i], 1, &at, 1, f->expected[i], &err), MOEC_OK,
                      err);
    }
    const struct moec_cache_counters counters = cache_totals(cache);
    assert_int_equal(counters.misses + counters.late + counters.evictions, 0);
    assert_int_equal(counters.hits, N_TOK * SAMPLE_MOE * 2);
    moec_session_free(session);
    moec_forward_release(&forward);
    moec_expert_cache_free(cache);
}

static struct fixture *make_fixture(uint32_t alignment)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct moec_error err = {0};
    struct moec_dense dense = {0};
    uint64_t random = 4;
    assert_non_null(f);
    sample_make(&f->of.sample, N_EXPERT, 40, 24, 99);
    f->of.sample.parts.alignment = alignment;
    sample_open(&f->of);
    assert_status(moec_bundle_load_dense(f->of.bundle, &dense, &err), MOEC_OK, err);
    assert_status(moec_model_create(&f->of.bundle->config, &dense, &f->model, &err), MOEC_OK, err);
    f->sizes = moec_record_sizes_of(f->of.bundle, 0);
    for (uint32_t i = 0; i < N_TOK; i++)
        f->tokens[i] = random_u32(&random) % N_VOCAB;
    compute_expected(f);
    return f;
}

static int set_up(void **state)
{
    *state = make_fixture(64);
    return 0;
}

/* Of records that can be mapped. */
static int set_up_pages(void **state)
{
    *state = make_fixture(4096);
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    moec_model_free(f->model);
    sample_close(&f->of);
    free(f);
    return 0;
}

/* ---- any way of streaming ---- */

static uint64_t random_buffer(const struct fixture *f, uint64_t *random)
{
    const uint64_t least = f->sizes.largest_bytes, most = f->sizes.all_bytes + 4096;
    const uint64_t draw = random_u32(random) % (most - least);
    return least + (random_u32(random) % 3 == 0 ? draw / 8 : draw);
}

static struct moec_expert_cache_options random_options(const struct fixture *f, uint64_t *random,
                                                       struct faults *faults)
{
    uint32_t n_policy = 0, n_predictor = 0;
    while (moec_evict_policies[n_policy] != NULL)
        n_policy++;
    while (moec_predictors[n_predictor] != NULL)
        n_predictor++;
    return (struct moec_expert_cache_options){
        .buffer.n_bytes = random_buffer(f, random),
        .keeps.policy = moec_evict_policies[random_u32(random) % n_policy],
        .preload = {.predictor = moec_predictors[random_u32(random) % n_predictor],
                    .count = random_u32(random) % 4 * (random_u32(random) % 2)},
        .keeps.is_warm = random_u32(random) % 2 == 0,
        .keeps.nothing = random_u32(random) % 8 == 0,
        .records.io = {.io = f->of.bundle->alignment == 4096 ? MOEC_IO_AUTO_MAPPED : MOEC_IO_AUTO,
                       .depth = random_u32(random) % 4,
                       .engine = random_u32(random) % 2 == 0 ? MOEC_IO_ENGINE_AUTO : MOEC_IO_ENGINE_THREADS,
                       .test_hook = {faulty_wrap, faults}},
    };
}

static void test_streaming__same_bits_however_it_streams(void **state)
{
    const struct fixture *f = *state;
    uint64_t random = 21;
    uint64_t useful = 0, wasted = 0, late = 0;
    for (uint32_t i = 0; i < 60; i++) {
        struct faults faults = {.delays = 20000, .swaps = 20000, .delay_ns = 100000, .state = i + 1};
        const struct moec_expert_cache_options options = random_options(f, &random, &faults);
        struct moec_expert_cache *cache = make_cache(f, &options);
        struct run run = {.fixture = f,
                          .source = moec_expert_cache_experts(cache),
                          .n_threads = 1 + (int)(i % 2),
                          .random = i + 1};
        (void)run_once(&run);
        assert_int_equal(run.n_wrong, 0);
        assert_int_equal(run.n_failed, 0);
        const struct moec_cache_counters counters = cache_totals(cache);
        assert_true(counters.preload_bytes <= counters.read_bytes);
        assert_true(counters.preload_bytes == 0 || counters.useful_preloads + counters.wasted_preloads > 0);
        useful += counters.useful_preloads;
        wasted += counters.wasted_preloads;
        late += counters.late;
        moec_expert_cache_free(cache);
    }
    assert_true(useful > 0 && wasted > 0 && late > 0);
}

/* ---- what is decided is no matter of time ---- */

/* The same steps with reads that are slow in another way. */
static struct moec_cache_counters count_run(const struct fixture *f, struct moec_expert_cache_options options,
                                            uint64_t timing)
{
    struct faults faults = {.delays = 30000, .swaps = 30000, .delay_ns = 200000, .state = timing};
    options.records.io.test_hook.context = &faults;
    struct moec_expert_cache *cache = make_cache(f, &options);
    moec_expert_cache_wait_warm(cache);
    struct run run = {.fixture = f, .source = moec_expert_cache_experts(cache), .n_threads = 1, .random = 77};
    (void)run_once(&run);
    assert_int_equal(run.n_wrong, 0);
    const struct moec_cache_counters counters = cache_totals(cache);
    moec_expert_cache_free(cache);
    return counters;
}

static void test_streaming__decisions_know_no_time(void **state)
{
    const struct fixture *f = *state;
    uint64_t random = 31;
    for (uint32_t i = 0; i < 40; i++) {
        struct moec_expert_cache_options options = random_options(f, &random, NULL);
        if (options.preload.count == 0)
            options.preload.predictor = NULL;
        const struct moec_cache_counters a = count_run(f, options, 5 + i);
        const struct moec_cache_counters b = count_run(f, options, 500 + i);
        assert_int_equal(a.hits + a.late, b.hits + b.late);
        assert_int_equal(a.misses, b.misses);
        assert_int_equal(a.evictions, b.evictions);
        assert_int_equal(a.useful_preloads, b.useful_preloads);
        assert_int_equal(a.wasted_preloads, b.wasted_preloads);
        if (options.preload.predictor == NULL)
            assert_int_equal(a.late, 0);
    }
}

static void test_streaming__warm_start_is_waited_for(void **state)
{
    const struct fixture *f = *state;
    struct faults faults = {.delays = 65536, .delay_ns = 300000, .state = 9};
    struct moec_expert_cache_options options = {.buffer.n_bytes = f->sizes.all_bytes,
                                                .keeps.is_warm = true,
                                                .records.io = {.test_hook = {faulty_wrap, &faults}}};
    struct moec_expert_cache *cache = make_cache(f, &options);
    struct moec_experts *source = moec_expert_cache_experts(cache);
    moec_expert_cache_wait_warm(cache);
    for (uint32_t expert = 0; expert < N_EXPERT; expert++)
        assert_true(source->ops->ready(source, moec_expert_request_of(0, expert)) &&
                    source->ops->ready(source, moec_expert_request_of(2, expert)));
    assert_int_equal(cache_totals(cache).preload_bytes, 0);
    moec_expert_cache_free(cache);
    cache = make_cache(f, &options); /* and need not be */
    moec_expert_cache_free(cache);
}

/* ---- failing reads ---- */

static uint32_t n_injected(struct faults *faults)
{
    return atomic_load(&faults->n_errors) + atomic_load(&faults->n_flips);
}

/* Until enough faults have come: reads fail one time in six and more, so that some fail three times. */
static void test_streaming__faults_change_no_token(void **state)
{
    const struct fixture *f = *state;
    struct faults faults = {.errors = 12000, .flips = 8000, .delays = 2000, .swaps = 8000, .delay_ns = 50000};
    uint64_t random = 41;
    uint32_t n_failed = 0;
    faults.state = 3;
    while (n_injected(&faults) < n_fault) {
        const struct moec_expert_cache_options options = random_options(f, &random, &faults);
        struct moec_expert_cache *cache = make_cache(f, &options);
        struct run run = {.fixture = f,
                          .source = moec_expert_cache_experts(cache),
                          .n_threads = 1,
                          .random = random_u32(&random) | 1u};
        for (int i = 0; i < 3 && run.n_wrong == 0; i++)
            (void)run_once(&run);
        assert_int_equal(run.n_wrong, 0);
        n_failed += run.n_failed;
        moec_expert_cache_free(cache);
    }
    assert_true(n_failed > 0);
}

static void test_streaming__two_sessions(void **state)
{
    const struct fixture *f = *state;
    uint64_t random = 51;
    for (uint32_t i = 0; i < 30; i++) {
        struct faults faults = {.errors = i % 2 * 6000,
                                .flips = i % 2 * 6000,
                                .delays = 6000,
                                .swaps = 9000,
                                .delay_ns = 100000,
                                .state = i + 1};
        struct moec_expert_cache_options options = random_options(f, &random, &faults);
        options.n_sessions = 2;
        struct moec_expert_cache *cache = make_cache(f, &options);
        struct run runs[2];
        pthread_t threads[2];
        for (uint32_t s = 0; s < 2; s++) {
            runs[s] = (struct run){.fixture = f,
                                   .source = moec_expert_cache_experts(cache),
                                   .n_threads = 1,
                                   .random = 10 * i + s + 1};
            assert_int_equal(pthread_create(&threads[s], NULL, run_once, &runs[s]), 0);
        }
        for (uint32_t s = 0; s < 2; s++) {
            assert_int_equal(pthread_join(threads[s], NULL), 0);
            assert_int_equal(runs[s].n_wrong, 0);
            assert_true(i % 2 == 1 || runs[s].n_failed == 0);
        }
        moec_expert_cache_free(cache);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
#define TEST_PAGES(name)                                                                                     \
    {                                                                                                        \
#name "_mapped", name, set_up_pages, tear_down, NULL                                                 \
    }

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(test_streaming__same_bits_however_it_streams),
        TEST(test_streaming__decisions_know_no_time),
        TEST(test_streaming__warm_start_is_waited_for),
        TEST(test_streaming__faults_change_no_token),
        TEST(test_streaming__two_sessions),
        TEST_PAGES(test_streaming__same_bits_however_it_streams),
        TEST_PAGES(test_streaming__decisions_know_no_time),
        TEST_PAGES(test_streaming__faults_change_no_token),
        TEST_PAGES(test_streaming__two_sessions),
    };
    if (argc > 1)
        n_fault = (uint32_t)strtoul(argv[1], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
