/* Streaming in order gives the bytes of the file at every buffer size, timing and fault, and counts what it
 * does. */
#include "tests/unit/temporary.h"

#include "tests/unit/faulty_reader.h"
#include "tests/unit/sample_bundle.h"

#include "runtime/experts/expert_stream.h"

#define N_EXPERT 12

static const uint32_t layers[SAMPLE_MOE] = {0, 2}; /* model layers with experts */

struct fixture {
    struct sample_fixture of;
    uint64_t largest_bytes, all_bytes;
};

static void measure_slots(struct fixture *f)
{
    f->largest_bytes = f->all_bytes = 0;
    for (uint32_t key = 0; key < SAMPLE_MOE * N_EXPERT; key++) {
        const uint64_t slot = moec_record_slot_bytes(f->of.bundle, 0, key / N_EXPERT, key % N_EXPERT);
        f->largest_bytes = slot > f->largest_bytes ? slot : f->largest_bytes;
        f->all_bytes += slot;
    }
}

static struct fixture *make_fixture(uint32_t alignment)
{
    struct fixture *f = calloc(1, sizeof *f);
    sample_make(&f->of.sample, N_EXPERT, 40, 24, 31);
    f->of.sample.parts.alignment = alignment;
    sample_open(&f->of);
    measure_slots(f);
    return f;
}

static int set_up(void **state)
{
    *state = make_fixture(64);
    return 0;
}

static int set_up_aligned(void **state)
{
    *state = make_fixture(4096);
    return 0;
}

/* Records at multiples of 512, read by the unit of this device. */
static int set_up_small(void **state)
{
    *state = make_fixture(MOEC_BUNDLE_SMALL_ALIGNMENT);
    return 0;
}

/* The same, as on a device that reads 4096 bytes at least: records begin and end inside its blocks. */
static int set_up_inside(void **state)
{
    struct fixture *f = make_fixture(MOEC_BUNDLE_SMALL_ALIGNMENT);
    f->of.bundle->direct_unit = 4096;
    measure_slots(f);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    sample_close(&f->of);
    free(f);
    return 0;
}

static bool is_right(const struct sample *s, uint32_t ordinal, uint32_t expert, const struct moec_mlp *mlp)
{
    const uint8_t bits = s->assignment[ordinal * N_EXPERT + expert];
    struct moec_record_layout layout = moec_record_layout_make(&s->config, s->codecs[bits]);
    uint8_t *expected = malloc(layout.n_bytes);
    sample_record(s, &layout, 0, ordinal, expert, expected);
    const bool right = memcmp(mlp->up.data, expected, layout.n_bytes) == 0;
    free(expected);
    return right;
}

static struct moec_expert_stream *make_stream(const struct fixture *f, uint64_t buffer_bytes,
                                              const struct moec_record_io *io)
{
    struct moec_error err = {0};
    struct moec_expert_stream *stream = NULL;
    const struct moec_expert_stream_options options = {.buffer_bytes = buffer_bytes, .io = *io};
    assert_status(moec_expert_stream_create(f->of.bundle, &options, &stream, &err), MOEC_OK, err);
    assert_true(moec_expert_stream_buffer_bytes(stream) <= buffer_bytes);
    return stream;
}

/* A router's answer: every expert with probability one in `rarity`, at least one. */
static uint32_t draw_active(uint64_t *random, uint32_t rarity, uint32_t *active)
{
    uint32_t n = 0;
    for (uint32_t expert = 0; expert < N_EXPERT; expert++)
        if (random_u32(random) % rarity == 0)
            active[n++] = expert;
    if (n == 0)
        active[n++] = random_u32(random) % N_EXPERT;
    return n;
}

/* One MoE layer as the forward pass goes through it: groups of experts that are ready are held together. Ends
 * at the first failure, as a step does. */
