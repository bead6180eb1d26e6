/* The expert cache gives the bytes of the file at every budget, keeps within its arena and counts what it
 * does. */
#include "tests/unit/temporary.h"

#include "formats/base/bytes.h"
#include "tests/unit/cache_totals.h"
#include "tests/unit/sample_bundle.h"

#include "runtime/experts/expert_cache.h"
#include "runtime/storage/storage.h"

#include <fcntl.h>
#include <pthread.h>

static struct sample_fixture *make_aligned(uint32_t n_expert, uint32_t n_embd, uint32_t n_ff,
                                           bool equal_sizes, uint32_t alignment)
{
    struct sample_fixture *f = calloc(1, sizeof *f);
    sample_make(&f->sample, n_expert, n_embd, n_ff, 77);
    f->sample.parts.alignment = alignment;
    if (equal_sizes)
        memset(f->sample.assignment, 4, SAMPLE_MOE * n_expert);
    sample_open(f);
    return f;
}

static struct sample_fixture *make_fixture(uint32_t n_expert, uint32_t n_embd, uint32_t n_ff,
                                           bool equal_sizes)
{
    return make_aligned(n_expert, n_embd, n_ff, equal_sizes, MOEC_BUNDLE_ALIGNMENT);
}

static int set_up_mixed(void **state)
{
    *state = make_fixture(16, 40, 24, false);
    return 0;
}

static int set_up_equal(void **state)
{
    *state = make_fixture(8, 40, 24, true);
    return 0;
}

/* Records at multiples of 64, read by the unit of this device. */
static int set_up_small(void **state)
{
    *state = make_aligned(16, 40, 24, false, MOEC_BUNDLE_LEAST_ALIGNMENT);
    return 0;
}

/* The same, as on a device that reads 4096 bytes at least: records begin and end inside its blocks. */
static int set_up_inside(void **state)
{
    struct sample_fixture *f = make_aligned(16, 40, 24, false, MOEC_BUNDLE_SMALL_ALIGNMENT);
    f->bundle->direct_unit = 4096;
    *state = f;
    return 0;
}

static const uint32_t layers[SAMPLE_MOE] = {0, 2}; /* model layers with experts */

/* What the whole record must be; returns false on a difference. */
static bool is_right(const struct sample *s, uint32_t copy, uint32_t ordinal, uint32_t expert,
                     const struct moec_mlp *mlp)
{
    uint8_t bits = copy == 0 ? s->assignment[ordinal * s->config.n_expert + expert] : s->copy_bits[copy - 1];
    struct moec_record_layout layout = moec_record_layout_make(&s->config, s->codecs[bits]);
    uint8_t *expected = malloc(layout.n_bytes);
    sample_record(s, &layout, copy, ordinal, expert, expected);
    bool right = mlp->up.rows == s->config.n_ff_expert &&
                 memcmp(mlp->up.data, expected, layout.n_bytes) == 0 &&
                 mlp->gate.data == mlp->up.data + layout.up_bytes;
    free(expected);
    return right;
}

static struct moec_expert_cache *make_cache(const struct sample_fixture *f, uint64_t buffer_bytes,
                                            uint32_t copy, uint32_t n_sessions)
{
    struct moec_error err = {0};
    struct moec_expert_cache *cache = NULL;
    struct moec_expert_cache_options options = {
        .buffer.n_bytes = buffer_bytes, .records.copy = copy, .n_sessions = n_sessions};
    assert_status(moec_expert_cache_create(f->bundle, &options, &cache, &err), MOEC_OK, err);
    return cache;
}

static void use(const struct sample_fixture *f, struct moec_expert_cache *cache, uint32_t copy,
                uint32_t ordinal, uint32_t expert)
{
    struct moec_experts *source = moec_expert_cache_experts(cache);
    struct moec_error err = {0};
    struct moec_mlp mlp;
    assert_status(source->ops->acquire(source, moec_expert_request_of(layers[ordinal], expert), &mlp, &err),
                  MOEC_OK, err);
    assert_true(is_right(&f->sample, copy, ordinal, expert, &mlp));
    source->ops->release(source, moec_expert_request_of(layers[ordinal], expert));
}