static enum moec_status run_layer(const struct fixture *f, struct moec_expert_stream *stream,
                                  uint32_t ordinal, const uint32_t *active, uint32_t n_active,
                                  struct moec_error *err)
{
    struct moec_experts *source = moec_expert_stream_experts(stream);
    const struct moec_router_answer answer = {
        .layer = layers[ordinal], .n_tok = 1, .active = {.list = active, .n = n_active}};
    source->ops->expect(source, &answer);
    for (uint32_t next = 0; next < n_active;) {
        struct moec_mlp mlps[N_EXPERT];
        uint32_t n_held = 0;
        enum moec_status status = MOEC_OK;
        while (status == MOEC_OK && next + n_held < n_active) {
            const uint32_t expert = active[next + n_held];
            if (n_held > 0 && !source->ops->ready(source, moec_expert_request_of(layers[ordinal], expert)))
                break;
            status = source->ops->acquire(source, moec_expert_request_of(layers[ordinal], expert),
                                          &mlps[n_held], err);
            n_held += status == MOEC_OK;
        }
        for (uint32_t i = 0; i < n_held; i++) {
            assert_true(is_right(&f->of.sample, ordinal, active[next + i], &mlps[i]));
            source->ops->release(source, moec_expert_request_of(layers[ordinal], active[next + i]));
        }
        MOEC_TRY(status);
        next += n_held;
    }
    return MOEC_OK;
}

/* Tokens through all layers; returns how many experts were asked for. */
static uint64_t run_tokens(const struct fixture *f, struct moec_expert_stream *stream, uint32_t n_token,
                           uint32_t rarity, uint64_t *random)
{
    uint64_t n_demand = 0;
    for (uint32_t token = 0; token < n_token; token++)
        for (uint32_t ordinal = 0; ordinal < SAMPLE_MOE; ordinal++) {
            uint32_t active[N_EXPERT];
            struct moec_error err = {0};
            const uint32_t n = draw_active(random, rarity, active);
            assert_status(run_layer(f, stream, ordinal, active, n, &err), MOEC_OK, err);
            n_demand += n;
        }
    return n_demand;
}

static struct moec_cache_counters count_all(struct moec_expert_stream *stream)
{
    struct moec_cache_counters sum = {0};
    for (uint32_t ordinal = 0; ordinal < SAMPLE_MOE; ordinal++) {
        const struct moec_cache_counters one = moec_expert_stream_layer_counters(stream, ordinal);
        moec_cache_counters_add(&sum, &one);
    }
    return sum;
}

static uint64_t token_bytes(const struct fixture *f)
{
    uint64_t n_bytes = 0;
    for (uint32_t key = 0; key < SAMPLE_MOE * N_EXPERT; key++) {
        const struct moec_record_entry *entry =
            moec_bundle_record(f->of.bundle, 0, key / N_EXPERT, key % N_EXPERT);
        n_bytes += moec_record_place_of(f->of.bundle, entry->offset, entry->n_bytes).n_bytes;
    }
    return n_bytes;
}

static void test_expert_stream__every_buffer_gives_the_same_bytes(void **state)
{
    const struct fixture *f = *state;
    uint64_t random = 3;
    for (uint64_t bytes = f->largest_bytes; bytes < f->all_bytes + 2 * f->largest_bytes;
         bytes += f->largest_bytes / 2) {
        const struct moec_record_io io = {.depth = 1 + random_u32(&random) % 8};
        struct moec_expert_stream *stream = make_stream(f, bytes, &io);
        const uint32_t n_token = 10;
        const uint64_t n_demand = run_tokens(f, stream, n_token, 4, &random);
        const struct moec_cache_counters counters = count_all(stream);
        assert_int_equal(counters.hits + counters.late + counters.misses, n_demand);
        assert_int_equal(counters.useful_preloads, counters.hits + counters.late);
        assert_int_equal(counters.useful_preloads + counters.wasted_preloads + counters.misses <=
                             (uint64_t)n_token * SAMPLE_MOE * N_EXPERT,
                         true);
        /* Every expert of the tokens before was read, and at most one token ahead. */
        assert_true(counters.read_bytes > (n_token - 1) * token_bytes(f) - f->all_bytes);
        assert_true(counters.read_bytes <= (n_token + 1) * token_bytes(f));
        assert_true(counters.preload_bytes <= (n_token + 1) * token_bytes(f));
        moec_expert_stream_free(stream);
    }
}