/* ---- one session ---- */

static void test_expert_cache__every_budget_gives_the_same_bytes(void **state)
{
    struct sample_fixture *f = *state;
    struct moec_record_sizes sizes = moec_record_sizes_of(f->bundle, 0);
    uint64_t random = 5, moved = 0;
    const uint64_t step = sizes.all_bytes / 70; /* of no alignment */
    for (uint64_t bytes = sizes.largest_bytes; bytes < sizes.all_bytes + 2 * step; bytes += step | 1) {
        struct moec_expert_cache *cache = make_cache(f, bytes, 0, 1);
        uint64_t n_use = 400;
        assert_true(moec_expert_cache_buffer_bytes(cache) <= bytes);
        for (uint64_t i = 0; i < n_use; i++)
            use(f, cache, 0, random_u32(&random) % SAMPLE_MOE, random_u32(&random) % 16);
        struct moec_cache_counters counters = cache_totals(cache);
        assert_int_equal(counters.hits + counters.misses, n_use);
        assert_int_equal(counters.late, 0);
        assert_true(counters.evictions <= counters.misses);
        if (bytes >= sizes.all_bytes) {
            assert_int_equal(counters.evictions, 0);
            assert_true(counters.misses <= SAMPLE_MOE * 16);
        }
        moved += counters.moved_bytes;
        moec_expert_cache_free(cache);
    }
    assert_true(moved > 0);
}

/* Records that are held stay where they are and unchanged, whatever else comes and goes. */
static void test_expert_cache__held_records_stay(void **state)
{
    struct sample_fixture *f = *state;
    struct moec_record_sizes sizes = moec_record_sizes_of(f->bundle, 0);
    uint64_t random = 6;
    for (uint64_t bytes = 3 * sizes.largest_bytes; bytes < sizes.all_bytes; bytes += 3333) {
        struct moec_expert_cache *cache = make_cache(f, bytes, 0, 1);
        struct moec_experts *source = moec_expert_cache_experts(cache);
        assert_true(source->max_held >= 2);
        for (int round = 0; round < 40; round++) {
            struct moec_mlp held[64];
            uint32_t keys[64], n = source->max_held < 12 ? source->max_held : 12;
            struct moec_error err = {0};
            for (uint32_t i = 0; i < n; i++) {
                keys[i] = random_u32(&random) % (SAMPLE_MOE * 16);
                assert_status(source->ops->acquire(source,
                                                   moec_expert_request_of(layers[keys[i] / 16], keys[i] % 16),
                                                   &held[i], &err),
                              MOEC_OK, err);
            }
            for (uint32_t i = 0; i < n; i++)
                assert_true(is_right(&f->sample, 0, keys[i] / 16, keys[i] % 16, &held[i]));
            for (uint32_t i = 0; i < n; i++)
                source->ops->release(source, moec_expert_request_of(layers[keys[i] / 16], keys[i] % 16));
        }
        moec_expert_cache_free(cache);
    }
}