/* A slow device, and one that is late now and then: nothing but the counters may differ. */
static void test_expert_stream__timing_changes_nothing(void **state)
{
    const struct fixture *f = *state;
    static const struct moec_emulation devices[] = {{50000000, 200000, 0}, {2000000000, 1000, 0}};
    for (size_t i = 0; i < 2; i++) {
        struct faults faults = {.delays = 20000, .delay_ns = 300000, .state = 5 + i};
        const struct moec_record_io io = {
            .emulation = devices[i], .depth = 4, .test_hook = {faulty_wrap, &faults}};
        struct moec_expert_stream *stream = make_stream(f, 3 * f->largest_bytes, &io);
        uint64_t random = 17;
        const uint64_t n_demand = run_tokens(f, stream, 4, 3, &random);
        const struct moec_cache_counters counters = count_all(stream);
        assert_int_equal(counters.hits + counters.late + counters.misses, n_demand);
        assert_true(atomic_load(&faults.n_delays) > 0);
        moec_expert_stream_free(stream);
    }
}

/* A record that comes whole at the third try is used, and nobody hears of the two before. */
static void test_expert_stream__bad_reads_are_tried_again(void **state)
{
    const struct fixture *f = *state;
    struct faults faults = {.bad_end = SAMPLE_MOE * N_EXPERT, .n_bad = MOEC_RECORD_TRIES - 1, .state = 29};
    const struct moec_record_io io = {.test_hook = {faulty_wrap, &faults}};
    struct moec_expert_stream *stream = make_stream(f, 5 * f->largest_bytes, &io);
    uint64_t random = 37;
    const uint64_t n_demand = run_tokens(f, stream, 20, 4, &random);
    const struct moec_cache_counters counters = count_all(stream);
    assert_int_equal(counters.hits + counters.late + counters.misses, n_demand);
    assert_true(atomic_load(&faults.n_flips) >= 2 * n_demand);
    moec_expert_stream_free(stream);
}

/* What failed its checks has failed: bytes that look right later are given to nobody. */
static void test_expert_stream__failed_records_stay_failed(void **state)
{
    const struct fixture *f = *state;
    struct faults faults = {.bad_first = 3, .bad_end = 4, .n_bad = 255, .state = 31};
    const struct moec_record_io io = {.test_hook = {faulty_wrap, &faults}};
    struct moec_expert_stream *stream = make_stream(f, f->all_bytes, &io);
    struct moec_experts *source = moec_expert_stream_experts(stream);
    const uint32_t expert = 3;
    const struct moec_router_answer answer = {
        .layer = layers[0], .n_tok = 1, .active = {.list = &expert, .n = 1}};
    struct moec_mlp mlp = {0};
    struct moec_error err = {0};
    source->ops->expect(source, &answer);
    while (!source->ops->ready(source, moec_expert_request_of(layers[0], expert)))
        (void)usleep(1000);
    assert_int_equal(atomic_load(&faults.n_flips), MOEC_RECORD_TRIES);
    *faults.flipped ^= faults.bit;
    assert_status(source->ops->acquire(source, moec_expert_request_of(layers[0], expert), &mlp, &err),
                  MOEC_ERR_CHECKSUM, err);
    assert_message(err, "layer 0 expert 3");
    assert_message(err, "read 3 times");
    moec_expert_stream_free(stream);
}

/* Records that fail at every try are reported with layer and expert, and the stream goes on from the first
 * layer. */