static void test_expert_cache__evicts_least_recently_used(void **state)
{
    struct sample_fixture *f = *state;
    struct moec_record_sizes sizes = moec_record_sizes_of(f->bundle, 0);
    struct moec_expert_cache *cache = make_cache(f, 3 * sizes.largest_bytes + 100, 0, 1);
    struct moec_experts *source = moec_expert_cache_experts(cache);
    assert_int_equal(source->max_held, 3); /* equal sizes: every slot can be held */
    use(f, cache, 0, 0, 0);
    use(f, cache, 0, 0, 1);
    use(f, cache, 0, 1, 2);
    use(f, cache, 0, 0, 0); /* a hit: now (0, 1) is the oldest */
    use(f, cache, 0, 1, 3);
    assert_true(source->ops->ready(source, moec_expert_request_of(0, 0)));
    assert_false(source->ops->ready(source, moec_expert_request_of(0, 1)));
    assert_true(source->ops->ready(source, moec_expert_request_of(2, 2)));
    assert_true(source->ops->ready(source, moec_expert_request_of(2, 3)));
    assert_false(source->ops->ready(source, moec_expert_request_of(1, 0))); /* a layer without experts */
    struct moec_cache_counters first = moec_expert_cache_layer_counters(cache, 0);
    struct moec_cache_counters second = moec_expert_cache_layer_counters(cache, 1);
    assert_int_equal(first.hits, 1);
    assert_int_equal(first.misses, 2);
    assert_int_equal(first.evictions, 1);
    assert_int_equal(second.misses, 2);
    assert_int_equal(second.evictions, 0);
    assert_int_equal(first.read_bytes, 2 * moec_bundle_record(f->bundle, 0, 0, 0)->n_bytes);
    assert_int_equal(cache_totals(cache).moved_bytes, 0);
    assert_true(cache_totals(cache).read_ns > 0);
    moec_expert_cache_free(cache);
}

/* Takes all experts of a layer, as so many tokens' answer asks for them. */
static void take_layer(const struct sample_fixture *f, struct moec_expert_cache *cache, uint32_t ordinal,
                       uint32_t n_tok)
{
    static const uint32_t all[] = {0, 1, 2, 3, 4, 5, 6, 7};
    struct moec_experts *source = moec_expert_cache_experts(cache);
    const struct moec_router_answer answer = {
        .layer = layers[ordinal], .n_tok = n_tok, .active = {.list = all, .n = 8}};
    source->ops->expect(source, &answer);
    for (uint32_t expert = 0; expert < 8; expert++)
        use(f, cache, 0, ordinal, expert);
}

/* With room for twelve of eight, four of the next layer come beside those that are demanded, and the others
 * as these are released. */
static void test_expert_cache__reads_on_for_a_prompt(void **state)
{
    struct sample_fixture *f = *state;
    const struct moec_record_sizes sizes = moec_record_sizes_of(f->bundle, 0);
    for (int reads_on = 0; reads_on < 2; reads_on++)
        for (uint32_t n_tok = 1; n_tok <= 100; n_tok += 99) {
            struct moec_error err = {0};
            struct moec_expert_cache *cache = NULL;
            const struct moec_expert_cache_options options = {.buffer.n_bytes =
                                                                  12 * sizes.largest_bytes + 100,
                                                              .n_sessions = 1,
                                                              .preload.reads_on = reads_on != 0};
            const bool is_ahead = reads_on != 0 && n_tok > 1;
            assert_status(moec_expert_cache_create(f->bundle, &options, &cache, &err), MOEC_OK, err);
            for (int turn = 0; turn < 3; turn++) {
                moec_expert_cache_experts(cache)->ops->begin_prompt(moec_expert_cache_experts(cache), 0,
                                                                    n_tok, NULL);
                take_layer(f, cache, 0, n_tok);
                take_layer(f, cache, 1, n_tok);
            }
            const struct moec_cache_counters first = moec_expert_cache_layer_counters(cache, 0);
            const struct moec_cache_counters second = moec_expert_cache_layer_counters(cache, 1);
            /* Four of the first two turns are still there. */
            assert_int_equal(second.useful_preloads, is_ahead ? 8 + 4 + 4 : 0);
            assert_int_equal(second.hits + second.late, is_ahead ? 3 * 8 : 2 * 4);
            assert_int_equal(second.wasted_preloads, 0);
            assert_int_equal(first.hits + first.late, is_ahead ? 3 * 8 : 2 * 4);
            moec_expert_cache_free(cache);
        }
}

static void test_expert_cache__serves_other_copies(void **state)
{
    struct sample_fixture *f = *state;
    for (uint32_t copy = 1; copy < 3; copy++) {
        struct moec_record_sizes sizes = moec_record_sizes_of(f->bundle, copy);
        struct moec_expert_cache *cache = make_cache(f, sizes.largest_bytes * 4, copy, 1);
        for (uint32_t i = 0; i < SAMPLE_MOE * 16; i++)
            use(f, cache, copy, i / 16, i % 16);
        moec_expert_cache_free(cache);
    }
}

static void test_expert_cache__sizes(void **state)
{
    struct sample_fixture *f = *state;
    struct moec_record_sizes sizes = moec_record_sizes_of(f->bundle, 0);
    const uint64_t record =
        moec_align_up(moec_bundle_record(f->bundle, 0, 0, 0)->n_bytes, MOEC_BUNDLE_ALIGNMENT);
    assert_int_equal(sizes.largest_bytes, record);
    assert_int_equal(sizes.all_bytes, SAMPLE_MOE * 8 * record);
    assert_int_equal(sizes.token_bytes, SAMPLE_MOE * 2 * record);
}

/* ---- failures ---- */

static void test_expert_cache__refuses(void **state)
{
    struct sample_fixture *f = *state;
    struct moec_error err = {0};
    struct moec_expert_cache *cache = NULL;
    struct moec_record_sizes sizes = moec_record_sizes_of(f->bundle, 0);
    struct moec_expert_cache_options options = {.buffer.n_bytes = sizes.largest_bytes - 1};
    struct moec_mlp mlp;
    assert_status(moec_expert_cache_create(f->bundle, &options, &cache, &err), MOEC_ERR_BUDGET, err);
    options = (struct moec_expert_cache_options){.buffer.n_bytes = 1 << 20, .records.copy = 3};
    err = (struct moec_error){0};
    assert_status(moec_expert_cache_create(f->bundle, &options, &cache, &err), MOEC_ERR_USAGE, err);
    assert_message(err, "no precision copy 3");
    cache = make_cache(f, sizes.all_bytes, 0, 1);
    struct moec_experts *source = moec_expert_cache_experts(cache);
    err = (struct moec_error){0};
    assert_status(source->ops->acquire(source, moec_expert_request_of(1, 0), &mlp, &err), MOEC_ERR_USAGE,
                  err);
    err = (struct moec_error){0};
    assert_status(source->ops->acquire(source, moec_expert_request_of(0, 99), &mlp, &err), MOEC_ERR_USAGE,
                  err);
    moec_expert_cache_free(cache);
}

static void flip(const char *path, uint64_t offset)
{
    uint8_t byte = 0;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
    byte ^= 16;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
    assert_int_equal(close(fd), 0);
}

/* Damage is found on the first read and on every later one, and the cache goes on afterwards. */
static void test_expert_cache__damaged_record_is_refused(void **state)
{
    struct sample_fixture *f = *state;
    struct moec_record_sizes sizes = moec_record_sizes_of(f->bundle, 0);
    struct moec_expert_cache *cache = make_cache(f, sizes.largest_bytes, 0, 1);
    struct moec_experts *source = moec_expert_cache_experts(cache);
    struct moec_mlp mlp;
    uint64_t offset = moec_bundle_record(f->bundle, 0, 1, 5)->offset + 7;
    uint32_t big = 0; /* fills the buffer alone */
    while (f->sample.assignment[big] != 16)
        big++;
    assert_true(big < 16 && f->sample.assignment[16 + 5] != 16);
    for (int round = 0; round < 3; round++) {
        struct moec_error err = {0};
        use(f, cache, 0, 1, 5);
        use(f, cache, 0, 0, big);
        flip(f->path, offset);
        assert_status(source->ops->acquire(source, moec_expert_request_of(2, 5), &mlp, &err),
                      MOEC_ERR_CHECKSUM, err);
        assert_message(err, "layer 2 expert 5");
        assert_false(source->ops->ready(source, moec_expert_request_of(2, 5)));
        use(f, cache, 0, 0, 2);
        flip(f->path, offset);
    }
    moec_expert_cache_free(cache);
}