static void test_expert_stream__faults_are_reported(void **state)
{
    const struct fixture *f = *state;
    struct faults faults = {.errors = 13000, .flips = 16000, .delays = 500, .delay_ns = 20000, .state = 11};
    const struct moec_record_io io = {.test_hook = {faulty_wrap, &faults}};
    struct moec_expert_stream *stream = make_stream(f, 5 * f->largest_bytes, &io);
    uint64_t random = 23;
    uint32_t n_io = 0, n_damaged = 0, n_whole = 0;
    for (uint32_t token = 0; token < 600; token++) {
        struct moec_error err = {0};
        enum moec_status status = MOEC_OK;
        for (uint32_t ordinal = 0; ordinal < SAMPLE_MOE && status == MOEC_OK; ordinal++) {
            uint32_t active[N_EXPERT];
            const uint32_t n = draw_active(&random, 4, active);
            status = run_layer(f, stream, ordinal, active, n, &err);
        }
        if (status != MOEC_OK)
            assert_non_null(strstr(err.message, "expert"));
        assert_true(status == MOEC_OK || status == MOEC_ERR_IO || status == MOEC_ERR_CHECKSUM);
        n_io += status == MOEC_ERR_IO;
        n_damaged += status == MOEC_ERR_CHECKSUM;
        n_whole += status == MOEC_OK;
    }
    assert_true(n_io > 10 && n_damaged > 10 && n_whole > 100);
    moec_expert_stream_free(stream);
}

static void test_expert_stream__ends_while_reading(void **state)
{
    const struct fixture *f = *state;
    const struct moec_record_io io = {.emulation = {1000000, 1000000, 0}};
    for (int i = 0; i < 5; i++)
        moec_expert_stream_free(make_stream(f, f->all_bytes, &io)); /* hundredths of a second, not seconds */
}

static void test_expert_stream__refuses(void **state)
{
    const struct fixture *f = *state;
    struct moec_expert_stream *stream = NULL;
    struct moec_error err = {0};
    struct moec_expert_stream_options options = {.buffer_bytes = f->largest_bytes - 1};
    assert_status(moec_expert_stream_create(f->of.bundle, &options, &stream, &err), MOEC_ERR_BUDGET, err);
    err = (struct moec_error){0};
    options = (struct moec_expert_stream_options){.buffer_bytes = f->all_bytes, .copy = 3};
    assert_status(moec_expert_stream_create(f->of.bundle, &options, &stream, &err), MOEC_ERR_USAGE, err);
    const struct moec_record_io io = {0};
    stream = make_stream(f, f->all_bytes, &io);
    struct moec_experts *source = moec_expert_stream_experts(stream);
    struct moec_mlp mlp;
    err = (struct moec_error){0};
    assert_status(source->ops->acquire(source, moec_expert_request_of(0, 0), &mlp, &err), MOEC_ERR_USAGE,
                  err);
    assert_message(err, "before the router chose it");
    err = (struct moec_error){0};
    assert_status(source->ops->acquire(source, moec_expert_request_of(1, 0), &mlp, &err), MOEC_ERR_USAGE,
                  err);
    moec_expert_stream_free(stream);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_expert_stream__every_buffer_gives_the_same_bytes, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_expert_stream__every_buffer_gives_the_same_bytes, set_up_aligned,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_expert_stream__every_buffer_gives_the_same_bytes, set_up_small,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_expert_stream__every_buffer_gives_the_same_bytes, set_up_inside,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_expert_stream__timing_changes_nothing, set_up_aligned,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_expert_stream__timing_changes_nothing, set_up_inside, tear_down),
        cmocka_unit_test_setup_teardown(test_expert_stream__bad_reads_are_tried_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_expert_stream__failed_records_stay_failed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_expert_stream__faults_are_reported, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_expert_stream__ends_while_reading, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_expert_stream__refuses, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