static void test_expert_cache__truncated_file_is_an_error(void **state)
{
    struct sample_fixture *f = *state;
    struct moec_error err = {0};
    struct moec_expert_cache *cache = make_cache(f, 1 << 20, 2, 1);
    struct moec_experts *source = moec_expert_cache_experts(cache);
    struct moec_mlp mlp;
    use(f, cache, 2, 0, 0);
    assert_int_equal(truncate(f->path, (off_t)moec_bundle_record(f->bundle, 2, 1, 7)->offset + 100), 0);
    assert_status(source->ops->acquire(source, moec_expert_request_of(2, 7), &mlp, &err), MOEC_ERR_IO, err);
    assert_message(err, "layer 2 expert 7");
    use(f, cache, 2, 0, 0);
    moec_expert_cache_free(cache);
}

/* ---- several sessions ---- */

struct session {
    const struct sample_fixture *fixture;
    struct moec_experts *source;
    uint64_t random;
    uint32_t n_use;
    uint32_t n_wrong;
};

/* Holds up to max_held records at a time. cmocka may not fail outside its own thread, so differences are
 * counted. */
static void *run_session(void *argument)
{
    struct session *session = argument;
    struct moec_experts *source = session->source;
    while (session->n_use < 1500) {
        uint32_t n = 1 + random_u32(&session->random) % source->max_held, keys[16];
        struct moec_mlp held[16];
        n = n < 16 ? n : 16;
        for (uint32_t i = 0; i < n; i++) {
            keys[i] = random_u32(&session->random) % (SAMPLE_MOE * 16);
            session->n_wrong +=
                source->ops->acquire(source, moec_expert_request_of(layers[keys[i] / 16], keys[i] % 16),
                                     &held[i], NULL) != MOEC_OK;
        }
        for (uint32_t i = 0; i < n; i++) {
            session->n_wrong += !is_right(&session->fixture->sample, 0, keys[i] / 16, keys[i] % 16, &held[i]);
            source->ops->release(source, moec_expert_request_of(layers[keys[i] / 16], keys[i] % 16));
        }
        session->n_use += n;
    }
    return NULL;
}

static void test_expert_cache__several_sessions(void **state)
{
    struct sample_fixture *f = *state;
    struct moec_record_sizes sizes = moec_record_sizes_of(f->bundle, 0);
    const uint64_t budgets[] = {sizes.largest_bytes, 2 * sizes.largest_bytes + 500, 9 * sizes.largest_bytes,
                                sizes.all_bytes};
    for (size_t b = 0; b < sizeof budgets / sizeof *budgets; b++) {
        struct moec_expert_cache *cache = make_cache(f, budgets[b], 0, 4);
        struct session sessions[4];
        pthread_t threads[4];
        uint64_t n_use = 0;
        for (uint32_t i = 0; i < 4; i++) {
            sessions[i] = (struct session){
                .fixture = f, .source = moec_expert_cache_experts(cache), .random = 100 * b + i + 1};
            assert_int_equal(pthread_create(&threads[i], NULL, run_session, &sessions[i]), 0);
        }
        for (uint32_t i = 0; i < 4; i++) {
            assert_int_equal(pthread_join(threads[i], NULL), 0);
            assert_int_equal(sessions[i].n_wrong, 0);
            n_use += sessions[i].n_use;
        }
        struct moec_cache_counters counters = cache_totals(cache);
        assert_int_equal(counters.hits + counters.late + counters.misses, n_use);
        moec_expert_cache_free(cache);
    }
}

/* ---- a buffer that shrinks ---- */

static void test_expert_cache__shrinks_between_uses(void **state)
{
    struct sample_fixture *f = *state;
    struct moec_error err = {0};
    struct moec_expert_cache *cache = NULL;
    struct moec_record_sizes sizes = moec_record_sizes_of(f->bundle, 0);
    uint64_t random = 8;
    const struct moec_expert_cache_options options = {
        .buffer = {.n_bytes = sizes.all_bytes, .least_bytes = sizes.largest_bytes}};
    assert_status(moec_expert_cache_create(f->bundle, &options, &cache, &err), MOEC_OK, err);
    assert_int_equal(moec_expert_cache_experts(cache)->max_held, 1); /* as the least buffer allows */
    for (uint64_t bytes = sizes.all_bytes; bytes > sizes.largest_bytes; bytes -= bytes / 9) {
        moec_expert_cache_resize(cache, bytes);
        moec_expert_cache_resize(cache, bytes + 1);
        assert_int_equal(moec_expert_cache_buffer_bytes(cache), bytes);
        for (uint32_t i = 0; i < 60; i++)
            use(f, cache, 0, random_u32(&random) % SAMPLE_MOE, random_u32(&random) % 16);
    }
    assert_true(cache_totals(cache).evictions > 0);
    moec_expert_cache_free(cache);
    const struct moec_expert_cache_options none = {.buffer = {.n_bytes = sizes.all_bytes, .least_bytes = 1}};
    assert_status(moec_expert_cache_create(f->bundle, &none, &cache, &err), MOEC_ERR_BUDGET, err);
}

/* Nothing is lost on the way, and what was missed before is found. */
static void test_expert_cache__grows_between_uses(void **state)
{
    struct sample_fixture *f = *state;
    struct moec_error err = {0};
    struct moec_expert_cache *cache = NULL;
    struct moec_record_sizes sizes = moec_record_sizes_of(f->bundle, 0);
    const struct moec_expert_cache_options options = {.buffer = {.n_bytes = 3 * sizes.largest_bytes,
                                                                 .least_bytes = sizes.largest_bytes,
                                                                 .most_bytes = sizes.all_bytes}};
    assert_status(moec_expert_cache_create(f->bundle, &options, &cache, &err), MOEC_OK, err);
    for (uint32_t turn = 0; turn < 3; turn++) {
        const uint64_t missed = cache_totals(cache).misses;
        assert_int_equal(moec_expert_cache_buffer_bytes(cache), options.buffer.n_bytes);
        for (uint32_t e = 0; e < 32; e++) /* more than there is room for */
            use(f, cache, 0, 0, e % 16);
        assert_int_equal(cache_totals(cache).misses, missed + 32);
        moec_expert_cache_resize(cache, sizes.all_bytes + 1); /* it was not made so large */
        assert_int_equal(moec_expert_cache_buffer_bytes(cache), options.buffer.n_bytes);
        moec_expert_cache_resize(cache, sizes.all_bytes);
        assert_int_equal(moec_expert_cache_buffer_bytes(cache), sizes.all_bytes);
        for (uint32_t e = 0; e < 32; e++)
            use(f, cache, 0, 0, e % 16);
        const uint64_t once = cache_totals(cache).misses - missed - 32;
        assert_in_range(once, 1, 15); /* each that was not there, once */
        moec_expert_cache_resize(cache, options.buffer.n_bytes);
    }
    moec_expert_cache_free(cache);
}

/* While others hold records and read them, down to room for one. */
static void test_expert_cache__shrinks_under_sessions(void **state)
{
    struct sample_fixture *f = *state;
    struct moec_record_sizes sizes = moec_record_sizes_of(f->bundle, 0);
    for (uint64_t round = 0; round < 6; round++) {
        struct moec_error err = {0};
        struct moec_expert_cache *cache = NULL;
        struct session sessions[3];
        pthread_t threads[3];
        const struct moec_expert_cache_options options = {
            .buffer = {.n_bytes = sizes.all_bytes,
                       .least_bytes = (round % 2 == 0 ? 1 : 7) * sizes.largest_bytes},
            .n_sessions = 3};
        assert_status(moec_expert_cache_create(f->bundle, &options, &cache, &err), MOEC_OK, err);
        for (uint32_t i = 0; i < 3; i++) {
            sessions[i] = (struct session){
                .fixture = f, .source = moec_expert_cache_experts(cache), .random = 100 * round + i + 1};
            assert_int_equal(pthread_create(&threads[i], NULL, run_session, &sessions[i]), 0);
        }
        for (uint64_t bytes = sizes.all_bytes; bytes > options.buffer.least_bytes; bytes -= bytes / 20 + 1)
            moec_expert_cache_resize(cache,
                                     bytes > options.buffer.least_bytes ? bytes : options.buffer.least_bytes);
        moec_expert_cache_resize(cache, options.buffer.least_bytes);
        for (uint32_t i = 0; i < 3; i++) {
            assert_int_equal(pthread_join(threads[i], NULL), 0);
            assert_int_equal(sessions[i].n_wrong, 0);
        }
        assert_int_equal(moec_expert_cache_buffer_bytes(cache), options.buffer.least_bytes);
        moec_expert_cache_free(cache);
    }
}

/* ---- checks ---- */

static void test_storage__checks_records(void **state)
{
    struct sample_fixture *f = *state;
    struct moec_error err = {0};
    struct moec_storage *storage = NULL;
    uint8_t record[1 << 14];
    struct moec_storage_setup setup = {.bundle = f->bundle, .copy = 1};
    assert_status(moec_storage_create(&setup, &storage, &err), MOEC_OK, err);
    assert_status(moec_bundle_read_record(f->bundle, (struct moec_record_id){1, 1, 3}, record, &err), MOEC_OK,
                  err);
    for (int round = 0; round < 2; round++) {
        assert_status(moec_storage_check(storage, 1, 3, record, NULL, &err), MOEC_OK, err);
        record[5] ^= 1;
        assert_status(moec_storage_check(storage, 1, 3, record, NULL, &err), MOEC_ERR_CHECKSUM, err);
        assert_message(err, "layer 2 expert 3");
        record[5] ^= 1;
        err = (struct moec_error){0};
    }
    moec_storage_free(storage);
    setup.copy = 9;
    assert_status(moec_storage_create(&setup, &storage, &err), MOEC_ERR_USAGE, err);
}

#define MIXED(name) cmocka_unit_test_setup_teardown(name, set_up_mixed, sample_tear_down)
#define EQUAL(name) cmocka_unit_test_setup_teardown(name, set_up_equal, sample_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        MIXED(test_expert_cache__every_budget_gives_the_same_bytes),
        cmocka_unit_test_setup_teardown(test_expert_cache__every_budget_gives_the_same_bytes, set_up_small,
                                        sample_tear_down),
        cmocka_unit_test_setup_teardown(test_expert_cache__every_budget_gives_the_same_bytes, set_up_inside,
                                        sample_tear_down),
        MIXED(test_expert_cache__held_records_stay),
        cmocka_unit_test_setup_teardown(test_expert_cache__held_records_stay, set_up_inside,
                                        sample_tear_down),
        EQUAL(test_expert_cache__reads_on_for_a_prompt),
        EQUAL(test_expert_cache__evicts_least_recently_used),
        MIXED(test_expert_cache__serves_other_copies),
        EQUAL(test_expert_cache__sizes),
        MIXED(test_expert_cache__refuses),
        MIXED(test_expert_cache__damaged_record_is_refused),
        EQUAL(test_expert_cache__truncated_file_is_an_error),
        MIXED(test_expert_cache__several_sessions),
        cmocka_unit_test_setup_teardown(test_expert_cache__several_sessions, set_up_inside, sample_tear_down),
        MIXED(test_expert_cache__shrinks_between_uses),
        cmocka_unit_test_setup_teardown(test_expert_cache__shrinks_between_uses, set_up_inside,
                                        sample_tear_down),
        cmocka_unit_test_setup_teardown(test_expert_cache__grows_between_uses, set_up_inside,
                                        sample_tear_down),
        MIXED(test_expert_cache__shrinks_under_sessions),
        MIXED(test_storage__checks_records),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
